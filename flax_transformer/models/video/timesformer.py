"""TimeSformer: an encoder of the patches of frames, by attention over time and space apart, together, or over space
alone (Bertasius et al. 2021, https://arxiv.org/abs/2102.05095).

Axes: B batch, I frames, H W height and width in pixels, C channels, P patches of a frame, T a token and P·I patches,
each through all frames, D width.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsVideos
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.patch_attention import LARGEST, PatchAttention, Tiles
from flax_transformer.models.video.divided_block import DividedBlockConfig, divided_block
from flax_transformer.models.video_attention import over_frames, over_times, space_alone, time_alone
from flax_transformer.models.vision.vit import FLOAT32, ViT, ViTConfig, vit_encoder
from flax_transformer.nn import Grid, PatchConfig, Precision, with_fields
from flax_transformer.nn.check import check_videos
from flax_transformer.nn.config import check_at_least
from flax_transformer.ops import dropout, resample, widen
from flax_transformer.ops.resample import resample_positions
from flax_transformer.ops.resample_video import nearest
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain


@frozen
class TimeSformerConfig(ViTConfig):
    """A trunk over the patches of some frames, and a token that stands for all of them.

    Its blocks are `divided_block`s, or plain ones, in which all patches of a video see each other.
    """

    patches: PatchConfig
    """How an image is cut into patches and embedded."""
    frames: int = 8
    """I, frames of the videos that the model is made for."""
    time: bool = True
    """Whether frames have positions, and patches see other frames; without, each frame is encoded by itself."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "frames")
        if self.tokens != ("class_token",) or self.mask_token or self.position != "learned":
            raise ValueError(
                "a TimeSformer has a class_token and learned positions alone, got "
                f"tokens={self.tokens}, mask_token={self.mask_token}, position={self.position!r}"
            )
        if self.divided and not self.time:
            raise ValueError("blocks of attention over time need positions of frames, got time=False")

    @property
    def divided(self) -> bool:
        """Whether attention over time and over space are apart."""
        return isinstance(self.block, DividedBlockConfig)

    def build(self, rngs: nnx.Rngs) -> "TimeSformer":
        """Make the encoder."""
        return TimeSformer(self, rngs=rngs)


