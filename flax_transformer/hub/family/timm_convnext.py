"""ConvNeXt as timm keeps it."""

import re
from collections.abc import Mapping
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
NAME = re.compile(r"convnext_(tiny|small|base|large|xlarge)")
SIZES = {"tiny": (96, 9), "small": (96, 27), "base": (128, 27), "large": (192, 27), "xlarge": (256, 27)}
"""Width of the first stage, and blocks of the third."""


def read(fields: Mapping[str, Any]) -> ConvNextConfig:
    """Return the network.

    Raises:
      ValueError: an architecture or an argument that is not read.
    """
    name = fields.get(ARCHITECTURE, "convnext_base")
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"config.json is of timm's {name!r:.60}; read are {', '.join(f'convnext_{size}' for size in SIZES)}"
        )
    width, third = SIZES[found[1]]
    given = arguments(fields, {
        "in_chans": stated_image(fields)[0], "depths": (3, 3, third, 3), "dims": tuple(width << i for i in range(4)),
        "ls_init_value": EPS, "patch_size": 4, "drop_path_rate": 0.0, "global_pool": "avg",
    })  # fmt: skip
    if (given["global_pool"], given["patch_size"]) != ("avg", 4):
        raise ValueError(
            f"config.json has global_pool={given['global_pool']!r:.20} and patch_size={given['patch_size']!r:.20}; a "
            "ConvNeXt of timm that is read has avg and 4"
        )
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


def _stage(number: int) -> Table:
    ours, theirs = f"stage{number + 1}.blocks", f"stages.{number}.blocks.{{}}"
    merge, merged = f"merge{number + 1}", f"stages.{number}.downsample"
    return (
        *norm(f"{merge}.norm", f"{merged}.0"),
        *conv(f"{merge}.convolution", f"{merged}.1"),
        *conv(f"{ours}.convolution", f"{theirs}.conv_dw"),
        *norm(f"{ours}.norm", f"{theirs}.norm"),
        *linear(f"{ours}.feedforward.up", f"{theirs}.mlp.fc1"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.mlp.fc2"),
        *parameter(f"{ours}.residual.layer_scale", f"{theirs}.gamma"),
    )


TABLE = (
    *conv("patches", "stem.0"),
    *norm("norm", "stem.1"),
    *(row for number in range(STAGES) for row in _stage(number)),
)
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
        table=TABLE,
        write=write,
    )
}  # fmt: skip
