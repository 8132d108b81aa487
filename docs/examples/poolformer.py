"""PoolFormer, a network for images with the world's weights, that stands outside of the package.

    import poolformer                                 # registers the family
    pretrained = hub.load("sail/poolformer_s12")      # a folder or hub id; hub.save writes what `transformers` opens

Yu et al. 2022 (https://arxiv.org/abs/2111.11418): a Transformer in four stages, the mean of the neighbours in place
of attention. The first half is the model, in the package a file of `models/vision`; the second is how it stands in a
checkpoint, there a file of `hub/family`.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer import hub
from flax_transformer.frozen import frozen
from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.feature_map import channels_first, of_maps
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import TensorRow, conv, linear, norm
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.nn import (
    BlockConfig,
    ConvConfig,
    FeedForwardConfig,
    Grid,
    PerLayer,
    Precision,
    ResidualConfig,
    StageConfig,
    Sublayer,
    Trunk,
    make_norm,
)
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.grid import check_grid
from flax_transformer.nn.module import Module
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part

MAPS = "feature_maps"  # the mark of what each stage makes


@frozen
class PoolingConfig:
    """The sublayer in place of attention."""

    embed: int
    """D."""
    window: int = 3
    """Height and width of the neighbourhood, an odd number."""

    takes = ("grid",)  # of the block's arguments, those that the layer is given

    def __post_init__(self):
        check_fields(self)
        if self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"window must be an odd number, got {self.window}")

    def build(self, rngs: nnx.Rngs) -> "Pooling":
        """Make the layer."""
        return Pooling(self)


class Pooling(Module):
    """The mean of the neighbours, less the position itself; without parameters."""

    def __init__(self, cfg: PoolingConfig):
        self.cfg = cfg

    def __call__(
        self, x: Float[Array, "*B T D"], *, grid: Grid, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Pool; at the edges the mean is of the neighbours that there are."""
        check_grid(x, grid)
        images = x.reshape(*x.shape[:-2], *grid, x.shape[-1])
        mean = nnx.avg_pool(images, (self.cfg.window,) * 2, (1, 1), padding="SAME", count_include_pad=False)
        return (mean - images).reshape(x.shape)


def map_norm(width: int, **options: Any) -> nnx.LayerNorm:
    """Make a norm over all positions and channels of a feature map, with a scale and a bias for each channel."""
    return nnx.LayerNorm(width, reduction_axes=(-2, -1), use_fast_variance=False, **options)


