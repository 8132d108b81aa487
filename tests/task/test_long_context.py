"""Long texts: questions are answered by what stands so far before them, reviews are read as they lie in their files."""

import json
import lzma
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text import FittedRows
from flax_transformer.nn import with_fields
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import Context, VocabularyConfig
from flax_transformer.train.folder import RunFolder

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
import long_context
from long_context import EXPERIMENTS, FIRST, MARK, QUESTION, Ask, Questions, Remembered, Reviews


@pytest.mark.parametrize(("count", "distance"), [(1, 4), (1, 61), (5, 8), (5, 53)])
def test_the_answer_to_a_question_stands_so_far_before_it(count, distance):
    made = Ask(data=Remembered(count=count), length=64)({"distance": distance}, np.random.default_rng(0))
    asked = np.flatnonzero(made["weights"])
    assert asked.tolist() == list(range(64 - count, 64))
    assert (made["tokens"][asked] == QUESTION).all()
    assert (made["tokens"][asked - distance] - FIRST == made["labels"][asked]).all()
    assert np.flatnonzero(made["tokens"] == MARK).tolist() == [asked[0] - distance - 1]


def test_distances_grow_to_all_there_is_room_for():
    assert Questions(length=1024).distances(1) == (8, 16, 32, 64, 128, 256, 512, 1021)
    assert Questions(length=1024).distances(8) == (64, 128, 256, 512, 1014)
    with pytest.raises(ValueError, match="room for tokens and questions, got length=16, count=8"):
        Questions(length=16).distances(8)


def test_every_distance_is_tested_alike(tmp_path):
    opened = Questions(rows=4, length=64, tests=6).open(Remembered(), Context(folder=RunFolder(tmp_path)))
    assert [*opened.held] == [8, 16, 32, 61]
    for make in opened.held.values():
        assert sum(batch["weights"].sum() for batch in make()) == 6
        again = [batch["inputs"]["tokens"] for batch in make()]
        np.testing.assert_array_equal(again, [batch["inputs"]["tokens"] for batch in make()])


def test_a_batch_is_as_long_as_its_texts_need():
    fitted = FittedRows(lengths=(4, 8, 16))
    for lengths, width in (((3, 4), 4), ((1, 5), 8), ((16, 2), 16)):
        batch = fitted([{"tokens": np.ones(n, int), "labels": 0} for n in lengths])
        assert batch["inputs"]["tokens"].shape == (2, width)
    with pytest.raises(ValueError, match="must fit its row, got 17 values, 16 positions"):
        fitted([{"tokens": np.ones(17, int), "labels": 0}])
    with pytest.raises(ValueError, match=r"each larger than the one before, got \(4, 4\)"):
        FittedRows(lengths=(4, 4))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Write reviews whose word is behind 20 to 60 others."""
    folder, draw = tmp_path_factory.mktemp("imdb"), np.random.default_rng(0)
    for split, count in (("train", 140), ("test", 24)):
        with lzma.open(folder / f"{split}.jsonl.xz", "wt") as file:
            for i in range(count):
                words = ["so", "it", "went"] * int(draw.integers(6, 20))
                text = " ".join([*words, ("awful", "lovely")[i % 2], "\n film ☃"])
                file.write(json.dumps({"id": i, "label": i % 2, "rating": 3, "text": text}) + "\n")
    return folder


def test_reviews_are_in_one_split_each(root):
    data = Reviews(root=str(root), held=20)
    found = {split: data.read(split) for split in ("train", "validation", "test")}
    assert [len(each) for each in found.values()] == [120, 20, 24]
    assert all(
        ("lovely" in text) == label
        for each in found.values()
        for text, label in zip(each["text"], each["label"], strict=True)
    )
    with pytest.raises(ValueError, match=r"give --data.root FOLDER with train.jsonl.xz"):
        Reviews().read("train")
    with pytest.raises(ValueError, match="held must be some of the 140 training reviews, got 140"):
        Reviews(root=str(root), held=140).read("validation")


def shortened(recipe, **changes):
    steps = {"steps": 4, "log_every": 2, "eval_every": 4, "checkpoint_every": 4, **changes.pop("train", {})}
    schedule = replace(recipe.optimizer.schedule, warmup=2)
    optimizer = replace(recipe.optimizer, learning_rate=3e-3, schedule=schedule)
    return replace(recipe, optimizer=optimizer, train=replace(recipe.train, **steps), **changes)


@pytest.mark.slow
def test_a_model_of_reviews_is_exported(root, tmp_path):
    recipe = EXPERIMENTS["reviews"]
    model = with_fields(
        recipe.model, embed=32, inner=64, depth=1, max_length=128, dropout=0.0, attention_dropout=0.0, init_std=0.2
    )
    examples = replace(recipe.examples, vocabulary=VocabularyConfig(size=300), rows=8, length=128, buckets=2, hide=0.0)
    train(
        shortened(recipe, model=model, data=Reviews(root=str(root), held=20), examples=examples, train={"steps": 4}),
        tmp_path,
    )
    loaded = hub.load(tmp_path / "export")
    assert loaded.config["architectures"] == ["LongformerForSequenceClassification"]
    texts = ["so it went " * 15 + "lovely \n film", "so it went " * 8 + "awful \n film"]
    logits = np.asarray(loaded(**loaded.tokenizer(texts)).logits)
    assert logits.shape == (2, 2)
    assert np.isfinite(logits).all()


@pytest.mark.slow
def test_accuracy_is_told_by_distance(tmp_path):
    recipe = EXPERIMENTS["needle"]
    model = with_fields(recipe.model, embed=16, inner=16, depth=1, max_length=64)
    train(shortened(recipe, model=model, examples=Questions(rows=4, length=64, tests=4)), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    tested = next(line for line in lines if line["split"] == "test")
    assert {f"accuracy_at_{distance}" for distance in (8, 16, 32, 61)} < set(tested)
    assert long_context.RECALL is recipe
