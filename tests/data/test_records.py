"""Records of every form: the same values, by number and in order, and what is wrong with a file in a sentence."""

import gzip
import json
import pickle
import sys

import pytest

from flax_transformer.data.record import choose_columns, find_split, named_records, open_records
from flax_transformer.data.text.annotated import Question, read_pairs, read_questions, read_words
from flax_transformer.data.text.choice import Choices, read_choices
from flax_transformer.data.text.document import Documents
from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.data.text.parallel import ParallelText
from flax_transformer.data.text.plain import PlainText
from flax_transformer.data.text.sentence import SentenceData
from flax_transformer.data.text.squad import SquadData
from flax_transformer.task.fill_mask import TextLines
from tests.record_forms import FORMS, SPLITS, table_of, write_arrow, write_form, write_hub, write_saved

CLASSES = {"label": ("dull", "fine")}
ROWS = [{"text": f'Said "{n}",\nin two lines — ü\u2028', "label": n % 2} for n in range(11)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_records(tmp_path, form):
    write_form(tmp_path, form, "train", ROWS, CLASSES)
    records = open_records(find_split(tmp_path, "train"))
    assert (len(records), records.names) == (11, ("text", "label"))
    in_order = [record["text"] for record in records]
    assert in_order == [records[number]["text"] for number in range(11)] == [row["text"] for row in ROWS]
    assert records[-1] == records[10]
    assert records[4] == records[4]
    again = pickle.loads(pickle.dumps(records.select("label")))
    assert [each["label"] for each in again] == [records[number]["label"] for number in range(11)]
    for index in (11, -12):
        with pytest.raises(IndexError):
            records[index]
    assert str(tmp_path) in records.where(10)
    assert [*records.values("label", "text")][3] == (records.where(3), (records[3]["label"], ROWS[3]["text"]))


@pytest.mark.parametrize(("form", "where"), [
    ("csv", "train.csv, line 8"), ("csv.gz", "train.csv.gz, line 8"), ("jsonl", "train.jsonl, line 4"),
    ("parquet", "train.parquet, row 4"), ("arrow", "train.arrow, row 4"),
    ("saved", "train/data-00000-of-00002.arrow, row 4"), ("hub", "data/train-00000-of-00002.parquet, row 4"),
])  # fmt: skip
def test_a_record_says_where_it_is(tmp_path, form, where):
    write_form(tmp_path, form, "train", ROWS, CLASSES)
    assert open_records(find_split(tmp_path, "train")).where(3) == f"{tmp_path}/{where}"


def test_columns_that_are_not_asked_for_are_not_read_and_row_groups_are_kept_to_a_limit(tmp_path, monkeypatch):
    write_form(tmp_path, "parquet", "train", ROWS)
    records = open_records(tmp_path / "train.parquet")
    assert records.select("label")[5] == {"label": 1}
    assert records.select("label").part(1).column_names == ["label"]
    assert [record for record in records] == [records[n] for n in range(11)] == ROWS
    assert len(records.kept) == 5  # four groups of all columns, and one of labels alone
    monkeypatch.setattr("flax_transformer.data.record.arrow.KEPT", 0)
    assert [records[n] for n in (0, 10, 3, 0)] == [ROWS[n] for n in (0, 10, 3, 0)]
    assert len(records.kept) == 1


def test_fields_of_columns_are_found_behind_dots(tmp_path):
    rows = [{"id": n, "translation": {"en": f"one {n}", "de": f"eins {n}"}} for n in range(4)]
    for form in ("jsonl", "saved"):
        write_form(tmp_path / form, form, "train", rows)
        records = open_records(find_split(tmp_path / form, "train"))
        assert records.has("translation.de")
        assert not records.has("translation.fr")
        assert not records.has("id.x")
        assert [values for _, values in records.values("translation.de", "id")] == [(f"eins {n}", n) for n in range(4)]


@pytest.mark.parametrize("form", ["tsv", *FORMS])
def test_labelled_texts_are_the_same_from_every_form(tmp_path, form):
    rows = [{"sentence": f"film {n}", "label": n % 2} for n in range(8)]
    for split in SPLITS:
        if form == "tsv":
            lines = "".join(f"{row['sentence']}\t{CLASSES['label'][row['label']]}\n" for row in rows)
            (tmp_path / f"{split}.tsv").write_text(lines)
        else:
            write_form(tmp_path, form, split, rows, CLASSES)
    data = LabelledText(root=str(tmp_path))
    assert data.classes() == ("dull", "fine")
    for split in ("train", "validation", "test"):
        table = data.read(split)
        assert table["text"] == [row["sentence"] for row in rows]
        assert table["label"] == [n % 2 for n in range(8)]


def test_classes_are_in_the_order_of_the_schema_and_may_be_chosen(tmp_path):
    classes = {"label": ("positive", "negative")}
    write_form(tmp_path, "hub", "train", [{"a": "x", "b": "y", "label": 0}, {"a": "z", "b": "w", "label": 1}], classes)
    data = LabelledText(root=str(tmp_path), columns=("a", "b", "label"))
    assert data.classes() == ("positive", "negative")
    assert data.read("train")["pair"] == ["y", "w"]
    other = LabelledText(root=str(tmp_path), columns=("a", "label"), labels=("negative", "positive"))
    assert (other.read("train")["label"], "pair" in other.read("train").columns) == ([1, 0], False)
    with pytest.raises(ValueError, match=r"must have a column 'c', it has a, b, label"):
        LabelledText(root=str(tmp_path), columns=("c", "label")).read("train")
    with pytest.raises(ValueError, match=r"columns must be 2 or 3 names, got label"):
        LabelledText(root=str(tmp_path), columns=("label",)).read("train")
    with pytest.raises(ValueError, match=r"must have the columns of one of: text, pair, label; .*it has a, b, label"):
        LabelledText(root=str(tmp_path)).read("train")


def test_a_saved_data_set_without_a_schema_of_its_own_has_the_classes_of_its_info(tmp_path):
    write_saved(tmp_path / "train", table_of([{"text": "x", "label": 0}, {"text": "y", "label": 1}], {}))
    info = {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}
    (tmp_path / "train" / "dataset_info.json").write_text(json.dumps(info))
    assert open_records(tmp_path / "train").classes == {"label": ("no", "yes")}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_texts_come_from_all_columns_or_those_named(tmp_path, form):
    rows = [{"anchor": f"a{n}", "positive": f"p{n}", "score": n / 4} for n in range(4)]
    write_form(tmp_path, form, "train", rows)
    table = SentenceData(root=str(tmp_path), scored=True).read("train")
    assert table["texts"] == [(f"a{n}", f"p{n}") for n in range(4)]
    assert table["label"].tolist() == [0, 0.25, 0.5, 0.75]
    swapped = SentenceData(root=str(tmp_path), columns=("positive", "anchor")).read("train")
    assert swapped["texts"] == [(f"p{n}", f"a{n}") for n in range(4)]
    with pytest.raises(ValueError, match=r"must have a column 'negative', it has anchor, positive, score"):
        SentenceData(root=str(tmp_path), columns=("anchor", "negative")).read("train")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [("en", "de"), ("source", "target")])
