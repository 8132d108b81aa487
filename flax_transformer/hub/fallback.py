"""Windows of speech that are written down again, at a higher temperature, where what was written looks wrong, and
left out where nobody speaks (Radford et al. 2022, https://arxiv.org/abs/2212.04356, §4.5).

Axes: B recordings, P tokens to begin with, M generated tokens at most, V vocabulary.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.hub.check import check_key
from flax_transformer.ops.sampling import row_keys

WORDS = ("temperature", "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold", "key")


@dataclass(frozen=True)
class Fallback:
    """When a window is written down again, or left out; by default never, as in `generate` of `transformers`."""

    temperatures: tuple[float, ...] = (0.0,)
    """What windows are written at, one after another while they look wrong: 0 greedily or by beams, others drawn."""
    compression_ratio: float | None = None
    """A text that compresses better repeats itself."""
    logprob: float | None = None
    """A text whose tokens have a lower log-probability on average is improbable."""
    no_speech: float | None = None
    """Such a text is left out instead where silence is more probable than this."""
    key: Any = None
    """What is drawn from."""

    def __post_init__(self):
        if not self.temperatures or not all(each >= 0 for each in self.temperatures):
            raise ValueError(f"temperature must be numbers of at least 0, got {self.temperatures}")
        if any(self.temperatures) and self.key is None:
            raise ValueError(f"temperatures above 0 need a key, key=jax.random.key(0), got {self.temperatures}")
        if self.no_speech is not None and self.logprob is None:
            raise ValueError(f"no_speech_threshold needs a logprob_threshold too, got {self.no_speech} and None")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> tuple["Fallback", dict[str, Any]]:
        """Take the words of `WORDS` out of settings; what is left is for every window."""
        said = {name: settings[name] for name in WORDS if settings.get(name) is not None}
        heat = said.get("temperature", 0.0)
        check_key(said.get("key"))
        own = cls(
            tuple(map(float, heat)) if isinstance(heat, Sequence) else (float(heat),),
            *(said.get(name) for name in WORDS[1:]),
        )
        return own, {name: value for name, value in settings.items() if name not in WORDS}

    @property
    def judges(self) -> bool:
        """Whether it depends on a text what becomes of it."""
        return (self.compression_ratio, self.logprob) != (None, None)

    def keys(self, temperature: float, rows: Int[np.ndarray, "B"], seek: Int[np.ndarray, "B"]) -> PRNGKeyArray:
        """Return a key for each recording's window: of its number, where it begins, and the temperature."""
        keys = row_keys(self.key, rows)
        place = jnp.stack([jnp.asarray(seek), jnp.full(len(rows), round(temperature * 1_000_000))], axis=-1)
        return jax.vmap(lambda key, at: jax.random.fold_in(jax.random.fold_in(key, at[0]), at[1]))(keys, place)

    def looks_wrong(self, tokens: Sequence[int], logprob: float, vocab: int) -> bool:
        """Return whether a text repeats itself, or is improbable."""
        repeats = self.compression_ratio is not None and compression_ratio(tokens, vocab) > self.compression_ratio
        return repeats or self.is_improbable(logprob)

    def is_improbable(self, logprob: float) -> bool:
        """Return whether tokens are improbable on average."""
        return self.logprob is not None and logprob < self.logprob


def compression_ratio(tokens: Sequence[int], vocab: int) -> float:
    """Return how many times shorter zlib makes tokens, each as the bytes that the vocabulary takes.

    >>> compression_ratio([7] * 100, 51_865) > 5 > compression_ratio(range(100), 51_865)
    True
    """
    width = int(math.log2(vocab) / 8) + 1
    content = b"".join(int(token).to_bytes(width, "little") for token in tokens)
    return len(content) / len(zlib.compress(content))


def mean_logprobs(
    pretrained: Any, window: Float[np.ndarray, "B C T"], begun: Int[np.ndarray, "B P"], tokens: Int[np.ndarray, "B M"],
    lengths: Int[np.ndarray, "B"], suppressed: Sequence[int],
) -> Float[np.ndarray, "B"]:  # fmt: skip
    """Return the mean log-probability of drawn tokens at temperature 1, without those that are always suppressed."""
    ids = np.concatenate([begun, tokens], axis=1)[:, :-1]
    given = {"input_features": window, "decoder_input_ids": np.where(ids < 0, 0, ids)}
    logits = pretrained(**given).logits[:, begun.shape[1] - 1 :].astype(jnp.float32)
    logits = logits.at[..., jnp.array(suppressed, int)].set(-jnp.inf)
    found = np.asarray(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0])
    real = np.arange(tokens.shape[1]) < lengths[:, None]
    return np.where(real, found, 0).sum(1) / lengths


def no_speech(
    pretrained: Any, window: Float[np.ndarray, "B C T"], begun: Int[np.ndarray, "B P"], place: int, token: int
) -> Float[Array, "B"]:
    """Return how probable it is that nobody speaks, by what the model says after the start token at a place."""
    logits = pretrained(input_features=window, decoder_input_ids=begun).logits[:, place].astype(jnp.float32)
    return jax.nn.softmax(logits)[:, token]
