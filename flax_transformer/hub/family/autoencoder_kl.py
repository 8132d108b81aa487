"""Autoencoders of latent diffusion (Rombach et al. 2022) as diffusers keeps them: `AutoencoderKL`."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.feature_map import channels_first
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm
from flax_transformer.models.vision.autoencoder_kl import AutoencoderKLConfig

CLASS = "AutoencoderKL"
STAGES = 8
"""As many stages as a checkpoint may have."""
DOWN, UP = "DownEncoderBlock2D", "UpDecoderBlock2D"


def _read(fields: Fields) -> Mapping[str, Any]:
    """Read what is said twice, or once for every stage.

    Raises:
      ValueError: stages of another kind, other channels of what is decoded, one convolution of 1×1 without the other.
    """
    widths = fields.get("block_out_channels") or []
    for name, kind in (("down_block_types", DOWN), ("up_block_types", UP)):
        if fields.get(name, [kind] * len(widths)) != [kind] * len(widths):
            raise ValueError(f"config.json has {name}={fields[name]!r:.80}; supported is {kind} for every width")
    if fields.get("out_channels", 3) != fields.integer("in_channels"):
        raise ValueError(
            f"images must be decoded to the channels that are encoded, got in_channels={fields['in_channels']}, "
            f"out_channels={fields.get('out_channels', 3)}"
        )
    mixed = {fields.flag(name, True) for name in ("use_quant_conv", "use_post_quant_conv")}
    if len(mixed) > 1:
        raise ValueError("use_quant_conv and use_post_quant_conv must be equal, config.json has one without the other")
    shift = 0.0 if fields.get("shift_factor") is None else float(fields.number("shift_factor"))
    return {"mixed": mixed.pop(), "shift": shift}


def _written(config: AutoencoderKLConfig) -> Mapping[str, Any]:
    """Return the fields that `_read` reads."""
    stages = len(config.widths)
    return {
        "out_channels": config.channels,
        "down_block_types": [DOWN] * stages,
        "up_block_types": [UP] * stages,
        "use_quant_conv": config.mixed,
        "use_post_quant_conv": config.mixed,
        "shift_factor": config.shift or None,
    }


CONFIG = ConfigTable(
    AutoencoderKLConfig(image=(32, 32), widths=(64,), depth=1),
    {
        "in_channels": "channels",
        "latent_channels": "latents",
        "block_out_channels": "widths",
        "layers_per_block": "depth",
        "norm_num_groups": "groups",
        "sample_size": sides("image"),
        "scaling_factor": "scale",
        "mid_block_add_attention": "attention",
    },
    only={"act_fn": "silu", "latents_mean": None, "latents_std": None},
    adds={"_class_name": CLASS, "act_fn": "silu"},
    reads=_read,
    writes=_written,
)


def _block(ours: str, theirs: str) -> Table:
    """Return the rows of a residual block."""
    return (
        *norm(f"{ours}.norm1", f"{theirs}.norm1"),
        *conv(f"{ours}.conv1", f"{theirs}.conv1"),
        *norm(f"{ours}.norm2", f"{theirs}.norm2"),
        *conv(f"{ours}.conv2", f"{theirs}.conv2"),
        *conv(f"{ours}.shortcut", f"{theirs}.conv_shortcut"),
    )


def _side(side: str, stages: str, resized: str) -> Table:
    """Return the rows of the encoder, or of the decoder."""
    middle, attention = f"{side}.mid_block", f"{side}.mid_block.attentions.0"
    rows = (
        *conv(f"{side}.stem", f"{side}.conv_in"),
        *_block(f"{side}.middle.before", f"{middle}.resnets.0"),
        *norm(f"{side}.middle.norm", f"{attention}.group_norm"),
        *linear(f"{side}.middle.attention.query", f"{attention}.to_q"),
        *linear(f"{side}.middle.attention.key", f"{attention}.to_k"),
        *linear(f"{side}.middle.attention.value", f"{attention}.to_v"),
        *linear(f"{side}.middle.attention.out", f"{attention}.to_out.0", inputs=2),
        *_block(f"{side}.middle.after", f"{middle}.resnets.1"),
        *norm(f"{side}.norm", f"{side}.conv_norm_out"),
        *conv(f"{side}.last", f"{side}.conv_out"),
    )
    for stage in range(STAGES):
        ours, theirs = f"{side}.stage{stage + 1}", f"{side}.{stages}.{stage}"
        rows += _block(f"{ours}.first", f"{theirs}.resnets.0")
        rows += _block(f"{ours}.rest", f"{theirs}.resnets.{{1}}")
        rows += conv(f"{ours}.resize", f"{theirs}.{resized}.0.conv")
    return rows


TABLE = (
    *_side("encoder", "down_blocks", "downsamplers"),
    *conv("encoded", "quant_conv"),
    *conv("decoded", "post_quant_conv"),
    *_side("decoder", "up_blocks", "upsamplers"),
)


def restore(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Restore images from the means of their latents."""
    return ModelOutput(sample=channels_first(model(images_of(inputs), key=key)))


def stages_of(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name the feature maps that stages are given, the encoder's and then the decoder's."""
    return {"hidden_states": tuple(map(channels_first, seen["hidden_states"]))}


FAMILIES = {
    "autoencoder-kl": Family(
        model_type="autoencoder-kl",
        architectures={
            CLASS: Architecture(
                CONFIG.read, restore, base=True, uses=("image-reconstruction",), inputs=IMAGES, layers=stages_of
            )
        },
        table=TABLE,
        write=CONFIG.write,
        renamed={
            r"attentions\.0\.query\.": "attentions.0.to_q.",
            r"attentions\.0\.key\.": "attentions.0.to_k.",
            r"attentions\.0\.value\.": "attentions.0.to_v.",
            r"attentions\.0\.proj_attn\.": "attentions.0.to_out.0.",
        },
        weights="diffusion_pytorch_model",
    )
}  # fmt: skip
