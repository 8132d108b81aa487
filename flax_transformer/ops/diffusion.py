"""Noise of diffusion models: how much there is at each time, how it is added, and what a prediction says of it.

Two processes. A variance-preserving one has discrete times t and x_t = √ᾱ_t x_0 + √(1 − ᾱ_t) ε (Ho et al. 2020,
https://arxiv.org/abs/2006.11239; cosine: Nichol & Dhariwal 2021, https://arxiv.org/abs/2102.09672). A rectified flow
has times between 0, the data, and 1, noise: x_t = (1 − t) x_0 + t ε (Liu et al. 2022, https://arxiv.org/abs/2209.03003).

Axes: B rows, T times of a schedule, D width.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.ops.float32 import widen

Predicts = Literal["epsilon", "v_prediction", "sample"]
"""What a model of a variance-preserving process predicts: the noise ε, the velocity √ᾱ ε − √(1 − ᾱ) x_0 (Salimans & Ho
2022, https://arxiv.org/abs/2202.00512), or x_0."""

SCALE = 1000
"""What a model is given as the time t of a flow is t · SCALE."""
MOST_BETA = 0.999
"""Of a cosine schedule, which would end in 1."""


@frozen
class NoiseSchedule:
    """How much of the data is left at each of T times, 0 to T − 1."""

    kind: Literal["linear", "cosine"] = "linear"
    """Whether β grows linearly, or ᾱ falls as a squared cosine."""
    steps: int = 1000
    """T."""
    first: float = 1e-4
    """β of the first time, of a linear schedule."""
    last: float = 0.02
    """β of the last time, of a linear schedule."""

    def __post_init__(self):
        if self.kind not in ("linear", "cosine"):
            raise ValueError(f"kind must be linear or cosine, got {self.kind!r}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not 0 < self.first <= self.last < 1:
            raise ValueError(f"first and last must be 0 < first <= last < 1, got {self.first} and {self.last}")

    def signal(self) -> Float[np.ndarray, "T"]:
        """Return ᾱ of every time, in float64.

        >>> NoiseSchedule(steps=2, first=0.5, last=0.5).signal()
        array([0.5 , 0.25])
        """
        if self.kind == "linear":
            return np.cumprod(1 - np.linspace(self.first, self.last, self.steps))
        angle = (np.arange(self.steps + 1) / self.steps + 0.008) / 1.008 * np.pi / 2
        left = np.cos(angle) ** 2
        return np.cumprod(1 - np.minimum(1 - left[1:] / left[:-1], MOST_BETA))


def over(values: Float[Array, "*b"], x: Float[Array, "B *d"]) -> Float[Array, "B *_"]:
    """Shape a number a row, or one for all, to be multiplied with the rows."""
    return values.reshape(*values.shape, *(1,) * (x.ndim - values.ndim))


def add_noise(
    x: Float[Array, "B *d"], noise: Float[Array, "B *d"], signal: Float[Array, "B"] | Float[Array, ""]
) -> Float[Array, "B *d"]:
    """Return x_t of a variance-preserving process.

    Args:
      signal: ᾱ of each row's time.

    >>> add_noise(jnp.ones((1, 1)), jnp.full((1, 1), 2.0), jnp.array([0.64])).item()
    2.0
    """
    return over(jnp.sqrt(signal), x) * x + over(jnp.sqrt(1 - signal), x) * noise


def noise_target(
    predicts: Predicts, x: Float[Array, "B *d"], noise: Float[Array, "B *d"], signal: Float[Array, "B"]
) -> Float[Array, "B *d"]:
    """Return what a model should predict of x_t: the noise, the velocity, or x_0."""
    if predicts == "epsilon":
        return noise
    if predicts == "sample":
        return x
    return over(jnp.sqrt(signal), x) * noise - over(jnp.sqrt(1 - signal), x) * x


def split_noise(
    predicts: Predicts, prediction: Float[Array, "B *d"], x: Float[Array, "B *d"], signal: Float[Array, ""]
) -> tuple[Float[Array, "B *d"], Float[Array, "B *d"]]:
    """Return x_0 and the noise that a prediction says that x_t is made of."""
    a, b = jnp.sqrt(signal), jnp.sqrt(1 - signal)
    if predicts == "epsilon":
        return (x - b * prediction) / a, prediction
    if predicts == "sample":
        return prediction, (x - a * prediction) / b
    return a * x - b * prediction, a * prediction + b * x


def guide(conditional: Float[Array, "B *d"], unconditional: Float[Array, "B *d"], scale: float) -> Float[Array, "B *d"]:
    """Return the classifier-free guided prediction u + s (c − u) (Ho & Salimans 2022,
    https://arxiv.org/abs/2207.12598); a scale of 1 is the conditional one, 0 the unconditional.

    >>> guide(jnp.array([3.0]), jnp.array([1.0]), 2.0).tolist()
    [5.0]
    """
    return unconditional + scale * (conditional - unconditional)


def time_waves(times: Float[Array, "*B"], width: int) -> Float[Array, "*B D"]:
    """Encode times as cosines, then sines, of frequencies from 1 down to 1/10,000, as diffusers' DiT does.

    >>> time_waves(jnp.zeros(1), 4).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """
    if width % 2 or width < 4:
        raise ValueError(f"times are encoded in an even width of at least 4, got {width}")
    half = width // 2
    exponents = np.float32(-np.log(10_000)) * np.arange(half, dtype=np.float32) / np.float32(half - 1)
    angles = widen(times)[..., None] * np.exp(exponents.astype(np.float64)).astype(np.float32)
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def normal_of_rows(key: PRNGKeyArray, rows: Int[Array, "B"], shape: tuple[int, ...]) -> Float[Array, "B *d"]:
    """Draw normal numbers of rows: those of a row depend on the key and its number, not on the batch that it is in.

    >>> key = jax.random.key(0)
    >>> both = normal_of_rows(key, jnp.array([5, 7]), (2,))
    >>> bool((normal_of_rows(key, jnp.array([7]), (2,))[0] == both[1]).all())
    True
    """
    return jax.vmap(lambda row: jax.random.normal(jax.random.fold_in(key, row), shape))(rows)
