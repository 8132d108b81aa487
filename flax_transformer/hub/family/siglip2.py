"""SigLIP 2 checkpoints of images of any shape (Tschannen et al. 2025): both towers together, and each alone."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import siglip
from flax_transformer.hub.family.clip import BUFFERS, classifier_rows, write_images
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import PADDED_TOWERS, Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import linear, parameter, under
from flax_transformer.hub.towers import (
    ALONE,
    TOWER_LAYERS,
    inside,
    last_tower,
    patch_states,
    patch_tower,
    two_towers,
)
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.siglip2 import siglip2_base_patch16_naflex
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.padded import split_padded
from flax_transformer.ops.split_keys import split_keys

BASE = siglip2_base_patch16_naflex(32_000)


def _patches(fields: Fields) -> dict[str, Any]:
    """Read the size of patches and of the table of positions.

    Raises:
      ValueError: a table that is no square.
    """
    size, count = fields.integer("patch_size", 16), fields.integer("num_patches", 256)
    side = math.isqrt(count)
    if not count or side * side != count:
        raise ValueError(f"config.json must give num_patches as the square of a whole number, it is {count}")
    return {"patches.patch": (size, size), "patches.image": (side * size, side * size)}


def _write_patches(config: ClassifierConfig) -> dict[str, Any]:
    patches = config.backbone.patches
    if len({*patches.patch}) > 1 or len({*patches.grid}) > 1:
        raise ValueError(f"patches and the table of positions must be squares, got {patches.patch}, {patches.grid}")
    return {"patch_size": patches.patch[0], "num_patches": math.prod(patches.grid)}


TEXT_CONFIG = ConfigTable(
    BASE.text, siglip.TEXT_CONFIG.rows, reads=siglip.TEXT_CONFIG.reads, writes=siglip.TEXT_CONFIG.writes
)
IMAGE_CONFIG = ConfigTable(
    BASE.vision, {**siglip.SIZES, "num_channels": "channels"}, only={"vision_use_head": True}, reads=_patches,
    writes=_write_patches,
)  # fmt: skip


def read(fields: Fields) -> TwoTowersConfig:
    """Make the config of both towers of config.json's fields."""
    text, vision = TEXT_CONFIG.read(inside(fields, "text")), IMAGE_CONFIG.read(inside(fields, "vision"))
    return replace(BASE, text=text, vision=vision)


def write(config: TwoTowersConfig | ClassifierConfig) -> dict[str, Any]:
    """Write config.json's fields of both towers, or of the images' in a classifier."""
    if isinstance(config, ClassifierConfig):
        return write_images("siglip2", IMAGE_CONFIG, config)
    return {
        "text_config": {"model_type": "siglip2_text_model", **TEXT_CONFIG.write(config.text)},
        "vision_config": {"model_type": "siglip2_vision_model", **IMAGE_CONFIG.write(config.vision)},
    }


def classifying(fields: Fields) -> ClassifierConfig:
    """Put a linear layer on the mean of the patches that there are."""
    return with_head(IMAGE_CONFIG.read(inside(fields, "vision")).backbone, outputs=fields.labels, pool="mean")


def _classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify images of any shape, as Siglip2ForImageClassification does."""
    keys = split_keys(key)
    states = patch_states(model, inputs, keys[0])
    return ModelOutput(logits=model.output(states, key=keys[1]), last_hidden_state=split_padded(states)[0])


POSITIONS = parameter("backbone.positions", "embeddings.position_embedding.weight")
OTHERS = ("backbone.patches.patch.kernel", "backbone.patches.patch.bias", "backbone.positions")
IMAGE_TABLE = (
    *linear("backbone.patches.patch", "embeddings.patch_embedding", inputs=3),
    *POSITIONS,
    *(row for row in siglip.IMAGE_TABLE if row.ours[0] not in OTHERS),
)
TABLE = (
    *parameter("log_scale", "logit_scale", ones=1),
    *parameter("bias", "logit_bias", ones=1),
    *under(siglip.TEXT_TABLE, "text.", "text_model."),
    *under(IMAGE_TABLE, "vision.", "vision_model."),
)
SHAPES = ("spatial_shapes", "pixel_attention_mask")
TOWERS = replace(PADDED_TOWERS, takes=(*PADDED_TOWERS.takes, *SHAPES))
PATCHES = Signature(
    ("pixel_values", "spatial_shapes"), SHAPES[1:], order=("pixel_values", "pixel_attention_mask", "spatial_shapes")
)

FAMILIES = {
    "siglip2": Family(
        model_type="siglip2",
        architectures={
            "Siglip2Model": Architecture(
                read, partial(two_towers, texts=last_tower, images=patch_tower), uses=("retrieval",), inputs=TOWERS,
                **TOWER_LAYERS,
            ),
            "Siglip2ForImageClassification": Architecture(
                classifying, _classifier, classifier_rows(IMAGE_TABLE), ignored=siglip.UNREAD, uses=("classification",),
                inputs=PATCHES, **ALONE,
            ),
        },
        table=TABLE, write=write, ignored=BUFFERS, tokens="text_config",
    ),
    "siglip2_text_model": siglip.alone("siglip2", "Text", TEXT_CONFIG, siglip.TEXT_TABLE, last_tower, siglip.PADDED),
    "siglip2_vision_model": siglip.alone("siglip2", "Vision", IMAGE_CONFIG, IMAGE_TABLE, patch_tower, PATCHES),
}  # fmt: skip
