"""Which shape a wave has, by noisy recordings of three sensors: a classifier of a modality that is new to the package.

    python docs/examples/classify_series.py --workdir runs/series

A new modality is a source of rows (`Waves`), how they become batches (`LabelledSeries`), how a report shows one
(`HeldSeries`), and a model that reads them (`SeriesEncoder`); head, objective, evaluator, loop, checkpoints and report
are those of every other. It reached 97.4 % accuracy on 500 recordings, in 17 s on one core (seed 0, 2026-11-26).

Axes: B batch, T samples, C sensors, P patches, D width, E classes.
"""

from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import PIL.Image
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.data import DataSet, Table, each_once, shuffled
from flax_transformer.frozen import frozen
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.nn import ConvConfig, TrunkConfig, transformer_block
from flax_transformer.nn.module import Module
from flax_transformer.objective import LabelLoss
from flax_transformer.ops import sinusoidal
from flax_transformer.order import Part
from flax_transformer.task.classification import ImageLabels
from flax_transformer.task.experiment import launch
from flax_transformer.task.held_out import HeldSeen
from flax_transformer.task.opened import Context, Opened, stream
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.spec import Spec
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

WAVES = {"sine": np.sin, "square": lambda x: np.sign(np.sin(x)), "sawtooth": lambda x: x / np.pi % 2 - 1}


@frozen
class Waves:
    """Recordings of waves of any period and phase, each sensor as loud as it is near; always the same ones."""

    train: int = 4_000
    held_out: int = 500
    length: int = 128
    noise: float = 0.3

    def open(self) -> DataSet:
        """Make all recordings."""
        counts = zip(("train", "validation", "test"), (self.train, self.held_out, self.held_out), strict=True)
        return DataSet({split: self._split(i, count) for i, (split, count) in enumerate(counts)}, tuple(WAVES))

    def _split(self, seed: int, count: int) -> Table:
        rng = np.random.default_rng(seed)
        labels, sensors = rng.integers(len(WAVES), size=count), rng.uniform(0.2, 1.0, (count, 1, 3))
        periods, phases = rng.uniform(12, 48, (count, 1)), rng.uniform(0, 2 * np.pi, (count, 1))
        angles = 2 * np.pi * np.arange(self.length) / periods + phases
        clean = np.stack([wave(angles) for wave in WAVES.values()])[labels, np.arange(count), :, None]
        series = clean * sensors + self.noise * rng.standard_normal((count, self.length, 3))
        names = [f"recording {number}" for number in range(count)]
        return Table({"series": series.astype(np.float32), "label": labels, "name": names})


@frozen
class SeriesRows:
    """Lay out a recording a row; a row without one has weight 0."""

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        """Lay out one batch."""
        blank = np.zeros_like(next(each for each in examples if each is not None)["series"])
        return {
            "inputs": {"series": np.stack([blank if each is None else each["series"] for each in examples])},
            "labels": np.array([0 if each is None else each["label"] for each in examples], np.int32),
            "weights": np.array([each is not None for each in examples], np.float32),
        }


@frozen
class HeldSeries(HeldSeen):
    """Held-out recordings."""

    what: ClassVar[str] = "recordings"

    def seen(self, index: int) -> Any:
        """Draw the sensors, one above the other, each value a column of grey."""
        grey = np.clip(127 + 50 * self.example(index)["series"].T, 0, 255).astype(np.uint8)
        return PIL.Image.fromarray(grey.repeat(16, axis=0).repeat(2, axis=1))


@frozen
class LabelledSeries:
    """Lay out a recording a row; held out are the test's `HeldSeries`."""

    rows: int = 64

    def open(self, data: Waves, context: Context) -> Opened:
        """Open the recordings."""
        found, rows = data.open(), SeriesRows()
        once = partial(each_once, rows=context.held_rows(self.rows), collate=rows)
        return Opened(
            spec=Spec(uses=("classification",), classes=found.classes),
            batches=stream(shuffled(found.splits["train"], seed=context.seed), rows, self.rows),
            held=HeldSeries(table=found.splits["test"], transforms=()),
            validation=partial(once, found.splits["validation"]),
            test=partial(once, found.splits["test"]),
        )


@frozen
class SeriesConfig:
    """Patches of some samples, and a Transformer's blocks."""

    patch: ConvConfig = ConvConfig(channels=3, features=64, window=(8,), stride=8)
    trunk: TrunkConfig = TrunkConfig(block=transformer_block(embed=64, heads=4, inner=128), depth=2)

    def build(self, rngs: nnx.Rngs) -> "SeriesEncoder":
        """Make the encoder."""
        return SeriesEncoder(self, rngs=rngs)


class SeriesEncoder(Module):
    """Hidden states of recordings, one a patch."""

    layer_order = ("patch", Part("trunk"))

    def __init__(self, cfg: SeriesConfig, *, rngs: nnx.Rngs):
        self.cfg, self.patch, self.trunk = cfg, cfg.patch.build(rngs), cfg.trunk.build(rngs)

    def hidden_states(self, series: Float[Array, "*B T C"], *, key: Any = None) -> Float[Array, "*B P D"]:
        """Encode recordings, as an objective asks for it: the argument is the name of a batch's input."""
        x = self.patch(series)
        return self.trunk(x + sinusoidal(jnp.arange(x.shape[-2]), x.shape[-1]).astype(x.dtype), key=key)


EXPERIMENT = Recipe(
    model=ClassifierConfig(backbone=SeriesConfig(), head=HeadConfig(embed=64, outputs=len(WAVES), pool="mean")),
    data=Waves(),
    examples=LabelledSeries(),
    objective=LabelLoss(),
    evaluators=(ImageLabels(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=2e-3, schedule=ScheduleConfig(name="cosine", warmup=30), clip_norm=1.0
    ),
    train=TrainConfig(steps=300, log_every=100, eval_every=100, checkpoint_every=300),
)

if __name__ == "__main__":
    launch(EXPERIMENT)
