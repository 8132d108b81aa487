"""From noise to samples: diffusion models as loops over a step function.

A sampler is a frozen value: its `grid` has what each step needs, and its `step` is a pure function, so that `denoise`
is one `lax.scan`. Noise is drawn by row, so that a row is the same in any batch.

Axes: B rows, S steps, d what a sample is made of, [H, W, C] of an image.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.ops.diffusion import SCALE, NoiseSchedule, Predicts, guide, normal_of_rows, split_noise

Predict = Callable[[Array, Array], Array]
"""`predict(x [B, *d], times [B]) -> [B, *d]`: what a model predicts of samples with noise."""
Step = dict[str, Array]
"""What one step needs: numbers by name."""


@frozen
class Sampler:
    """How samples are made of noise; a value to compile by."""

    steps: int = 50
    """S, calls of the model, or of `Heun` pairs of calls."""

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    @property
    def random(self) -> bool:
        """Whether steps add noise, which takes a key; not unless a subclass says so."""
        return False

    def grid(self) -> dict[str, Float[np.ndarray, "S"]]:
        """Return what each step needs, a number a step."""
        raise NotImplementedError

    def step(self, predict: Predict, x: Array, at: Step, noise: Array) -> Array:
        """Return samples with less noise.

        Args:
          at: the numbers of this step.
          noise: of the shape of x, to add.
        """
        raise NotImplementedError


@frozen
class VariancePreserving(Sampler):
    """Samplers of models that are trained by a `NoiseSchedule`, at times spread evenly from its last one down."""

    schedule: NoiseSchedule = NoiseSchedule()
    """What the model was trained by."""
    predicts: Predicts = "epsilon"
    """What the model predicts."""
    clip: float | None = None
    """Largest absolute value of a predicted x_0: 1 for pixels between −1 and 1; None: as predicted, as of latents."""

    def __post_init__(self):
        super().__post_init__()
        if self.steps > self.schedule.steps:
            raise ValueError(f"steps must be at most those of training, {self.schedule.steps}, got {self.steps}")

    def grid(self) -> dict[str, Float[np.ndarray, "S"]]:
        """Return times, and ᾱ before and after each step."""
        times = np.round(np.arange(self.steps, 0, -1) * (self.schedule.steps / self.steps)).astype(int) - 1
        signal = self.schedule.signal()[times]
        return {"time": times.astype(np.float64), "signal": signal, "next": np.append(signal[1:], 1.0)}

    def _parts(self, predict: Predict, x: Array, at: Step) -> tuple[Array, Array]:
        """Return x_0 and the noise as the model predicts them."""
        prediction = predict(x, jnp.broadcast_to(at["time"], x.shape[:1]))
        sample, noise = split_noise(self.predicts, prediction, x, at["signal"])
        return (sample if self.clip is None else jnp.clip(sample, -self.clip, self.clip)), noise


@frozen
class DDIM(VariancePreserving):
    """Denoising diffusion implicit models (Song et al. 2020, https://arxiv.org/abs/2010.02502)."""

    eta: float = 0.0
    """How much noise each step adds: none at 0, as much as DDPM's at 1."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be in [0, 1], got {self.eta}")

    @property
    def random(self) -> bool:
        """Whether steps add noise."""
        return self.eta > 0

    def step(self, predict: Predict, x: Array, at: Step, noise: Array) -> Array:
        """Return x of the next time."""
        sample, found = self._parts(predict, x, at)
        sigma = self.eta * jnp.sqrt(_posterior(at["signal"], at["next"]))
        rest = jnp.sqrt(jnp.maximum(1 - at["next"] - sigma**2, 0))
        return jnp.sqrt(at["next"]) * sample + rest * found + sigma * noise


@frozen
class DDPM(VariancePreserving):
    """Ancestral sampling by the posterior of the process, with its variance (Ho et al. 2020, §3.2)."""

    @property
    def random(self) -> bool:
        """Whether steps add noise: always."""
        return True

    def step(self, predict: Predict, x: Array, at: Step, noise: Array) -> Array:
        """Return a draw of x of the next time, given x and the predicted x_0."""
        sample, _ = self._parts(predict, x, at)
        signal, after = at["signal"], at["next"]
        alpha = signal / after
        mean = (jnp.sqrt(after) * (1 - alpha) * sample + jnp.sqrt(alpha) * (1 - after) * x) / (1 - signal)
        return mean + jnp.sqrt(_posterior(signal, after)) * noise


def _posterior(signal: Array, after: Array) -> Array:
    """Return the variance of x at the next time, given x_0 and x."""
    return (1 - after) / (1 - signal) * (1 - signal / after)


@frozen
class Euler(Sampler):
    """Euler's method on the velocity ε − x_0 of a rectified flow, in equal steps from t = 1 to 0."""

    def grid(self) -> dict[str, Float[np.ndarray, "S"]]:
        """Return the time before and after each step."""
        times = np.linspace(1, 0, self.steps + 1)
        return {"time": times[:-1], "next": times[1:]}

    def step(self, predict: Predict, x: Array, at: Step, noise: Array) -> Array:
        """Return x at the next time."""
        return x + (at["next"] - at["time"]) * _velocity(predict, x, at["time"])


@frozen
class Heun(Euler):
    """Heun's method: each step goes along the mean of the velocities where it begins and where Euler's would end."""

    def step(self, predict: Predict, x: Array, at: Step, noise: Array) -> Array:
        """Return x at the next time."""
        width, first = at["next"] - at["time"], _velocity(predict, x, at["time"])
        return x + width / 2 * (first + _velocity(predict, x + width * first, at["next"]))


def _velocity(predict: Predict, x: Array, time: Array) -> Array:
    return predict(x, jnp.broadcast_to(time * SCALE, x.shape[:1]))


def denoise(
    predict: Predict,
    x: Float[Array, "B *d"],
    sampler: Sampler,
    *,
    key: PRNGKeyArray | None = None,
    rows: Int[Array, "B"] | None = None,
) -> Float[Array, "B *d"]:
    """Make samples of noise, as one loop.

    Args:
      predict: the model.
      x: normal noise, as `normal_of_rows` draws it; what `predict` gives has its type.
      key: of what steps add, where the sampler draws.
      rows: numbers of the rows, by which they draw; 0 … B − 1 by default.

    Raises:
      ValueError: a sampler that draws, without a key.

    >>> to_zero = lambda x, times: x / (times / 1000)[:, None]  # of noise and data that are 0
    >>> denoise(to_zero, jnp.ones((2, 1)), Euler(steps=4)).ravel().tolist()
    [0.0, 0.0]
    """
    if sampler.random and key is None:
        raise ValueError(f"{type(sampler).__name__} draws noise at every step, which takes a key, got none")
    rows = jnp.arange(len(x)) if rows is None else rows
    grid: dict[str, Any] = {name: jnp.asarray(values, x.dtype) for name, values in sampler.grid().items()}

    def step(x: Array, each: tuple[Array, Step]) -> tuple[Array, None]:
        number, at = each
        noise = jnp.zeros_like(x)
        if sampler.random:
            noise = normal_of_rows(jax.random.fold_in(key, number), rows, x.shape[1:]).astype(x.dtype)
        return sampler.step(predict, x, at, noise).astype(x.dtype), None

    return jax.lax.scan(step, x, (jnp.arange(sampler.steps), grid))[0]


def guided(
    predict: Callable[[Array, Array, Array], Array], labels: Int[Array, "B"], null: int, scale: float
) -> Predict:
    """Return the guided prediction of classes; both predictions are made in one call of 2B rows.

    Args:
      predict: `predict(x, times, labels)`.
      labels: a class a row; the null class is none.
      null: the class that stands for none.
      scale: of guidance; at 1 the null class is not asked.
    """
    if scale == 1:
        return lambda x, times: predict(x, times, labels)

    def both(x: Array, times: Array) -> Array:
        twice = [jnp.concatenate([each, each]) for each in (x, times)]
        found = predict(*twice, jnp.concatenate([labels, jnp.full_like(labels, null)]))
        return guide(*jnp.split(found, 2), scale)

    return both