def test_translations_come_from_columns_of_the_languages(tmp_path, form, names):
    rows = [{names[1]: f"eins {n}", names[0]: f"one {n}"} for n in range(3)]
    rows.append({names[1]: "", names[0]: "gone"})
    write_form(tmp_path, form, "train", rows)
    table = ParallelText(root=str(tmp_path)).read("train")
    assert (table["source"], table["target"]) == ([f"one {n}" for n in range(3)], [f"eins {n}" for n in range(3)])
    assert table.skipped == {"empty": 1}
    with pytest.raises(ValueError, match=r"train.*, (line 5|line 4|row 4|row 2): empty"):
        ParallelText(root=str(tmp_path), strict=True).read("train")


def test_translations_are_pairs_of_the_hub_and_lines_with_tabs(tmp_path):
    rows = [{"translation": {"de": f"eins {n}", "en": f"one {n}"}} for n in range(3)]
    write_form(tmp_path / "hub", "hub", "train", rows)
    (tmp_path / "tabs").mkdir()
    (tmp_path / "tabs" / "train.tsv").write_text("".join(f"one {n}\teins {n}\n" for n in range(3)))
    one, other = (ParallelText(root=str(tmp_path / name)).read("train") for name in ("hub", "tabs"))
    assert one.columns == other.columns
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("form", ["jsonl", "saved", "hub"])
def test_questions_are_those_of_the_hub(tmp_path, form):
    rows = [
        {"id": "1", "question": "who?", "context": "Ann or Ann", "answers": {"text": ["Ann"], "answer_start": [7]}},
        {"id": "2", "question": "when?", "context": "never", "answers": {"text": [], "answer_start": []}},
    ]
    write_form(tmp_path, form, "dev", rows)
    expected = [Question("who?", "Ann or Ann", ("Ann",), (7,)), Question("when?", "never", (), ())]
    assert SquadData(root=str(tmp_path)).read("validation") == expected
    assert read_questions(find_split(tmp_path, "dev")) == expected


