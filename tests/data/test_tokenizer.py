import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.data.synthetic import numbers
from flax_transformer.data.text import load_tokenizer, train_byte_bpe, train_word_bpe

PAIRS = numbers(400)
TEXTS = [*PAIRS["source"], *PAIRS["target"]]
WORD = train_word_bpe(TEXTS, merges=150)
BYTE = train_byte_bpe(TEXTS, vocab_size=400)
LETTERS = sorted({letter for text in TEXTS for letter in text} - {" "})


@pytest.mark.parametrize("tokenizer", [WORD, BYTE], ids=["word", "byte"])
def test_special_ids_are_fixed(tokenizer):
    assert tokenizer.tokens(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk) == (0, 1, 2, 3)


@given(st.lists(st.text(st.sampled_from(LETTERS), min_size=1), min_size=1))
def test_words_of_known_letters_come_back(words):
    text = " ".join(words)
    (ids,) = WORD.encode([text])
    assert WORD.unk not in ids  # also letters no training word ended with
    assert WORD.decode([ids]) == [text]


@pytest.mark.rotates
@given(st.text())
def test_bytes_are_lossless_on_any_text(text):
    (ids,) = BYTE.encode([text])
    assert min(ids, default=4) >= 4
    assert BYTE.decode([ids]) == [text]


def test_whitespace_becomes_single_spaces():
    assert WORD.decode(WORD.encode(["  one\t two\u00a0three "])) == ["one two three"]


def test_merges_are_counted_above_the_alphabet():
    assert WORD.vocab_size == 4 + 2 * len(LETTERS) + 150
    assert train_word_bpe(TEXTS, merges=0).vocab_size == 4 + 2 * len(LETTERS)
    assert BYTE.vocab_size == 400


def test_pieces_are_those_of_subword_nmt():
    # The most frequent neighbours by hand: e s (9), es t</w> (9), l o (7), n e, ne w, new est</w> (6), lo w</w> (5).
    tokenizer = train_word_bpe(["low " * 5 + "lower " * 2 + "newest " * 6 + "widest " * 3], merges=7)
    assert [tokenizer.tokens(ids) for ids in tokenizer.encode(["lowest newest low"])] == [
        ["lo", "w", "est</w>", "newest</w>", "low</w>"]
    ]


def test_unknown_characters_become_unk():
    assert WORD.encode(["☃"]) == [[WORD.unk]]
    assert WORD.decode([[WORD.unk, *WORD.encode(["one"])[0]]]) == ["one"]


@pytest.mark.parametrize("special", ["<pad>", "<s>", "</s>", "<unk>"])
def test_special_tokens_typed_by_a_user_are_text(special):
    # Trained on the very string between all sorts of letters, so that its own pieces are the pairs worth merging.
    around = [f"{left}{special}{right}" for left in "abcdef" for right in "ghijkl"]
    text = f"one {special} two</w> x{special}yz"
    for tokenizer in (
        train_word_bpe([*TEXTS, *around * 20], merges=400),
        train_byte_bpe([*TEXTS, *around * 20], vocab_size=500),
    ):
        (ids,) = tokenizer.encode([text])
        assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos} & set(ids)
        assert tokenizer.decode([[*ids, tokenizer.eos, 9]]) == tokenizer.decode([ids])
    assert tokenizer.decode([ids]) == [text]


def test_decoding_stops_at_the_end_mark_and_leaves_special_ids_out():
    one, two = WORD.encode(["one", "two"])
    rows = [[WORD.bos, *one, WORD.eos, *two], [*two, WORD.pad, WORD.pad], [WORD.eos], []]
    assert WORD.decode(rows) == ["one", "two", "", ""]
    square = np.array([[1, *one, 2], [1, *one, 0]])
    assert WORD.decode(square) == ["one", "one"]


@pytest.mark.parametrize("tokenizer", [WORD, BYTE], ids=["word", "byte"])
def test_a_saved_tokenizer_loads_unchanged(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)
    assert loaded.encode(["a </s> b"]) == tokenizer.encode(["a </s> b"])
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.rotates
def test_training_is_the_same_in_every_process():
    code = (
        "from flax_transformer.data.synthetic import numbers; from flax_transformer.data.text import *;"
        "p = numbers(400); t = [*p['source'], *p['target']];"
        "print(train_word_bpe(t, merges=150).fingerprint(), train_byte_bpe(t, vocab_size=400).fingerprint())"
    )
    for _ in range(2):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert out.split() == [WORD.fingerprint(), BYTE.fingerprint()]


def _vocabulary(change):
    content = json.loads(WORD.json())
    change(content)
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"not json",
        b"\xff\xfe\x00",
        WORD.json().encode()[:-500],
        _vocabulary(lambda c: c["model"]["merges"].append(["no such", "piece"])),
        _vocabulary(lambda c: c["model"].update(type="Unigram", vocab=[], unk_id=5)),
        _vocabulary(lambda c: c.update(decoder={"type": "Strip", "content": "", "start": -1, "stop": 0})),
        b"[" * 100_000,
    ],
    ids=["empty", "object", "text", "not utf-8", "truncated", "merge", "unigram", "decoder", "deep"],
)
def test_malformed_files_are_value_errors_that_name_the_file(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a readable"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_panic_of_the_rust_library_is_a_value_error(tmp_path):
    content = json.loads(BYTE.json())
    content["added_tokens"] = []
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a readable"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_file_without_our_special_tokens_says_which_it_lacks(tmp_path):
    text = BYTE.json().replace("<pad>", "[PAD]")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="it lacks <pad>"):
        load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere.json")


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        train_word_bpe(TEXTS, merges=-1)
    with pytest.raises(ValueError, match="256 bytes \\+ 4 special tokens, got 100"):
        train_byte_bpe(TEXTS, vocab_size=100)
    with pytest.raises(ValueError, match="no words"):
        train_word_bpe([" "], merges=1)


@pytest.mark.parity
@pytest.mark.parametrize("tokenizer", [WORD, BYTE], ids=["word", "byte"])
def test_transformers_reads_the_saved_file_alike(tmp_path, tokenizer):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    assert theirs(TEXTS[:50])["input_ids"] == tokenizer.encode(TEXTS[:50])
    rows = [[*ids, tokenizer.eos, tokenizer.pad] for ids in tokenizer.encode(TEXTS[-50:])]
    decoded = theirs.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert decoded == TEXTS[-50:] == tokenizer.decode(rows)
