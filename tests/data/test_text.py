import ast
import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.text import load_tokenizer, train_byte_bpe
from flax_transformer.data.text.labelled import LabelledText, code_or_comment, read_labelled
from flax_transformer.data.text.plain import (
    PlainText,
    encode_documents,
    read_text,
    split_text,
    standard_library,
    train_characters,
)


@pytest.mark.rotates
def test_the_standard_library_is_large_python_and_the_same_every_time():
    documents = standard_library()
    assert sum(map(len, documents)) > 8_000_000
    assert documents == standard_library()
    for document in documents[::100]:
        ast.parse(document)
    assert not any("class TestCase(unittest" in document for document in documents)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.text(max_size=20), max_size=8), st.floats(0.01, 0.99))
def test_a_split_loses_nothing(documents, holdout):
    train, validation = split_text(documents, holdout)
    whole = "".join(documents)
    assert "".join(train) + "".join(validation) == whole
    assert len("".join(train)) == int(len(whole) * (1 - holdout))
    assert all(train)
    assert all(validation)


def test_a_file_is_split_at_nine_tenths(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("0123456789" * 10, encoding="utf-8")
    corpus = PlainText(text=str(path))
    assert corpus.read("train") == ["0123456789" * 9]
    assert corpus.read("validation") == ["0123456789"]
    with pytest.raises(ValueError, match="split must be one of train, validation, got 'test'"):
        corpus.read("test")
    with pytest.raises(ValueError, match=r"holdout must be a share in \(0, 1\), got 1.0"):
        PlainText(holdout=1.0)


def test_texts_are_read_as_they_are(tmp_path):
    text = "a\r\nb\u2028c\n\n"
    (tmp_path / "plain.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert read_text(tmp_path / "plain.txt") == read_text(tmp_path / "packed.txt.gz") == text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"good\t1\nb\xffd\t0\n", "line 2: not UTF-8 (invalid start byte)"),
        (b"good\t1\nbad\n", "line 2: a line must be text TAB label, got 1 columns"),
        (b"good\tx\t1\t1\n", "line 1: a line must be text TAB label, got 4 columns"),
        (b"good\tx\t1\nbad\t0\n", "line 2: a line must be text TAB text TAB label, got 2 columns"),
        (b"good\t1\nbad\tx\t0\n", "line 2: a line must be text TAB label, got 3 columns"),
        (b"good\t \t1\n", "line 1: the text must not be empty"),
        (b"good\t1\n\nbad\t0\n", "line 2: a line must be text TAB label, got 1 columns"),
        (b"good\t1\nbad\t2\n", "line 2: the label must be one of 0, 1, got '2'"),
        (b"good\t1\n \t0\n", "line 2: the text must not be empty"),
    ],
)
def test_broken_files_are_named_with_line_and_rule(tmp_path, data, message):
    path = tmp_path / "train.tsv"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        read_labelled(path, ("0", "1"))


def test_pairs_of_texts_are_labelled(tmp_path):
    (tmp_path / "train.tsv").write_text("a dog runs\tan animal moves\tyes\nit rains\tit is dry\tno\n")
    found = LabelledText(root=str(tmp_path)).read("train")
    assert (found["text"], found["pair"]) == (["a dog runs", "it rains"], ["an animal moves", "it is dry"])
    assert list(found["label"]) == [1, 0]


def test_labelled_sentences(tmp_path):
    (tmp_path / "dev.tsv").write_bytes("a fine film\tgood\r\nnot so\u0085fine\tbad\n".encode())
    corpus = LabelledText(root=str(tmp_path), labels=("bad", "good"))
    rows = corpus.read("validation")
    assert [rows[k] for k in range(len(rows))] == [
        {"text": "a fine film", "label": 1},
        {"text": "not so\u0085fine", "label": 0},
    ]
    with pytest.raises(FileNotFoundError, match=r"no file .*train.tsv; nearest names there: dev.tsv"):
        corpus.read("train")
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'dev'"):
        corpus.read("dev")
    with pytest.raises(ValueError, match="labels must be at least two and differ"):
        LabelledText(root="", labels=("0", "0"))