def test_questions_of_a_table_have_one_answer_each(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("q,p,a,answer_start\nwho?,Ann or Ann,Ann,7\nwhen?,never,,0\n")
    found = read_questions(path, ("q", "p", "a"))
    assert found == [Question("who?", "Ann or Ann", ("Ann",), (7,)), Question("when?", "never", (), ())]
    path.write_text("question,context,answer\n,x,y\n")
    with pytest.raises(ValueError, match=r"x\.csv, line 2: a question and its passage must not be empty"):
        read_questions(path)
    for bad in ({"text": ["a"], "answer_start": ["x"]}, {"text": [3]}, 5, [["a"]], {"text": "a", "answer_start": 3}):
        line = {"question": "who?", "context": "a", "answers": bad}
        (tmp_path / "x.jsonl").write_text(json.dumps(line))
        with pytest.raises(ValueError, match=r"x\.jsonl, line 1: .*answer"):
            read_questions(tmp_path / "x.jsonl")


@pytest.mark.parametrize("form", ["csv", "jsonl", "saved", "hub"])
@pytest.mark.parametrize(("record", "label"), [
    ({"context": "c", "question": "q", "answer_0": "x", "answer_1": "y", "label": 1}, 1),
    ({"premise": "c", "question": "q", "choice1": "x", "choice2": "y", "label": "B"}, 1),
    ({"sent1": "c", "sent2": "q", "ending0": "x", "ending1": "y", "gold": "-", "label": 0}, 0),
])  # fmt: skip
def test_choices_in_columns_of_their_own(tmp_path, form, record, label):
    write_form(tmp_path, form, "train", [record] * 3)
    assert read_choices(tmp_path / "train") == [Choices("c", "q", ("x", "y"), label)] * 3


@pytest.mark.parametrize("form", ["jsonl", "saved", "hub"])
def test_choices_in_lists(tmp_path, form):
    record = {"article": "c", "question": "q", "options": ["x", "y", "z"], "answer": "C"}
    write_form(tmp_path, form, "train", [record] * 3)
    assert read_choices(tmp_path / "train") == [Choices("c", "q", ("x", "y", "z"), 2)] * 3
    no_question = read_choices(find_split(tmp_path, "train"), ("article", "options", "answer"))
    assert no_question == [Choices("c", "", ("x", "y", "z"), 2)] * 3


@pytest.mark.parametrize("form", ["csv", "jsonl", "saved", "hub"])
def test_words_with_tags(tmp_path, form):
    rows = [{"tokens": ["Ann", "sings"], "ner_tags": ["B-PER", "O"]}] * 3
    if form == "csv":
        rows = [{name: " ".join(value) for name, value in row.items()} for row in rows]
    write_form(tmp_path, form, "train", rows)
    found = read_words(find_split(tmp_path, "train"))
    assert [(each.words, each.labels) for each in found] == [(("Ann", "sings"), ("B-PER", "O"))] * 3


def test_tags_are_called_by_the_schema_and_are_as_many_as_words(tmp_path):
    import pyarrow

    table = pyarrow.table({"tokens": [["Ann", "sings"]], "ner_tags": [[1, 0]]})
    feature = {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}, "_type": "List"}
    said = json.dumps({"info": {"features": {"ner_tags": feature, "tokens": {"_type": "List"}}}})
    write_arrow(tmp_path / "x.arrow", table.replace_schema_metadata({"huggingface": said}))
    assert read_words(tmp_path / "x.arrow")[0].labels == ("B-PER", "O")
    (tmp_path / "x.jsonl").write_text('{"tokens": ["a", "b"], "labels": ["O"]}')
    with pytest.raises(ValueError, match=r"x\.jsonl, line 1: words and labels must be lists of one length"):
        read_words(tmp_path / "x.jsonl")


