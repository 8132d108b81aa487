"""What someone who knows transformers types: it works, or one sentence says what to type instead."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.convert import load_orbax, save_orbax

GOLDEN = Path(__file__).parent / "golden"
IDS = np.array([[5, 6, 7]])


@pytest.fixture(scope="module")
def gpt2():
    return hub.load(GOLDEN / "gpt2")


def test_the_first_inputs_are_taken_by_position(gpt2):
    mask = np.array([[0, 1, 1]])
    expected = gpt2(input_ids=IDS, attention_mask=mask).logits
    np.testing.assert_array_equal(gpt2(IDS, mask).logits, expected)
    np.testing.assert_array_equal(gpt2(IDS, attention_mask=mask, return_dict=True, labels=None).logits, expected)


REFUSED = [
    (lambda m: m(IDS, IDS, IDS), "by position a model is given input_ids, attention_mask, others by name; got 3"),
    (lambda m: m(IDS, input_ids=IDS), "an input is given once, got input_ids by position and by name"),
    (lambda m: m(IDS, labels=IDS), "got labels; it gives logits, of which optax.softmax_cross_entropy"),
    (lambda m: m(IDS, train=True), "got train; key=jax.random.key"),
    (lambda m: m(IDS, key=3), r"key must be one of JAX, as jax.random.key\(3\), got 3"),
    (lambda m: m(IDS, interpolate_pos_encoding=True), "is of images, a GPT2LMHeadModel reads none"),
    (lambda m: m.generate(IDS, interpolate_pos_encoding=True), "is of images, a GPT2LMHeadModel is given none"),
    (lambda m: m(IDS).loss, "ModelOutput names, not loss; optax.softmax_cross_entropy"),
    (lambda m: m(IDS).to_tuple(), "not to_tuple; each is taken by name"),
    (lambda m: m.train(), r"no 'train'; key=jax.random.key\(0\) in a call asks for dropout"),
    (lambda m: m.save_pretrained("x"), r"hub.save\(pretrained, folder\)"),
    (lambda m: m.eval(), "without a key in a call there is no dropout"),
    (lambda m: hub.from_pretrained("x"), r"hub.load\(folder\) loads a model with its tokenizer"),
    (lambda m: hub.load(GOLDEN / "gpt2", num_labels=3), r"got num_labels; lenient=hub.Lenient\("),
    (lambda m: hub.load(GOLDEN / "gpt2", dtype="int8"), "dtype must be one of float32, float16, bfloat16, got 'int8'"),
    (lambda m: hub.load(GOLDEN / "gpt2", dtype=np.int32), "dtype must be one of float32, float16, bfloat16"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_other_words_get_a_sentence_that_says_what_to_type(gpt2, call, message):
    with pytest.raises((ValueError, AttributeError), match=message) as found:
        call(gpt2)
    assert len(str(found.value)) < 400


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.dtype("bfloat16"), "bfloat16", "torch.bfloat16"])
def test_numbers_are_asked_for_as_any_library_has_them(dtype):
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(hub.load(GOLDEN / "gpt2", dtype=dtype))} == {"bfloat16"}
    assert jax.tree.leaves(hub.load(GOLDEN / "gpt2", dtype="auto"))[0].dtype == jnp.float32


def test_a_folder_of_orbax_takes_the_same_words(tmp_path, gpt2):
    save_orbax(gpt2, tmp_path)
    assert jax.tree.leaves(load_orbax(tmp_path, dtype=jnp.bfloat16))[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("name", ["gpt2", "vit", "wav2vec2", "imagegpt", "blip"])
def test_what_is_loaded_is_said_in_a_few_lines(name):
    said = repr(hub.load(GOLDEN / name))
    assert len(said) < 800
    assert len(said.splitlines()) == 4
    assert "parameters: " in said


def test_a_tree_of_names_in_its_place_has_a_repr_too(gpt2):
    assert "20 arrays" in repr(jax.tree.map(lambda leaf: "frozen", gpt2))