def test_the_classes_of_a_folder_are_those_its_training_file_has(tmp_path):
    words = [f"text {label}\t{label}\n" for label in (*range(19, -1, -1), 3)]
    (tmp_path / "train.tsv").write_text("".join(words))
    (tmp_path / "dev.tsv").write_text("other\t11\n")
    corpus = LabelledText(root=str(tmp_path))
    assert corpus.classes() == tuple(map(str, range(20)))
    assert list(corpus.read("train")["label"]) == [*range(19, -1, -1), 3]
    assert corpus.read("validation")[0] == {"text": "other", "label": 11}
    (tmp_path / "dev.tsv").write_text("other\tnew\n")
    with pytest.raises(ValueError, match=r"dev.tsv, line 1: the label must be one of 0, 1, 2, .*, got 'new'"):
        corpus.read("validation")
    (tmp_path / "train.tsv").write_text("b\tgood\nc\tbad\n")
    assert corpus.classes() == ("bad", "good")
    assert LabelledText(root=str(tmp_path), names=("poor", "fine")).classes() == ("poor", "fine")
    with pytest.raises(ValueError, match="as many as labels"):
        LabelledText(root=str(tmp_path), names=("one",)).classes()
    (tmp_path / "train.tsv").write_text("b\tgood\n")
    with pytest.raises(ValueError, match="at least two classes, all are labelled 'good'"):
        corpus.classes()


def test_a_column_of_ids_is_no_label_and_is_told_in_a_sentence(tmp_path):
    (tmp_path / "train.tsv").write_text("".join(f"text {number}\tid{number:05}\n" for number in range(10_514)))
    with pytest.raises(
        ValueError, match=r"10,514 lines of text TAB label, got 10,514 labels: id00000, id00001"
    ) as told:
        LabelledText(root=str(tmp_path)).classes()
    assert len(str(told.value)) < 400
    labels = tuple(f"id{number}" for number in range(10_000))
    with pytest.raises(ValueError, match=r"must be one of id0, id1, .*, … \(10,000 in all\), got 'id00000'") as told:
        LabelledText(root=str(tmp_path), labels=labels).read("train")
    assert len(str(told.value)) < 400


@pytest.mark.slow
def test_lines_of_code_and_comments_are_half_and_half_and_of_one_split():
    splits = [code_or_comment(split, 1_000) for split in ("train", "validation", "test")]
    assert [len(split) for split in splits] == [800, 100, 100]
    texts = [text for split in splits for text in split["text"]]
    assert len(set(texts)) == 1_000
    assert sum(label for split in splits for label in split["label"]) == 500
    assert not any(text.startswith("#") for text in texts)
    assert code_or_comment("test", 1_000).fingerprint == splits[2].fingerprint


@pytest.mark.rotates
@settings(max_examples=100)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=5).filter(any))
def test_characters_are_lossless_on_their_alphabet(texts):
    tokenizer = train_characters(texts)
    assert tokenizer.vocab_size == 4 + len(set("".join(texts)))
    rows = tokenizer.encode(texts)
    assert [len(row) for row in rows] == [len(text) for text in texts]
    assert tokenizer.decode(rows) == texts


def test_a_tokenizer_of_characters_is_saved_and_loaded(tmp_path):
    text = "</s> and\t<pad>\n"
    tokenizer = train_characters([text])
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.fingerprint() == tokenizer.fingerprint()
    assert again.decode(again.encode([text])) == [text]
    assert again.encode(["?"]) == [[again.unk]]
    with pytest.raises(ValueError, match="to take characters from are empty"):
        train_characters([""])


def test_long_documents_are_encoded_in_blocks_to_the_same_tokens():
    lines = [f"line {k} of many\n" for k in range(12_000)]
    document = "".join(lines)
    assert len(document) > 3 << 16
    tokenizer = train_characters(lines)
    rows = encode_documents([document, "", "many"], tokenizer)
    assert rows.flat.dtype == np.uint16
    assert rows[0].tolist() == tokenizer.encode([document])[0]
    assert rows.lengths.tolist() == [len(document), 0, 4]
    pieces = train_byte_bpe(lines[:100], vocab_size=300)
    assert encode_documents([document], pieces)[0].tolist() == pieces.encode([document])[0]