@pytest.mark.parametrize("form", FORMS)
def test_documents_and_running_texts(tmp_path, form):
    write_form(tmp_path, form, "train", [{"article": "Long. Text.", "summary": "Short.", "more": ""}] * 4)
    table = Documents(root=str(tmp_path), source="article", others=("more", "none")).read("train")
    assert (table["document"], table["references"]) == (["Long. Text."] * 4, [("Short.",)] * 4)
    path = str(find_split(tmp_path, "train"))
    train, held = (PlainText(text=path, holdout=0.5, column="article").read(s) for s in ("train", "validation"))
    assert train == held == ["Long. Text.\n"] * 2
    lines = TextLines(sentences=(path,), holdout=0.5, column="article").lines("train")
    assert lines == [["Long. Text."]] * 2


def test_pairs_of_columns(tmp_path):
    (tmp_path / "x.csv").write_text("source,target\na,b\n")
    assert read_pairs(tmp_path / "x.csv").columns == {"source": ["a"], "target": ["b"]}
    (tmp_path / "x.csv").write_text("en,de\na,b\n")
    assert read_pairs(tmp_path / "x.csv", ("de", "en")).columns == {"source": ["b"], "target": ["a"]}
    (tmp_path / "x.tsv").write_text("a\tb\nc\n")
    with pytest.raises(ValueError, match=r"x\.tsv, line 2: a line must be source TAB target, got 1 columns"):
        read_pairs(tmp_path / "x.tsv")
    (tmp_path / "y.tsv").write_text("1\ta\tb\n")
    assert read_pairs(tmp_path / "y.tsv", ("3", "2")).columns == {"source": ["b"], "target": ["a"]}


# Finding


