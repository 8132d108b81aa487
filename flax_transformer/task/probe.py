"""What a model of images knows of their classes, which it was never told: a linear classifier of every layer.

Axes: N images, L layers and the embedding, D width, E classes.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.data.image.palette import PaletteRows
from flax_transformer.frozen import frozen
from flax_transformer.inside import probe
from flax_transformer.metric.finite import check_finite
from flax_transformer.ops import capture
from flax_transformer.task.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.image_generation import HeldPixels
from flax_transformer.text_table import align


@frozen
class LayerProbe(Evaluator):
    """Classify test images, which are `HeldPixels`, by the mean over positions of what each layer gives, and all do.

    The classifier is a logistic regression of the standardised features of so many training images; another has the
    pixels themselves, as many as the model sees (Chen et al. 2020). Training images kept aside choose the best layer.
    """

    takes: ClassVar[type] = HeldPixels
    metric: ClassVar[str] = "probe_accuracy"

    train: int = 10_000
    """Training images at most; every fifth is kept aside to choose the penalty."""
    test: int = 10_000
    """Test images at most."""

    def __post_init__(self):
        if min(self.train, self.test) < 5:
            raise ValueError(f"train and test must be at least 5 images, got {self.train}, {self.test}")

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held = finished.opened.held
        sizes = {"train": self.train, "test": self.test}
        parts = [
            _features(finished.model, held.batches(*each), PaletteRows(palette=held.palette)) for each in sizes.items()
        ]
        names = ["pixels", "embedding", *(f"layer {n}" for n in range(1, len(parts[0][1]))), "all layers"]
        labels = [classes for *_, classes in parts]
        features = zip(*([pixels, *layers, np.concatenate(layers, axis=1)] for pixels, layers, _ in parts), strict=True)
        both = {name: probe(*each, *labels) for name, each in zip(names, features, strict=True)}
        best = max(names[1:], key=lambda name: both[name][0])
        found = {name: accuracy for name, (_, accuracy) in both.items()}
        rows = [(name, f"{100 * accuracy:.2f} %") for name, accuracy in found.items()]
        line = f"linear probe: {100 * found[best]:.2f} % by {best}, {100 * found['pixels']:.2f} % by pixels"
        metrics = {f"probe_accuracy_{name.replace(' ', '_')}": accuracy for name, accuracy in found.items()}
        return Shown(
            metrics={**metrics, "probe_accuracy": found[best]},
            lines=("", align([("linear probe of", "test accuracy"), *rows], "lr"), "", line),
        )


def _features(
    model: Any, batches: Iterable[Any], rows: PaletteRows
) -> tuple[Float[np.ndarray, "N _"], Float[np.ndarray, "L N D"], Int[np.ndarray, " N"]]:
    """Return the pixels of all images, the means over positions in each layer, and the classes."""
    pixels, layers, classes = [], [], []
    for batch in batches:
        there = batch["weights"] > 0
        pixels.append(batch["inputs"]["images"][there].reshape(there.sum(), -1).astype(np.float32))
        layers.append(np.asarray(_means(model, rows(batch)["inputs"]))[:, there])
        classes.append(batch["labels"][there])
    check_finite("features", *layers)
    return np.concatenate(pixels), np.concatenate(layers, axis=1), np.concatenate(classes)


@jax.jit
def _means(model: Any, inputs: Any) -> Float[Array, "L B D"]:
    def run(model, inputs):
        return model.hidden_states(**inputs)

    last, layers = capture(run, "hidden_states")(model, inputs)
    before = [each.reshape(-1, *last.shape) for each in layers]
    return jnp.concatenate([*before, last[None]]).mean(axis=-2)
