"""What a loop over layers keeps for its backward pass: each value once, and no parameter."""

import math
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.llama import llama2_7b
from flax_transformer.nn import with_fields, with_precision

pytestmark = pytest.mark.proves("training", "a loop over layers keeps each value once, and no parameter")

L, B, T, D, F, N, H = 3, 2, 11, 24, 40, 4, 6


def kept(cfg):
    """Return how often each size is stacked in the forward loop, sizes as numbers of a layer."""
    model = nnx.eval_shape(lambda: Causal(cfg, rngs=nnx.Rngs(0)))
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)
    jaxpr = jax.make_jaxpr(jax.grad(lambda model, tokens: jnp.sum(model(tokens).astype(jnp.float32))))(model, tokens)
    loops = [eqn for eqn in equations(jaxpr.jaxpr) if eqn.primitive.name == "scan" and eqn.params["length"] == L]
    stacked = [each.aval.shape for each in loops[0].outvars if each.aval.shape[:1] == (L,)]  # the carry has B in front
    return Counter(math.prod(shape[1:]) for shape in stacked)


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for part in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from equations(part)


def sizes(cfg, **fields):
    return with_fields(cfg, embed=D, inner=F, heads=N, depth=L, dropout=0.0, max_length=T, **fields)


@pytest.mark.parametrize("compute", ["float32", "float16"])
def test_what_is_kept_of_a_block(compute):
    cfg = with_precision(sizes(gpt2_tiny(vocab=17)), compute=compute)
    found = kept(cfg)
    assert found[B * T * F] == 1  # what the first linear layer gives
    assert found[B * N * T * T] == (1 if compute == "float32" else 2)  # weights of attention, as short floats too
    kernels = {D * D, D * F}
    assert not kernels & set(found)
    # Of both norms what they give and what they are of; queries, keys, values, what attention gives.
    assert found[B * T * D] <= 8 + (2 if compute != "float32" else 0)


def test_what_is_kept_of_a_gated_block_whose_heads_share_keys():
    found = kept(sizes(llama2_7b(vocab=17), kv_heads=2))
    assert found[B * T * F] == 2  # what the gate is made of, and what is gated
    assert not {D * D, D * F, D * D // 2} & set(found)
