"""Checkpoints of compact convolutional Transformers (Hassani et al. 2021): tensors named as ViT's are, and a
config.json of our own, as `transformers` has no such model."""

from dataclasses import replace

from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family.vit import blocks
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier
from flax_transformer.hub.image_call import LAYERS, image_classifier
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Family
from flax_transformer.hub.table import conv, linear, norm, parameter
from flax_transformer.models.vision.cct import cct

CONVOLUTIONS = 8
"""As many convolutions as a checkpoint may have."""

CONFIG = ConfigTable(
    cct(embed=128, heads=2, depth=2, inner=128, image=32, stem=(64,)),
    {
        "image_size": sides("image"),
        "num_channels": "channels",
        "stem_sizes": "patches.inner",
        "max_pool": "patches.pool",
        "hidden_size": "embed",
        "num_hidden_layers": ".depth",
        "num_attention_heads": "heads",
        "intermediate_size": "feedforward.inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
    },
)


def _grid(fields: Fields) -> tuple[int, int]:
    return CONFIG.read(fields).patches.grid


STEM = tuple(
    row
    for i in range(CONVOLUTIONS)
    for row in conv(f"patches.conv{i + 1}", f"embeddings.convolutions.{i}")
)  # fmt: skip
TABLE = (
    *STEM,
    *parameter("positions", "embeddings.position_embeddings", ones=1, fit=fitted_positions(_grid)),
    *blocks("trunk.blocks", "encoder.layer"),
    *norm("trunk.norm", "layernorm"),
)  # fmt: skip

HEAD = (*linear("head.score", "pooler.score"), *linear("head.output", "classifier"))
CLASSIFIER = classifier(CONFIG.read, image_classifier, HEAD, pool="weighted", uses=("classification",))

FAMILIES = {
    "cct": Family(
        model_type="cct",
        architectures={"CCTForImageClassification": replace(CLASSIFIER, inputs=IMAGES, **LAYERS)},
        table=TABLE,
        write=CONFIG.write,
    )
}
