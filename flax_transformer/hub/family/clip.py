"""CLIP checkpoints (Radford et al. 2021): both towers together, and each alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, image_classifier
from flax_transformer.hub.inputs import IMAGES, TEXT, TOWERS, Signature
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import VECTOR, Table, TensorRow, conv, embedding, linear, norm, parameter, under
from flax_transformer.hub.towers import (
    TOWER_LAYERS,
    image_projected,
    image_tower,
    inside,
    text_projected,
    text_tower,
    two_towers,
)
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.towers import TwoTowersConfig

SIZES = {
    "hidden_size": "embed",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "inner",
    "hidden_act": "activation",
    "layer_norm_eps": ("norm_eps", "head.norm"),
    "initializer_range": "init_std",
    "attention_dropout": "attention_dropout",
    "projection_dim": "head.outputs",
}
TEXT_CONFIG = ConfigTable(
    clip_text(512),
    {**SIZES, "layer_norm_eps": "norm_eps", "vocab_size": "vocab", "max_position_embeddings": "max_length"},
)
IMAGE_CONFIG = ConfigTable(
    clip_vision(512, image=224, patch=32),
    {**SIZES, "image_size": sides("image"), "patch_size": sides("patches.patch"), "num_channels": "channels"},
)


def read(fields: Fields) -> TwoTowersConfig:
    """Make the config of both towers of config.json's fields."""
    width = {"projection_dim": fields.integer("projection_dim", 512)}
    text, image = (
        table.read(inside(fields, side).updated(width))
        for side, table in (("text", TEXT_CONFIG), ("vision", IMAGE_CONFIG))
    )
    return TwoTowersConfig(text=text, vision=image)


def write(config: TwoTowersConfig | ClassifierConfig) -> dict[str, Any]:
    """Write config.json's fields of both towers, or of the images' in a classifier."""
    if isinstance(config, ClassifierConfig):
        return write_images("clip", IMAGE_CONFIG, config)
    text, image = TEXT_CONFIG.write(config.text), IMAGE_CONFIG.write(config.vision)
    return {
        "text_config": {"model_type": "clip_text_model", **text},
        "vision_config": {"model_type": "clip_vision_model", **image},
        "projection_dim": text["projection_dim"],
    }


def _pooled(table: ConfigTable) -> Callable[[Fields], ClassifierConfig]:
    """Read a tower that is not projected."""

    def config(fields: Fields) -> ClassifierConfig:
        tower = table.read(fields)
        return replace(tower, head=replace(tower.head, outputs=0))

    return config


def classifying(fields: Fields) -> ClassifierConfig:
    """Put a linear layer on the mean of the patches."""
    return with_head(IMAGE_CONFIG.read(inside(fields, "vision")).backbone, outputs=fields.labels, pool="mean", skip=1)


def write_images(kind: str, table: ConfigTable, config: ClassifierConfig) -> dict[str, Any]:
    """Write config.json's fields of the tower of images in a classifier, whose head is none of a tower's."""
    own = table.write(replace(table.like, backbone=config.backbone))
    return {"vision_config": {"model_type": f"{kind}_vision_model", **own}}


def grid_of(kind: str, table: ConfigTable) -> Callable[[Fields], tuple[int, int]]:
    """Read the rows and columns of patches, of both towers or of the one alone."""

    def grid(fields: Fields) -> tuple[int, int]:
        own = inside(fields, "vision") if fields.get("model_type") == kind else fields
        return table.read(own).backbone.patches.grid

    return grid


def classifier_rows(rows: Table) -> Table:
    """Return the rows of a classifier on the tower of images, by the tower's."""
    kept = (row for row in under(rows, "", "vision_model.") if row.ours[0].startswith("backbone."))
    return (*kept, *linear("head.output", "classifier"))


