"""Generation: settings and where they come from, what is refused, streams, and checkpoints under every transform."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.generate import stream_tokens
from flax_transformer.hub.settings import NAMES, UNSUPPORTED, make_settings
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny

pytestmark = pytest.mark.slow

IDS = jax.random.randint(jax.random.key(1), (3, 5), 4, 31)


@pytest.fixture(scope="module")
def pretrained():
    model = jax.jit(lambda: Causal(gpt2_tiny(vocab=31), rngs=nnx.Rngs(0)))()
    return hub.wrap(jax.tree.map(lambda x: 3 * x, model), "GPT2LMHeadModel", eos_token_id=2, pad_token_id=3)


def test_generation_config_comes_before_config_and_changes_before_both():
    config = Fields.of({"eos_token_id": 2, "pad_token_id": 3, "max_length": 11, "num_beams": 5})
    generation = Fields.of({"eos_token_id": [4, 5], "max_length": 17, "top_k": 7, "made_up": 1})
    assert make_settings(config, Fields("{}"), {}).max_length == 11  # of old checkpoints
    chosen = make_settings(config, generation, {})
    assert (chosen.ends, chosen.filler, chosen.max_length, chosen.top_k, chosen.num_beams) == ((4, 5), 3, 17, 7, 1)
    chosen = make_settings(config, generation, {"top_k": 2, "max_new_tokens": 6})
    assert (chosen.top_k, chosen.new_tokens(9), chosen.max_length) == (2, 6, None)


@pytest.mark.parametrize(
    ("stored", "changes", "message"),
    [
        ({}, {"num_beam": 2}, "there is no setting num_beam; there are max_new_tokens"),
        ({"guidance_scale": 1.5}, {}, "generation_config.json has guidance_scale=1.5, which is not supported"),
        ({}, {"num_beams": 2, "do_sample": True}, "sampling has no beams"),
        ({}, {"num_return_sequences": 2}, "as many sequences can be returned as there are beams"),
    ],
)
def test_settings_that_make_no_sense(stored, changes, message):
    with pytest.raises(ValueError, match=message):
        make_settings(Fields("{}"), Fields.of(stored), changes)


def test_harmless_values_of_what_is_not_supported_pass():
    assert not set(UNSUPPORTED) & set(NAMES)
    assert make_settings(Fields("{}"), Fields.of(UNSUPPORTED), {}) == make_settings(Fields("{}"), Fields("{}"), {})


@pytest.mark.parametrize(
    ("ids", "mask", "settings", "message"),
    [
        (np.zeros((2, 0), int), None, {}, "prompts are one or more rows of at least one token"),
        (IDS[:1], jnp.array([[1, 1, 0, 1, 0]]), {}, "padded on the left"),
        (IDS[:1], jnp.zeros((1, 5), int), {}, "a prompt has at least one token, got a row of attention_mask"),
        (IDS, None, {"do_sample": True}, "sampling needs a key"),
        (IDS, None, {"max_length": 5}, "max_length counts the prompt"),
        (IDS, None, {"max_new_tokens": 61}, "must fit into the positions, got 66 tokens, 64 positions"),
    ],
)
def test_prompts_that_are_refused(pretrained, ids, mask, settings, message):
    with pytest.raises(ValueError, match=message):
        pretrained.generate(ids, mask, **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"do_sample": True, "temperature": 0.7, "top_k": 9}], ids=["greedy", "sample"]
)
def test_streams_yield_what_generate_returns(pretrained, settings):
    key = jax.random.key(5) if settings else None
    settings = {**settings, "max_new_tokens": 40, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3}
    mask = jnp.arange(5) >= jnp.array([[0], [2], [4]])
    whole = np.asarray(pretrained.generate(IDS, mask, key=key, **settings))[:, 5:]
    chunks = list(stream_tokens(pretrained, IDS, mask, key=key, chunk=7, **settings))
    np.testing.assert_array_equal(np.concatenate(chunks, axis=1)[:, : whole.shape[1]], whole)


def test_beams_cannot_be_streamed(pretrained):
    with pytest.raises(ValueError, match="beam search cannot be streamed, got num_beams=2"):
        stream_tokens(pretrained, IDS, num_beams=2)


def test_generation_under_jit_is_generation(pretrained):
    plain = pretrained.generate(IDS, max_new_tokens=5)
    traced = jax.jit(lambda p, ids: p.generate(ids, max_new_tokens=5))(pretrained, IDS)
    assert traced.shape == (3, 10)
    np.testing.assert_array_equal(traced[:, : plain.shape[1]], plain)


def test_a_checkpoint_is_a_pytree(pretrained):
    def loss(p, ids):
        logits = p(input_ids=ids[:, :-1]).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    gradients = jax.jit(jax.grad(loss))(pretrained, IDS)
    native = lambda m: loss(replace(pretrained, model=m), IDS)  # noqa: E731
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(jax.grad(native)(pretrained.model)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    same = jax.tree.map(lambda x: x, pretrained)
    assert jax.tree.structure(same) == jax.tree.structure(pretrained) == jax.tree.structure(gradients)
    both = jax.tree.map(lambda *x: jnp.stack(x), pretrained, jax.tree.map(lambda x: 2 * x, pretrained))
    logits = jax.vmap(lambda p: p(input_ids=IDS).logits)(both)
    np.testing.assert_allclose(logits[0], pretrained(input_ids=IDS).logits, rtol=1e-4, atol=1e-4)
