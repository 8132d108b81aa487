"""Diffusion Transformers (Peebles & Xie 2022) as diffusers keeps them: `DiTTransformer2DModel`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable, choice, sides
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import conv, linear, parameter
from flax_transformer.models.vision.dit import DiTConfig, dit_xl_2

CLASS = "DiTTransformer2DModel"


def _like() -> DiTConfig:
    """Return what a config.json without fields means; the norm before the feed-forward layer has its own epsilon."""
    like = dit_xl_2()
    block = replace(like.block, feedforward_residual=replace(like.block.residual, norm_eps=1e-5))
    return replace(like, block=block, learned_sigma=False)


def _widths(fields: Fields) -> Mapping[str, Any]:
    """Read the width, of as many heads of one width, and whether there are channels of a variance too.

    Raises:
      ValueError: other channels than those of the images, or twice as many.
    """
    channels, outputs = fields.integer("in_channels"), fields.get("out_channels")
    if outputs not in (None, channels, 2 * channels):
        raise ValueError(f"config.json has out_channels={outputs!r}; supported are {channels} and {2 * channels}")
    embed = fields.integer("num_attention_heads") * fields.integer("attention_head_dim", 72)
    return {"embed": embed, "inner": 4 * embed, "learned_sigma": outputs == 2 * channels}


def _said(config: DiTConfig) -> Mapping[str, Any]:
    """Return the fields that `_widths` reads.

    Raises:
      ValueError: a feed-forward layer that is not four times as wide as the model, or heads of another width.
    """
    embed, inner, attention = config.block.embed, config.block.feedforward.inner, config.block.attention
    if inner != 4 * embed or attention.width * attention.heads != embed:
        raise ValueError(f"a {CLASS} has F = 4 D and N H = D, got D={embed}, F={inner}, H={attention.width}")
    channels = config.patches.channels
    return {"attention_head_dim": attention.width, "out_channels": channels * (2 if config.learned_sigma else 1)}


CONFIG = ConfigTable(
    _like(),
    {
        "sample_size": sides("image"),
        "patch_size": sides("patches.patch"),
        "in_channels": "channels",
        "num_layers": "depth",
        "num_attention_heads": "attention.heads",
        "activation_fn": choice("activation", {"gelu-approximate": "gelu_tanh", "gelu": "gelu"}),
        "num_embeds_ada_norm": ".classes",
        "attention_bias": "attention.bias",
        "norm_eps": "feedforward_residual.norm_eps",
        "dropout": "dropout",
    },
    only={"norm_type": "ada_norm_zero", "upcast_attention": False, "norm_elementwise_affine": False},
    adds={"_class_name": CLASS, "norm_type": "ada_norm_zero"},
    reads=_widths,
    writes=_said,
)

LAYER, OURS = "transformer_blocks.{}", "trunk.blocks"
FIRST = "transformer_blocks.0.norm1.emb"
"""Times and classes are embedded once; diffusers keeps the same tensors in every block."""
EMBEDDINGS = (
    *linear("time_in", f"{FIRST}.timestep_embedder.linear_1"),
    *linear("time_out", f"{FIRST}.timestep_embedder.linear_2"),
    *parameter("class_table", f"{FIRST}.class_embedder.embedding_table.weight"),
)
TABLE = (
    *conv("patches.patch", "pos_embed.proj"),
    *EMBEDDINGS,
    *linear(
        (f"{OURS}.attention_residual.modulation", f"{OURS}.feedforward_residual.modulation"), f"{LAYER}.norm1.linear"
    ),
    *linear(f"{OURS}.attention.query", f"{LAYER}.attn1.to_q"),
    *linear(f"{OURS}.attention.key", f"{LAYER}.attn1.to_k"),
    *linear(f"{OURS}.attention.value", f"{LAYER}.attn1.to_v"),
    *linear(f"{OURS}.attention.out", f"{LAYER}.attn1.to_out.0", inputs=2),
    *linear(f"{OURS}.feedforward.up", f"{LAYER}.ff.net.0.proj"),
    *linear(f"{OURS}.feedforward.down", f"{LAYER}.ff.net.2"),
    *linear("modulation", "proj_out_1"),
    *linear("head", "proj_out_2"),
)


def _with_copies(fields: Fields) -> Family:
    """Return the family as it is for one depth: every block but the first has copies of the embeddings."""
    names, depth = [row.theirs for row in EMBEDDINGS], fields.integer("num_layers", CONFIG.like.depth)
    copies = {name.replace(".0.", f".{layer}.", 1): name for layer in range(1, min(depth, 10_000)) for name in names}
    return replace(FAMILIES["dit"], copies=copies)


def predict(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Predict what is asked of images with noise, at a time and of a class a row."""
    times = jnp.broadcast_to(jnp.asarray(inputs.timestep, jnp.float32), inputs.pixel_values.shape[:1])
    found = model(images_of(inputs), times, inputs.class_labels, key=key)
    return ModelOutput(sample=jnp.moveaxis(found, -1, 1))


FAMILIES = {
    "dit": Family(
        model_type="dit",
        architectures={
            CLASS: Architecture(
                CONFIG.read, predict, uses=("image-generation",),
                inputs=Signature(
                    ("pixel_values", "timestep"), ("class_labels",), order=("pixel_values", "timestep", "class_labels")
                ),
            )
        },
        table=TABLE,
        write=CONFIG.write,
        ignored=(r"^pos_embed\.pos_embed$",),
        composed=_with_copies,
        writes_copies=True,
        weights="diffusion_pytorch_model",
        generation="scheduler_config.json",
        looked_up={"class_labels": "class_table"},
    )
}  # fmt: skip
