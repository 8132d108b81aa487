"""ViT checkpoints (Dosovitskiy et al. 2020), and what the files of its kin have in common."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.head import settle_pooler
from flax_transformer.hub.image_call import LAYERS, MASKABLE, image_classifier, image_restorer, pooled_image
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.restore import RestorerConfig
from flax_transformer.models.vision.vit import ViTConfig, vit_encoder
from flax_transformer.nn import with_fields

CONFIG = ConfigTable(
    with_fields(vit_encoder("base", 16, image=224), out_bias=True),
    {
        "image_size": sides("image"),
        "patch_size": sides("patches.patch"),
        "num_channels": "channels",
        "hidden_size": "embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "initializer_range": "init_std",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "qkv_bias": "attention.bias",
    },
)
read = CONFIG.read


def attention(ours: str, theirs: str) -> Table:
    """Return the rows of self-attention in a block."""
    parts = {"query": 1, "key": 1, "value": 1}
    rows = (linear(f"{ours}.{part}", f"{theirs}.attention.{part}") for part in parts)
    return (*(row for each in rows for row in each), *linear(f"{ours}.out", f"{theirs}.output.dense", inputs=2))


def blocks(ours: str, theirs: str) -> Table:
    """Return the rows of a trunk's blocks."""
    layer = f"{theirs}.{{}}"
    return (
        *norm(f"{ours}.attention_residual.norm", f"{layer}.layernorm_before"),
        *attention(f"{ours}.attention", f"{layer}.attention"),
        *norm(f"{ours}.feedforward_residual.norm", f"{layer}.layernorm_after"),
        *linear(f"{ours}.feedforward.up", f"{layer}.intermediate.dense"),
        *linear(f"{ours}.feedforward.down", f"{layer}.output.dense"),
    )


def grid(fields: Fields) -> tuple[int, int]:
    """Return the rows and columns of patches."""
    return read(fields).patches.grid


EMBEDDINGS = (
    *parameter("class_token", "embeddings.cls_token", ones=1),
    *parameter("positions", "embeddings.position_embeddings", ones=1, fit=fitted_positions(grid)),
    *conv("patches.patch", "embeddings.patch_embeddings.projection"),
)
MASK_TOKEN = parameter("mask_token", "embeddings.mask_token", ones=1)
TABLE = (
    *EMBEDDINGS, *MASK_TOKEN, *blocks("trunk.blocks", "encoder.layer"), *norm("trunk.norm", "layernorm"),
)  # fmt: skip

NEW_ATTENTION = {
    rf"\.attention\.{new}_proj\.": f".attention.{old}."
    for new, old in (("q", "attention.query"), ("k", "attention.key"), ("v", "attention.value"), ("o", "output.dense"))
}
RENAMED = {
    r"(^|\.)layers\.(\d+)\.": r"\1encoder.layer.\2.",
    **NEW_ATTENTION,
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
"""Names of transformers 5, which keeps others in files."""
NEW_MODULES = {
    r"\.attention\.attention\.(q|k|v)(uery|ey|alue)\.": r".attention.\1_proj.",
    r"\.attention\.output\.dense\.": ".attention.o_proj.",
}
MODULES = {
    r"(^|\.)encoder\.layer\.(\d+)\.": r"\1layers.\2.",
    **NEW_MODULES,
    r"(layers\.\d+)\.intermediate\.dense\.": r"\1.mlp.fc1.",
    r"(layers\.\d+)\.output\.dense\.": r"\1.mlp.fc2.",
}
"""The same, the other way."""


def pooled(read: Callable[[Fields], Any], fields: Fields) -> ClassifierConfig:
    """Put a pooler on an encoder, if there is one.

    Raises:
      ValueError: for one that gives another width.
    """
    config = read(fields)
    if not fields.flag("has_pooler", True):
        return with_head(config, outputs=0, pool="first")
    if fields.get("pooler_output_size") not in (None, config.block.embed):
        raise ValueError(
            f"a pooler of the model's width is supported, D={config.block.embed}; config.json has pooler_output_size="
            f"{fields['pooler_output_size']}"
        )
    return with_head(config, outputs=0, pool="first", dense=fields.activation("pooler_act", "tanh"))


def write_pooler(config: ClassifierConfig) -> dict[str, Any]:
    """Return which pooler there is."""
    dense = config.head.dense
    return {"has_pooler": False} if dense is None else {"pooler_act": spelled(dense)}


def restoring(read: Callable[[Fields], ViTConfig], fields: Fields) -> RestorerConfig:
    """Reconstruct images by an encoder with a mask token."""
    backbone = replace(read(fields), mask_token=True)
    return RestorerConfig(
        backbone=backbone, embed=backbone.block.embed, stride=fields.integer("encoder_stride", 16),
        channels=backbone.patches.channels, skip=len(backbone.tokens), precision=backbone.patches.precision,
    )  # fmt: skip


def classifying(read: Callable[[Fields], Any], fields: Fields) -> ClassifierConfig:
    """Put a linear layer on the first hidden state."""
    return with_head(read(fields), outputs=fields.labels, pool="first")


POOLER = linear("head.dense", "pooler.dense")
CLASSIFIER = linear("head.output", "classifier")
PIXELS = conv("dense", "decoder.0", ones=2)
LARGER = (
    r"(^|\.)embeddings\.mask_token$",
    r"^(vit\.|deit\.)?pooler\.",
    r"^(cls_|distillation_)?classifier\.",
    r"^decoder\.",
)


def architectures(read: Callable[[Fields], Any], kind: str) -> dict[str, Architecture]:
    """Return the classes that ViT and DeiT have, whose names begin with `kind`."""
    return {
        f"{kind}Model": Architecture(
            partial(pooled, read), pooled_image, POOLER, write_pooler, at="backbone.", base=True, ignored=LARGER,
            uses=("feature-extraction",), inputs=IMAGES, **LAYERS,
        ),
        f"{kind}ForImageClassification": Architecture(
            partial(classifying, read), image_classifier, CLASSIFIER, at="backbone.", ignored=LARGER,
            uses=("classification",), inputs=IMAGES, **LAYERS,
        ),
        f"{kind}ForMaskedImageModeling": Architecture(
            partial(restoring, read), image_restorer, PIXELS, lambda config: {"encoder_stride": config.stride},
            at="backbone.", ignored=LARGER[1:3], uses=("fill-mask",), inputs=MASKABLE, **LAYERS,
        ),
    }  # fmt: skip


FAMILIES = {
    "vit": Family(
        model_type="vit", architectures=architectures(read, "ViT"), table=TABLE, write=CONFIG.write, prefix="vit.",
        renamed=RENAMED, modules=MODULES, settled=partial(settle_pooler, "ViTModel"),
    )
}  # fmt: skip
