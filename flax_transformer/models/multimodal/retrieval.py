"""Two-stage image–text retrieval: by vectors of either alone, then by reading a text with an image (Li et al. 2021,
 https://arxiv.org/abs/2107.07651; Li et al. 2022, https://arxiv.org/abs/2201.12086).

Axes: B texts or images, T positions, H W height and width in pixels, C channels, S states of an image, W its width,
E width of the common space.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import head_of
from flax_transformer.models.multimodal.grounded import Grounded, GroundedConfig
from flax_transformer.models.multimodal.towers import Embedded, Matcher, unit
from flax_transformer.models.protocol import Described
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.ops import Mask
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class RetrievalConfig:
    """A reader of texts and images, a vector of each alone, and scores of both together."""

    encoder: GroundedConfig
    """Its texts are read with images and without."""
    width: int = 256
    """E, of the common space."""
    scale: float = 1 / 0.07
    """What cosines are multiplied by while training."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "width")
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")
        if not self.encoder.text.block.cross.optional:
            raise ValueError("texts must be read without images too, got cross-attention that is not optional")

    def build(self, rngs: nnx.Rngs) -> "Retrieval":
        """Make the model."""
        return Retrieval(self, rngs=rngs)


class Seen(NamedTuple):
    """Vectors of length 1, of either side, and the states of images; None where there is nothing of it."""

    first: Float[Array, "*B E"] | None
    """Of texts."""
    second: Float[Array, "*B E"] | None
    """Of images."""
    states: Float[Array, "*B S W"] | None
    """Of images, for `match`."""


class Retrieval(Matcher):
    """`model.output(model.hidden_states(tokens=…, images=…))` scores all pairs, `model.match` reads some together."""

    layer_order = (Part("encoder"), "text_head", "vision_head", "match_head")

    use = "retrieval"

    @classmethod
    def example_batch(cls, config: RetrievalConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B texts and their images."""
        length = length or min(config.encoder.embedding.max_length, 32)
        return {"inputs": Grounded.example_batch(config.encoder, rows, length)["inputs"]}

    @classmethod
    def describe_batch(cls, config: RetrievalConfig, batch: dict[str, Any]) -> Described:
        """Count B pairs."""
        sizes = {n: size for n, size in Grounded.describe_batch(config.encoder, batch).sizes.items() if n != "vocab"}
        return Described(sizes, sizes["rows"], "pairs")

    def __init__(self, cfg: RetrievalConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.encoder = cfg.encoder.build(rngs)
        for name, side, outputs in (
            ("text_head", cfg.encoder.text, cfg.width),
            ("vision_head", cfg.encoder.vision, cfg.width),
            ("match_head", cfg.encoder.text, 2),
        ):
            setattr(self, name, head_of(side, outputs=outputs, pool="first").build(rngs))

    @property
    def log_scale(self) -> Float[Array, ""]:
        """The logarithm of what cosines are multiplied by; it is not learned."""
        return jnp.float32(math.log(self.cfg.scale))

    def embed_text(
        self, tokens: Int[Array, "*B T"], *, lengths: Int[Array, "*B"] | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B E"]:
        """Embed texts, of those lengths, without images."""
        return unit(self.text_head(self.encoder.text.hidden_states(tokens, lengths=lengths, key=key)))

    def embed_images(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B E"]:
        """Embed images."""
        return unit(self.vision_head(self.encoder.vision(images, key=key)))

    def hidden_states(
        self,
        *,
        tokens: Int[Array, "*B T"] | None = None,
        images: Float[Array, "*B H W C"] | None = None,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Seen:
        """Embed what there is of texts and images, each by itself.

        Args:
          lengths: of the texts; what comes after is padding.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        states = None if images is None else self.encoder.vision(images, key=keys[1])
        return Seen(
            None if tokens is None else self.embed_text(tokens, lengths=lengths, key=keys[0]),
            None if states is None else unit(self.vision_head(states)),
            states,
        )

    def output(self, embedded: Seen, *, limit: float | None = None) -> Float[Array, "B B"]:
        """Score every text [rows] with every image [columns]; `limit` as a `Matcher`'s."""
        return super().output(Embedded(embedded.first, embedded.second), limit=limit)

    def match(
        self,
        tokens: Int[Array, "*B T"],
        states: Float[Array, "*B S W"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B 2"]:
        """Score whether texts belong to images: no, and yes.

        Args:
          states: of the images, as `hidden_states` gives them.
          lengths: of the texts; what comes after is padding.
          key: for dropout; None means none.
        """
        mask = None if lengths is None else Mask(lengths=lengths)
        return self.match_head(self.encoder.text(tokens, states, mask=mask, key=key))
