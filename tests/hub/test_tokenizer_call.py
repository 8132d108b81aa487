"""A tokenizer called in the words of transformers; and weights whose tokenizer cannot be read."""

import copy
import dataclasses
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.convert import describe, load_orbax, save_orbax
from flax_transformer.hub.processor.call import check_text, read_rows
from flax_transformer.hub.processor.open import Unreadable
from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
from flax_transformer.task.text_generation import TextGenerator
from tests.hub.test_hub_tokenizer import BERT_FILES, BYTES, _write

GOLDEN = Path(__file__).parent / "golden" / "gpt2"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return load_hub_tokenizer(_write(tmp_path_factory.mktemp("bert"), BERT_FILES))


TEXTS, PAIRS = ["one two", "three two one how"], ["how many", "three"]
SAME = [
    ({"padding": True}, {}),
    ({"padding": "longest", "return_tensors": "np"}, {}),
    ({"padding": "max_length", "max_length": 9}, {"padding": 9}),
    ({"padding": "max_length"}, {"padding": 16}),
    ({"truncation": True, "max_length": 4}, {"truncate": True, "max_length": 4}),
    ({"truncation": "longest_first", "max_length": 4}, {"truncate": True, "max_length": 4}),
    ({"truncation": False, "return_offsets_mapping": False, "stride": 0}, {}),
    ({"padding_side": "left"}, {"side": "left"}),
    ({"text_pair": PAIRS}, {"pairs": PAIRS}),
    ({"return_attention_mask": True, "return_token_type_ids": True}, {}),
]


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_words_of_transformers_mean_the_same(bert, theirs, ours):
    jax.tree.map(np.testing.assert_array_equal, bert(TEXTS, **theirs), bert(TEXTS, **ours))


def test_further_words_of_transformers(bert):
    bare = bert(TEXTS, add_special_tokens=False)
    assert bare["input_ids"][bare["attention_mask"] != 0].tolist() == [id for row in bert.encode(TEXTS) for id in row]
    assert bert(TEXTS, pad_to_multiple_of=8)["input_ids"].shape == (2, 8)
    assert set(bert(TEXTS, return_attention_mask=False, return_token_type_ids=False)) == {"input_ids"}
    assert "token_type_ids" in BYTES(TEXTS, return_token_type_ids=True)
    whole = bert(TEXTS, PAIRS)["input_ids"]
    for cut, kept in (("only_first", PAIRS[0]), ("only_second", TEXTS[0])):
        (row,) = bert(TEXTS[:1], PAIRS[:1], truncation=cut, max_length=6)["input_ids"]
        assert len(row) == 6 < whole.shape[1]
        assert kept in bert.decode(row)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"padding": "widest"}, "padding must be 'longest', 'max_length', a number of tokens or None"),
        ({"truncation": "both"}, "truncation must be true, false, longest_first, only_first, only_second, got 'both'"),
        ({"return_tensors": "pt"}, "return_tensors='pt'; arrays are NumPy's, which JAX takes"),
        ({"return_offsets_mapping": True}, "return_offsets_mapping=True; encode_windows gives offsets"),
        ({"is_split_into_words": True}, "is_split_into_words=True"),
        ({"text_target": ["x"]}, r"text_target=\['x'\]; tokenizer.target reads the target language"),
        ({"text_pair": "x"}, "beside several a sequence of strings, as many, got one string 'x'"),
        ({"pad_to_multiple_of": 0.5}, "pad_to_multiple_of must be a number above 0, got 0.5"),
        ({"widht": 7}, "a tokenizer takes max_length, .*; got widht=7"),
    ],
)
def test_words_that_are_not_understood_get_a_sentence(bert, words, message):
    with pytest.raises(ValueError, match=message):
        bert(TEXTS, **words)


def test_padding_to_no_length_is_refused():
    with pytest.raises(ValueError, match="padding='max_length' needs max_length, the checkpoint has none"):
        BYTES(TEXTS, padding="max_length")
    with pytest.raises(ValueError, match="texts must be strings, got 7"):
        check_text(7)


