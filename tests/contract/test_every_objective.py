"""What holds for every objective: parts of a batch, batches of evaluations and devices change nothing, nor do rows that
only fill up a batch; what compares rows says so, and is never cut.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flax_transformer.objective import check_parts
from flax_transformer.task.evaluator import evaluate
from flax_transformer.train.carry import carry_of, is_separable
from flax_transformer.train.state import TrainState
from flax_transformer.train.step import make_train_step
from tests.contract import objectives
from tests.contract.objectives import CASES, case, learnt
from tests.contract.toys import B
from tests.fake_devices import on_eight

APART = [
    "BYOLLoss", "BatchStatistics", "ContrastiveLoss", "CoSENTLoss", "DINOLoss by Sinkhorn-Knopp",
    "IBOTLoss by Sinkhorn-Knopp", "LateInteractionLoss", "MatchLoss",
    "MatryoshkaLoss of all pairs", "MoCoLoss", "MoCoV3Loss", "MultipleNegativesRankingLoss", "SampleLoss",
    "SigmoidLoss", "SimCLRLoss",
]  # fmt: skip
"""Those that compare rows."""
SLOW = ("DetectionLoss of the last layer", "RouterLoss around DetectionLoss")
TRIED = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
SUMS = [each for each, name in zip(TRIED, CASES, strict=True) if name not in APART]
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def same(one, two):
    jax.tree.map(close, one, two)


def after_a_step(objective, model, batch, accumulate):
    """Return the model after a step of its gradient, without dropout, and what the step reports."""

    def keyless(model, batch, *, key, **carried):
        return objective(model, batch, key=None, **carried)

    keyless.carry = carry_of(objective)
    carried = keyless.carry.begin(model, jax.random.key(0))
    state = TrainState(model, optax.sgd(1.0).init(model), jnp.zeros((), jnp.int32), jax.random.key(0), carried=carried)
    new, metrics = jax.jit(make_train_step(keyless, optax.sgd(1.0), accumulate=accumulate))(state, batch)
    return new.model, metrics


def cut(batch, size):
    return [jax.tree.map(lambda leaf, i=i: leaf[i : i + size], batch) for i in range(0, B, size)]


def test_every_objective_of_the_package_is_tried():
    assert sorted({name.split()[0].rstrip(",") for name in CASES}) == objectives.objectives()
    assert [name for name in CASES if not is_separable(case(name)[0])] == APART


@pytest.mark.rotates
@pytest.mark.parametrize("parts", [4, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*SUMS, "multi_task"])
def test_parts_of_a_batch_are_the_batch(name, parts):
    objective, model, batch = objectives.multi() if name == "multi_task" else case(name)
    whole = after_a_step(objective, model, batch, 1)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(*map(jax.tree.leaves, (whole[0], model)), strict=True))
    same(after_a_step(objective, model, batch, parts), whole)


@pytest.mark.parametrize("name", APART)
def test_what_compares_rows_is_never_cut(name):
    objective, *_ = case(name)
    with pytest.raises(ValueError, match="not separable over rows, got accumulate=2"):
        make_train_step(objective, optax.sgd(0.1), accumulate=2)
    with pytest.raises(ValueError, match=r"must stay whole, got train\.accumulate=2"):
        check_parts(objective, 2, "train.accumulate")


@pytest.mark.rotates
@pytest.mark.parametrize("size", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*SUMS, "BatchStatistics"])
def test_an_evaluation_is_the_same_in_batches_of_any_size(name, size):
    objective, model, batch = case(name)
    assert objective.separable_held_out
    whole = evaluate(objective, model, [batch])
    same(evaluate(objective, model, cut(batch, size)), whole)


def garbage(batch):
    """Make rows that only fill up a batch: weights and lengths are 0, all else is anything."""

    def filler(path, leaf):
        name, shape = path[-1].key, (3, *np.shape(leaf)[1:])
        if name in ("weights", "lengths"):
            return np.zeros(shape, leaf.dtype)
        return np.full(shape, 77, leaf.dtype) if leaf.dtype.kind == "i" else np.full(shape, -7.5, leaf.dtype)

    return jax.tree_util.tree_map_with_path(filler, batch)


@pytest.mark.rotates
@pytest.mark.parametrize("name", [each for each in TRIED if each != "BatchStatistics"])
def test_rows_that_fill_up_a_batch_change_nothing(name):
    """Batch statistics are of all rows; nothing fills up a batch of training."""
    objective, model, batch = case(name)
    filled = jax.tree.map(lambda *parts: np.concatenate(parts), batch, garbage(batch))
    learn = jax.jit(functools.partial(learnt, objective))
    same(learn(model, filled), learn(model, batch))


def test_rows_that_fill_up_a_batch_are_not_evaluated():
    objective, model, batch = case("BatchStatistics")
    filled = jax.tree.map(lambda *parts: np.concatenate(parts), batch, garbage(batch))
    same(evaluate(objective, model, [filled]), evaluate(objective, model, [batch]))


@pytest.fixture(scope="module")
def eight(request):
    """Return how far eight devices are from one for the objectives that are tried in this run."""
    tests = [item for item in request.session.items if getattr(item, "function", None) is test_eight_devices_are_one]
    return on_eight(Path(objectives.__file__), *[item.callspec.params["name"] for item in tests])[0]


@pytest.mark.rotates
@pytest.mark.parametrize("name", CASES)
def test_eight_devices_are_one(eight, name):
    found = [far for pair, far in eight.items() if pair.rpartition(" on ")[0] == name]
    assert len(found) == len(objectives.MESHES)
    assert max(found) < 1e-4
