"""A resized vocabulary has the shapes, old rows and means that transformers gives it, and opens there."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from tests.hub.oracle import random_ids
from tests.hub.test_generate_parity import FAMILIES, TOKENS, V

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

BERT = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
KINDS = {
    **{name: FAMILIES[name] for name in ("gpt2", "llama", "t5", "bart", "marian")},
    "bert": ("Bert", "ForMaskedLM", BERT),
    "untied": ("T5", "ForConditionalGeneration", {**FAMILIES["t5"][2], "tie_word_embeddings": False}),
}


@pytest.fixture(scope="module", params=[name if name == "bert" else pytest.param(name, marks=pytest.mark.slow)
                                        for name in KINDS])  # fmt: skip
def made(request, tmp_path_factory):
    prefix, kind, options = KINDS[request.param]
    torch.manual_seed(2)
    theirs = getattr(transformers, prefix + kind)(
        getattr(transformers, f"{prefix}Config")(**{**TOKENS, **options})
    ).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape) * ("embed_positions" not in name))
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return type(theirs), folder


@pytest.mark.parametrize(("tokens", "options"), [(V + 7, {}), (V - 5, {}), (V + 2, {"multiple": 8})])
def test_tensors_equal_those_of_transformers(made, tmp_path, tokens, options):
    kind, folder = made
    theirs = kind.from_pretrained(folder)
    theirs.resize_token_embeddings(tokens, pad_to_multiple_of=options.get("multiple"))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = hub.resize_token_embeddings(hub.load(folder), tokens, **options)
    hub.save(ours, tmp_path / "ours")
    want, got = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert got.keys() == want.keys()
    size = -(-tokens // options.get("multiple", 1)) * options.get("multiple", 1)
    if kind.__name__ == "MarianMTModel":  # whose bias transformers leaves shorter than the table it has padded
        bias = want["final_logits_bias"]
        want["final_logits_bias"] = np.pad(bias, ((0, 0), (0, size - bias.shape[1])))
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        if size in value.shape and V not in value.shape and size > V:
            axis = value.shape.index(size)
            old, new = (np.split(each, [V], axis) for each in (got[name], value))
            np.testing.assert_array_equal(old[0], new[0], err_msg=name)
            mean = old[0].mean(axis, keepdims=True) * (value.size > size)  # a bias is 0
            np.testing.assert_allclose(old[1], np.broadcast_to(mean, old[1].shape), atol=1e-6, err_msg=name)
            np.testing.assert_allclose(old[1], new[1], atol=2e-4, err_msg=name)  # theirs are drawn about the mean
        else:
            np.testing.assert_array_equal(got[name], value, err_msg=name)
    opened, loading = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not {*loading["missing_keys"], *loading["unexpected_keys"]}
    assert opened.config.vocab_size == size == ours.config.vocab_size
    ids = random_ids(min(V, size), 2, 5, low=4)
    more = {"decoder_input_ids": torch.tensor(ids)} if opened.config.is_encoder_decoder else {}
    with torch.no_grad():
        logits = opened.eval()(input_ids=torch.tensor(ids), **more).logits.numpy()
    given = {"decoder_input_ids": ids} if more else {}
    np.testing.assert_allclose(ours(input_ids=ids, **given).logits, logits, atol=1e-4 * np.abs(logits).max())
    before = hub.load(folder)(input_ids=ids, **given).logits
    few = min(V, size)
    np.testing.assert_allclose(ours(input_ids=ids, **given).logits[..., :few], before[..., :few], atol=1e-5)


def test_drawn_rows_have_the_mean_and_a_billionth_of_the_covariance(made):
    _, folder = made
    before = hub.load(folder)
    wide = hub.resize_token_embeddings(before, V + 20_000, key=jax.random.key(0))
    name = next(name for name, leaf in tables(before) if leaf.shape[0] == V)
    old, new = (np.asarray(dict(tables(each))[name], np.float64) for each in (before, wide))
    drawn, centred = 1e4 * (new[V:] - old.mean(0)), old - old.mean(0)
    want = 1e8 * 1e-9 * centred.T @ centred / V
    np.testing.assert_allclose(drawn.mean(0), 0, atol=5 * np.sqrt(want.max() / 20_000) + 1e-3)
    np.testing.assert_allclose(np.cov(drawn.T), want, atol=0.05 * want.max())
    fresh = hub.resize_token_embeddings(before, V + 20_000, key=jax.random.key(0), mean_resizing=False)
    rows = np.asarray(dict(tables(fresh))[name])[V:]
    assert abs(rows.mean()) < 0.01 * rows.std()


def tables(pretrained):
    leaves = jax.tree_util.tree_leaves_with_path(pretrained.model)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if leaf.ndim == 2]


def test_what_cannot_be_is_named(made):
    before = hub.load(made[1])
    with pytest.raises(ValueError, match="a vocabulary has at least 1 token"):
        hub.resize_token_embeddings(before, 0)
    with pytest.raises(ValueError, match="need a key"):
        hub.resize_token_embeddings(before, 40, mean_resizing=False)
    with pytest.raises(AttributeError, match=r"hub\.resize_token_embeddings"):
        before.resize_token_embeddings(40)
