"""MLP-Mixer checkpoints (Tolstikhin et al. 2021): tensors as timm names them, and a config.json of our own, as
`transformers` has no such model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier
from flax_transformer.hub.image_call import image_classifier
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.registration import Family
from flax_transformer.hub.table import conv, linear, norm
from flax_transformer.models.vision.mixer import mixer

LIKE = mixer(embed=768, depth=12, tokens=384, inner=3072, image=224, patch=16)


def read_grid(fields: Fields) -> Mapping[str, Any]:
    """Read how many patches there are to be mixed."""
    high, wide = (_pair(fields[name]) for name in ("image_size", "patch_size"))
    return {"tokens.embed": (high[0] // wide[0]) * (high[1] // wide[1])}


def _pair(size: Any) -> tuple[int, int]:
    """Return both sides, of which there may be one for both."""
    return tuple(size) if isinstance(size, list) else (size, size)


CONFIG = ConfigTable(
    LIKE,
    {
        "image_size": sides("image"),
        "patch_size": sides("patches.patch"),
        "num_channels": "channels",
        "hidden_size": ("patches.embed", "feedforward.embed", "residual.embed"),
        "num_hidden_layers": "depth",
        "tokens_intermediate_size": "tokens.inner",
        "intermediate_size": "feedforward.inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
    },
    reads=read_grid,
)

LAYER = "blocks.{}"
TABLE = (
    *conv("patches.patch", "stem.proj"),
    *norm("trunk.blocks.tokens_residual.norm", f"{LAYER}.norm1"),
    *linear("trunk.blocks.tokens.up", f"{LAYER}.mlp_tokens.fc1"),
    *linear("trunk.blocks.tokens.down", f"{LAYER}.mlp_tokens.fc2"),
    *norm("trunk.blocks.feedforward_residual.norm", f"{LAYER}.norm2"),
    *linear("trunk.blocks.feedforward.up", f"{LAYER}.mlp_channels.fc1"),
    *linear("trunk.blocks.feedforward.down", f"{LAYER}.mlp_channels.fc2"),
    *norm("trunk.norm", "norm"),
)

CLASSIFIER = classifier(
    CONFIG.read, image_classifier, linear("head.output", "head"), pool="mean", uses=("classification",)
)

FAMILIES = {
    "mixer": Family(
        model_type="mixer",
        architectures={"MixerForImageClassification": replace(CLASSIFIER, inputs=IMAGES)},
        table=TABLE,
        write=CONFIG.write,
    )
}
