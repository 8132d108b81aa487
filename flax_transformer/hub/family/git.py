"""GIT checkpoints (Wang et al. 2022): texts of an image, or of several, and the encoder of images alone."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family import bert
from flax_transformer.hub.family.clip import BUFFERS, blocks
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, hidden
from flax_transformer.hub.image_text_call import WRITTEN, prefixed_lm, prefixed_model
from flax_transformer.hub.inputs import IMAGES, Inputs, Signature
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import VECTOR, TensorRow, conv, linear, norm, parameter, under
from flax_transformer.hub.towers import inside
from flax_transformer.models.multimodal.git import PrefixedConfig, git_text, git_vision

IMAGE_CONFIG = ConfigTable(
    git_vision(image=224, patch=16),
    {
        "hidden_size": "embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "initializer_range": "init_std",
        "attention_dropout": "attention_dropout",
        "image_size": sides("image"),
        "patch_size": sides("patches.patch"),
        "num_channels": "channels",
    },
)
TEXT_CONFIG = ConfigTable(
    git_text(vocab=30_522),
    {name: ours for name, ours in bert.CONFIG.rows.items() if name != "type_vocab_size"}
    | {"tie_word_embeddings": "tied_output"},
)


def read(fields: Fields) -> PrefixedConfig:
    """Make our config of config.json's fields."""
    vision = IMAGE_CONFIG.read(inside(fields, "vision"))
    frames = fields.integer("num_image_with_embedding", None)
    eps = vision.block.residual.norm_eps
    return PrefixedConfig(vision=vision, text=TEXT_CONFIG.read(fields), frames=frames, norm=eps)


def write(config: PrefixedConfig) -> dict[str, Any]:
    """Write config.json's fields."""
    return {
        **TEXT_CONFIG.write(config.text),
        "vision_config": {"model_type": "git_vision_model", **IMAGE_CONFIG.write(config.vision)},
        "num_image_with_embedding": config.frames,
    }


def _headless(fields: Fields) -> PrefixedConfig:
    whole = read(fields)
    return replace(whole, text=replace(whole.text, tied_output=True, output_bias=False))


def _encoder(model: Any, inputs: Inputs, key: Any, fields: Fields) -> ModelOutput:
    """Return hidden states of images, as GitVisionModel does."""
    return ModelOutput(last_hidden_state=hidden(model, inputs, key))


def _grid(fields: Fields) -> tuple[int, int]:
    own = inside(fields, "vision") if fields.get("model_type") == "git" else fields
    return IMAGE_CONFIG.read(own).patches.grid


IMAGE_TABLE = (
    TensorRow(("class_token",), "embeddings.class_embedding", VECTOR),
    *conv("patches.patch", "embeddings.patch_embedding"),
    *parameter("positions", "embeddings.position_embedding.weight", fit=fitted_positions(_grid)),
    *norm("norm", "pre_layrnorm"),
    *blocks("trunk.blocks", "encoder.layers"),
    *norm("trunk.norm", "post_layernorm"),
)
TABLE = (
    *under(IMAGE_TABLE, "vision.", "image_encoder.vision_model."),
    *parameter("frames", "img_temporal_embedding.{}", ones=2),
    *linear("project", "visual_projection.visual_projection.0"),
    *norm("norm", "visual_projection.visual_projection.1"),
    *under(bert.TABLE, "text.", ""),
)
OUTPUT = (
    TensorRow(("text.head.token.embedding",), "output.weight"),
    TensorRow(("text.output_bias",), "output.bias"),
)
SEEN = Signature(
    ("pixel_values", "input_ids"), ("attention_mask", "position_ids"),
    order=("input_ids", "attention_mask", "position_ids", "pixel_values"),
)  # fmt: skip

FAMILIES = {
    "git": Family(
        model_type="git",
        architectures={
            "GitForCausalLM": Architecture(
                read, prefixed_lm, OUTPUT, uses=("text-generation",), inputs=SEEN, **WRITTEN
            ),
            "GitModel": Architecture(
                _headless, prefixed_model, base=True, ignored=(r"^output\.",),
                uses=("feature-extraction",), inputs=SEEN, **WRITTEN
            ),
        },
        table=TABLE, write=write, prefix="git.", ignored=BUFFERS,
        copies={"output.weight": "git.embeddings.word_embeddings.weight"},
    ),
    "git_vision_model": Family(
        model_type="git_vision_model",
        architectures={
            "GitVisionModel": Architecture(
                IMAGE_CONFIG.read, _encoder, uses=("feature-extraction",), inputs=IMAGES, **LAYERS
            ),
        },
        table=IMAGE_TABLE, write=IMAGE_CONFIG.write, prefix="vision_model.", ignored=BUFFERS,
    ),
}  # fmt: skip
