"""Summarise documents: write a summary, or choose sentences of the document.

    python experiments/summarise.py abstract --workdir runs/subjects --data.root AESLC \\
        --data.source email --data.summary subject --data.others ann0 ann1 ann2
    flax-transformer summarise runs/subjects letter.txt

A folder holds train, dev (or validation) and test as JSON lines, gzipped or not, `{"document": …, "summary": …}` or
with names of its own, as here; `--data.query NAME` reads a question before each document. The first word is

- `abstract`: a Transformer of two layers on each side, 256 wide, from scratch, that generates a token or copies one of
  the document (See et al. 2017): source and target share a vocabulary of subwords, so that what is copied needs no
  vocabulary of its own. `--objective.coverage 1` adds the coverage loss.
- `plain`: the same model without copying.
- `finetune --init CHECKPOINT`: any encoder-decoder of the hub, such as facebook/bart-base, or google-t5/t5-small with
  `--prefix "summarize: "`; the export is the checkpoint again.
- `extract`: an encoder that reads [CLS] sentence [SEP] [CLS] … and scores each sentence at its [CLS] (BERTSUM, Liu &
  Lapata 2019), trained on the sentences that together have the highest ROUGE-1 + ROUGE-2 with the summary, chosen
  greedily. A document longer than a row is read in several, each behind the query. It exports a
  BertForTokenClassification; `--init bert-base-uncased` begins with one.

On the subjects of AESLC's e-mails `abstract` reaches ROUGE-1/2/L 20.0 / 7.5 / 19.7 in 2,600 steps, 79 minutes of CPU
time on one core of an AMD EPYC (one seed, the first 1,600 steps on a schedule of their own, 2026-11-27); published for
a Transformer-base from scratch are 15.0 / 7.4 / 14.9.

Scores are ROUGE by `rouge-score` (pip install "flax-transformer[documents]") with 95 % intervals, for `extract` beside
the first sentences, TextRank and the best that sentences can do. docs/documents.md has commands and results.
"""

from typing import Any

from flax_transformer.data.text.document import Documents
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.pointer import pointer_generator
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.objective import LabelLoss, PointerLoss, TokenLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.extraction import Extracts, MarkedSentences
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.start import StartConfig
from flax_transformer.task.summarisation import Rouge, Summaries, SummarySearch
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig, adamw_linear


def muon(rate: float, warmup: int) -> OptimizerConfig:
    """Return Muon with a cosine schedule."""
    schedule = ScheduleConfig(name="cosine", warmup=warmup, final=0.02)
    return OptimizerConfig(name="muon", learning_rate=rate, schedule=schedule, clip_norm=1.0)


def experiment(model: Any, **parts: Any) -> Recipe:
    """Return the recipe for a model that writes short summaries, as subjects of e-mails are."""
    common = {
        "data": Documents(),
        "examples": Summaries(
            vocabulary=VocabularyConfig(size=8_192), lowercase=True, source_length=128, target_length=16, tokens=6_144,
            buckets=3,
        ),
        "objective": PointerLoss(label_smoothing=0.1),
        "evaluators": (Rouge(search=SummarySearch(beams=4, longest=16)),),
        "optimizer": muon(3e-3, 200),
        "train": TrainConfig(
            steps=2_600, log_every=100, eval_every=400, checkpoint_every=200, keep=5, average=5
        ),
    }  # fmt: skip
    return Recipe(model=model, **{**common, **parts})


POINTER = pointer_generator(embed=256, heads=4, inner=1_024, dropout=0.4)

ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=8_192, embed=128, position="learned", max_length=512, types=2, norm=1e-12, scaled=False, dropout=0.2,
        init_std=0.02,
    ),
    block=transformer_block(
        embed=128, heads=4, inner=256, norm_eps=1e-12, activation="gelu", dropout=0.2, attention_dropout=0.1,
        init_std=0.02,
    ),
    depth=2,
)  # fmt: skip

EXPERIMENTS = {
    "abstract": experiment(POINTER),
    "plain": experiment(
        Seq2SeqConfig(embedding=POINTER.embedding, encoder=POINTER.encoder, decoder=POINTER.decoder),
        objective=TokenLoss(label_smoothing=0.1),
    ),
    "finetune": experiment(
        StartConfig(),
        examples=Summaries(tokens=8_192, buckets=4),
        objective=TokenLoss(label_smoothing=0.1),
        evaluators=(Rouge(),),
        optimizer=adamw_linear(5e-5),
        train=TrainConfig(steps=2_000, log_every=50, eval_every=500, checkpoint_every=500),
    ),
    "extract": Recipe(
        model=with_head(ENCODER, outputs=2, pool="every", dropout=0.2),
        family="bert",
        data=Documents(),
        examples=MarkedSentences(),
        objective=LabelLoss(),
        evaluators=(Extracts(),),
        optimizer=muon(2e-3, 100),
        train=TrainConfig(steps=400, log_every=100, eval_every=200, checkpoint_every=200, keep_best=True),
    ),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
