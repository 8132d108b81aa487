"""ConvNeXt as timm keeps it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.family.convnext import STAGES, pooled_map
from flax_transformer.hub.feature_map import map_classifier, of_maps
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.hub.timm_folder import ARCHITECTURE, ARGUMENTS, arguments, stated_image, written_image
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.convnext import ConvNextConfig
from flax_transformer.nn import with_fields

EPS = 1e-6
SIZES = {
    "atto": (40, (2, 2, 6, 2)), "femto": (48, (2, 2, 6, 2)), "pico": (64, (2, 2, 6, 2)), "nano": (80, (2, 2, 8, 2)),
    "tiny": (96, (3, 3, 9, 3)), "small": (96, (3, 3, 27, 3)), "base": (128, (3, 3, 27, 3)),
    "large": (192, (3, 3, 27, 3)), "xlarge": (256, (3, 3, 27, 3)),
}  # fmt: skip
"""Width of the first stage, and depths."""
POINTWISE = ("atto", "femto", "pico", "nano")
"""Sizes whose feed-forward layers are convolutions of one point."""
NAME = re.compile(rf"convnext_({'|'.join(SIZES)})")


def known_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of timm's ConvNeXt, by the architecture's name and what config.json says.

    Raises:
      ValueError: an architecture or an argument that is not read.
    """
    name = fields.get(ARCHITECTURE, "convnext_base")
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"config.json is of timm's {name!r:.60}; read are {', '.join(f'convnext_{size}' for size in SIZES)}"
        )
    width, depths = SIZES[found[1]]
    given = arguments(fields, {
        "in_chans": stated_image(fields)[0], "depths": depths, "dims": tuple(width << i for i in range(4)),
        "ls_init_value": EPS, "patch_size": 4, "drop_path_rate": 0.0, "global_pool": "avg",
        "conv_mlp": found[1] in POINTWISE,
    })  # fmt: skip
    if (given["global_pool"], given["patch_size"]) != ("avg", 4):
        raise ValueError(
            f"config.json has global_pool={given['global_pool']!r:.20} and patch_size={given['patch_size']!r:.20}; a "
            "ConvNeXt of timm that is read has avg and 4"
        )
    return given


def read(fields: Mapping[str, Any]) -> ConvNextConfig:
    """Return the network; errors as of `known_arguments`."""
    given = known_arguments(fields)
    return with_fields(
        ConvNextConfig(), channels=given["in_chans"], widths=tuple(given["dims"]),
        depths=tuple(given["depths"]), layer_scale=given["ls_init_value"], drop_path=given["drop_path_rate"],
    )  # fmt: skip


def write(config: ConvNextConfig) -> dict[str, Any]:
    """Return an architecture, and all arguments that make it this one."""
    return {
        **written_image(config.channels, 224, 224),
        ARCHITECTURE: "convnext_base",
        ARGUMENTS: {
            "in_chans": config.channels, "depths": list(config.depths), "dims": list(config.widths),
            "ls_init_value": config.layer_scale, "patch_size": config.patch, "drop_path_rate": config.drop_path,
        },
    }  # fmt: skip


def _head(fields: Fields, outputs: int) -> ClassifierConfig:
    return with_head(read(fields), outputs=outputs, pool="mean", norm=EPS)


def _stage(number: int, pointwise: bool) -> Table:
    layer = partial(conv, ones=2) if pointwise else linear
    ours, theirs = f"stage{number + 1}.blocks", f"stages.{number}.blocks.{{}}"
    merge, merged = f"merge{number + 1}", f"stages.{number}.downsample"
    return (
        *norm(f"{merge}.norm", f"{merged}.0"),
        *conv(f"{merge}.convolution", f"{merged}.1"),
        *conv(f"{ours}.convolution", f"{theirs}.conv_dw"),
        *norm(f"{ours}.norm", f"{theirs}.norm"),
        *layer(f"{ours}.feedforward.up", f"{theirs}.mlp.fc1"),
        *layer(f"{ours}.feedforward.down", f"{theirs}.mlp.fc2"),
        *parameter(f"{ours}.residual.layer_scale", f"{theirs}.gamma"),
    )


def _table(pointwise: bool) -> Table:
    return (
        *conv("patches", "stem.0"),
        *norm("norm", "stem.1"),
        *(row for number in range(STAGES) for row in _stage(number, pointwise)),
    )


def composed(fields: Fields) -> Family:
    """Return the family as it is for one config.json, whose feed-forward layers may be convolutions of one point."""
    return replace(FAMILIES["timm_convnext"], table=_table(known_arguments(fields)["conv_mlp"]))


NORM = norm("head.norm", "head.norm")

FAMILIES = {
    "timm_convnext": Family(
        model_type="timm_convnext",
        architectures={
            "TimmConvNeXtForImageClassification": of_maps(
                Architecture(
                    lambda fields: _head(fields, fields.labels), map_classifier,
                    (*NORM, *linear("head.output", "head.fc")), at="backbone.", base=True, uses=("classification",),
                )
            ),
            "TimmConvNeXtModel": of_maps(
                Architecture(
                    lambda fields: _head(fields, 0), pooled_map, NORM, at="backbone.", base=True,
                    ignored=(r"^head\.fc\.",), uses=("feature-extraction",),
                )
            ),
        },
        table=_table(False),
        write=write,
        composed=composed,
    )
}  # fmt: skip
