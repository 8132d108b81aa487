"""BART on damaged text: a run from end to end, its checkpoint, what is damaged and how it is scored."""

import json
from dataclasses import replace
from itertools import chain

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.models.preset import narrowed
from flax_transformer.models.text.bart import bart_base
from flax_transformer.objective import TokenLoss
from flax_transformer.task.denoising import DamagedTexts, DamageMix, Lines, Restorations
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.text_to_text import Restored
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

pytestmark = [pytest.mark.slow, pytest.mark.proves("bart", "train", "[`denoise`](../experiments/denoise.py)")]

TINY = Recipe(
    family="bart",
    model=narrowed(bart_base(dropout=0.1), embed=8, heads=2, inner=12, depth=1),
    data=Lines(train=40, validation=3, test=3),
    examples=DamagedTexts(vocabulary=VocabularyConfig(size=300), rows=8, length=64),
    objective=TokenLoss(chunk=512),
    evaluators=(Restorations(),),
    optimizer=OptimizerConfig(schedule=ScheduleConfig(name="constant")),
    train=TrainConfig(steps=4, log_every=2, eval_every=2, checkpoint_every=2),
)
NAMES = list(DamageMix().present())


def losses(folder):
    records = map(json.loads, RunFolder(folder).metrics.read_text().splitlines())
    return [(r["step"], r["split"], r["loss"]) for r in records if r["split"] != "test"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(TINY, folder)


def test_a_run_ends_with_a_score_of_each_damage(done):
    folder, _ = done
    last = json.loads(RunFolder(folder).metrics.read_text().splitlines()[-1])
    assert (last["split"], last["step"]) == ("test", 4)
    scores = ("exact_match", "copied_exact_match", "chrf", "copied_chrf")
    assert {f"{score}_{name}" for score in ("loss", *scores) for name in NAMES} | {*scores} <= last.keys()


def test_every_damage_is_what_its_name_says(done):
    samples = [json.loads(line) for line in RunFolder(done[0]).samples.read_text().splitlines()]
    assert [sample["kind"] for sample in samples] == [name for name in NAMES for _ in range(3)]
    for sample in samples:
        kind, source, target = sample["kind"], sample["source"], sample["target"]
        assert ("<mask>" in source) == (kind in ("infill", "mask", "bart"))
        assert sorted(source.split()) == sorted(target.split()) or kind not in ("permute",)
        assert sorted(source.replace(" ", "")) == sorted(target.replace(" ", "")) or kind != "rotate"
        assert len(source) < len(target) or kind != "delete"


def test_the_checkpoint_is_the_model(done):
    folder, model = done
    loaded = hub.load(folder / "export")
    assert loaded.config["architectures"] == ["BartForConditionalGeneration"]
    inputs = loaded.tokenizer(["one and<mask> is three.", "one and two"])
    assert (inputs["input_ids"][:, 0] == loaded.tokenizer.bos).all()
    assert (inputs["input_ids"] == loaded.tokenizer.vocab_size - 1).sum() == 1
    target = jnp.array([[2, 1, 10], [2, 1, 12]])
    got = loaded(**inputs, decoder_input_ids=target).logits
    expected = model(jnp.asarray(inputs["input_ids"]), target, jnp.asarray(inputs["attention_mask"].sum(1)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    written = loaded.generate(**inputs, max_new_tokens=4)
    assert (np.asarray(written)[:, 0] == loaded.tokenizer.eos).all()


def test_a_resumed_run_is_the_same(done, tmp_path):
    train(replace(TINY, train=replace(TINY.train, steps=2)), tmp_path)
    train(TINY, tmp_path)
    assert losses(tmp_path) == losses(done[0])


def test_what_is_restored_is_compared_with_what_was_given():
    texts = ["one and two is three.", "two and two is four."]
    damaged = ["one and<mask> three.", texts[1]]
    shown = Restorations().show({"infill": Restored(sources=damaged, targets=texts, hypotheses=texts, loss=0.5)})
    assert shown.metrics["exact_match_infill"] == shown.metrics["chrf"] == 100
    assert shown.metrics["copied_exact_match_infill"] == 50
    assert 50 < shown.metrics["copied_chrf"] < 100


def test_lines_of_a_file_go_into_three_splits(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("".join(f"line {n:03}\n\n" for n in range(100)))
    data = Lines(text=str(file), holdout=0.2).read(0)
    assert [len(lines) for lines in data.values()] == [80, 10, 10]
    assert sorted(chain(*data.values())) == [f"line {n:03}" for n in range(100)]
    assert len(Lines(text=str(file), holdout=0.2, test=3).read(0)["test"]) == 3


def test_too_little_text_is_told(tmp_path):
    (tmp_path / "text.txt").write_text("one line")
    with pytest.raises(ValueError, match="a line to train on and two to test by, got 1 and 1"):
        Lines(text=str(tmp_path / "text.txt"), holdout=0.3).read(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: DamagedTexts(rows=0, length=64), "rows must be at least 1 and length 4, got 0 and 64"),
        (lambda: replace(TINY, examples=DamagedTexts(length=1020)), "got length=1028, 1024 positions"),
        (lambda: Lines(test=0), "each split needs a text, got .*test=0"),
    ],
)
def test_bad_settings_are_told(change, message):
    with pytest.raises(ValueError, match=message):
        change()
