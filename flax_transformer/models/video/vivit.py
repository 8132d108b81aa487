"""ViViT: an encoder of a video's tubelets, all of which see each other (Arnab et al. 2021,
https://arxiv.org/abs/2103.15691; its model 1).

The encoder of VideoMAE is a choice of its config.

Axes: B batch, I frames, H W height and width in pixels, C channels, P tubelets, T tokens and tubelets, D width.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsVideos
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.patch_attention import PatchAttention, by_stack
from flax_transformer.models.video.tubelet import TubeletConfig
from flax_transformer.models.video_attention import over_frames, over_times
from flax_transformer.models.vision.vit import FLOAT32, SIZES, ViT, ViTConfig
from flax_transformer.nn import Precision, transformer_block
from flax_transformer.ops import Mask, sinusoidal, widen
from flax_transformer.ops.resample_video import resample_video_positions
from flax_transformer.ops.split_keys import split_keys


@frozen
class ViViTConfig(ViTConfig):
    """A trunk over the tubelets of a video, and tokens that stand for all of it."""

    patches: TubeletConfig
    """How an image is cut into patches and embedded."""
    position: Literal["learned", "sinusoidal", "none"] = "learned"
    """Of tokens and tubelets: "learned", or "sinusoidal", by the number of the tubelet, which tokens do without."""

    def __post_init__(self):
        super().__post_init__()
        if self.mask_token:
            raise ValueError("an encoder of videos leaves masked tubelets out, got mask_token=True")

    def build(self, rngs: nnx.Rngs) -> "ViViT":
        """Make the encoder."""
        return ViViT(self, rngs=rngs)


class ViViT(ReadsVideos, ViT):
    """Hidden states of a video's tokens and tubelets, which all see each other."""

    def embed(self, videos: Float[Array, "*B I H W C"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B T D"]:
        """Return what the trunk is given: tokens and tubelets, with positions.

        Args:
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        return self.placed(widen(self.patches(videos)), self.cfg.patches.grid_of(*videos.shape[-4:-1]), key)

    def positions_of(self, times: int, rows: int, columns: int) -> Float[Array, "T D"] | None:
        """Return the positions of tokens and tubelets for a grid of tubelets, that of training or another.

        The table is resampled for another one: see `resample_video_positions`.
        """
        cfg, tokens = self.cfg, len(self.cfg.tokens)
        if cfg.position == "none":
            return None
        if cfg.position == "sinusoidal":
            count = math.prod(cfg.patches.grid)
            table = jnp.pad(sinusoidal(jnp.arange(count), cfg.patches.embed), ((tokens, 0), (0, 0)))
        else:
            table = widen(self.positions[...])
        return resample_video_positions(table, (times, rows, columns), tokens=tokens, grid=cfg.patches.grid)

    def __call__(
        self,
        videos: Float[Array, "*B I H W C"],
        *,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Encode videos of any size, of which there must be at least a tubelet.

        Args:
          mask: what tokens and tubelets may see; everything by default.
          key: for dropout; None means none.

        Raises:
          ValueError: as `embed`.
        """
        keys = split_keys(key)
        return self.trunk(self.embed(videos, key=keys[0]), mask=mask, key=keys[1])

    def hidden_states(
        self, videos: Float[Array, "*B I H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(videos, key=key)

    def over_video(self, found: Sequence[np.ndarray], frames: int, height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one video over a film of a frame of each time."""
        cfg = self.cfg
        (weights,), grid = by_stack(found, (cfg.depth,)), cfg.patches.grid_of(frames, height, width)
        given = weights[:, 0], np.arange(math.prod(grid)).reshape(grid), cfg.patches.patch, cfg.tokens
        return [over_times(*given), over_frames("self", *given)]


def vivit_encoder(
    size: str, *, frames: int, image: int, span: int = 2, patch: int = 16, precision: Precision = FLOAT32,
    **options: Any,
) -> ViViTConfig:  # fmt: skip
    """Return the encoder of a published size, of square tubelets and frames.

    Args:
      span: frames of a tubelet.
      options: other fields of `ViViTConfig`.
    """
    embed, heads, depth, inner = SIZES[size]
    return ViViTConfig(
        patches=TubeletConfig(
            embed=embed, frames=frames, span=span, image=(image, image), patch=(patch, patch), init_std=0.02,
            precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=inner, norm_eps=1e-6, norm_position="pre", activation="gelu_tanh",
            init_std=0.02, precision=precision,
        ),
        depth=depth,
        **options,
    )  # fmt: skip


def vivit_base(
    classes: int = 400, *, frames: int = 32, image: int = 224, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViViT-B/16x2: 12 layers, D=768, 32 frames, 89.0 M parameters with Kinetics' 400 classes."""
    encoder = vivit_encoder("base", frames=frames, image=image, precision=precision)
    return with_head(encoder, outputs=classes, pool="first")


def vivit_large(
    classes: int = 400, *, frames: int = 32, image: int = 224, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViViT-L/16x2: 24 layers, D=1024, 32 frames, 307.5 M parameters with Kinetics' 400 classes."""
    encoder = vivit_encoder("large", frames=frames, image=image, precision=precision)
    return with_head(encoder, outputs=classes, pool="first")
