"""ViViT checkpoints (Arnab et al. 2021): ViT's names, with tubelets in place of patches."""

from functools import partial
from typing import Any

from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family import vit
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import settle_pooler
from flax_transformer.hub.image_call import LAYERS
from flax_transformer.hub.inputs import VIDEOS
from flax_transformer.hub.positions import fitted_video_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import conv, norm, parameter
from flax_transformer.hub.video_call import pooled_video, video_classifier
from flax_transformer.models.video.vivit import ViViTConfig, vivit_base
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import with_fields


def read_start(fields: Fields) -> dict[str, float]:
    """Find what tokens and positions start with, in a field of ours."""
    return {".table_std": fields.number("position_initializer_range", 0.02)}


def said_start(config: ViTConfig) -> dict[str, float]:
    """Write the field where it is not the default."""
    return {} if config.table_std == 0.02 else {"position_initializer_range": config.table_std}


def _tubelets(fields: Fields) -> dict[str, Any]:
    """Find how long, high and wide a tubelet is, and `read_start`."""
    size = fields.get("tubelet_size", [2, 16, 16])
    if not isinstance(size, list) or len(size) != 3:
        raise ValueError(f"config.json must give tubelet_size as frames, height and width, it is {size!r}")
    span, *patch = (Fields.of({"tubelet_size": each}).integer("tubelet_size") for each in size)
    return {"patches.span": span, "patches.patch": tuple(patch), **read_start(fields)}


def _said(config: ViViTConfig) -> dict[str, Any]:
    return {"tubelet_size": [config.patches.span, *config.patches.patch], **said_start(config)}


CONFIG = ConfigTable(
    with_fields(vivit_base().backbone, out_bias=True),
    {
        **{name: ours for name, ours in vit.CONFIG.rows.items() if name != "patch_size"},
        "image_size": sides("image"),
        "num_frames": "frames",
    },
    reads=_tubelets,
    writes=_said,
)
read = CONFIG.read


def _grid(fields: Fields) -> tuple[int, int, int]:
    return read(fields).patches.grid


TABLE = (
    *parameter("class_token", "embeddings.cls_token", ones=1),
    *parameter("positions", "embeddings.position_embeddings", ones=1, fit=fitted_video_positions(_grid)),
    *conv("patches.tubelet", "embeddings.patch_embeddings.projection"),
    *vit.blocks("trunk.blocks", "encoder.layer"),
    *norm("trunk.norm", "layernorm"),
)

FAMILIES = {
    "vivit": Family(
        model_type="vivit",
        architectures={
            "VivitModel": Architecture(
                partial(vit.pooled, read), pooled_video, vit.POOLER, vit.write_pooler, at="backbone.", base=True,
                ignored=(r"^(vivit\.)?pooler\.", r"^classifier\."),
                uses=("feature-extraction",), inputs=VIDEOS, **LAYERS,
            ),
            "VivitForVideoClassification": Architecture(
                partial(vit.classifying, read), video_classifier, vit.CLASSIFIER, at="backbone.",
                ignored=(r"^(vivit\.)?pooler\.",), uses=("classification",), inputs=VIDEOS, **LAYERS,
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="vivit.",
        renamed=vit.RENAMED,
        modules=vit.MODULES,
        settled=partial(settle_pooler, "VivitModel"),
    )
}  # fmt: skip
