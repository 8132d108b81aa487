"""GIT: a decoder of texts that reads what an encoder made of an image, or of several, before its first token (Wang et
al. 2022, https://arxiv.org/abs/2205.14100).

Axes: B texts, T positions, I images, H W height and width in pixels, C channels, P states of the images, D width.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.causal import CausalCache, CausalConfig
from flax_transformer.models.example import ReadsImages, ReadsTokens
from flax_transformer.models.multimodal.clip import clip_vision
from flax_transformer.models.multimodal.with_text import WithText
from flax_transformer.models.protocol import Described
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import EmbeddingConfig, Precision, make_norm, transformer_block
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear, initializer
from flax_transformer.ops import Mask, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part

FLOAT32 = Precision()


@frozen
class PrefixedConfig:
    """An encoder of images, and a decoder-only model whose prefix its states are."""

    vision: ViTConfig
    """The encoder of images."""
    text: CausalConfig
    """The decoder of texts, which reads the image as a prefix."""
    frames: int | None = None
    """How many images a row may have, each with an embedding of its place; None: one, without it."""
    norm: float = 1e-5
    """Epsilon of the norm after the linear layer that gives images' states the width of the text's."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "frames")
        check_at_least(self, 0, "norm")

    @property
    def embedding(self) -> EmbeddingConfig:
        """That of the tokens."""
        return self.text.embedding

    def build(self, rngs: nnx.Rngs) -> "Prefixed":
        """Make the model."""
        return Prefixed(self, rngs=rngs)


