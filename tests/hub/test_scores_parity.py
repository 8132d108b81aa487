"""Scores of generated tokens equal those that transformers computes of its own; drawn ones those of their filters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.ops.sampling import filter_logits
from tests.hub.oracle import padded, random_ids
from tests.hub.test_generate_parity import CAUSAL, PAD, RULES, V, both  # noqa: F401

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("generation", "scores of the tokens, as `compute_transition_scores`"),
]

CASES = {
    "greedy": {"max_new_tokens": 9},
    "rules": RULES,
    "beam": {"max_new_tokens": 9, "num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.7},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_scores_equal_transition_scores(both, case):  # noqa: F811
    name, theirs, ours = both
    if name == "two vocabularies":
        pytest.skip("transformers reads the scores by the size of the source's vocabulary")
    mask = padded([7, 3, 1, 5], 7, "left" if name in CAUSAL else "right")
    ids, settings = np.where(mask, random_ids(V, 4, 7, seed=3, low=4), PAD), CASES[case]
    with torch.no_grad():
        want = theirs.generate(torch.tensor(ids), attention_mask=torch.tensor(mask), do_sample=False,
                               return_dict_in_generate=True, output_scores=True, **settings)  # fmt: skip
        scores = theirs.compute_transition_scores(
            want.sequences, want.scores, getattr(want, "beam_indices", None), normalize_logits=case != "beam"
        ).numpy()
    got = ours.generate(ids, mask, return_dict_in_generate=True, output_scores=True, **settings)
    np.testing.assert_array_equal(got.sequences, want.sequences)
    inside = np.arange(scores.shape[1]) < np.asarray(got.lengths)[:, None]
    np.testing.assert_allclose(np.asarray(got.transition_scores)[inside], scores[inside], atol=1e-5, rtol=1e-5)
    assert (np.asarray(got.transition_scores)[~inside] == 0).all()
    if case == "beam":
        np.testing.assert_allclose(got.sequences_scores, want.sequences_scores, atol=1e-5)


@pytest.mark.rotates
def test_drawn_tokens_have_the_scores_of_the_filtered_model():
    from flax import nnx

    from flax_transformer.models.causal import Causal
    from flax_transformer.models.text.gpt2 import gpt2_tiny

    model = jax.tree.map(lambda x: 3 * x, Causal(gpt2_tiny(vocab=V), rngs=nnx.Rngs(0)))
    ours, filters = hub.wrap(model, "GPT2LMHeadModel"), {"temperature": 0.8, "top_k": 5, "top_p": 0.9}
    ids = random_ids(V, 3, 6)
    for more in ({}, {"assistant_model": ours}, {"prompt_lookup_num_tokens": 2}):
        got = ours.generate(ids, do_sample=True, key=jax.random.key(1), max_new_tokens=8, eos_token_id=(),
                            return_dict_in_generate=True, **filters, **more)  # fmt: skip
        logits = filter_logits(model(got.sequences[:, :-1])[:, 5:], **filters)
        want = jnp.take_along_axis(jax.nn.log_softmax(logits), got.sequences[:, 6:, None], axis=-1)[..., 0]
        np.testing.assert_allclose(got.transition_scores, want, atol=1e-5)
        assert (got.passes is None) == (not more)
        if "assistant_model" in more:  # one that is the model itself is always right
            np.testing.assert_array_equal(got.passes, 2)
            np.testing.assert_array_equal(got.accepted + got.passes, [9, 9, 9])
