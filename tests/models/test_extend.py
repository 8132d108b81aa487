"""Rows that read several tokens from positions of their own are rows that read them one by one, each by itself."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.bart import bart_base
from flax_transformer.models.text.evolved import evolved_transformer
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import quantize_cache, with_fields
from tests.models.test_causal import CONFIGS
from tests.shares import share

V, P, S = 31, 5, 12
CONFIGS = {**CONFIGS, "one more": replace(CONFIGS["llama"], tied_output=True, logit_cap=3.0)}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, V, (3, S)))


def random(config, kind):
    shapes = nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0)))
    numbers = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(numbers.normal(0, 0.3, leaf.shape), leaf.dtype), shapes)


def step_by_step(model, cache, tokens):
    found = []
    for token in tokens.T:
        logits, cache = jax.jit(type(model).step)(model, cache, token)
        found.append(logits)
    return jnp.stack(found, 1)


@pytest.mark.rotates
@pytest.mark.parametrize(("name", "laid_out"), share(product(CONFIGS, (False, True)), 2, of=10))
def test_a_decoder_goes_on_from_other_positions_in_every_row(name, laid_out):
    model = random(CONFIGS[name], Causal)
    model = model.for_decoding() if laid_out else model
    padding = jnp.arange(P) < jnp.array([[2], [0], [4]])
    extend = jax.jit(lambda model, *args: model.extend(*args))
    for rows in (3, 1):
        for pad in (None, padding[:rows]):
            read = lambda: model.prefill(TOKENS[:rows, :P], pad)[1].grow(S)  # noqa: B023, E731
            want = step_by_step(model, read(), TOKENS[:rows, P:])
            # Row i has read i + 2 tokens, then something else, which is forgotten.
            index, cache = jnp.arange(rows), read().by_row()
            _, cache = extend(model, cache, TOKENS[:rows, P : P + 4], jnp.full(rows, P))
            _, cache = extend(model, cache, TOKENS[:rows, :3], P + 2 + index)
            rest = jax.vmap(lambda row, i: jax.lax.dynamic_slice(row, (P + 2 + i,), (3,)))(TOKENS[:rows], index)
            got, cache = extend(model, cache, rest, P + 2 + index)
            for i in range(rows):
                np.testing.assert_allclose(got[i], want[i, 2 + i : 5 + i], atol=2e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn"])
def test_caches_of_few_bits_do_too(kind):
    model = random(CONFIGS["llama"], Causal)
    read = lambda: quantize_cache(model.prefill(TOKENS[:, :P])[1].grow(S), kind)  # noqa: E731
    want = step_by_step(model, read(), TOKENS[:, P:])
    got, _ = model.extend(read().by_row(), TOKENS[:, P : P + 3], jnp.full(3, P))
    np.testing.assert_allclose(got, want[:, :3], atol=2e-4, rtol=0)


@pytest.mark.rotates
@pytest.mark.parametrize(("name", "laid_out"), share(product(["bart", "t5"], (False, True)), 2, of=4))
def test_an_encoder_decoder_goes_on_from_other_positions_in_every_row(name, laid_out):
    sizes = {"embed": 12, "heads": 2, "inner": 16, "depth": 2, "dropout": 0.0}
    sizes |= {"head_width": 4} if name == "t5" else {"max_length": S}
    model = random(with_fields({"bart": bart_base, "t5": t5_small}[name](V), **sizes), Seq2Seq)
    model = model.for_decoding() if laid_out else model
    for rows in (3, 1):
        memory = model.encode(TOKENS[:rows], jnp.array([5, 12, 8])[:rows])
        read = lambda: model.init_cache(memory, jnp.array([5, 12, 8])[:rows], S)  # noqa: B023, E731
        want = step_by_step(model, read(), TOKENS[:rows])
        extend, index = jax.jit(lambda model, *args: model.extend(*args)), 3 + jnp.arange(rows)
        _, cache = extend(model, read().by_row(), TOKENS[:rows, :6], jnp.zeros(rows, int))
        got, _ = extend(model, cache, jnp.stack([TOKENS[i, 3 + i : 6 + i] for i in range(rows)]), index)
        for i in range(rows):
            np.testing.assert_allclose(got[i], want[i, 3 + i : 6 + i], atol=2e-5, rtol=0)


@pytest.mark.rotates
def test_tokens_beyond_a_table_of_positions_spoil_nothing_before_them():
    model = random(CONFIGS["gpt2"], Causal)
    assert model.cfg.embedding.max_length == S
    cache = model.prefill(TOKENS[:, :-2])[1].grow(S + 3).by_row()
    _, cache = model.extend(cache, TOKENS[:, -5:], jnp.full(3, S - 2))
    got, _ = model.extend(cache, TOKENS[:, -2:], jnp.full(3, S - 2))
    np.testing.assert_allclose(got, model(TOKENS)[:, -2:], atol=2e-5, rtol=0)


@pytest.mark.rotates
def test_what_cannot_go_back_is_named():
    model = random(evolved_transformer(V, embed=12, heads=2, depths=(1, 1)), Seq2Seq)
    cache = model.init_cache(jnp.zeros((2, 4, 12)), None, S)
    with pytest.raises(ValueError, match="can go back to earlier positions, EvolvedCache cannot"):
        cache.by_row()
    with pytest.raises(ValueError, match="hypotheses of a sentence are of one length, got 2 beams"):
        random(CONFIGS["llama"], Causal).init_cache(2, S, beams=2).by_row()