class TimeSformer(ReadsVideos, ViT):
    """Hidden states of a video's token, and of every patch in all frames, patch by patch."""

    layer_order = ("times", *ViT.layer_order)

    def __init__(self, cfg: TimeSformerConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        if cfg.time:
            values = nnx.initializers.normal(cfg.table_std)(
                rngs.params(), (cfg.frames, cfg.patches.embed), cfg.patches.precision.dtypes["param_dtype"]
            )
            self.times = nnx.Param(values, out_sharding=(None, "embed"), eager_sharding=False)

    def embed(
        self, videos: Float[Array, "*B I H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"] | Float[Array, "*B I T D"]:
        """Return what the trunk is given: the token and all patches, or those of every frame where there is no time.

        Args:
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_videos(videos, self.cfg.patches.channels)
        keys = split_keys(key)
        x = super().embed(videos, key=keys[0])
        if not self.cfg.time:
            return x
        token, patches = x[..., 0, :1, :], x[..., 1:, :].swapaxes(-3, -2)
        patches = widen(patches) + self.times_of(videos.shape[-4])
        patches = dropout(patches.astype(token.dtype), self.cfg.dropout, keys[1])
        x = jnp.concatenate([token, patches.reshape(*token.shape[:-2], -1, token.shape[-1])], axis=-2)
        return constrain(x, "batch", "length", None)

    def positions_of(self, rows: int, columns: int) -> Float[Array, "T D"]:
        """Return the positions of the token and the patches of a frame; of another size, those of the nearest."""
        table = widen(self.positions[...])
        return resample_positions(table, (rows, columns), tokens=1, grid=self.cfg.patches.grid, kernel=nearest)

    def times_of(self, frames: int) -> Float[Array, "I D"]:
        """Return the positions of frames; of another number of them, those of the nearest."""
        table = widen(self.times[...])
        return resample(table[:, None], (frames, 1), kernel=nearest)[:, 0]

    def encode(
        self, videos: Float[Array, "*B I H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"] | Float[Array, "*B I T D"]:
        """Encode videos: a token and all patches, or those of every frame by itself where there is no time.

        Args:
          key: for dropout; None means none.

        Raises:
          ValueError: as `embed`.
        """
        keys = split_keys(key)
        x, cfg = self.embed(videos, key=keys[0]), self.cfg
        frames, patches = videos.shape[-4], cfg.patches.grid_of(*videos.shape[-3:-1])
        given = {"grid": Grid(patches[0] * patches[1], frames)} if cfg.divided else {}
        return self.trunk(x, key=keys[1], **given)

    def __call__(
        self, videos: Float[Array, "*B I H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Encode videos of any size; where there is no time, to the mean over frames of what each is encoded to.

        Arguments and errors as `encode`'s.
        """
        x = self.encode(videos, key=key)
        return x if self.cfg.time else x.mean(axis=-3)

    def hidden_states(
        self, videos: Float[Array, "*B I H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(videos, key=key)

    def over_video(self, found: Sequence[np.ndarray], frames: int, height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one video over a film of its frames."""
        cfg, found = self.cfg, list(found)
        rows, columns = cfg.patches.grid_of(height, width)
        numbers = np.arange(rows * columns * frames).reshape(rows, columns, frames).transpose(2, 0, 1)
        given = numbers, cfg.patches.patch, cfg.tokens
        few = (1 + numbers.size) ** 2 <= LARGEST
        if cfg.time and not cfg.divided:
            weights = stacked(found)[:, 0]
            return [over_times(weights, *given), over_frames("self", weights, *given)]
        space = stacked(found[-1:] if len(found) < 3 else found[1::2] if cfg.divided else found)
        space = space.reshape(cfg.depth, frames, *space.shape[-3:])
        laid = [over_frames("space", space_alone(space) if few else None, *given)]
        if cfg.divided:
            time = stacked(found[:1] if len(found) < 3 else found[::2])
            time = time.reshape(cfg.depth, -1, *time.shape[-3:])
            tiles = Tiles(Grid(1, frames), (rows * cfg.patches.patch[0], columns * cfg.patches.patch[1]))
            times = PatchAttention("times", time.mean(1), tiles, tiles)
            laid = [times, over_frames("time", time_alone(time) if few else None, *given), *laid]
        return laid


def stacked(values: Sequence[np.ndarray]) -> Float[np.ndarray, "L ..."]:
    """Return the layers of a stack, marked in a loop over them or one by one."""
    return values[0] if len(values) == 1 else np.stack(values)


def timesformer_encoder(
    size: str, *, frames: int, image: int, patch: int = 16, divided: bool = True, precision: Precision = FLOAT32,
    **options: Any,
) -> TimeSformerConfig:  # fmt: skip
    """Return the encoder of a published size, of square patches and frames.

    Args:
      divided: whether attention over time and over space are apart.
      options: other fields of `TimeSformerConfig`.
    """
    like = with_fields(vit_encoder(size, patch, image=image, precision=precision), norm_eps=1e-6)
    block = divided_block(like.block) if divided else like.block
    return TimeSformerConfig(**{**vars(like), "block": block, "frames": frames, **options})


def timesformer_base(
    classes: int = 400, *, frames: int = 8, image: int = 224, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return TimeSformer: 12 layers, D=768, 8 frames, 121.6 M parameters with Kinetics' 400 classes."""
    encoder = timesformer_encoder("base", frames=frames, image=image, precision=precision)
    return with_head(encoder, outputs=classes, pool="first")


def timesformer_high_resolution(classes: int = 400, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return TimeSformer-HR: that of 16 frames of 448 × 448 pixels."""
    return timesformer_base(classes, frames=16, image=448, precision=precision)


def timesformer_long(classes: int = 400, *, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return TimeSformer-L: that of 96 frames."""
    return timesformer_base(classes, frames=96, precision=precision)
