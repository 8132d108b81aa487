"""Image-grounded text encoders: tokens with cross-attention to the hidden states of an image encoder.

BLIP's readers of questions and captions (Li et al. 2022, https://arxiv.org/abs/2201.12086) are choices of its config.

Axes: B texts, T positions, H W height and width in pixels, C channels, S states of an image, D width, W an image's.
"""

from collections.abc import Mapping
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import Embedding, EmbeddingConfig, TransformerBlockConfig
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class GroundedConfig:
    """An encoder of images, and one of texts whose blocks attend to what the first gives."""

    vision: ViTConfig
    """The encoder of images."""
    text: EncoderConfig
    """The model of texts, with cross-attention to images."""

    def __post_init__(self):
        check_fields(self)
        cross, width = self.text.block.cross, self.vision.block.embed
        if cross is None or cross.memory_width != width:
            found = "none" if cross is None else f"one to a width of {cross.memory_width}"
            raise ValueError(f"texts must have cross-attention to images, whose width is {width}, got {found}")

    @property
    def embedding(self) -> EmbeddingConfig:
        """That of the tokens."""
        return self.text.embedding

    @property
    def block(self) -> TransformerBlockConfig:
        """One of those that give the output."""
        return self.text.block

    def build(self, rngs: nnx.Rngs) -> "Grounded":
        """Make the encoder."""
        return Grounded(self, rngs=rngs)


class Grounded(Module):
    """`model(tokens, images)`: hidden states of texts, each read with its image."""

    layer_order = (Part("vision"), Part("text"))

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: GroundedConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B texts of T tokens, each with a label, and their images."""
        text, vision = (module_of(side).example_batch(side, rows, length) for side in (config.text, config.vision))
        return {**text, "inputs": {**text["inputs"], **vision["inputs"]}}

    @classmethod
    def describe_batch(cls, config: GroundedConfig, batch: dict[str, Any]) -> Described:
        """Count B · T tokens."""
        (rows, length), (_, height, width, _) = (batch["inputs"][name].shape for name in ("tokens", "images"))
        sizes = {"rows": rows, "length": length, "height": height, "width": width, "vocab": config.embedding.vocab}
        return Described(sizes, rows * length, "tokens")

    def __init__(self, cfg: GroundedConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.vision, self.text = cfg.vision.build(rngs), cfg.text.build(rngs)

    @property
    def embedding(self) -> Embedding:
        """That of the tokens, whose table an output layer may share."""
        return self.text.embedding

    def __call__(
        self,
        source: Mapping[str, Shaped[Array, "..."]],
        *,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Read texts with images.

        Args:
          source: `tokens` [*B, T] and `images` [*B, H, W, C].
          mask: what of the tokens is hidden.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        return self.text(source["tokens"], self.vision(source["images"], key=keys[0]), mask=mask, key=keys[1])

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: those of the tokens."""
        return mask

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        images: Float[Array, "*B H W C"],
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the tokens' last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows; what comes after is padding, which nobody sees.
          key: for dropout; None means none.
        """
        mask = None if lengths is None else Mask(lengths=lengths)
        return self({"tokens": tokens, "images": images}, mask=mask, key=key)
