"""The masked autoencoder: an encoder sees a quarter of the patches, a small decoder gives back the rest.

Source: He et al. 2021 (https://arxiv.org/abs/2111.06377).

Axes: B batch, H W height and width in pixels, C channels, P patches, T the class token and the patches that are kept,
D E the widths of encoder and decoder.
"""

from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.vision.vit import FLOAT32, ViT, ViTConfig, fixed_positions, vit_encoder
from flax_transformer.nn import Precision, Trunk, TrunkConfig, transformer_block, with_fields
from flax_transformer.nn.config import check_rates
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import widen
from flax_transformer.ops.resample import resample_positions
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class MAEEncoderConfig(ViTConfig):
    """An encoder of some of an image's patches."""

    mask_ratio: float = 0.75
    """How many of the patches are masked."""

    def __post_init__(self):
        super().__post_init__()
        check_rates(self, "mask_ratio")
        if self.tokens != ("class_token",):
            raise ValueError(f"a masked autoencoder has a class_token alone, got tokens={self.tokens}")

    def build(self, rngs: nnx.Rngs) -> "MAEEncoder":
        """Make the encoder."""
        return MAEEncoder(self, rngs=rngs)


class Masked(NamedTuple):
    """Hidden states of the patches that are kept, and where they belong."""

    hidden: Float[Array, "*B T D"]
    masked: Bool[Array, "*B P"]
    """Which patches are not among them."""
    restore_order: Int[Array, "*B P"]
    """Where each patch is in the order in which the kept ones come first."""


