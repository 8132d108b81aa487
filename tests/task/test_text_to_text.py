"""T5 on several tasks: a run from end to end, its checkpoint, and going on where it stopped."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import TASKS
from flax_transformer.models.preset import narrowed
from flax_transformer.models.text.t5 import t5_v1_1_small
from flax_transformer.objective import TokenLoss
from flax_transformer.task.exercise import PREFIXES, Amount, Answers, ExerciseMix, ExerciseTexts
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

pytestmark = [pytest.mark.slow, pytest.mark.proves("t5", "train", "[`text_to_text`](../experiments/text_to_text.py)")]

TINY = Recipe(
    family="t5",
    model=narrowed(t5_v1_1_small(dropout=0.1), embed=8, heads=2, inner=12, depth=1),
    data=Amount(train=40, validation=3, test=3),
    examples=ExerciseTexts(
        mix=ExerciseMix(spell=0.0, write=0.0, sort=0.0), vocabulary=VocabularyConfig(size=300), rows=8
    ),
    objective=TokenLoss(chunk=512),
    evaluators=(Answers(),),
    optimizer=OptimizerConfig(schedule=ScheduleConfig(name="constant")),
    train=TrainConfig(steps=4, log_every=2, eval_every=2, checkpoint_every=2),
)
NAMES = ["translate", "add", "reverse", "fill"]


def losses(folder):
    records = map(json.loads, RunFolder(folder).metrics.read_text().splitlines())
    return [(r["step"], r["split"], r["loss"]) for r in records if r["split"] != "test"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(TINY, folder)


def test_every_task_has_its_words_to_begin_with():
    assert PREFIXES.keys() == TASKS.keys() == ExerciseMix().present().keys() - {"fill"}


def test_a_run_ends_with_a_score_of_each_task(done, capsys):
    folder, _ = done
    last = json.loads(RunFolder(folder).metrics.read_text().splitlines()[-1])
    assert (last["split"], last["step"]) == ("test", 4)
    assert {f"{score}_{name}" for score in ("exact_match", "loss") for name in NAMES} <= last.keys()
    assert not any(name.endswith(("spell", "write", "sort")) for name in last)
    samples = [json.loads(line) for line in RunFolder(folder).samples.read_text().splitlines()]
    assert [sample["kind"] for sample in samples] == [name for name in NAMES for _ in range(3)]
    assert all(s["source"].startswith(PREFIXES.get(s["kind"], "")) and s["target"] for s in samples)
    filled = [s for s in samples if s["kind"] == "fill"]
    assert all(s["target"].startswith("<extra_id_0>") and "<extra_id_0>" in s["source"] for s in filled)


def test_the_checkpoint_is_the_model(done):
    folder, model = done
    loaded = hub.load(folder / "export")
    assert loaded.config["architectures"] == ["T5ForConditionalGeneration"]
    inputs = loaded.tokenizer(["add: one plus two", "one <extra_id_0> three"])
    assert all(row[mask != 0][-1] == loaded.tokenizer.eos for row, mask in zip(*inputs.values(), strict=True))
    target = jnp.array([[0, 9, 10], [0, 11, 12]])
    got = loaded(**inputs, decoder_input_ids=target).logits
    expected = model(jnp.asarray(inputs["input_ids"]), target, jnp.asarray(inputs["attention_mask"].sum(1)))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    written = loaded.generate(**inputs, max_new_tokens=4)
    assert (np.asarray(written)[:, 0] == loaded.tokenizer.pad).all()


def test_a_resumed_run_is_the_same(done, tmp_path):
    train(replace(TINY, train=replace(TINY.train, steps=2)), tmp_path)
    train(TINY, tmp_path)
    assert losses(tmp_path) == losses(done[0])


def test_bad_settings_are_told():
    with pytest.raises(ValueError, match="rows must be at least 1 and length 1, got 0"):
        ExerciseTexts(rows=0)