@pytest.mark.parametrize("form", [list, np.array, jnp.array, tuple])
def test_one_row_is_one_text_and_rows_are_texts(bert, form):
    ids = bert.encode(TEXTS)[0]
    assert bert.decode(form(ids)) == "one two"
    assert bert.decode(form([ids, ids])) == bert.batch_decode(form([ids, ids])) == ["one two"] * 2
    marked = bert(TEXTS[:1])["input_ids"]
    assert bert.decode(form(marked[0].tolist()), skip_special_tokens=False) == "[CLS] one two [SEP]"


def test_a_tokenizer_stays_as_it_is_and_says_how_another_is_made(bert):
    with pytest.raises(AttributeError, match=r"dataclasses.replace\(tokenizer, pad=tokenizer.eos\) gives another"):
        bert.pad_token = bert.mask_token
    with pytest.raises(AttributeError, match=r"no 'save_pretrained'; save\(folder\) writes its files"):
        bert.save_pretrained("x")
    assert dataclasses.replace(bert, pad=bert.mask).pad_token == "[MASK]"
    assert isinstance(bert("one", return_tensors="jax")["input_ids"], jax.Array)


NO_IDS = [[-1], [[3, -1]], [1.5], [[2, 0.5]], [2**40], [[[1]]], [[1], 2], np.ones((1, 1, 1), int), "3", {3}]


@pytest.mark.parametrize("ids", NO_IDS)
def test_what_are_no_ids_gets_a_sentence(ids):
    with pytest.raises(
        ValueError, match=r"token ids must (not be negative|be whole numbers below|be one row or a list)"
    ):
        read_rows(ids)


def broken(folder, files):
    shutil.copytree(GOLDEN, folder)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


BROKEN = {
    "no JSON": {"tokenizer.json": "{"},
    "a program": {"vocab.txt": "[UNK]\n", "tokenizer_config.json": '{"tokenizer_class": "BertJapaneseTokenizer"}'},
    "half": {"vocab.json": "{}"},
    "options of nothing": {"tokenizer.json": "{}", "tokenizer_config.json": "[]"},
}


@pytest.mark.parametrize("files", BROKEN.values(), ids=BROKEN)
def test_weights_load_without_a_tokenizer_which_says_why_where_it_is_used(tmp_path, files, caplog):
    folder = broken(tmp_path / "in", files)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 -- whatever it is, it must be told again
        load_hub_tokenizer(folder)
    loaded = hub.load(folder)
    assert str(caught.value) in caplog.text
    jax.tree.map(np.testing.assert_array_equal, loaded.model, hub.load(GOLDEN).model)
    for use in (
        lambda: loaded.tokenizer(["one"]),
        lambda: loaded.tokenizer.decode([[1]]),
        lambda: loaded.tokenizer.pad,
        lambda: TextGenerator(loaded),
    ):
        with pytest.raises(ValueError, match="this checkpoint's tokenizer cannot be read: ") as told:
            use()
        assert str(caught.value) in str(told.value)


def test_weights_without_a_tokenizer_work_as_any_and_keep_its_files(tmp_path):
    loaded = hub.load(broken(tmp_path / "in", BROKEN["a program"]))
    assert isinstance(loaded.tokenizer, Unreadable)
    assert "Unreadable" in repr(copy.deepcopy(loaded))
    assert jax.jit(lambda p, ids: p(input_ids=ids).logits)(loaded, jnp.ones((1, 3), int)).shape[:2] == (1, 3)
    for write, read in ((hub.save, hub.load), (save_orbax, load_orbax), (describe, None)):
        write(loaded, tmp_path / write.__name__)
        for name, text in BROKEN["a program"].items():
            assert (tmp_path / write.__name__ / name).read_text() == text
        if read is not None:
            assert isinstance(read(tmp_path / write.__name__).tokenizer, Unreadable)


def test_a_checkpoint_without_tokenizer_files_says_so_where_text_is_used():
    loaded = hub.load(GOLDEN)
    assert loaded.tokenizer is None
    with pytest.raises(ValueError, match="text needs a tokenizer, the checkpoint has no tokenizer files"):
        TextGenerator(loaded)
