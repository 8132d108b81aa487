"""GPT-2 against transformers: every class, odd sizes, padding on either side, and the round trip."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from tests.hub.oracle import compare, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("gpt2", "parity", "every class but `GPT2DoubleHeadsModel`, every layer"),
]

V = 61
CONFIGS = {
    "plain": {"n_embd": 24, "n_layer": 3, "n_head": 4},
    "odd": {"n_embd": 15, "n_layer": 1, "n_head": 3, "n_inner": 22, "activation_function": "relu"},
    "eps": {"n_embd": 16, "n_layer": 2, "n_head": 1, "layer_norm_epsilon": 0.1, "activation_function": "gelu"},
}


def make(kind, **options):
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=20, initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options
    )
    return getattr(transformers, kind)(config)


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_language_model_equals_transformers(tmp_path, options, side):
    mask = {} if side is None else {"attention_mask": padded([9, 4, 1], 9, side)}
    compare(make("GPT2LMHeadModel", **options), tmp_path, input_ids=random_ids(V, 3, 9), **mask)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("GPT2Model", 2),
        ("GPT2ForSequenceClassification", 5),
        ("GPT2ForTokenClassification", 3),
        ("GPT2ForQuestionAnswering", 2),
    ],
)
def test_every_class_equals_transformers(tmp_path, kind, labels):
    ids, mask = random_ids(V, 3, 9), padded([9, 4, 1], 9)
    model = make(kind, **CONFIGS["plain"], num_labels=labels)
    compare(model, tmp_path, input_ids=ids * mask, attention_mask=mask)


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2ForTokenClassification"])
def test_types_are_looked_up_among_tokens(tmp_path, kind):
    types = random_ids(V, 3, 9, seed=3, low=0)
    compare(make(kind, **CONFIGS["plain"]), tmp_path, input_ids=random_ids(V, 3, 9), token_type_ids=types)


SCALES = {
    "by layer": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "not at all": {"scale_attn_weights": False},
    "only by layer": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
}


@pytest.mark.parametrize("options", SCALES.values(), ids=SCALES)
def test_scores_scaled_otherwise_equal_transformers(tmp_path, options):
    """And so do the tokens generated, layer by layer, and a model made here of the same config."""
    model, ids = make("GPT2LMHeadModel", **CONFIGS["plain"], **options), random_ids(V, 3, 9)
    ours, _ = compare(model, tmp_path, input_ids=ids, attention_mask=padded([9, 4, 1], 9, "left"))
    theirs = model.generate(torch.as_tensor(ids), max_new_tokens=8, do_sample=False, pad_token_id=0)
    tokens = np.asarray(ours.generate(ids, max_new_tokens=8))
    np.testing.assert_array_equal(tokens, theirs[:, : tokens.shape[1]].numpy())
    again = hub.wrap(ours.model, "GPT2LMHeadModel")
    assert {name: again.config[name] for name in options if name in again.config} == {
        name: value for name, value in options.items() if name in again.config
    }
    np.testing.assert_array_equal(again(input_ids=ids).logits, ours(input_ids=ids).logits)


@pytest.mark.rotates
def test_scores_that_fall_by_layer_train_as_those_of_transformers(tmp_path):
    """Parameters stay what is saved: their gradients are those of the weights in the file."""
    model, ids = make("GPT2LMHeadModel", **CONFIGS["plain"], **SCALES["by layer"]).eval(), random_ids(V, 2, 7)
    model.save_pretrained(tmp_path)
    model(torch.as_tensor(ids)).logits.pow(2).mean().backward()
    slope = jax.grad(lambda model: jnp.square(model(jnp.asarray(ids))).mean())(hub.load(tmp_path).model)
    for i, layer in enumerate(model.transformer.h):
        expected = layer.attn.c_attn.weight.grad[:, :24].numpy()
        found = np.asarray(slope.trunk.blocks.attention.query.kernel[...][i]).reshape(24, 24)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
