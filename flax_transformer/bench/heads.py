"""Queries, keys and values of trained heads, for `bench variants`.

Axes: L layers, T positions, N heads, H head width.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.hub import Pretrained
from flax_transformer.nn import Attention, Trunk
from flax_transformer.task.checkpoint import open_checkpoint, positions_of, tokenizer_of


def trained_heads(
    checkpoint: str, text: str
) -> tuple[Float[Array, "L T N H"], Float[Array, "L T N H"], Float[Array, "L T N H"]]:
    """Return what a model's layers multiply while it reads a text: the queries, keys and values of its self-attention.

    Args:
      checkpoint: run folder, Hugging Face folder or hub id.
      text: cut after as many tokens as the model has positions.

    Raises:
      ValueError: a model of several stacks, or one whose layers are not those of `nn.Attention`.
    """
    pretrained = open_checkpoint(checkpoint)
    return heads_of(pretrained, tokenizer_of(pretrained)([text])["input_ids"][0])


def heads_of(pretrained: Pretrained, tokens: Any) -> tuple[Array, Array, Array]:
    """Return queries, keys and values of tokens that a model reads; arguments as those of `trained_heads`."""
    tokens = np.asarray(tokens)[: positions_of(pretrained.model.cfg)]
    trunks = [part for _, part in nnx.iter_graph(pretrained.model) if isinstance(part, Trunk)]
    if len(trunks) != 1 or type(getattr(trunks[0].blocks, "attention", None)) is not Attention:
        raise ValueError(
            "trained heads are those of a model with one stack of blocks whose attention is nn.Attention, got "
            f"{len(trunks)} stacks in {type(pretrained.model).__name__}"
        )

    def run(ids):
        return pretrained(input_ids=ids, output_hidden_states=True).hidden_states

    inputs = jnp.stack([each[0] for each in run(jnp.asarray(tokens)[None])][: trunks[0].cfg.depth])

    def layer(block: Any, x: Array, number: Array) -> tuple[Array, Array, Array]:
        around = block.attention_residual
        seen = around.enter(x, layer=number) if "layer" in around.cfg.takes else around.enter(x)
        q, k, v = block.attention._placed(seen, None, None, 0)
        return q, *(jnp.repeat(each, q.shape[-2] // each.shape[-2], axis=-2) for each in (k, v))

    return jax.vmap(layer)(trunks[0].blocks, inputs, jnp.arange(trunks[0].cfg.depth))
