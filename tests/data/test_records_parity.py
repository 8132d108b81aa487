"""Folders that the `datasets` library writes, read without it: the records that it reads itself."""

import pytest

from flax_transformer.data.record import find_split, open_records
from flax_transformer.data.text.annotated import read_questions, read_words
from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.data.text.parallel import ParallelText

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def datasets():
    found = pytest.importorskip("datasets")
    found.disable_progress_bars()
    return found


ROWS = [
    {
        "text": f'Said "{n}",\nin two lines — ü',
        "label": n % 3,
        "tokens": ["a", f"b{n}"][: 1 + n % 2],
        "tags": [0, 1][: 1 + n % 2],
        "translation": {"en": f"one {n}", "de": f"eins {n}"},
        "answers": {"text": ["two"] * (n % 2), "answer_start": [7] * (n % 2)},
        "context": "in any two",
        "question": f"how {n}?",
        "score": n / 4,
        "empty": None,
    }
    for n in range(2_500)
]  # fmt: skip


def made(datasets):
    value = datasets.Value
    features = datasets.Features({
        "text": value("string"), "label": datasets.ClassLabel(names=["sad", "fine", "odd"]),
        "tokens": datasets.Sequence(value("string")), "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B"])),
        "translation": datasets.Translation(languages=["en", "de"]),
        "answers": datasets.Sequence({"text": value("string"), "answer_start": value("int32")}),
        "context": value("large_string"), "question": value("string"), "score": value("float32"),
        "empty": value("null"),
    })  # fmt: skip
    return datasets.Dataset.from_list(ROWS, features=features)


def saved(data, folder, shards, datasets):
    datasets.DatasetDict(train=data, validation=data.select(range(7))).save_to_disk(
        folder, num_shards={"train": shards, "validation": 1}
    )


def on_the_hub(data, folder, shards, datasets):
    (folder / "data").mkdir(parents=True)
    for number in range(shards):
        part = data.shard(shards, number, contiguous=True)
        part.to_parquet(folder / "data" / f"train-{number:05}-of-{shards:05}.parquet", batch_size=300)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("write", [saved, on_the_hub])
def test_records_are_those_that_the_library_reads(tmp_path, datasets, write, shards):
    data = made(datasets)
    write(data, tmp_path, shards, datasets)
    path = find_split(tmp_path, "train")
    records = open_records(path)
    theirs = datasets.load_from_disk(tmp_path)["train"] if write is saved else data
    assert len(records) == len(theirs) == 2_500
    assert list(records.names) == theirs.column_names
    for index in (0, 1, 299, 300, 833, 834, 1_700, 2_499):
        assert records[index] == theirs[index]
    assert [*records] == theirs.to_list()
    assert records.classes == {"label": ("sad", "fine", "odd"), "tags": ("O", "B")}
    labelled = LabelledText(root=str(tmp_path))
    assert labelled.classes() == ("sad", "fine", "odd")
    assert labelled.read("train")["label"] == theirs["label"][:]
    assert ParallelText(root=str(tmp_path)).read("train")["target"] == [f"eins {n}" for n in range(2_500)]
    words = read_words(path, ("tokens", "tags"))
    assert (words[1].words, words[1].labels) == (("a", "b1"), ("O", "B"))
    questions = read_questions(path)
    assert (questions[0].answers, questions[1].answers, questions[1].starts) == ((), ("two",), (7,))


def test_what_was_shuffled_filtered_or_formatted_is_saved_as_it_is_seen(tmp_path, datasets):
    data = made(datasets).shuffle(seed=0).filter(lambda row: row["label"] < 2).with_format("numpy")
    data.save_to_disk(tmp_path / "x")
    assert [each["text"] for each in open_records(tmp_path / "x")] == [*data.with_format(None)["text"]]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_files_that_the_library_exports_are_read(tmp_path, datasets, form):
    data = made(datasets).select_columns(["text", "label"])
    path = tmp_path / f"train.{form}"
    data.to_csv(path, index=False) if form == "csv" else data.to_json(path)
    found = [(text, int(label)) for _, (text, label) in open_records(path).values("text", "label")]
    assert found == [(row["text"], row["label"]) for row in ROWS]
    theirs = datasets.load_dataset("json" if form == "jsonl" else form, data_files=str(path), cache_dir=str(tmp_path))
    assert [text for text, _ in found] == [*theirs["train"]["text"]]
