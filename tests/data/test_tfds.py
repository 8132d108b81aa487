import re
import subprocess
import sys

import pytest

from flax_transformer.data.synthetic import build_number_words, numbers
from flax_transformer.data.text import PairSource, build_pairs, tfds_pairs

NAME = "wmt14_translate/de-en"
TRAIN, TEST = numbers(200), numbers(20, split="test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    build_pairs(NAME, {"train": TRAIN, "test": TEST}, source="en", target="de", data_dir=folder)
    return folder


def read(folder, split="train", source="en", target="de", name=NAME):
    return tfds_pairs(name, split, source=source, target=target, data_dir=folder)


def test_pairs_come_back_in_order(folder):
    pairs = read(folder)
    assert isinstance(pairs, PairSource)
    assert [pairs[i] for i in range(len(pairs))] == [TRAIN[i] for i in range(200)]
    assert pairs.__getitems__([7, 3, 7]) == [TRAIN[7], TRAIN[3], TRAIN[7]]
    assert pairs[-1] == TRAIN[199]
    with pytest.raises(IndexError):
        pairs[200]


def test_languages_can_be_turned_and_splits_sliced(folder):
    assert read(folder, "test", "de", "en")[0] == {"source": TEST[0]["target"], "target": TEST[0]["source"]}
    assert len(read(folder, "train[:10%]")) == 20


def test_any_iterable_of_pairs_builds_any_text(tmp_path):
    odd = ["", "a\u2028b\nc", "ü☃🙂", "x" * 5000]
    stream = ({"de": text, "en": text[::-1]} for text in odd)
    folder = build_pairs("stream", {"train": stream}, source="de", target="en", data_dir=tmp_path)
    assert folder == tmp_path / "stream" / "1.0.0"
    pairs = read(tmp_path, source="de", target="en", name="stream")
    assert [pairs[i] for i in range(4)] == [{"source": text, "target": text[::-1]} for text in odd]


def test_tfds_itself_opens_what_was_built(folder):
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder(NAME, data_dir=folder)
    assert builder.info.supervised_keys == ("en", "de")
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {"train": 200, "test": 20}
    assert builder.as_data_source("test")[3] == {"en": TEST[3]["source"].encode(), "de": TEST[3]["target"].encode()}


def test_number_words_are_the_numbers(tmp_path):
    build_number_words(tmp_path, train=50, validation=5, test=5, seed=2)
    pairs = read(tmp_path, "validation", name="number_words")
    expected = numbers(5, seed=2, split="validation")
    assert [pairs[i] for i in range(5)] == [expected[i] for i in range(5)]


def test_building_twice_is_refused(folder):
    with pytest.raises(ValueError, match=re.escape(f"{NAME} version 1.0.0 is already built in {folder}")):
        build_pairs(NAME, {"train": TRAIN}, source="en", target="de", data_dir=folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"name": "wmt14_translat"}, ValueError, "nearest: wmt14_translate, "),
        ({"name": "nothing_like_it_at_all_0"}, ValueError, "prepared there: wmt14_translate/de-en"),
        ({"name": "../../etc"}, ValueError, "TFDS cannot open '../../etc'"),
        (
            {"name": "wmt16_translate/ro-en"},
            RuntimeError,
            "tfds build wmt16_translate/ro-en --file_format=array_record",
        ),
        ({"name": "wmt14_translate/de-e"}, RuntimeError, "prepared there: wmt14_translate/de-en"),
        ({"split": "dev"}, ValueError, "has the splits test, train, got 'dev'"),
        ({"target": "fr"}, ValueError, "has the features de, en, got fr"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(folder, change, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        read(folder, **change)
    assert "\n" not in str(caught.value)


@pytest.mark.rotates
def test_tensorflow_is_not_needed_and_import_is_light(folder):
    code = f"""
import sys
import flax_transformer.data.text as data
heavy = {{"grain", "tensorflow_datasets", "tokenizers", "jax", "tensorflow", "array_record"}}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
assert len(data.tfds_pairs({NAME!r}, "train", source="en", target="de", data_dir={str(folder)!r})) == 200
data.build_pairs("again", {{"train": [{{"en": "a", "de": "b"}}]}}, source="en", target="de", data_dir={str(folder)!r})
assert "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""  # progress goes to standard error
