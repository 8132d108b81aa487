"""Summarise documents: write a summary, or choose sentences."""

from typing import Any

from flax_transformer.data.text.document import Documents
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.text.pointer import pointer_generator
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.objective import LabelLoss
from flax_transformer.objective.pointer import PointerLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.extraction import Extracts, MarkedSentences
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.summarisation import Rouge, Summaries, SummarySearch
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

SHORT = Summaries(
    vocabulary=VocabularyConfig(size=8_192),
    lowercase=True,
    source_length=96,
    target_length=14,
    tokens=4_096,
    buckets=3,
)
"""How e-mails and their subjects are read: subjects have some words alone."""


def experiment(model: Any, **parts: Any) -> Recipe:
    """Return the recipe for a model that writes summaries."""
    common = {
        "data": Documents(),
        "examples": SHORT,
        "objective": PointerLoss(label_smoothing=0.1),
        "evaluators": (Rouge(search=SummarySearch(beams=4, longest=14)),),
        "optimizer": OptimizerConfig(
            name="muon", learning_rate=3e-3, schedule=ScheduleConfig(name="cosine", warmup=200, final=0.02),
            clip_norm=1.0,
        ),
        "train": TrainConfig(
            steps=2_800, log_every=100, eval_every=400, checkpoint_every=200, keep=5, average=5
        ),
    }  # fmt: skip
    return Recipe(model=model, **{**common, **parts})


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

EXTRACT = Recipe(
    model=with_head(ENCODER, outputs=2, pool="every", dropout=0.2),
    family="bert",
    data=Documents(),
    examples=MarkedSentences(),
    objective=LabelLoss(),
    evaluators=(Extracts(),),
    optimizer=OptimizerConfig(
        name="muon", learning_rate=2e-3, schedule=ScheduleConfig(name="cosine", warmup=100, final=0.02), clip_norm=1.0
    ),
    train=TrainConfig(steps=1_500, log_every=100, eval_every=300, checkpoint_every=300, keep_best=True),
)

EXPERIMENTS = {
    "abstract": experiment(pointer_generator(embed=128, heads=4, inner=512, dropout=0.3)),
    "extract": EXTRACT,
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
