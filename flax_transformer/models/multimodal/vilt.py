"""ViLT: one Transformer over the tokens of a text and the patches of an image (Kim et al. 2021,
https://arxiv.org/abs/2102.03334).

Axes: B batch, T tokens, H W height and width in pixels, C channels, P patches, S = T + 1 + P, D width.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.answer_head import answering
from flax_transformer.models.encoder import Encoder, EncoderConfig, MaskedLMConfig
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig
from flax_transformer.models.patch_attention import PatchAttention, Tiles, by_stack
from flax_transformer.models.protocol import Described
from flax_transformer.nn import EmbeddingConfig, Grid, PatchConfig, Precision, StemConfig, transformer_block
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least, check_rates
from flax_transformer.nn.table import make_table
from flax_transformer.ops import Mask, dropout, widen
from flax_transformer.ops.grid_position import shrink_mask, stretch_places
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class ViltConfig(EncoderConfig):
    """An encoder of a text's tokens, and of the patches of an image after them."""

    patches: PatchConfig | StemConfig
    """How an image is cut into patches and embedded."""
    kinds: int = 2
    """Learned vectors that tell what is what: the first of texts, the second of an image, others of more images."""
    dropout: float = 0.0
    """After positions are added to patches."""
    table_std: float = 0.02
    """Standard deviation that the class token, positions of patches and kinds start with."""

    def __post_init__(self):
        super().__post_init__()
        check_rates(self, "dropout")
        check_at_least(self, 2, "kinds")
        check_at_least(self, 0, "table_std")
        check_widths(patches=self.patches.embed, block=self.block.embed)

    def build(self, rngs: nnx.Rngs) -> "Vilt":
        """Make the encoder."""
        return Vilt(self, rngs=rngs)