def test_a_split_is_found_by_its_other_names_and_not_twice(tmp_path):
    assert find_split(tmp_path, "train") is None
    assert find_split(tmp_path / "none", "train") is None
    write_hub(tmp_path, "validation", table_of(ROWS))
    first = tmp_path / "data" / "validation-00000-of-00002.parquet"
    assert find_split(tmp_path, "dev") == find_split(tmp_path, "val") == first
    assert find_split(tmp_path, "test") is find_split(tmp_path, "validation_matched") is None
    (tmp_path / "dev.csv").write_text("text\nx\n")
    assert find_split(tmp_path, "dev") == tmp_path / "dev.csv"
    (tmp_path / "dev.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}'))
    with pytest.raises(
        ValueError, match=r"a split must have one file, got .*dev\.(csv|jsonl\.gz) and .*; name one with"
    ):
        find_split(tmp_path, "dev")
    assert find_split(tmp_path, "dev.csv") == tmp_path / "dev.csv"
    assert find_split(tmp_path, "dev", (".csv",)) == tmp_path / "dev.csv"


def test_a_folder_of_one_saved_split_is_that_split(tmp_path):
    write_saved(tmp_path / "x", table_of(ROWS), shards=1)
    assert find_split(tmp_path / "x", "train") == tmp_path / "x"
    assert find_split(tmp_path / "x", "test") is None
    assert len(open_records(tmp_path / "x")) == 11
    assert ("x", tmp_path / "x") in named_records(tmp_path)


def test_shards_must_be_there_and_alike(tmp_path):
    write_hub(tmp_path, "train", table_of(ROWS), shards=3)
    first, second, _ = sorted((tmp_path / "data").iterdir())
    assert len(open_records(first)) == len(open_records(tmp_path / "data")) == 11
    write_hub(tmp_path / "other", "train", table_of([{"text": "x", "mark": 1}] * 3), shards=3)
    second.write_bytes((tmp_path / "other" / "data" / second.name).read_bytes())
    with pytest.raises(ValueError, match=r"shards must have the same columns, got text, label in .*, text, mark in"):
        open_records(first)
    second.unlink()
    with pytest.raises(ValueError, match=r"must have all of its 3 shards beside it, got 2"):
        open_records(first)


def test_folders_that_are_no_records(tmp_path):
    with pytest.raises(ValueError, match="must hold Arrow or Parquet files, it has none"):
        open_records(tmp_path)
    write_form(tmp_path, "saved", "train", ROWS)
    write_form(tmp_path, "saved", "test", ROWS)
    with pytest.raises(ValueError, match="has several splits, test, train; name the folder of one"):
        open_records(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no file .*trian.csv; nearest names there: train"):
        open_records(tmp_path / "trian.csv")
    state = tmp_path / "train" / "state.json"
    for files in ([{"filename": "../x.arrow"}], [{"filename": ".."}], [{}], [], None, [{"filename": "x"}] * 2):
        state.write_text(json.dumps({"_data_files": files}))
        with pytest.raises(ValueError, match=r"state\.json must name files of its folder"):
            open_records(tmp_path / "train")
    state.write_text(json.dumps({"_data_files": [{"filename": "state.json"}]}))
    with pytest.raises(ValueError, match=r"must hold Arrow or Parquet files, got state\.json"):
        open_records(tmp_path / "train")


# Bad input


@pytest.mark.parametrize(("name", "content", "message"), [
    ("x.csv", b"", r"x\.csv is empty"),
    ("x.csv", b" \n\n", r"x\.csv is empty"),
    ("x.csv", b"text,label\n", r"x\.csv must have at least one record, got none"),
    ("x.csv", b"text,text\na,b\n", r"x\.csv, line 1: columns must differ, got 'text' twice"),
    ("x.csv", b"text,label\na,b\nc\n", r"x\.csv, line 3: a row must have 2 fields, text, label, got 1"),
    ("x.csv", b"text,label\n\"a\n\",b\nc,d,e\n", r"x\.csv, line 4: a row must have 2 fields, text, label, got 3"),
    ("x.csv", b"text,label\na,b\n\"c,d\n", r"x\.csv, line 3 must be CSV: unexpected end of data"),
    ("x.csv", b"text,label\n\"a\"b,c\n", r"x\.csv, line 2 must be CSV: ',' expected after '\"'"),
    ("x.csv", b"text,label\na,\xff\n", r"x\.csv, line 2: not UTF-8"),
    ("x.csv", b"text,label\na,b\r\nc\rd,e\n", r"x\.csv, line 3 must be CSV: new-line character"),
    ("x.csv", b"text,label\n,b\n", r"x\.csv, line 2: the text must not be empty"),
    ("x.csv.gz", b"text,label\n", r"x\.csv\.gz is not a whole gzip file"),
    ("x.csv.xz", b"text,label\n", r"x\.csv\.xz is not a whole xz file"),
    ("x.jsonl", b"", r"x\.jsonl is empty"),
    ("x.jsonl", b'{"text": "a", "label": 1}\n{"text": ', r"x\.jsonl, line 2 must be JSON"),
    ("x.jsonl", b'{"text": "a", "label": 1}\n\n{"text": "b"}', r"line 3 must have a field 'label', it has text"),
    ("x.jsonl", b'{"text": 5, "label": 1}', r"x\.jsonl, line 1: text must be a text, got 5"),
    ("x.jsonl", b'{"text": "a", "label": null}', r"line 1: a label must be a text or a whole number, got None"),
    ("x.jsonl", b'{"text": "a", "label": 1.5}', r"a label must be a text or a whole number, got 1\.5"),
    ("x.jsonl", b'{"text": "a", "label": NaN}', r"line 1 must be JSON: numbers must be finite, got NaN"),
    ("x.jsonl", b'{"text": "a", "text": "b", "label": 1}', r"a key must have one value, 'text' has several"),
    ("x.jsonl", b'{"text": "\\ud800", "label": 1}', r"text must be a text of Unicode, got half a surrogate pair"),
    ("x.jsonl", b'"a"', r"x\.jsonl, line 1 must be an array or an object, got 'a'"),
    ("x.jsonl", b"[" * 100_000, r"x\.jsonl, line 1 must be JSON"),
    ("x.parquet", b"PAR1 nothing PAR1", r"x\.parquet is damaged, or no such file"),
    ("x.parquet", b"", r"x\.parquet is damaged, or no such file"),
    ("x.arrow", b"", r"x\.arrow is damaged, or no such file"),
    ("x.arrow", b"ARROW1 nothing", r"x\.arrow is damaged, or no such file"),
])  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as told:
        LabelledText(root=str(tmp_path), train=name, labels=("1", "b")).read("train")
    assert "\n" not in str(told.value)
    assert str(path) in str(told.value)


def test_what_is_wrong_with_a_table_is_one_sentence(tmp_path):
    import pyarrow

    def told(table, name="x.arrow"):
        write_arrow(tmp_path / name, table)
        with pytest.raises(ValueError, match=r"x\.arrow") as error:
            LabelledText(root=str(tmp_path), train=name).read("train")
        return str(error.value)

    assert "columns must differ, got 'text' twice" in told(pyarrow.Table.from_arrays([["a"], ["b"]], ["text", "text"]))
    assert "must have at least one record, got none" in told(pyarrow.table({"text": pyarrow.array([], "string")}))
    assert "row 1: text must be a text, got 5" in told(pyarrow.table({"text": [5], "label": ["x"]}))
    assert "row 2: text must be a text, got None" in told(pyarrow.table({"text": ["a", None], "label": ["x", "y"]}))
    assert "row 1: text must be a text, got b'a'" in told(pyarrow.table({"text": [b"a"], "label": ["x"]}))
    labelled = pyarrow.table({"text": ["a", "b"], "label": [0, -1]})
    names = {"label": {"names": ["n", "y"], "_type": "ClassLabel"}}
    said = labelled.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": names}})})
    assert "row 2: a label must be from 0 to 1, for n, y, got -1" in told(said)
    for features, rule in (
        ({"label": {"names": ["n", "n"], "_type": "ClassLabel"}}, "names of classes must be texts that differ"),
        ({"label": 5}, "a feature must be an object, got 5"),
        ([5], "features must be an object"),
    ):
        said = labelled.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        assert rule in told(said)
    assert "features of a data set" in told(labelled.replace_schema_metadata({"huggingface": "{"}))


def test_arrow_that_is_cut_between_its_parts_is_refused(tmp_path):
    write_arrow(tmp_path / "x.arrow", table_of(ROWS))
    content = (tmp_path / "x.arrow").read_bytes()
    (tmp_path / "x.arrow").write_bytes(content[:-8])
    with pytest.raises(ValueError, match=r"x\.arrow is damaged, or no such file: it is cut off"):
        open_records(tmp_path / "x.arrow")


def test_arrow_in_the_format_of_files_is_read_too(tmp_path):
    import pyarrow

    table = table_of(ROWS)
    with pyarrow.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=2)
    assert [*open_records(tmp_path / "x.arrow")] == ROWS


def test_fields_of_any_length_are_read_and_python_keeps_its_limit(tmp_path):
    import csv

    before = csv.field_size_limit()
    (tmp_path / "x.csv").write_text(f"text\n{'a' * 300_000}\n")
    assert len(open_records(tmp_path / "x.csv")[0]["text"]) == 300_000
    assert csv.field_size_limit() == before


def test_without_pyarrow_a_sentence_says_how_to_install_it(tmp_path, monkeypatch):
    write_form(tmp_path, "arrow", "train", ROWS)
    write_form(tmp_path, "parquet", "train", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for name in ("train.arrow", "train.parquet"):
        with pytest.raises(ValueError, match=rf'{name}: .* take pyarrow: pip install "flax-transformer\[arrow\]"'):
            open_records(tmp_path / name)


def test_columns_are_chosen_by_the_first_that_are_there(tmp_path):
    (tmp_path / "x.csv").write_text("b,c,d\n1,2,3\n")
    records = open_records(tmp_path / "x.csv")
    assert choose_columns(records, (("a", "b"), ("c", "b"), ("b",))) == ("c", "b")
    with pytest.raises(
        ValueError, match=r"must have the columns of one of: a; e; it has b, c, d, and data names others"
    ):
        choose_columns(records, (("a",), ("e",)), what="data")
