"""A decoder-only language model that reads images among the tokens of a text: each stands where tokens for its outputs
stand, and positions are times, rows and columns.

Qwen2-VL is a choice of its config (Wang et al. 2024, https://arxiv.org/abs/2409.12191).

Axes: B rows, T tokens, I images of a row, P patches of a row, F numbers of a patch, D width, V vocabulary.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.causal import CausalCache, CausalConfig
from flax_transformer.models.example import LENGTH, ReadsTokens
from flax_transformer.models.multimodal.with_text import WithText
from flax_transformer.models.protocol import Described
from flax_transformer.models.vision.packed_vit import PackedViTConfig, fitted_grid, images_of_grid
from flax_transformer.nn import EmbeddingConfig
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.ops import Mask
from flax_transformer.ops.packed_grid import interleaved_positions
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class InterleavedConfig:
    """An encoder of images, and a decoder-only model of texts in which its outputs stand in the place of tokens."""

    vision: PackedViTConfig
    """The encoder of images."""
    text: CausalConfig
    """The decoder, with rotary positions of three sections: time, row and column."""
    image_token: int = 151_655
    """The token in whose place an output of the encoder stands."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 0, "image_token")
        check_widths(vision=self.vision.outputs, text=self.text.block.embed)
        rotary = self.text.block.attention.rotary
        if rotary is None or len(rotary.sections or ()) != 3:
            raise ValueError(f"texts need rotary positions with sections for time, row and column, got rotary={rotary}")

    @property
    def embedding(self) -> EmbeddingConfig:
        """That of the tokens."""
        return self.text.embedding

    def build(self, rngs: nnx.Rngs) -> "Interleaved":
        """Make the model."""
        return Interleaved(self, rngs=rngs)


class Interleaved(WithText):
    """A language model: `model(tokens, patches, grids)` gives logits; `prefill` and `step` generate."""

    layer_order = (Part("vision"), Part("text"))

    @classmethod
    def example_batch(cls, config: InterleavedConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B rows of T tokens, of which a quarter at most stand for an image."""
        length = length or LENGTH
        batch, vision = ReadsTokens.example_batch(config.text, rows, length), config.vision
        side = max(int((length / 4) ** 0.5), 1) * vision.merge
        images = images_of_grid(vision, rows, fitted_grid(vision, side, side))
        tokens = batch["inputs"]["tokens"]
        tokens = np.where(tokens == config.image_token, config.image_token - 1, tokens)
        tokens[:, 1 : 1 + images["patches"].shape[1] // vision.merge**2] = config.image_token
        return {**batch, "inputs": {**batch["inputs"], "tokens": tokens, **images}}

    @classmethod
    def describe_batch(cls, config: InterleavedConfig, batch: dict[str, Any]) -> Described:
        """Count B · T tokens."""
        (rows, length), (_, patches, _) = (batch["inputs"][name].shape for name in ("tokens", "patches"))
        sizes = {"rows": rows, "length": length, "patches": patches, "vocab": config.embedding.vocab}
        return Described(sizes, rows * length, "tokens")

    def __init__(self, cfg: InterleavedConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.vision, self.text = cfg.vision.build(rngs), cfg.text.build(rngs)

    def embed(
        self,
        tokens: Int[Array, "*B T"],
        patches: Float[Array, "*B P F"],
        grids: Int[Array, "*B I 3"],
        seen: Bool[Array, "*B T"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T D"], Int[Array, "*B T 3"]]:
        """Return what the decoder's trunk is given: embedded tokens, those of images replaced, and their positions.

        Args:
          seen: which tokens are no padding; by default all.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        images = tokens == self.cfg.image_token
        images = images if seen is None else images & seen
        outputs = self.vision(patches, grids, key=keys[0])
        which = jnp.minimum(jnp.cumsum(images, axis=-1) - images, outputs.shape[-2] - 1)
        states = jnp.take_along_axis(outputs, which[..., None], axis=-2)
        x = self.text.embedding(jnp.where(images, 0, tokens), key=keys[1])
        x = jnp.where(images[..., None], states.astype(x.dtype), x)
        return x, interleaved_positions(images, grids, self.cfg.vision.merge, seen)

    def encode(
        self,
        tokens: Int[Array, "*B T"],
        patches: Float[Array, "*B P F"] | None = None,
        grids: Int[Array, "*B I 3"] | None = None,
        *,
        seen: Bool[Array, "*B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states.

        Args:
          patches, grids: of the images of each row, as the encoder of images takes them; None: there are none. As many
            tokens of each row are `image_token` as its images have outputs.
          seen: which tokens are no padding; by default all.
          key: for dropout; None means none.

        Raises:
          ValueError: patches without grids.
        """
        keys = split_keys(key)
        mask = None if seen is None else Mask(dense=seen[..., None, None, :])
        if patches is None:
            return self.text.encode(tokens, mask=mask, key=keys[1])
        if grids is None:
            raise ValueError("patches come with the grids of their images, got none")
        x, positions = self.embed(tokens, patches, grids, seen, key=keys[0])
        return self.text.encode_embedded(x, mask=mask, positions=positions, key=keys[1])

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        patches: Float[Array, "*B P F"] | None = None,
        grids: Int[Array, "*B I 3"] | None = None,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch.

        Args:
          patches, grids: as `encode` takes them.
          lengths: of the rows; they hide nothing, as no token sees the padding that comes after it.
          key: for dropout; None means none.
        """
        return self.encode(tokens, patches, grids, key=key)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        patches: Float[Array, "*B P F"] | None = None,
        grids: Int[Array, "*B I 3"] | None = None,
        *,
        seen: Bool[Array, "*B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T V"]:
        """Compute the logits of the token after each position; arguments as `encode`'s."""
        return self.output(self.encode(tokens, patches, grids, seen=seen, key=key)).logits()

    def prefill(
        self,
        tokens: Int[Array, "B P"],
        padding: Bool[Array, "B P"] | None = None,
        *,
        patches: Float[Array, "B Q F"] | None = None,
        grids: Int[Array, "B I 3"] | None = None,
    ) -> tuple[Float[Array, "B V"], CausalCache]:
        """Read images and prompts: as `Causal.prefill`; a token after a prompt is 1 beyond its highest position."""
        if patches is None:
            return self.text.prefill(tokens, padding)
        x, positions = self.embed(tokens, patches, grids, None if padding is None else ~padding)
        hidden, cache = self.text.read_embedded(x, positions, padding)
        return self.output(hidden[:, -1:]).logits()[:, 0], cache