class Prefixed(WithText):
    """A language model of images' texts: `model(tokens, images)` gives logits; `prefill` and `step` generate."""

    layer_order = (Part("vision"), "frames", "project", "norm", Part("text"))

    @classmethod
    def example_batch(cls, config: PrefixedConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B images, or of as many rows of images as there may be, and B texts of T tokens."""
        batch = ReadsTokens.example_batch(config.text, rows, length)
        images = ReadsImages.example_batch(config.vision, rows)["inputs"]["images"]
        if config.frames is not None:
            images = np.repeat(images[:, None], config.frames, axis=1)
        return {**batch, "inputs": {**batch["inputs"], "images": images}}

    @classmethod
    def describe_batch(cls, config: PrefixedConfig, batch: dict[str, Any]) -> Described:
        """Count B · T tokens."""
        (rows, length), (*_, height, width, _) = (batch["inputs"][name].shape for name in ("tokens", "images"))
        sizes = {"rows": rows, "length": length, "height": height, "width": width, "vocab": config.embedding.vocab}
        return Described(sizes, rows * length, "tokens")

    def __init__(self, cfg: PrefixedConfig, *, rngs: nnx.Rngs):
        block, kinds = cfg.text.block, cfg.text.block.feedforward.precision.dtypes
        self.cfg = cfg
        self.vision = cfg.vision.build(rngs)
        if cfg.frames is not None:
            zeros = jnp.zeros((cfg.frames, cfg.vision.block.embed), cfg.vision.patches.precision.dtypes["param_dtype"])
            self.frames = nnx.Param(zeros, out_sharding=(None, "embed"), eager_sharding=False)
        self.project = Linear(
            cfg.vision.block.embed, block.embed, kernel_init=initializer(block.feedforward), rngs=rngs, **kinds
        )
        self.norm = make_norm("layer", block.embed, eps=cfg.norm, precision=block.residual.precision, rngs=rngs)
        self.text = cfg.text.build(rngs)

    def prefix(self, images: Float[Array, "B *I H W C"], *, key: PRNGKeyArray | None = None) -> Float[Array, "B P D"]:
        """Return what stands before the tokens: states of an image, or of I images one after another.

        Raises:
          ValueError: more images than there are places, or several for a model of one.
        """
        states, places = self.vision(images, key=key), self.cfg.frames
        if images.ndim == 5:
            count = images.shape[-4]
            if places is None or count > places:
                raise ValueError(f"a row has at most {places or 1} images, got images of shape {list(images.shape)}")
            states = (widen(states) + self.frames[...][:count, None]).astype(states.dtype)
            states = states.reshape(*states.shape[:-3], -1, states.shape[-1])
        return self.norm(self.project(states))

    def encode(
        self,
        tokens: Int[Array, "B T"],
        images: Float[Array, "B *I H W C"] | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Array, "#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B S D"]:
        """Compute the last hidden states of S = P + T positions, those of images before those of tokens.

        Args:
          images: what the texts are about; None: nothing, as for any language model.
          mask: what else than the future is hidden of the S positions.
          positions: of the tokens; 0, 1, … by default.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        prefix = None if images is None else self.prefix(images, key=keys[0])
        return self.text.encode(tokens, mask=mask, positions=positions, prefix=prefix, key=keys[1])

    def hidden_states(
        self,
        tokens: Int[Array, "B T"],
        *,
        images: Float[Array, "B *I H W C"] | None = None,
        lengths: Int[Array, "B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T D"]:
        """Compute the tokens' last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows; they hide nothing, as no token sees the padding that comes after it.
          key: for dropout; None means none.
        """
        return self.encode(tokens, images, key=key)[..., -tokens.shape[-1] :, :]

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        images: Float[Array, "B *I H W C"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T V"]:
        """Compute the logits of the token after each token; arguments as `encode`'s."""
        return self.output(self.hidden_states(tokens, images=images, key=key)).logits()

    def prefill(
        self,
        tokens: Int[Array, "B P"],
        padding: Bool[Array, "B P"] | None = None,
        *,
        images: Float[Array, "B *I H W C"] | None = None,
    ) -> tuple[Float[Array, "B V"], CausalCache]:
        """Read images and prompts, of which there may be none then: as `Causal.prefill`."""
        return self.text.prefill(tokens, padding, prefix=None if images is None else self.prefix(images))


def git_text(
    *, vocab: int, embed: int = 768, heads: int = 12, depth: int = 6, length: int = 1024, **options: Any
) -> CausalConfig:
    """Return the decoder: BERT's blocks and embeddings, where nothing sees a later token.

    Args:
      options: `precision` and `dropout`.
    """
    precision, dropout = options.get("precision", FLOAT32), options.get("dropout", 0.1)
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=length, norm=1e-12, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, norm_eps=1e-12, activation="gelu", dropout=dropout,
            attention_dropout=dropout, init_std=0.02, precision=precision,
        ),
        depth=depth,
        tied_output=False,
        output_bias=True,
    )  # fmt: skip


def git_vision(*, image: int, patch: int, **options: Any) -> ViTConfig:
    """Return the encoder of images: CLIP's, with a norm at its end too; `options` as `clip_vision`'s."""
    return replace(clip_vision(0, image=image, patch=patch, **options).backbone, norm="both")


def _git(vocab: int, precision: Precision, *, patch: int, frames: int | None = None, **image: int) -> PrefixedConfig:
    return PrefixedConfig(
        vision=git_vision(image=224, patch=patch, precision=precision, **image),
        text=git_text(vocab=vocab, precision=precision),
        frames=frames,
    )


def git_base(vocab: int = 30_522, *, frames: int | None = None, precision: Precision = FLOAT32) -> PrefixedConfig:
    """Return GIT-B: a ViT-B/16 and 6 blocks, 176.6 M parameters, 129 M without tables of tokens and positions."""
    return _git(vocab, precision, patch=16, frames=frames)


def git_large(vocab: int = 30_522, *, frames: int | None = None, precision: Precision = FLOAT32) -> PrefixedConfig:
    """Return GIT-L: a ViT-L/14 and 6 blocks, 394.2 M parameters."""
    return _git(vocab, precision, patch=14, frames=frames, embed=1024, heads=16, depth=24)
