"""Every family that decodes token by token does so with keys and values of few bits."""

from dataclasses import dataclass, field, fields

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.bench.target import find_target
from flax_transformer.bench.workload import Size, Workload
from flax_transformer.models.preset import abstract
from flax_transformer.nn import KVCache, Memory, cache_bytes, quantize_cache, with_fields
from flax_transformer.nn.config import configs_in
from tests.contract.golden import GOLDEN, error, load
from tests.shares import only

pytestmark = pytest.mark.proves("cache", "keys and values of int8 in every family that decodes")

FAMILIES = [folder.name for folder in GOLDEN]
TOKENS = 6


def rounded(x, axis):
    """Round to int8 and back: the rule that caches go by, as a function of floats."""
    scale = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / 127
    return jnp.round(x / jnp.where(scale == 0, 1, scale)) * scale


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundedFloats(KVCache):
    """A cache of floats that are rounded as they come in."""

    rounds: bool = field(default=True, metadata={"static": True})  # to JAX, classes of the same fields are one

    def append(self, key, value):
        return super().append(rounded(key, -1), rounded(value, -1))


def with_rounded_floats(cache):
    def change(node):
        if not is_memory(node):
            return node
        given = {each.name: getattr(node, each.name) for each in fields(node)}
        given |= {"key": rounded(node.key, -2), "value": rounded(node.value, -1)}
        return (RoundedFloats if isinstance(node, KVCache) else Memory)(**given)

    return jax.tree.map(change, cache, is_leaf=is_memory)


def decoded(model, cache, tokens):
    """Return the logits of tokens that are read one after another."""

    @jax.jit
    def run(model, cache, tokens):
        def step(cache, token):
            logits, cache = type(model).step(model, cache, token)
            return cache, logits

        return jax.lax.scan(step, cache, tokens)[1]

    return np.asarray(run(model, cache, tokens), np.float64)


@pytest.mark.rotates
@pytest.mark.parametrize("name", only(FAMILIES, "bart", "mistral"))
def test_a_family_decodes_with_a_cache_of_int8(name):
    folder = next(folder for folder in GOLDEN if folder.name == name)
    work = find_target(str(folder), Size(batch=2, length=TOKENS))
    if not isinstance(work, Workload) or work.start is None:
        pytest.skip(f"{name} does not decode token by token")
    assert_decodes(by_all_experts(load(folder).pretrained.model), work)


def by_all_experts(model):
    """Let all experts see every token of a model that has some: which a token goes to may turn on any rounding."""
    known = {field.name: getattr(each, field.name) for each in configs_in(model.cfg) for field in fields(each)}
    if "experts" not in known:
        return model
    config = with_fields(model.cfg, active=known["experts"], **({"kept": known["groups"]} if "kept" in known else {}))
    return jax.tree.unflatten(jax.tree.structure(abstract(config)), jax.tree.leaves(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["universal_tiny", "evolved_transformer_small"])
def test_a_block_of_its_own_does_so_too(name):
    work = find_target(name, Size(batch=2, length=TOKENS, vocab=40))
    assert_decodes(jax.jit(work.init)(jax.random.key(0)), work)


def test_a_model_without_keys_and_values_says_so():
    work = find_target("lstm_seq2seq", Size(batch=2, length=TOKENS, vocab=40, cache="int8"))
    with pytest.raises(ValueError, match="keys and values are rounded, RecurrentCache has none"):
        jax.eval_shape(work.decode, jax.eval_shape(work.init, jax.random.key(0)), work.batch)


def assert_decodes(model, work):
    cache, _ = work.start(model, jax.tree.map(jnp.asarray, work.batch), TOKENS)
    few = quantize_cache(cache, "int8")
    nodes = [node for node in jax.tree.leaves(cache, is_leaf=is_memory) if is_memory(node)]
    widths = [(part, part.shape[axis]) for node in nodes for part, axis in ((node.key, -2), (node.value, -1))]
    assert cache_bytes(few) == sum(part.size // H * (H + 4) for part, H in widths)
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, 20, (TOKENS, 2)))
    plain, found, same = (decoded(model, each, tokens) for each in (cache, few, with_rounded_floats(cache)))
    assert error(found, same) < 1e-3
    # Keys and values are off by half a step of 127 at the most, in each layer that attends.
    layers = sum(int(np.prod(node.value.shape[: node.value.ndim - 4])) for node in nodes)
    assert 0 < np.linalg.norm(found - plain) <= layers / 127 * np.linalg.norm(plain)


def is_memory(node):
    return isinstance(node, Memory)