class Vilt(Encoder):
    """Hidden states of tokens, then of an image's class token and patches, which all see each other."""

    layer_order = ("patches", "class_token", "positions", "kind", *Encoder.layer_order)

    @classmethod
    def example_batch(cls, config: ViltConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B rows of T tokens, each with a label, and an image each."""
        batch = super().example_batch(config, rows, min(length or 32, config.embedding.max_length))
        images = ReadsImages.example_batch(config, rows)
        return {**batch, "inputs": {**batch["inputs"], **images["inputs"]}}

    @classmethod
    def describe_batch(cls, config: ViltConfig, batch: dict[str, Any]) -> Described:
        """Count B pairs of a text and an image."""
        (rows, length), image = (batch["inputs"][name].shape for name in ("tokens", "images"))
        height, width = image[-3:-1]
        return Described({"rows": rows, "length": length, "height": height, "width": width}, rows, "pairs")

    def __init__(self, cfg: ViltConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.patches = cfg.patches.build(rngs)
        rows, columns = cfg.patches.grid
        for name, count in (("class_token", 1), ("positions", 1 + rows * columns), ("kind", cfg.kinds)):
            table = make_table(rngs, count, cfg.patches.embed, cfg.patches.precision, std=cfg.table_std)
            setattr(self, name, table)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        images: Float[Array, "*I H W C"],
        visible: Bool[Array, "*#B T"] | None = None,
        seen: Bool[Array, "*I H W"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*I S D"]:
        """Encode texts and their images, [*B, H, W, C], or several images a text, [*B, I, H, W, C], one by one.

        Args:
          visible: which tokens are no padding; all by default.
          seen: where there is an image and no padding, from the upper left; everywhere by default.
          types: of the tokens, as an `Encoder` takes them.
          positions: of the tokens; 0, 1, … by default.
          key: for dropout; None means none.

        Raises:
          ValueError: images that are not as many as the texts, or more of one text than there are kinds for.
        """
        keys = split_keys(key, 3)
        lead, kind = images.shape[:-3], 1
        if len(lead) == tokens.ndim:
            kind = 1 + jnp.arange(lead[-1])[:, None]
            given = (tokens, visible, types, positions)
            tokens, visible, types, positions = (None if x is None else x[..., None, :] for x in given)
            if lead[-1] >= self.cfg.kinds:
                raise ValueError(
                    f"images of a text must be fewer than the kinds, got {lead[-1]}, {self.cfg.kinds} kinds"
                )
        text = self.embedding(tokens, positions=positions, types=types, key=keys[0])
        text = jnp.broadcast_to(text + self.kind[...][0], (*lead, *text.shape[-2:]))
        image, here = self.embed(images, seen, key=keys[1])
        image = image + jnp.take(self.kind[...], kind, axis=0)
        mask = None
        if visible is not None or seen is not None:
            sides = (jnp.ones(tokens.shape, bool) if visible is None else visible), here
            sides = [jnp.broadcast_to(each, (*lead, each.shape[-1])) for each in sides]
            mask = Mask(dense=jnp.concatenate(sides, axis=-1)[..., None, None, :])
        x = jnp.concatenate([text, image], axis=-2).astype(self.cfg.patches.precision.residual)
        return self.trunk(constrain(x, "batch", "length", None), mask=mask, key=keys[2])

    def embed(
        self, images: Float[Array, "*I H W C"], seen: Bool[Array, "*I H W"] | None, *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "*I Q D"], Bool[Array, "*#I Q"]]:
        """Return the class token and patches of images, with positions, and which of them are no padding."""
        cfg = self.cfg
        grid = cfg.patches.grid_of(*images.shape[-3:-1])
        x, table = widen(self.patches(images)), widen(self.positions[...])
        here = jnp.ones(grid, bool) if seen is None else shrink_mask(seen, *grid)
        positions = table[1:]
        if seen is not None or grid != cfg.patches.grid:
            positions = stretch_places(table[1:].reshape(*cfg.patches.grid, -1), here)
            positions = positions.reshape(*here.shape[:-2], -1, table.shape[-1])
        first = jnp.broadcast_to(self.class_token[...] + table[:1], (*x.shape[:-2], 1, x.shape[-1]))
        x = jnp.concatenate([first, x + positions], axis=-2)
        here = here.reshape(*here.shape[:-2], -1)
        return dropout(x, cfg.dropout, key), jnp.pad(here, [(0, 0)] * (here.ndim - 1) + [(1, 0)], constant_values=True)

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        images: Float[Array, "*I H W C"],
        lengths: Int[Array, "*B"] | None = None,
        seen: Bool[Array, "*I H W"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*I S D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call.

        Args:
          lengths: of the rows of tokens; what comes after is padding, which nobody sees.
        """
        visible = None if lengths is None else jnp.arange(tokens.shape[-1]) < lengths[..., None]
        return self(tokens, images=images, visible=visible, seen=seen, types=types, key=key)

    def real(
        self,
        tokens: Int[Array, "*B T"],
        *,
        images: Float[Array, "*I H W C"],
        lengths: Int[Array, "*B"] | None = None,
        seen: Bool[Array, "*I H W"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
    ) -> Bool[Array, "*#I S"] | None:
        """Return which positions of the output are no padding, of the text or of images."""
        if lengths is None and seen is None:
            return None
        grid, lead, T = self.cfg.patches.grid_of(*images.shape[-3:-1]), images.shape[:-3], tokens.shape[-1]
        text = jnp.ones(tokens.shape, bool) if lengths is None else jnp.arange(T) < lengths[..., None]
        text = text[..., None, :] if len(lead) == tokens.ndim else text
        here = jnp.ones(grid, bool) if seen is None else shrink_mask(seen, *grid)
        here = jnp.broadcast_to(here.reshape(*here.shape[:-2], -1), (*lead, grid[0] * grid[1]))
        text, first = (jnp.broadcast_to(each, (*lead, each.shape[-1])) for each in (text, jnp.ones(1, bool)))
        return jnp.concatenate([text, first, here], axis=-1)

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one text and image over its patches.

        Before the patches come the tokens, by their numbers, and the class token.
        """
        (weights,) = by_stack(found, (self.cfg.depth,))
        rows, columns = self.cfg.patches.grid_of(height, width)
        tokens = weights.shape[-1] - rows * columns - 1
        names = (*(f"token {i + 1}" for i in range(tokens)), "class_token")
        tiles = Tiles(Grid(rows, columns), self.cfg.patches.patch, names)
        return [PatchAttention("self", weights[:, 0], tiles, tiles)]


def vilt_encoder(
    *,
    vocab: int = 30_522,
    length: int = 40,
    image: int = 384,
    patch: int = 32,
    embed: int = 768,
    heads: int = 12,
    depth: int = 12,
    inner: int = 3072,
    **options: Any,
) -> ViltConfig:
    """Return an encoder of texts of so many positions, and of square images and patches.

    Args:
      options: `precision` and `dropout`.
    """
    precision, rate = options.get("precision", FLOAT32), options.get("dropout", 0.0)
    return ViltConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=length, types=2, norm=1e-12, scaled=False,
            init_std=0.02, **{"precision": precision, "dropout": rate},
        ),
        patches=PatchConfig(
            embed=embed, image=(image, image), patch=(patch, patch), init_std=0.02, precision=precision
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=inner, norm_eps=1e-12, norm_position="pre", activation="gelu",
            out_bias=True, dropout=rate, init_std=0.02, precision=precision,
        ),
        depth=depth,
        dropout=rate,
    )  # fmt: skip


def vilt_b32(*, dropout: float = 0.0, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return ViLT-B/32 as it is pre-trained: 12 layers, D=768, 111.6 M parameters, to guess words."""
    return MaskedLMConfig(encoder=vilt_encoder(dropout=dropout, precision=precision))


def vilt_b32_vqa(answers: int = 3_129, *, dropout: float = 0.0, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return ViLT-B/32 with VQAv2's answers: 117.6 M parameters."""
    return answering(vilt_encoder(dropout=dropout, precision=precision), answers)