class MAEEncoder(ViT):
    """Images in, hidden states of the class token and of the patches that are kept out."""

    def encode(
        self, images: Float[Array, "*B H W C"], noise: Float[Array, "*B P"] | None = None, *,
        key: PRNGKeyArray | None = None,
    ) -> Masked:  # fmt: skip
        """Encode the patches with the least noise; without noise all of them, in their order, as a ViT does.

        Args:
          noise: a number for each patch, all different.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        x = self.embed(images, key=keys[0])
        if noise is None:
            restore_order = jnp.broadcast_to(jnp.arange(x.shape[-2] - 1), (*x.shape[:-2], x.shape[-2] - 1))
            return Masked(self.trunk(x, key=keys[1]), jnp.zeros(restore_order.shape, bool), restore_order)
        kept = int((x.shape[-2] - 1) * (1 - self.cfg.mask_ratio))
        order = jnp.argsort(noise, axis=-1)
        restore_order = jnp.argsort(order, axis=-1)
        first = jnp.pad(order[..., :kept] + 1, [(0, 0)] * (order.ndim - 1) + [(1, 0)])
        x = self.trunk(jnp.take_along_axis(x, first[..., None], axis=-2), key=keys[1])
        return Masked(x, restore_order >= kept, restore_order)


@frozen
class MAEConfig:
    """An encoder of some patches, a decoder of all."""

    encoder: MAEEncoderConfig
    """The encoder of the patches that are not masked."""
    decoder: TrunkConfig
    """The trunk that restores all patches."""

    def build(self, rngs: nnx.Rngs) -> "MAE":
        """Make the model."""
        return MAE(self, rngs=rngs)


class MAE(ReadsImages, Module):
    """Images in, the pixels of all patches out, from those that are kept: `model.output(model.hidden_states(…))`."""

    layer_order = ("mask_token", "positions", Part("encoder"), "project", Part("decoder"), "output")

    @classmethod
    def example_batch(cls, config: MAEConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B images, and noise for their patches."""
        batch, (high, wide) = super().example_batch(config.encoder, rows), config.encoder.patches.grid
        noise = np.random.default_rng(1).random((rows, high * wide), dtype=np.float32)
        return {"inputs": {**batch["inputs"], "noise": noise}}

    def __init__(self, cfg: MAEConfig, *, rngs: nnx.Rngs):
        patches, embed, residual = cfg.encoder.patches, cfg.decoder.block.embed, cfg.decoder.block.residual
        kinds = residual.precision.dtypes
        self.cfg = cfg
        self.encoder = MAEEncoder(cfg.encoder, rngs=rngs)
        self.project = Linear(patches.embed, embed, rngs=rngs, **kinds)
        values = nnx.initializers.normal(0.02)(rngs.params(), (1, embed), kinds["param_dtype"])
        self.mask_token = nnx.Param(values, out_sharding=(None, "embed"), eager_sharding=False)
        table = fixed_positions(with_fields(patches, embed=embed), 1)
        self.positions = nnx.Param(table, out_sharding=(None, "embed"), eager_sharding=False)
        self.decoder = Trunk(cfg.decoder, rngs=rngs)
        self.output = Linear(embed, patches.patch[0] * patches.patch[1] * patches.channels, rngs=rngs, **kinds)

    def encode(
        self, images: Float[Array, "*B H W C"], noise: Float[Array, "*B P"] | None = None, *,
        key: PRNGKeyArray | None = None,
    ) -> Masked:  # fmt: skip
        """Encode the patches with the least noise, as `MAEEncoder.encode` does."""
        return self.encoder.encode(images, noise, key=key)

    def decode(self, encoded: Masked, *, key: PRNGKeyArray | None = None) -> Float[Array, "*B P E"]:
        """Return hidden states of all patches, of which `output` makes their pixels, [height, width, C] each, flat.

        Args:
          key: for dropout; None means none.
        """
        x = self.project(encoded.hidden)
        token, patches = jnp.split(x, [1], axis=-2)
        P = encoded.restore_order.shape[-1]
        rest = jnp.broadcast_to(
            self.mask_token[...].astype(x.dtype), (*x.shape[:-2], P - patches.shape[-2], x.shape[-1])
        )
        patches = jnp.concatenate([patches, rest], axis=-2)
        patches = jnp.take_along_axis(patches, encoded.restore_order[..., None], axis=-2)
        x = widen(jnp.concatenate([token, patches], axis=-2)) + self._positions(P)
        x = self.decoder(x.astype(token.dtype), key=key)
        return x[..., 1:, :]

    def hidden_states(
        self, images: Float[Array, "*B H W C"], noise: Float[Array, "*B P"] | None = None, *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B P E"]:  # fmt: skip
        """Compute the decoder's hidden states from the inputs of a batch; arguments as `encode`'s."""
        keys = split_keys(key)
        return self.decode(self.encode(images, noise, key=keys[0]), key=keys[1])

    def _positions(self, P: int) -> Float[Array, "T D"]:
        table = jax.lax.stop_gradient(widen(self.positions[...]))
        rows, columns = self.cfg.encoder.patches.grid
        return table if rows * columns == P else resample_positions(table, (1, P), grid=(1, rows * columns))


def _mae(size: str, patch: int, image: int, precision: Precision) -> MAEConfig:
    like = vit_encoder(size, patch, image=image, position="fixed", precision=precision)
    encoder = MAEEncoderConfig(**{field.name: getattr(like, field.name) for field in fields(like)})
    decoder = transformer_block(
        embed=512, heads=16, inner=2048, norm_eps=1e-12, norm_position="pre", activation="gelu", init_std=0.02,
        precision=precision,
    )  # fmt: skip
    return MAEConfig(encoder=encoder, decoder=TrunkConfig(block=decoder, depth=8))


def mae_base(*, image: int = 224, precision: Precision = FLOAT32) -> MAEConfig:
    """Return the masked autoencoder of ViT-B/16: 111.9 M parameters, 26.1 M of them the decoder's."""
    return _mae("base", 16, image, precision)


def mae_large(*, image: int = 224, precision: Precision = FLOAT32) -> MAEConfig:
    """Return the masked autoencoder of ViT-L/16: 329.5 M parameters."""
    return _mae("large", 16, image, precision)


def mae_huge(*, image: int = 224, precision: Precision = FLOAT32) -> MAEConfig:
    """Return the masked autoencoder of ViT-H/14: 657.1 M parameters."""
    return _mae("huge", 14, image, precision)
