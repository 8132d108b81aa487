"""Translate text: train the Transformer of 2017 on any parallel corpus: files, CSV, JSON lines, Parquet or TFDS.

    python experiments/translate_text.py --workdir runs/multi30k --data.root MULTI30K \\
        --data.train train.tok --data.validation val.tok --data.test test_2016_flickr.tok

The defaults are the Multi30k recipe of Wu et al. 2021, who report 41.02 BLEU on test2016 (tokenised, lowercased); it
wants an accelerator, and reached 41.46 ± 0.22 with three seeds and --batch.buckets 3, in 146 s each on an NVIDIA H200
beside other trainings (2026-11-26). A shorter variant for two CPU cores, its command in docs/translation.md, reached
40.15 in 71 minutes of CPU time, 36 of two cores (2026-11-21).

    python experiments/translate_text.py luong --workdir runs/luong --data.root MULTI30K ...

The first word says which model: `transformer`, or one of as many parameters, within 5 %. Three recur: `lstm`, which
does not look at its source, `bahdanau`, a GRU with additive attention, `luong`, an LSTM with general scores and input
feeding. `evolved` is the Evolved Transformer, with a cell for every two layers; `universal` has one wider block on each
side, applied four times, 34.38 BLEU after 1,500 steps of 2,048 tokens (2026-11-27). With 4,096 tokens a batch `luong`
reached 35.41 BLEU in 1,750 steps, `lstm` 17.59 in 1,900, one seed each (2026-11-23); docs/translation.md has the table.

    python experiments/translate_text.py finetune --init Helsinki-NLP/opus-mt-en-de --data.root MULTI30K
    python experiments/translate_text.py finetune --init t5-small --prefix "translate English to German: " ...

`finetune` goes on with a checkpoint of Marian, T5, mT5 or BART, a folder, a hub id or the `export` of a run: its
tokenizer with its marks, its start token, and what its generation_config.json says of what may be written. On an
accelerator `--model.compute bfloat16` computes in bfloat16, with parameters in float32, and `--model.remat full` saves
memory.

Two write all tokens at once: `mask_predict`, a conditional masked language model that guesses in ten passes, and
`ctc`, in one. They learn more from a teacher's words: `flax-transformer distil runs/multi30k runs/distilled` writes the
corpus, and prints the options that take it; `--warm-start runs/multi30k` begins with the teacher's parameters. On the
words of a teacher of 37.88 BLEU, `ctc` so reached 36.85 in one pass after 5,000 steps, `mask_predict` 34.96 in four
passes after 6,000 (one seed each, 2026-11-27; docs/translation.md).
"""

from typing import Any

from flax_transformer.data.text.parallel import TextCorpus
from flax_transformer.models.text.conditional_masked import mask_predict_tiny
from flax_transformer.models.text.ctc_translator import ctc_translator_tiny
from flax_transformer.models.text.evolved import evolved_transformer
from flax_transformer.models.text.recurrent import RecurrentSeq2SeqConfig, lstm_seq2seq, luong_lstm, rnn_search
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.models.text.universal import universal_tiny
from flax_transformer.nn import with_fields
from flax_transformer.objective import CTCLoss, MaskPredictLoss, TokenLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.sentence_pair import BPE, AlignedBatching, Batching, SentencePairs
from flax_transformer.task.start import StartConfig
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import ParallelSearch, Search
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig, adamw_linear


def experiment(model: Any, **parts: Any) -> Recipe:
    """Return the recipe for a model, whose vocabulary is that of the data."""
    common = {
        "data": TextCorpus(),
        "examples": SentencePairs(
            bpe=BPE(unit="word", merges=10_000), batch=Batching(tokens=8_192, buckets=8, max_tokens=128)
        ),
        "objective": TokenLoss(label_smoothing=0.1, chunk=512),
        "evaluators": (Translations(search=Search(beams=5, length_penalty=1.0), headline="tokenized_bleu"),),
        "optimizer": OptimizerConfig(learning_rate=5e-3, schedule=ScheduleConfig(name="inverse_sqrt", warmup=2_000)),
        "train": TrainConfig(steps=8_000, log_every=100, eval_every=400, checkpoint_every=400, keep=10, average=10),
    }
    return Recipe(model=model, **{**common, **parts})


def clipped(rate: float) -> OptimizerConfig:
    """Return the optimizer of a model that 5e-3, which suits `transformer` and `evolved`, throws off."""
    return OptimizerConfig(learning_rate=rate, schedule=ScheduleConfig(name="inverse_sqrt", warmup=400), clip_norm=1.0)


def recurrent(preset: RecurrentSeq2SeqConfig, reads: int, writes: int) -> Recipe:
    """Return the recipe for one layer on each side, of so many units: in each direction, and in the decoder."""
    config = with_fields(preset, embed=128, depth=1, dropout=0.3)
    sides = {
        "encoder": with_fields(config.encoder, hidden=reads, bidirectional=True),
        "decoder": with_fields(config.decoder, hidden=writes),
    }
    return experiment(with_fields(config, **sides), optimizer=clipped(3e-3))


def at_once(model: Any, objective: Any, **search: int) -> Recipe:
    """Return the recipe for a model that writes all tokens at once, and how it is searched."""
    sizes = {"tokens": 8_192, "buckets": 8, "max_tokens": 128}
    batch = AlignedBatching(**sizes, spread=model.spread) if hasattr(model, "spread") else Batching(**sizes)
    return experiment(
        model,
        examples=SentencePairs(bpe=BPE(unit="word", merges=10_000), batch=batch),
        objective=objective,
        optimizer=clipped(1e-3),
        evaluators=(Translations(search=ParallelSearch(**search), headline="tokenized_bleu"),),
    )


EXPERIMENTS = {
    "transformer": experiment(transformer_tiny(), family="marian"),
    "evolved": experiment(
        evolved_transformer(
            transformer_tiny().embedding.vocab, embed=128, heads=4, inner=320, depths=(2, 2), dropout=0.3
        )
    ),
    "finetune": experiment(
        StartConfig(),
        examples=SentencePairs(batch=Batching(tokens=4_096, buckets=8, max_tokens=128)),
        evaluators=(Translations(search=Search(beams=4, length_penalty=1.0)),),
        optimizer=adamw_linear(5e-5),
        train=TrainConfig(steps=2_000, log_every=50, eval_every=500, checkpoint_every=500),
    ),
    "lstm": recurrent(lstm_seq2seq(), 184, 368),
    "bahdanau": recurrent(rnn_search(), 160, 288),
    "luong": recurrent(luong_lstm(), 160, 320),
    "universal": experiment(with_fields(universal_tiny(), norm_position="pre"), optimizer=clipped(3e-3)),
    "mask_predict": at_once(
        mask_predict_tiny(), MaskPredictLoss(label_smoothing=0.1, chunk=512), iterations=10, beams=5
    ),
    "ctc": at_once(ctc_translator_tiny(), CTCLoss(), iterations=1, beams=1),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
