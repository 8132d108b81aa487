"""Contrastive search against its formula, written out without a cache; greedy at α = 0; nothing forbidden is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.decode import Contrastive
from flax_transformer.models.causal import Causal
from flax_transformer.nn import Rotary, with_fields
from tests.models.test_causal import CONFIGS, V
from tests.models.test_extend import random

pytestmark = pytest.mark.proves("generation", "contrastive search, by its formula")


def by_formula(model, prompt, alpha, k, count):
    """Su et al. 2022, equation 5, for one sentence: every candidate is read with all that is before it."""
    ids = list(prompt)
    for _ in range(count):
        hidden = np.asarray(model.encode(jnp.array([ids])), np.float64)[0]
        probability = np.asarray(jax.nn.softmax(model(jnp.array([ids]))[0, -1]), np.float64)
        scores = {}
        for v in np.argsort(-probability)[:k]:
            state = np.asarray(model.encode(jnp.array([[*ids, int(v)]])), np.float64)[0, -1]
            cosines = hidden @ state / np.linalg.norm(hidden, axis=-1) / np.linalg.norm(state)
            scores[int(v)] = (1 - alpha) * probability[v] - alpha * cosines.max()
        ids.append(max(scores, key=scores.get))
    return ids


@pytest.fixture(scope="module", params=["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
def ours(request):
    name = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}[request.param]
    config = CONFIGS[request.param]
    if request.param == "llama":
        config = with_fields(config, qk_norm=None, rotary=Rotary(base=50.0))
    return hub.wrap(random(config, Causal), name, pad_token_id=0)


PROMPTS = np.random.default_rng(4).integers(1, V, (3, 5))


@pytest.mark.rotates
@pytest.mark.parametrize(("alpha", "k"), [(0.6, 4), pytest.param(0.3, 8, marks=pytest.mark.slow)])
def test_tokens_are_those_of_the_formula(ours, alpha, k):
    mask = np.arange(5) >= np.array([[0], [2], [4]])
    got = np.asarray(ours.generate(np.where(mask, PROMPTS, 0), mask, penalty_alpha=alpha, top_k=k, max_new_tokens=7,
                                   eos_token_id=()))  # fmt: skip
    for row, seen, ids in zip(got, mask, PROMPTS, strict=True):
        assert row[5 - seen.sum() :].tolist() == by_formula(ours.model, ids[seen], alpha, k, 7)
    greedy = np.asarray(ours.generate(PROMPTS, max_new_tokens=7, eos_token_id=()))
    other = np.asarray(ours.generate(PROMPTS, max_new_tokens=7, eos_token_id=(), penalty_alpha=alpha, top_k=k))
    assert (greedy != other).any()


@pytest.mark.rotates
def test_it_ends_as_greedy_does_and_keeps_to_the_rules(ours):
    options = {"penalty_alpha": 0.6, "top_k": 6}
    free = np.asarray(ours.generate(PROMPTS, max_new_tokens=6, eos_token_id=(), **options))
    end = int(free[0, 7])
    ended = np.asarray(ours.generate(PROMPTS, max_new_tokens=6, eos_token_id=end, **options))
    first = 5 + free[0, 5:].tolist().index(end)
    np.testing.assert_array_equal(ended[0, : first + 1], free[0, : first + 1])
    assert (ended[0, first + 1 :] == 0).all()
    allowed = [3, 4, 5]
    hidden = [token for token in range(V) if token not in allowed]
    few = np.asarray(ours.generate(PROMPTS, max_new_tokens=6, eos_token_id=(), suppress_tokens=hidden, **options))
    assert np.isin(few[:, 5:], allowed).all()
    long = np.asarray(ours.generate(PROMPTS, max_new_tokens=7, eos_token_id=(), **options))
    np.testing.assert_array_equal(long[:, :11], free)


@pytest.mark.parametrize(
    ("options", "message"), [({"alpha": 1.5}, "alpha must be between 0 and 1"), ({"top_k": 0}, "top_k must be")]
)
def test_what_cannot_be_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        Contrastive(max_length=3, eos=(), **options)


def test_no_stream_and_no_draft(ours):
    from flax_transformer.hub.generate import stream_tokens

    with pytest.raises(ValueError, match="contrastive search cannot be streamed"):
        next(stream_tokens(ours, PROMPTS, penalty_alpha=0.6, top_k=4, max_new_tokens=3))
    with pytest.raises(ValueError, match="beams and contrastive search take no proposals"):
        ours.generate(PROMPTS, penalty_alpha=0.6, top_k=4, prompt_lookup_num_tokens=3)