def blocks(ours: str, theirs: str) -> Table:
    """Return the rows of a trunk's blocks."""
    layer = f"{theirs}.{{}}"
    parts = (linear(f"{ours}.attention.{part}", f"{layer}.self_attn.{part[0]}_proj") for part in QKV)
    return (
        *norm(f"{ours}.attention_residual.norm", f"{layer}.layer_norm1"),
        *(row for part in parts for row in part),
        *linear(f"{ours}.attention.out", f"{layer}.self_attn.out_proj", inputs=2),
        *norm(f"{ours}.feedforward_residual.norm", f"{layer}.layer_norm2"),
        *linear(f"{ours}.feedforward.up", f"{layer}.mlp.fc1"),
        *linear(f"{ours}.feedforward.down", f"{layer}.mlp.fc2"),
    )


QKV = ("query", "key", "value")
TEXT_TABLE = (
    *embedding("backbone.embedding.token", "embeddings.token_embedding"),
    *embedding("backbone.embedding.position", "embeddings.position_embedding"),
    *blocks("backbone.trunk.blocks", "encoder.layers"),
    *norm("backbone.trunk.norm", "final_layer_norm"),
)
GRID = grid_of("clip", IMAGE_CONFIG)
IMAGE_TABLE = (
    TensorRow(("backbone.class_token",), "embeddings.class_embedding", VECTOR),
    *conv("backbone.patches.patch", "embeddings.patch_embedding"),
    *parameter(
        "backbone.positions",
        "embeddings.position_embedding.weight",
        fit=fitted_positions(grid_of("clip", IMAGE_CONFIG)),
    ),
    *norm("backbone.norm", "pre_layrnorm"),
    *blocks("backbone.trunk.blocks", "encoder.layers"),
    *norm("head.norm", "post_layernorm"),
)
PROJECTED = {"text": linear("head.output", "text_projection"), "image": linear("head.output", "visual_projection")}
TABLE = (
    *parameter("log_scale", "logit_scale"),
    *under(TEXT_TABLE, "text.", "text_model."),
    *under(PROJECTED["text"], "text.", ""),
    *under(IMAGE_TABLE, "vision.", "vision_model."),
    *under(PROJECTED["image"], "vision.", ""),
)
UNREAD = (r"^text_model\.", r"^(text|visual)_projection\.", r"^logit_scale$", r"^vision_model\.post_layernorm\.")
"""What a classifier has no use for; of these its own checkpoints have the last."""
BUFFERS = (r"(^|\.)embeddings\.position_ids$",)
TOKENS = Signature(TEXT.needs, ("attention_mask", "position_ids"))


def tower(kind: str, name: str, *, table: ConfigTable, rows: Table, projection: Table, **said: Any) -> Family:
    """Make the family of one tower alone.

    Args:
      kind: how its classes are called.
      name: of the tower in the files.
      said: of its architectures: `inputs`, and `calls` without the projection and with it.
    """
    pooled, projected = said.pop("calls")
    bare = Architecture(
        _pooled(table), pooled, base=True, uses=("feature-extraction",), ignored=(r"_projection\.",), **said, **LAYERS
    )
    whole = Architecture(table.read, projected, projection, uses=("retrieval",), **said, **LAYERS)
    return Family(
        model_type=f"clip_{name}", architectures={kind: bare, f"{kind}WithProjection": whole}, table=rows,
        write=table.write, prefix=f"{name}.", ignored=BUFFERS,
    )  # fmt: skip


FAMILIES = {
    "clip": Family(
        model_type="clip",
        architectures={
            "CLIPModel": Architecture(read, two_towers, uses=("retrieval",), inputs=TOWERS, **TOWER_LAYERS),
            "CLIPForImageClassification": Architecture(
                classifying, image_classifier, classifier_rows(IMAGE_TABLE), ignored=UNREAD, uses=("classification",),
                inputs=IMAGES, **LAYERS,
            ),
        },
        table=TABLE, write=write, ignored=BUFFERS, tokens="text_config",
    ),
    "clip_text_model": tower(
        "CLIPTextModel", "text_model", table=TEXT_CONFIG, rows=TEXT_TABLE, projection=PROJECTED["text"],
        inputs=TOKENS, calls=(text_tower, text_projected),
    ),
    "clip_vision_model": tower(
        "CLIPVisionModel", "vision_model", table=IMAGE_CONFIG, rows=IMAGE_TABLE, projection=PROJECTED["image"],
        inputs=IMAGES, calls=(image_tower, image_projected),
    ),
}  # fmt: skip
