"""Distil a smaller encoder of texts from a larger one: DistilBERT's way, by labels and soft targets, by layers.

    python experiments/distil_text.py pretrain --init runs/reviews/export --teacher runs/reviews/export \
        --model.layers 1 3 --data.sentences SST2/train.tsv --workdir runs/distilled
    python experiments/distil_text.py task --init runs/sst2/export --teacher runs/sst2/export \
        --model.layers 1 3 --data.root SST2 --data.names negative positive --workdir runs/student

`--init` is what the student begins with, `--model.layers` which of its layers it has, from 0 on: the teacher's own, or
any checkpoint with the teacher's tokenizer. Without `--teacher` the same student learns from the labels alone.

`pretrain` is for a teacher that predicts masked tokens (Sanh et al. 2019): its distribution over them at a temperature
of 2, the tokens themselves, and the cosine of the last hidden states, with the weights 5, 2 and 1 over 7.
The others are for a classifier. `task`: its distribution at a temperature, and the labels (Hinton et al. 2015); by
`--objective.weight 0` the labels alone.
`tinybert`: beside, the hidden states and the attention scores of every layer by a map (Jiao et al. 2020), here of a
student of two layers and a teacher of four; `--objective.terms.0.layers` and `--objective.terms.1.layers` say others.
`minilm`: beside, the attention and the value relations of the last layer (Wang et al. 2020). `new`, `new-tinybert` and
`new-minilm` are the same for a new student, which has the teacher's tokenizer.

Accuracy on SST-2's test sentences, in percent, means and standard deviations of the seeds 0, 1 and 2, one core of an
AMD EPYC. With a teacher of six layers, pretrained on film reviews, of 84.51, and students of three (2026-11-27):
`task`, with `--model.layers 1 3 5`, 83.56 ± 0.44 taught and 82.45 ± 0.50 by the labels alone, `new` 80.78 ± 0.69 and
78.60 ± 0.89. With a weak teacher of four layers, of 80.40, and students of two (2026-11-26) soft targets add nothing:
80.76 ± 0.33 and 81.44 ± 0.43, `new` 79.34 ± 0.35 and 79.15 ± 0.55 (docs/compression.md has the commands).
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import with_head
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.objective import (
    AttentionRelations,
    AttentionScoreError,
    CosineEmbedding,
    DistilLoss,
    HiddenStateError,
    LayerLoss,
    MaskedDistilLoss,
)
from flax_transformer.task.classification import Labels
from flax_transformer.task.experiment import launch
from flax_transformer.task.fill_mask import Guesses, TextLines
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.start import StartConfig
from flax_transformer.task.text_distillation import TaughtMaskedTexts, TaughtTexts
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

PRETRAIN = Recipe(
    model=StartConfig(),
    data=TextLines(),
    examples=TaughtMaskedTexts(rows=32, length=64),
    objective=LayerLoss(of=MaskedDistilLoss(weight=5 / 7, temperature=2.0), terms=(CosineEmbedding(weight=1 / 7),)),
    evaluators=(Guesses(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=5e-4, schedule=ScheduleConfig(name="linear", warmup=50), weight_decay=0.01,
        b2=0.98, eps=1e-6, clip_norm=5.0,
    ),
    train=TrainConfig(steps=600, log_every=100, eval_every=300, checkpoint_every=300),
)  # fmt: skip

SOFT = DistilLoss(kind="soft", weight=0.9, temperature=2.0)

TASK = Recipe(
    model=StartConfig(),
    data=LabelledText(),
    examples=TaughtTexts(rows=64, length=64, hide=0.1),
    objective=SOFT,
    evaluators=(Labels(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=5e-4, schedule=ScheduleConfig(name="cosine", warmup=50), weight_decay=0.01,
        clip_norm=1.0,
    ),
    train=TrainConfig(steps=300, log_every=50, eval_every=100, checkpoint_every=300, ema=0.99, monitor="accuracy",
                      keep_best=True),
)  # fmt: skip

STUDENT = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=8_192, embed=128, position="learned", max_length=128, types=2, norm=1e-12, scaled=False, dropout=0.3,
        init_std=0.02,
    ),
    block=transformer_block(
        embed=128, heads=4, inner=256, norm_eps=1e-12, activation="gelu", dropout=0.3, attention_dropout=0.1,
        init_std=0.02,
    ),
    depth=2,
)  # fmt: skip


def by_layers(recipe: Recipe, *terms: Any) -> Recipe:
    """Return the recipe of a task with terms of layers beside."""
    return replace(recipe, objective=LayerLoss(of=SOFT, terms=terms))


NEW = replace(
    TASK,
    model=with_head(STUDENT, outputs=2, pool="first", dense="tanh", dropout=0.3),
    family="bert",
    optimizer=replace(TASK.optimizer, learning_rate=2e-3),
)
TINY = (HiddenStateError(layers=((0, 0), (1, 2), (2, 4))), AttentionScoreError(layers=((0, 1), (1, 3))))
MINI = AttentionRelations(relations=("query-key", "value-value"))

EXPERIMENTS = {
    "pretrain": PRETRAIN,
    "task": TASK,
    "tinybert": by_layers(TASK, *TINY),
    "minilm": by_layers(TASK, MINI),
    "new": NEW,
    "new-tinybert": by_layers(NEW, *TINY),
    "new-minilm": by_layers(NEW, MINI),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
