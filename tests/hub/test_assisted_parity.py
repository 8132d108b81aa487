"""Tokens that an assistant or a lookup proposes change nothing: they are those of transformers with an assistant."""

import jax
import numpy as np
import pytest

from flax_transformer import hub
from tests.hub.oracle import padded, random_ids
from tests.hub.test_generate_parity import CAUSAL, FAMILIES, PAD, RULES, TOKENS, V

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("generation", "assistants and prompt lookup, as `generate`"),
]

CASES = {"plain": {"max_new_tokens": 20}, "rules": RULES}
SMALL = {"n_layer": 1, "num_hidden_layers": 1, "num_layers": 1, "decoder_layers": 1}


@pytest.fixture(scope="module", params=["gpt2", "llama", "t5", "bart", "marian"])
def both(request, tmp_path_factory):
    """A random model and a smaller one whose layers are some of its own, in transformers and here."""
    prefix, kind, options = FAMILIES[request.param]
    torch.manual_seed(4)
    config = getattr(transformers, f"{prefix}Config")
    large = getattr(transformers, prefix + kind)(config(**{**TOKENS, **options})).eval()
    with torch.no_grad():
        for name, parameter in large.named_parameters():
            fixed = "norm" in name or (prefix == "Marian" and "embed_positions" in name)
            parameter.add_(0.4 * torch.randn(parameter.shape) * (not fixed))
    fewer = {name: value for name, value in SMALL.items() if name in options}
    small = getattr(transformers, prefix + kind)(config(**{**TOKENS, **options, **fewer})).eval()
    small.load_state_dict(large.state_dict(), strict=False)
    ours = []
    for name, model in (("large", large), ("small", small)):
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        ours.append(hub.load(folder))
    return request.param, large, small, *ours


def expected(model, ids, mask, **settings):
    """One row at a time, without padding, as assisted generation wants it."""
    rows = []
    for row, seen in zip(ids, mask, strict=True):
        with torch.no_grad():
            rows.append(model.generate(torch.tensor(row[seen][None]), do_sample=False, **settings)[0].numpy())
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_tokens_equal_those_of_transformers_with_an_assistant(both, case):
    name, large, small, ours, assistant = both
    causal = name in CAUSAL
    mask = padded([7, 3, 1, 5], 7, "left" if causal else "right").astype(bool)
    ids = np.where(mask, random_ids(V, 4, 7, seed=len(case), low=4), PAD)
    want = expected(large, ids, mask, assistant_model=small, num_assistant_tokens=3, **CASES[case])
    for proposing in (
        {"assistant_model": assistant, "num_assistant_tokens": 3}, {"assistant_model": ours, "num_assistant_tokens": 5},
        {"prompt_lookup_num_tokens": 4},
    ):  # fmt: skip
        got = np.asarray(ours.generate(ids, mask, **proposing, **CASES[case]))
        got = got[:, 7 if causal else 1 :]
        for i, (row, seen) in enumerate(zip(want, mask, strict=True)):
            row = row[seen.sum() if causal else 1 :]
            np.testing.assert_array_equal(got[i, : len(row)], row, err_msg=str(proposing.keys()))
            assert (got[i, len(row) :] == PAD).all()


@pytest.mark.slow
def test_tokens_equal_those_of_a_lookup_in_transformers(both):
    _, large, _, ours, _ = both
    ids = np.resize(random_ids(V, 1, 4, low=4), (1, 11))
    want = expected(large, ids, ids > 0, prompt_lookup_num_tokens=3, max_new_tokens=20)[0]
    got = ours.generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=20)
    np.testing.assert_array_equal(np.asarray(got)[0, : len(want)], want)


@pytest.mark.slow
def test_one_row_and_a_transform_give_the_same(both):
    _, _, _, ours, assistant = both
    ids, options = random_ids(V, 3, 6, low=4), {"max_new_tokens": 9, "eos_token_id": ()}
    want = np.asarray(ours.generate(ids, **options))
    np.testing.assert_array_equal(ours.generate(ids[:1], assistant_model=assistant, **options), want[:1])
    run = jax.jit(lambda ours, small, ids: ours.generate(ids, assistant_model=small, **options))
    np.testing.assert_array_equal(np.asarray(run(ours, assistant, ids))[:, : want.shape[1]], want)
