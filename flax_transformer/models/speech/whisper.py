"""Whisper (Radford et al. 2022, https://arxiv.org/abs/2212.04356): the spectrum of speech in, its text out.

The encoder reads log-mel frames through two convolutions, of which the second leaves every other position; its
positions are fixed sinusoids. The decoder is that of a `Seq2Seq`, with learned positions. Blocks are pre-norm, and keys
have no bias.

Axes: B batch, T frames, S positions of the encoder, C mel bins, D width.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.protocol import Described
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import (
    EmbeddingConfig,
    FeatureExtractorConfig,
    Precision,
    Trunk,
    TrunkConfig,
    transformer_block,
)
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least, check_rates
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, dropout, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class WhisperEncoderConfig(TrunkConfig):
    """A trunk over the frames of a spectrum, after convolutions."""

    front: FeatureExtractorConfig
    """Convolutions over time, before the encoder."""
    max_source: int = 1500
    """S, positions there are for what the convolutions give."""
    dropout: float = 0.0
    """After positions are added."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "max_source")
        check_rates(self, "dropout")
        check_widths(front=self.front.embed, block=self.block.embed)
        if self.cross or self.block.embed % 2:
            raise ValueError(
                "an encoder attends to no memory and has sinusoids of an even width, got "
                f"{'a block with cross-attention' if self.cross else f'D={self.block.embed}'}"
            )

    @property
    def frames(self) -> int:
        """T, the frames that fill the positions."""
        return self.max_source * math.prod(self.front.strides)

    def build(self, rngs: nnx.Rngs) -> "WhisperEncoder":
        """Make the encoder."""
        return WhisperEncoder(self, rngs=rngs)


def slow_sinusoids(length: int, width: int) -> Float[np.ndarray, "S D"]:
    """Return sines and then cosines of wavelengths 2π to 20000π, both ends among them."""
    half = width // 2
    rates = np.exp(-math.log(10_000) / max(half - 1, 1) * np.arange(half))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


class WhisperEncoder(Module):
    """Hidden states of a recording, of its log-mel frames [*B, T, C]."""

    layer_order = ("front", "positions", Part("trunk"))

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: WhisperEncoderConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B spectra of T frames, as many as fill the positions."""
        shape = (rows, config.frames, config.front.channels)
        return {"inputs": {"frames": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}}

    @classmethod
    def describe_batch(cls, config: WhisperEncoderConfig, batch: dict[str, Any]) -> Described:
        """Count B recordings."""
        rows, frames, _ = batch["inputs"]["frames"].shape
        return Described({"rows": rows, "frames": frames}, rows, "recordings")

    def __init__(self, cfg: WhisperEncoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.front = cfg.front.build(rngs)
        table = jnp.asarray(slow_sinusoids(cfg.max_source, cfg.block.embed), cfg.front.precision.dtypes["param_dtype"])
        self.positions = nnx.Param(table, out_sharding=(None, "embed"), eager_sharding=False)
        self.trunk = Trunk(cfg, rngs=rngs)

    def __call__(
        self,
        frames: Float[Array, "*B T C"],
        *,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Encode recordings: T frames as many as fill the positions, or fewer.

        Positions are a table that gets no gradients.

        Args:
          mask: what positions may see; everything by default.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or more frames than there are positions for.
        """
        cfg, keys = self.cfg, split_keys(key)
        x = widen(self.front(frames))
        if x.shape[-2] > cfg.max_source:
            raise ValueError(
                f"a recording must fit into the positions: {frames.shape[-2]} frames, {cfg.max_source} positions of "
                f"{cfg.frames // cfg.max_source} frames"
            )
        x = x + jax.lax.stop_gradient(widen(self.positions[...]))[: x.shape[-2]]
        x = dropout(x.astype(cfg.front.precision.residual), cfg.dropout, keys[0])
        return self.trunk(constrain(x, "batch", "length", None), mask=mask, key=keys[1])

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: silence counts as audio, so none are."""
        return None

    def hidden_states(
        self, frames: Float[Array, "*B T C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B S D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(frames, key=key)


def _whisper(
    vocab: int, *, embed: int, heads: int, depth: int, mels: int = 80, dropout: float, precision: Precision
) -> Seq2SeqConfig:
    shared = {"embed": embed, "init_std": 0.02, "precision": precision}
    block = transformer_block(
        **shared, heads=heads, inner=4 * embed, activation="gelu", norm_position="pre", dropout=dropout
    )
    attention = replace(block.attention, bias=("query", "value"), out_bias=True)
    encoder, decoder = (replace(block, attention=attention, cross=cross) for cross in (None, attention))
    front = FeatureExtractorConfig(**shared, channels=mels, windows=(3, 3), strides=(1, 2), padded=True)
    return Seq2SeqConfig(
        embedding=EmbeddingConfig(
            **shared, vocab=vocab, position="learned", max_length=448, scaled=False, dropout=dropout
        ),
        encoder=WhisperEncoderConfig(block=encoder, depth=depth, front=front, dropout=dropout),
        decoder=TrunkConfig(block=decoder, depth=depth),
    )


def whisper_tiny(vocab: int = 51_865, *, dropout: float = 0.0, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return Whisper tiny: 4+4 layers, D=384, 37.8 M parameters."""
    return _whisper(vocab, embed=384, heads=6, depth=4, dropout=dropout, precision=precision)


def whisper_base(vocab: int = 51_865, *, dropout: float = 0.0, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return Whisper base: 6+6 layers, D=512, 72.6 M parameters."""
    return _whisper(vocab, embed=512, heads=8, depth=6, dropout=dropout, precision=precision)


def whisper_small(vocab: int = 51_865, *, dropout: float = 0.0, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return Whisper small: 12+12 layers, D=768, 241.7 M parameters."""
    return _whisper(vocab, embed=768, heads=12, depth=12, dropout=dropout, precision=precision)


def whisper_medium(vocab: int = 51_865, *, dropout: float = 0.0, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return Whisper medium: 24+24 layers, D=1024, 763.9 M parameters."""
    return _whisper(vocab, embed=1024, heads=16, depth=24, dropout=dropout, precision=precision)


def whisper_large_v3(vocab: int = 51_866, *, dropout: float = 0.0, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return Whisper large-v3: 32+32 layers, D=1280, 128 mel bins, 1.54 G parameters."""
    return _whisper(vocab, embed=1280, heads=20, depth=32, mels=128, dropout=dropout, precision=precision)