@frozen
class PoolFormerConfig:
    """Patches and blocks, stage after stage."""

    channels: int = 3
    """C, of the images."""
    widths: tuple[int, ...] = (64, 128, 320, 512)
    """D of each stage."""
    depths: tuple[int, ...] = (2, 2, 6, 2)
    """Blocks of each stage."""
    patches: tuple[int, ...] = (7, 3, 3, 3)
    """Height and width of the patches of each stage, which overlap."""
    strides: tuple[int, ...] = (4, 2, 2, 2)
    """Pixels, or positions, from patch to patch."""
    padding: tuple[int, ...] = (2, 1, 1, 1)
    """Lines of zeros at every side."""
    window: int = 3
    """Of the pooling."""
    ratio: float = 4.0
    """How many times wider blocks are inside."""
    activation: str = "gelu"
    """Of the feed-forward layers."""
    layer_scale: float | None = 1e-5
    """What the learned factor of every channel of a sublayer starts with; None: there are no such factors."""
    drop_path: float = 0.0
    """How often a row does without a sublayer of the last block, while training; it grows linearly from 0 on."""
    end_norm: bool = False
    """Whether a norm of the last feature map follows, as in front of a head."""
    init_std: float = 0.02
    precision: Precision = Precision()

    def __post_init__(self):
        check_fields(self)
        if len({len(each) for each in (self.widths, self.depths, self.patches, self.strides, self.padding)}) != 1:
            raise ValueError(
                "every stage needs a width, a depth, patches, a stride and padding, got "
                f"{self.widths}, {self.depths}, {self.patches}, {self.strides}, {self.padding}"
            )

    @property
    def embed(self) -> int:
        """D, the width of the hidden states."""
        return self.widths[-1]

    def stage(self, number: int) -> StageConfig:
        """Return the blocks of one stage: a block is the tuple of its sublayers."""
        width = self.widths[number]
        feedforward = FeedForwardConfig(
            embed=width, inner=int(self.ratio * width), activation=self.activation, init_std=self.init_std,
            precision=self.precision,
        )  # fmt: skip
        residual = ResidualConfig(
            embed=width, norm=map_norm, norm_position="pre", layer_scale=self.layer_scale, precision=self.precision
        )
        pooling = Sublayer("pooling", PoolingConfig(embed=width, window=self.window), residual)
        block = BlockConfig(sublayers=(pooling, Sublayer("feedforward", feedforward, residual)))
        return StageConfig(block=block, depth=self.depths[number])

    def patching(self, number: int) -> ConvConfig:
        """Return the convolution in front of one stage."""
        return ConvConfig(
            channels=self.widths[number - 1] if number else self.channels, features=self.widths[number],
            window=(self.patches[number],) * 2, stride=self.strides[number], padding=self.padding[number],
            init_std=self.init_std, precision=self.precision,
        )  # fmt: skip

    def build(self, rngs: nnx.Rngs) -> "PoolFormer":
        """Make the network."""
        return PoolFormer(self, rngs=rngs)


