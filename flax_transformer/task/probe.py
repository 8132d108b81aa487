"""What a model of images knows of their classes, which it was never told: a linear classifier of every layer.

Axes: N images, L layers and the embedding, D width, E classes.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from flax_transformer.data.image.palette import PaletteRows
from flax_transformer.frozen import frozen
from flax_transformer.metric.finite import check_finite
from flax_transformer.ops import capture
from flax_transformer.task.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.image_generation import HeldPixels
from flax_transformer.text_table import align

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Factors on the squared weights, of which the best on images kept aside is taken."""


ROUNDS = 100
"""Of L-BFGS."""


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


def probe(
    train: Float[np.ndarray, "N D"],
    test: Float[np.ndarray, "_ D"],
    labels: Int[np.ndarray, " N"],
    truth: Int[np.ndarray, " _"],
) -> tuple[float, float]:
    """Return the accuracies of a logistic regression on training images kept aside, and on test images."""
    mean, std = train.mean(axis=0), train.std(axis=0) + 1e-6
    train, test = (jnp.asarray((each - mean) / std) for each in (train, test))
    aside = np.arange(len(train)) % 5 == 0
    classes = int(max(labels.max(), truth.max())) + 1
    weights = _regressions(train[~aside], jnp.asarray(labels[~aside]), jnp.array(PENALTIES), classes=classes)
    right = np.array([_accuracy(each, train[aside], labels[aside]) for each in weights])
    return float(right.max()), float(_accuracy(weights[right.argmax()], test, truth))


def _accuracy(weights: Float[Array, "_ E"], features: Float[Array, "N D"], labels: Int[np.ndarray, " N"]) -> Array:
    return jnp.mean(_scores(weights, features).argmax(-1) == labels)


def _scores(weights: Float[Array, "_ E"], features: Float[Array, "N D"]) -> Float[Array, "N E"]:
    return features @ weights[:-1] + weights[-1]


@partial(jax.jit, static_argnames="classes")
def _regressions(
    features: Float[Array, "N D"], labels: Int[Array, " N"], penalties: Float[Array, " P"], *, classes: int
) -> Float[Array, "P _ E"]:
    """Fit a logistic regression for each penalty; the last row of the weights is the bias."""
    optimizer = optax.lbfgs()

    def fit(penalty):
        def loss(weights):
            entropy = optax.softmax_cross_entropy_with_integer_labels(_scores(weights, features), labels).mean()
            return entropy + penalty * jnp.sum(jnp.square(weights[:-1]))

        def improve(carry, _):
            weights, state = carry
            value, slope = optax.value_and_grad_from_state(loss)(weights, state=state)
            updates, state = optimizer.update(slope, state, weights, value=value, grad=slope, value_fn=loss)
            return (optax.apply_updates(weights, updates), state), None

        start = jnp.zeros((features.shape[1] + 1, classes))
        return jax.lax.scan(improve, (start, optimizer.init(start)), length=ROUNDS)[0][0]

    return jax.lax.map(fit, penalties)


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
