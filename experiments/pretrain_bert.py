"""Pre-train an encoder as BERT was: guess masked tokens, and whether one stretch of lines follows another.

    python experiments/pretrain_bert.py                                  # sources of Python's own standard library
    python experiments/pretrain_bert.py --workdir runs/mine --data.text FILE
    python experiments/pretrain_bert.py --workdir runs/reviews --data.sentences SST2/train.tsv

Lines are the sentences, and a document is at most 50 lines of one file. Sentences that do not follow each other, one a
line of each file of `--data.sentences`, are trained on without next sentences. `export` in the run's folder is what
classify_text.py begins from by `--init`, and what guesses masked words.

    python experiments/pretrain_bert.py further --init bert-base-uncased --workdir runs/law --data.text FILE

    python experiments/pretrain_bert.py small --workdir runs/reviews --data.sentences REVIEWS --data.holdout 0.01

`small` is for an accelerator: six layers, 256 wide, 16,384 tokens, bfloat16, 14,000 steps of 128 rows of 128 tokens.
On 50,000 film reviews of IMDB, one a line, it guesses 41.2 % of masked tokens (loss 3.39) after 9 minutes on an NVIDIA
H200 beside other trainings; fine-tuned on SST-2 (classify_text.py) it has 84.6 % of the test sentences (2026-11-26).

`further` goes on with a checkpoint that guesses masked tokens, of BERT, RoBERTa, DistilBERT, ELECTRA's generator and
their like, by its own tokenizer, a folder, a hub id or the `export` of a run; next sentences are predicted by a
BertForPreTraining alone. On an accelerator `--model.compute bfloat16` computes in bfloat16, with parameters in float32,
and `--model.remat full` saves memory.

The defaults, 600 steps of 2 layers, 128 wide, take 2 minutes of CPU time (2 CPU cores, 2026-11-21) and are only a
beginning. On validation lines: loss 6.28 a masked token, 10.2 % of them guessed, mostly the frequent ones, and 58.0 %
of next sentences recognised. `--train.steps` buys more.
"""

from dataclasses import replace

from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block, with_fields
from flax_transformer.objective import MaskedLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.fill_mask import Guesses, MaskedTexts, TextLines
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.start import StartConfig
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=8_192, embed=128, position="learned", max_length=128, types=2, norm=1e-12, scaled=False,
        dropout=0.1,
    ),
    block=transformer_block(
        embed=128, heads=4, inner=512, norm_eps=1e-12, activation="gelu", dropout=0.1, attention_dropout=0.1
    ),
    depth=2,
)  # fmt: skip

EXPERIMENT = Recipe(
    model=MaskedLMConfig(encoder=ENCODER),
    family="bert",
    data=TextLines(),
    examples=MaskedTexts(vocabulary=VocabularyConfig(size=8_192), rows=32, length=64),
    objective=MaskedLoss(),
    evaluators=(Guesses(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=2e-3, schedule=ScheduleConfig(name="linear", warmup=100), weight_decay=0.01,
        clip_norm=1.0,
    ),
    train=TrainConfig(steps=600, log_every=100, eval_every=300, checkpoint_every=300),
)  # fmt: skip

SMALL = replace(
    EXPERIMENT,
    model=MaskedLMConfig(
        encoder=with_fields(ENCODER, embed=256, inner=1_024, depth=6, vocab=16_384, compute="bfloat16")
    ),
    examples=MaskedTexts(vocabulary=VocabularyConfig(size=16_384), rows=128, length=128),
    optimizer=replace(EXPERIMENT.optimizer, learning_rate=1e-3, schedule=ScheduleConfig(name="linear", warmup=1_000)),
    train=TrainConfig(steps=14_000, log_every=200, eval_every=3_500, checkpoint_every=7_000),
)

FURTHER = replace(
    EXPERIMENT,
    model=StartConfig(),
    family="",
    examples=MaskedTexts(rows=32, length=128),
    optimizer=replace(EXPERIMENT.optimizer, learning_rate=5e-5, b2=0.999, eps=1e-8),
    train=TrainConfig(steps=2_000, log_every=100, eval_every=500, checkpoint_every=500),
)

EXPERIMENTS = {"new": EXPERIMENT, "small": SMALL, "further": FURTHER}

if __name__ == "__main__":
    launch(EXPERIMENTS)
