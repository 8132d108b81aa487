"""SigLIP checkpoints (Zhai et al. 2023): both towers together, and each alone."""

from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family import clip
from flax_transformer.hub.family.clip import BUFFERS, TOKENS, blocks, classifier_rows, grid_of, write_images
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import image_classifier
from flax_transformer.hub.inputs import IMAGES, PADDED_TOWERS, Signature
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import VECTOR, Matrix, TensorRow, conv, embedding, linear, norm, parameter, under
from flax_transformer.hub.towers import ALONE, TOWER_LAYERS, Tower, image_tower, inside, last_tower, two_towers
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.siglip import siglip_base_patch16
from flax_transformer.models.multimodal.towers import TwoTowersConfig

BASE = siglip_base_patch16()
SIZES = {name: ours for name, ours in clip.SIZES.items() if name not in ("initializer_range", "projection_dim")}
SIZES["layer_norm_eps"] = "norm_eps"


def _projected(fields: Fields) -> dict[str, Any]:
    """Read how wide texts are in the end: as the tower is, if nothing is said."""
    return {"head.outputs": fields.integer("projection_size", None) or fields.integer("hidden_size")}


TEXT_CONFIG = ConfigTable(
    BASE.text,
    {**SIZES, "vocab_size": "vocab", "max_position_embeddings": "max_length"},
    reads=_projected,
    writes=lambda config: {"projection_size": config.head.outputs},
)
IMAGE_CONFIG = ConfigTable(
    BASE.vision,
    {**SIZES, "image_size": sides("image"), "patch_size": sides("patches.patch"), "num_channels": "channels"},
    only={"vision_use_head": True},
)


def read(fields: Fields) -> TwoTowersConfig:
    """Make the config of both towers of config.json's fields."""
    text, vision = TEXT_CONFIG.read(inside(fields, "text")), IMAGE_CONFIG.read(inside(fields, "vision"))
    return replace(BASE, text=text, vision=vision)


def write(config: TwoTowersConfig | ClassifierConfig) -> dict[str, Any]:
    """Write config.json's fields of both towers, or of the images' in a classifier."""
    if isinstance(config, ClassifierConfig):
        return write_images("siglip", IMAGE_CONFIG, config)
    return {
        "text_config": {"model_type": "siglip_text_model", **TEXT_CONFIG.write(config.text)},
        "vision_config": {"model_type": "siglip_vision_model", **IMAGE_CONFIG.write(config.vision)},
    }


def classifying(fields: Fields) -> ClassifierConfig:
    """Put a linear layer on the mean of the patches."""
    return with_head(IMAGE_CONFIG.read(inside(fields, "vision")).backbone, outputs=fields.labels, pool="mean")


TEXT_TABLE = (
    *embedding("backbone.embedding.token", "embeddings.token_embedding"),
    *embedding("backbone.embedding.position", "embeddings.position_embedding"),
    *blocks("backbone.trunk.blocks", "encoder.layers"),
    *norm("backbone.trunk.norm", "final_layer_norm"),
    *linear("head.output", "head"),
)
POOL = tuple(f"head.attention.{part}" for part in ("query", "key", "value"))
GRID = grid_of("siglip", IMAGE_CONFIG)
IMAGE_TABLE = (
    *conv("backbone.patches.patch", "embeddings.patch_embedding"),
    *parameter("backbone.positions", "embeddings.position_embedding.weight", fit=fitted_positions(GRID)),
    *blocks("backbone.trunk.blocks", "encoder.layers"),
    *norm("backbone.trunk.norm", "post_layernorm"),
    *parameter("head.probe", "head.probe", ones=1),
    TensorRow(tuple(f"{part}.kernel" for part in POOL), "head.attention.in_proj_weight", Matrix(1, transposed=True)),
    TensorRow(tuple(f"{part}.bias" for part in POOL), "head.attention.in_proj_bias", VECTOR),
    *linear("head.attention.out", "head.attention.out_proj", inputs=2),
    *norm("head.norm", "head.layernorm"),
    *linear("head.feedforward.up", "head.mlp.fc1"),
    *linear("head.feedforward.down", "head.mlp.fc2"),
)
TABLE = (
    *parameter("log_scale", "logit_scale", ones=1),
    *parameter("bias", "logit_bias", ones=1),
    *under(TEXT_TABLE, "text.", "text_model."),
    *under(IMAGE_TABLE, "vision.", "vision_model."),
)

UNREAD = (r"^text_model\.", r"^logit_(scale|bias)$", r"^vision_model\.head\.")
"""What a classifier has no use for; of these its own checkpoints have the last."""
PADDED = Signature(TOKENS.needs, TOKENS.takes, padded=True)


def alone(
    kind: str, side: str, config: ConfigTable, table: tuple[TensorRow, ...], call: Tower, inputs: Signature
) -> Family:
    """Return the family of a tower by itself, `Text` or `Vision`, of a kind of both."""
    tower = Architecture(config.read, call, base=True, uses=("retrieval",), inputs=inputs, **ALONE)
    name = side.lower()
    return Family(
        model_type=f"{kind}_{name}_model", architectures={f"{kind.capitalize()}{side}Model": tower}, table=table,
        write=config.write, prefix=f"{name}_model.", ignored=BUFFERS,
    )  # fmt: skip


FAMILIES = {
    "siglip": Family(
        model_type="siglip",
        architectures={
            "SiglipModel": Architecture(
                read, partial(two_towers, texts=last_tower), uses=("retrieval",), inputs=PADDED_TOWERS, **TOWER_LAYERS
            ),
            "SiglipForImageClassification": Architecture(
                classifying, image_classifier, classifier_rows(IMAGE_TABLE), ignored=UNREAD, uses=("classification",),
                inputs=IMAGES, **ALONE,
            ),
        },
        table=TABLE, write=write, ignored=BUFFERS, tokens="text_config",
    ),
    "siglip_text_model": alone("siglip", "Text", TEXT_CONFIG, TEXT_TABLE, last_tower, PADDED),
    "siglip_vision_model": alone("siglip", "Vision", IMAGE_CONFIG, IMAGE_TABLE, image_tower, IMAGES),
}  # fmt: skip
