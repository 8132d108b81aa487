"""Tasks that carry state or bring their own step, under the same runner and commands as any other."""

import json
from dataclasses import replace

import carrying
import jax
import numpy as np
import pytest
from carrying import EXPERIMENT, ImageSplit, carriers

from flax_transformer.bench.run import benchmark
from flax_transformer.bench.workload import Size
from flax_transformer.task.experiment import Task, begin_training, train
from flax_transformer.train.carry import statistics_of
from flax_transformer.train.loop import TrainConfig
from tests.shares import only


def records(folder, split):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == split]


@pytest.mark.rotates
@pytest.mark.parametrize("options", only([{}, {"ema": 0.5}, {"average": 2}], {"ema": 0.5}))
def test_a_run_ends_with_its_statistics_in_the_model(tmp_path, options):
    config = TrainConfig(steps=6, log_every=3, eval_every=3, checkpoint_every=3, **options)
    model = train(replace(EXPERIMENT, train=config), tmp_path)
    assert isinstance(model, carriers.Network)
    mean = np.asarray(statistics_of(model)["norm.mean"])
    assert np.abs(mean).max() > 0.01
    saved = np.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(saved["norm.mean"], mean)
    seen = records(tmp_path, "validation")
    if not options.get("average"):
        logits = model(next(ImageSplit())["image"])
        loss, _ = carriers.classified(logits, next(ImageSplit()))
        assert seen[-1]["loss"] == pytest.approx(float(loss) / 16, rel=1e-5)
    again = train(replace(EXPERIMENT, train=config), tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again, model)


@pytest.mark.rotates
def test_a_task_may_bring_its_own_step(tmp_path):
    model = train(replace(EXPERIMENT, kind="game"), tmp_path)
    losses, state = carriers.run("game", 6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), model, state.model)
    seen = records(tmp_path, "train")
    np.testing.assert_allclose([each["loss"] for each in seen], np.reshape(losses, (2, 3)).mean(1), rtol=1e-5)
    assert all(np.isfinite(each["fooled"]) for each in seen)


def test_a_step_of_ones_own_cuts_no_batches(tmp_path):
    config = replace(EXPERIMENT.train, accumulate=2)
    with pytest.raises(ValueError, match=r"cuts no batches, got train.accumulate=2"):
        train(replace(EXPERIMENT, kind="game", train=config), tmp_path)


def test_a_task_has_an_objective_or_a_step():
    with pytest.raises(ValueError, match="either an objective or its own step, got both or neither"):
        Task(init=None, objective=None, batches=ImageSplit(), evaluate=lambda m, s: {}, finish=lambda m, w: None)


def test_what_is_carried_is_listed_where_it_lies(run):
    code, out, err = run("sharding", carrying.__file__, "--mesh.data", 1, "--mesh.tensor", 2)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "conv.kernel 3×3×3×8 – – – inner→tensor 432 B" in lines
    assert "carried 320 B 320 B" in lines


@pytest.mark.slow
def test_a_step_that_carries_is_measured():
    record = benchmark(carrying.__file__, Size(), what=("train",), steps=2)
    assert record["programs"]["train"]["step"]["median"] > 0
    with pytest.raises(ValueError, match=r"carries state from step to step, .*: --what train"):
        benchmark(carrying.__file__, Size(), what=("forward",), steps=1)


def test_a_new_model_with_batch_norms_needs_an_objective_that_carries_their_statistics():
    plain = lambda model, batch, *, key: carriers.classified(model(batch["image"]), batch)  # noqa: E731
    task = Task(init=carriers.network, objective=plain, batches=ImageSplit(), evaluate=lambda m, s: {}, finish=print)
    with pytest.raises(ValueError, match="must be trained by their batches' statistics, as by BatchStatistics"):
        begin_training(EXPERIMENT, task)
    begin_training(EXPERIMENT, replace(task, model=carriers.network(jax.random.key(0))))
