"""An experiment on the same data learns the same, whichever form the data are in."""

import contextlib
import json
import runpy
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_transformer.nn import with_fields
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import Context, VocabularyConfig
from flax_transformer.task.sentence_pair import BPE, Batching
from flax_transformer.task.translator import Search
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from tests.record_forms import SPLITS, write_form

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FORMS = ("tsv", "csv", "jsonl", "saved", "hub")
CLASSES = {"label": ("dull", "fine")}


def recipe(name):
    found = runpy.run_path(str(EXPERIMENTS / f"{name}.py"))
    return found["EXPERIMENTS"]["transformer"] if "transformer" in found["EXPERIMENTS"] else found["EXPERIMENT"]


def write(folder, form, rows):
    for split, count in zip(SPLITS, (24, 8, 8), strict=True):
        if form == "tsv":
            folder.mkdir(parents=True, exist_ok=True)
            values = [
                {key: CLASSES[key][value] if key in CLASSES else value for key, value in row.items()} for row in rows
            ]
            text = "".join("\t".join(row.values()) + "\n" for row in values[:count])
            (folder / f"{split}.tsv").write_text(text)
        else:
            write_form(folder, form, split, rows[:count], CLASSES if "label" in rows[0] else None)


def short(made, root, examples, **changes):
    schedule = replace(made.optimizer.schedule, warmup=1)
    train = TrainConfig(steps=3, log_every=1, eval_every=3, checkpoint_every=3)
    data = replace(made.data, root=str(root), validation="dev", test="test")
    optimizer = replace(made.optimizer, schedule=schedule)
    return replace(made, data=data, examples=examples, optimizer=optimizer, train=train, **changes)


def classification(root):
    made = recipe("classify_text")
    vocabulary = VocabularyConfig(size=300)
    return short(made, root, replace(made.examples, vocabulary=vocabulary, rows=8, length=16))


def translation(root):
    made = recipe("translate_text")
    batch = Batching(tokens=128, buckets=1, max_tokens=16)
    sides = {side: with_fields(getattr(made.model, side), depth=1) for side in ("encoder", "decoder")}
    return short(
        made, root, replace(made.examples, bpe=BPE(unit="word", merges=20), batch=batch),
        model=with_fields(made.model, **sides),
        evaluators=tuple(replace(each, search=Search(beams=1, batch=8)) for each in made.evaluators),
    )  # fmt: skip


KINDS = {
    "classification": (classification, [
        {"text": f"a {('dull', 'poor', 'fine', 'great')[n % 4]} film, number {n}", "label": int(n % 4 > 1)}
        for n in range(24)
    ]),
    "translation": (translation, [
        {"en": f"the dog number {n} runs", "de": f"der Hund Nummer {n} läuft"} for n in range(24)
    ]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_gives_the_same_batches(tmp_path, kind):
    make, rows = KINDS[kind]
    batches, specs = {}, {}
    for form in FORMS:
        write(tmp_path / form, form, rows)
        made = make(tmp_path / form)
        folder = tmp_path / f"run_{form}"
        folder.mkdir()
        opened = made.examples.open(made.data, Context(folder=RunFolder(folder), seed=5))
        with contextlib.closing(opened.batches) as stream:
            batches[form] = [next(stream) for _ in range(3)] + [*opened.test()]
        specs[form] = opened.spec
    for form in FORMS:
        assert specs[form] == specs["tsv"]
        jax.tree.map(np.testing.assert_array_equal, batches[form], batches["tsv"])


@pytest.mark.rotates
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_gives_the_same_losses(tmp_path, kind):
    make, rows = KINDS[kind]
    losses = {}
    for form in FORMS:
        write(tmp_path / form, form, rows)
        folder = tmp_path / f"run_{form}"
        train(make(tmp_path / form), folder)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses[form] = [(line["split"], line["step"], line["loss"]) for line in lines if "loss" in line]
    assert len(losses["tsv"]) >= 4
    assert all(found == losses["tsv"] for found in losses.values()), losses
