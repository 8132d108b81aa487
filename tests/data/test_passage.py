import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.data.text.passage import Document, PassageConfig, read_documents, split_passages

pytestmark = pytest.mark.proves("retrieval of texts", "passages by tokens, documents read or refused")


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_passages_cover_a_document_and_overlap(count, tokens, data):
    overlap = data.draw(st.integers(0, tokens - 1))
    words = [f"w{number}" for number in range(count)]
    text, offsets, at = " ".join(words), [], 0
    for word in words:
        offsets.append((at, at + len(word)))
        at += len(word) + 1
    found = split_passages(Document("d", text), offsets, PassageConfig(tokens=tokens, overlap=overlap))
    rows = [each.text.split() for each in found]
    assert all(text[each.start : each.end] == each.text for each in found)
    assert all(len(row) == tokens for row in rows[:-1])
    assert 1 <= len(rows[-1]) <= tokens
    assert all(left[len(left) - overlap :] == right[:overlap] for left, right in itertools.pairwise(rows))
    assert [rows[0], *(row[overlap:] for row in rows[1:])] == [[*row] for row in _parted(words, tokens, overlap)]


def _parted(words, tokens, overlap):
    """Return what each passage has anew."""
    parts = [words[:tokens]]
    rest = words[tokens:]
    while rest:
        parts.append(rest[: tokens - overlap])
        rest = rest[tokens - overlap :]
    return parts


def test_a_passage_is_of_a_size_that_it_can_have():
    with pytest.raises(ValueError, match="share fewer than it has, got tokens=4, overlap=4"):
        PassageConfig(tokens=4, overlap=4)


def test_documents_are_files_and_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "deep").mkdir()
    lines = [{"id": "x", "text": "three"}, {"text": "four"}]
    (tmp_path / "deep" / "b.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert list(read_documents([tmp_path])) == [
        Document("a.txt", "one\ntwo"),
        Document("deep/b.jsonl:x", "three"),
        Document("deep/b.jsonl:2", "four"),
    ]
    assert next(read_documents([tmp_path / "a.txt"])).name == "a.txt"


@pytest.mark.parametrize(
    ("name", "data", "rule"),
    [
        ("a.bin", b"\xff\xfe\x00", "must be text in UTF-8"),
        ("a.txt", b"a\x00b", "has a byte 0 at 1"),
        ("a.txt", b" \n", "must not be empty"),
        ("a.jsonl", b"{}", "line 1 must be an object with a text that is not empty"),
        ("a.jsonl", b'{"text": "a"}\n{', "line 2 must be JSON"),
    ],
)
def test_what_is_no_document_is_refused_and_the_rest_is_read(tmp_path, name, data, rule):
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.txt").write_text("good")
    with pytest.raises(ValueError, match=rule):
        list(read_documents([tmp_path]))
    refused = []
    found = list(read_documents([tmp_path], lambda file, error: refused.append((file.name, str(error)))))
    assert [each.name for each in found] == ["good.txt"]
    assert [file for file, _ in refused] == [name]


def test_documents_must_be_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no"):
        list(read_documents([tmp_path / "none"]))
