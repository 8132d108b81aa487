"""Documents with summaries: fields, splits, several references, and what is refused."""

import gzip
import json

import pytest

from flax_transformer.data.text.document import Documents, split_sentences

ROW = {"email": "One. Two.", "subject": "Numbers", "ann0": "digits", "q": "What?"}


def write(path, *rows):
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def test_fields_have_the_names_of_the_data(tmp_path):
    write(tmp_path / "dev.jsonl.gz", ROW, {**ROW, "subject": " "}, {**ROW, "ann0": "", "subject": ["a", "b"]})
    data = Documents(root=str(tmp_path), source="email", summary="subject", others=("ann0", "ann1"), query="q")
    table = data.read("validation")
    assert table[0] == {
        "document": "One. Two.", "query": "What?", "summary": "Numbers", "references": ("Numbers", "digits"),
    }  # fmt: skip
    assert table[1]["references"] == ("a", "b")
    assert table.skipped == {"empty summary": 1}


@pytest.mark.parametrize("name", ["validation", "dev", "val", "valid_2020"])
def test_a_word_in_the_name_says_the_split(tmp_path, name):
    write(tmp_path / f"{name}.jsonl", {"document": "x", "summary": "y"})
    assert len(Documents(root=str(tmp_path)).read("validation")) == 1


def test_what_is_wrong_is_said(tmp_path):
    data = Documents(root=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="must have a file of JSON lines named test, it has no JSON lines"):
        data.read("test")
    write(tmp_path / "test.jsonl", {"document": "x", "text": "y"})
    with pytest.raises(ValueError, match=r"test.jsonl, line 1 must have a text 'summary', got None"):
        data.read("test")
    (tmp_path / "test.jsonl").write_text('{"document": "x", "summary": "y"}\n[1]\n')
    with pytest.raises(ValueError, match="line 2 must have a text 'document', got None, fields 1"):
        data.read("test")
    write(tmp_path / "test.jsonl", {"document": " ", "summary": "y"})
    with pytest.raises(ValueError, match="must have a document with a summary, got none"):
        data.read("test")
    write(tmp_path / "test_2.jsonl", ROW)
    with pytest.raises(ValueError, match="a split must have one file of documents"):
        data.read("test")
    with pytest.raises(ValueError, match=r"no data: give --data\.root"):
        Documents().read("train")


def test_sentences_end_at_marks_and_lines():
    text = 'He said "Stop." Then 3.5 km, e.g. uphill\n\nbye! Really? (Yes.)'
    assert split_sentences(text) == ['He said "Stop.', "Then 3.5 km, e.g. uphill", "bye!", "Really?", "(Yes.)"]