class PoolFormer(ReadsImages, Module):
    """Hidden states of images: the positions of the last feature map, line by line."""

    @property
    def layer_order(self) -> tuple:
        """Its stages, on top of each other."""
        stages = range(1, 1 + len(self.cfg.widths))
        return *(part for i in stages for part in (f"patches{i}", Part(f"stage{i}"))), "norm"

    def __init__(self, cfg: PoolFormerConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        for i in range(len(cfg.widths)):
            setattr(self, f"patches{i + 1}", cfg.patching(i).build(rngs))
            setattr(self, f"stage{i + 1}", Trunk(cfg.stage(i), rngs=rngs))
        if cfg.end_norm:
            self.norm = make_norm(map_norm, cfg.embed, eps=1e-5, precision=cfg.precision, rngs=rngs)

    def feature_map(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B I J D"]:
        """Compute the last feature map of images of any size; a key is for stochastic depth."""
        cfg, depths, x = self.cfg, self.cfg.depths, images
        check_images(images, cfg.channels)
        rates = jnp.linspace(0, cfg.drop_path, sum(depths)) if cfg.drop_path and key is not None else None
        for i, each in enumerate(split_keys(key, len(depths))):
            x = getattr(self, f"patches{i + 1}")(x)
            shape, grid = x.shape, Grid(*x.shape[-3:-1])
            given = {} if rates is None else {"drop_path": PerLayer(rates[sum(depths[:i]) :][: depths[i]])}
            x = x.reshape(*shape[:-3], -1, shape[-1])
            x = getattr(self, f"stage{i + 1}")(x, grid=grid, key=each, **given).reshape(shape)
            x = checkpoint_name(x, MAPS)  # for `output_hidden_states=True`
        return x

    def __call__(
        self, images: Float[Array, "*B H W C"], *, mask: None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Compute the positions of the last feature map, line by line, after the norm where there is one."""
        return self.positions(self.feature_map(images, key=key))

    def positions(self, x: Float[Array, "*B I J D"]) -> Float[Array, "*B T D"]:
        """Lay a feature map out line by line, and apply the norm."""
        x = x.reshape(*x.shape[:-3], -1, x.shape[-1])
        return self.norm(x) if self.cfg.end_norm else x

    hidden_states = __call__  # from the inputs of a batch


def poolformer_s12(classes: int = 1000) -> ClassifierConfig:
    """Return PoolFormer-S12: 12 blocks, D=64 … 512, 11.9 M parameters."""
    return with_head(PoolFormerConfig(end_norm=True), outputs=classes, pool="mean")


CONFIG = ConfigTable(  # our config of a config.json that says nothing, and where ours is of each field that it may have
    PoolFormerConfig(),
    {
        "num_channels": "channels",
        "hidden_sizes": "widths",
        "depths": "depths",
        "patch_sizes": "patches",
        "strides": "strides",
        "padding": "padding",
        "pool_size": "window",
        "mlp_ratio": "ratio",
        "hidden_act": "activation",
        "drop_path_rate": "drop_path",
        "initializer_range": "init_std",
    },
    reads=lambda fields: {
        "layer_scale": fields.number("layer_scale_init_value", 1e-5) if fields.get("use_layer_scale", True) else None
    },
    writes=lambda config: {
        "use_layer_scale": config.layer_scale is not None,
        "layer_scale_init_value": config.layer_scale or 0.0,
        "num_encoder_blocks": len(config.depths),
    },
)


def stage_rows(number: int) -> tuple[TensorRow, ...]:
    """Return the rows of one stage: our path, their name; `{}` is the block."""
    ours, theirs = f"stage{number + 1}.blocks", f"encoder.block.{number}.{{}}"
    return (
        *conv(f"patches{number + 1}", f"encoder.patch_embeddings.{number}.projection"),
        *norm(f"{ours}.pooling_residual.norm", f"{theirs}.before_norm"),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.after_norm"),
        *conv(f"{ours}.feedforward.up", f"{theirs}.output.conv1", ones=2),  # a convolution of one point
        *conv(f"{ours}.feedforward.down", f"{theirs}.output.conv2", ones=2),
        TensorRow((f"{ours}.pooling_residual.layer_scale",), f"{theirs}.layer_scale_1"),
        TensorRow((f"{ours}.feedforward_residual.layer_scale",), f"{theirs}.layer_scale_2"),
    )


def whole_map(model: Any, inputs: Any, key: PRNGKeyArray | None, fields: Any) -> ModelOutput:
    """Return the last feature map, as PoolFormerModel does."""
    return ModelOutput(last_hidden_state=channels_first(model.feature_map(images_of(inputs), key=key)))


def classified(model: Any, inputs: Any, key: PRNGKeyArray | None, fields: Any) -> ModelOutput:
    """Return the scores of classes."""
    return ModelOutput(logits=model.head(model.backbone(images_of(inputs), key=key)))


def maps_of(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Return the feature maps that stages make, by the name that PoolFormerModel has for them."""
    return {"hidden_states": tuple(map(channels_first, seen[MAPS]))}


def staged(architecture: Architecture) -> Architecture:
    """Return an architecture that takes images, and whose layers are the stages."""
    return replace(of_maps(architecture), marks=(MAPS,), layers=maps_of)


HEAD = *norm("backbone.norm", "norm"), *linear("head.output", "classifier")
ARCHITECTURES = {
    "PoolFormerModel": staged(
        Architecture(
            CONFIG.read, whole_map, base=True, ignored=(r"^norm\.", r"^classifier\."), uses=("feature-extraction",)
        )
    ),
    "PoolFormerForImageClassification": staged(
        Architecture(
            lambda fields: with_head(replace(CONFIG.read(fields), end_norm=True), outputs=fields.labels, pool="mean"),
            classified, HEAD, at="backbone.", uses=("classification",),
        )
    ),
}  # fmt: skip
FAMILIES = {
    "poolformer": Family(
        model_type="poolformer",
        architectures=ARCHITECTURES,
        table=tuple(row for number in range(8) for row in stage_rows(number)),
        write=CONFIG.write,
        prefix="poolformer.",
    )
}
hub.register(FAMILIES)
