"""What is carried beside gradients: batch statistics, a teacher, a queue, and a step with two optimizers."""

import functools
from dataclasses import replace
from pathlib import Path

import carriers
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from carriers import KINDS, begin, images, network, observed, run, vectors
from fake_devices import on_eight
from flax import nnx
from jax.sharding import AbstractMesh, AxisType

from flax_transformer.nn.batch_norm import FrozenBatchNorm
from flax_transformer.objective import BatchStatistics, LabelLoss
from flax_transformer.parallel import path_name
from flax_transformer.train.batch_layout import fill_rows
from flax_transformer.train.carry import (
    NOTHING,
    Carry,
    Carrying,
    batch_statistics,
    carry_of,
    check_new_statistics,
    is_separable,
    momentum_teacher,
    statistics_of,
    with_statistics,
    without_statistics,
)
from flax_transformer.train.checkpoint import CheckpointError, Checkpoints, average_models, to_arrays
from flax_transformer.train.finetune import adopt_state, freeze, multi_task
from flax_transformer.train.loop import Evaluation, NotFinite, Reporting, TrainConfig, fit
from flax_transformer.train.lora import Adapted, LoraConfig, adapt, init_lora
from flax_transformer.train.metric_window import skip_not_finite
from flax_transformer.train.metrics import JsonLines
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import evaluated_model, init_state, new_state
from flax_transformer.train.step import OwnStep, jit_train_step, make_own_step, make_train_step
from tests.shares import only, share

pytestmark = pytest.mark.rotates

STATISTICS = batch_statistics(observed)


class ImageSplit:
    """The batches of `images`, with a position."""

    def __init__(self):
        self.step, self._batches = 0, images()

    def __iter__(self):
        return self

    def __next__(self):
        self.step += 1
        return next(self._batches)

    def get_state(self):
        return {"step": self.step}

    def set_state(self, state):
        while self.step < state["step"]:
            next(self)


def batches(count):
    return [batch for _, batch in zip(range(count), images(), strict=False)]


def same(one, two, **tolerance):
    compare = functools.partial(np.testing.assert_allclose, **tolerance) if tolerance else np.testing.assert_array_equal
    jax.tree.map(compare, one, two)


def fitted(kind, folder, steps, *, evaluate=lambda state, step: {"loss": 1.0}, **options):
    """Train a kind in a folder, from where it stands there."""
    ema = options.get("ema", 0.0)
    state, step = begin(kind, ema=ema, accumulate=options.pop("accumulate", 1))
    config = TrainConfig(steps=steps, checkpoint_every=2, eval_every=2, log_every=1, **options)
    with Checkpoints(folder / "checkpoints", keep=config.keep) as checkpoints:
        writer, schedule = JsonLines(folder / "metrics.jsonl"), lambda step: 0.1
        return fit(
            state, step, ImageSplit(), config, checkpoints=checkpoints, evaluation=Evaluation(evaluate),
            reporting=Reporting(writer, schedule),
        )  # fmt: skip


# Every kind.


PAIRS = [f"{kind} on {mesh}" for kind in KINDS for mesh in carriers.MESHES]
FEW = ("statistics on data×fsdp×tensor", "queue on data×fsdp×tensor", "game on data×fsdp×tensor")


@functools.cache
def run_on_eight(every):
    return on_eight(Path(carriers.__file__), *(set(PAIRS) - set(FEW) if every else FEW))[0]


@pytest.fixture(scope="module")
def eight():
    return run_on_eight(False)


@pytest.mark.parametrize("pair", only(PAIRS, *FEW))
def test_a_mesh_carries_what_one_device_does(pair):
    found, mesh = run_on_eight(pair not in FEW)[pair], pair.partition(" on ")[2]
    alone, there = map(np.asarray, found["losses"])
    np.testing.assert_allclose(there, alone, rtol=1e-5)
    assert alone[-3:].mean() < alone[0]
    assert max(found["apart"].values()) < 3e-6
    assert bool(found["split"]) == (mesh != "data")


def test_explicit_axes_carry_too(eight):
    assert max(eight["explicit"].values()) < 3e-6


def test_what_a_teacher_and_two_optimizers_keep_lies_as_their_parameters(eight):
    split = eight["queue on data×fsdp×tensor"]["split"]
    assert {"1.teacher.up0.up.kernel", "1.teacher.up1.up.kernel"} <= set(split)
    assert not any("queue" in name for name in split)
    split = eight["game on data×fsdp×tensor"]["split"]
    assert "0.discriminator.0.trace.up1.up.kernel" in split
    assert "0.generator.0.nu.up0.up.kernel" in split


@pytest.mark.parametrize(
    ("kind", "options"),
    share(
        [
            ("statistics", {"ema": 0.9}),
            ("teacher", {}),
            ("queue", {"accumulate": 2, "ema": 0.5}),
            ("game", {"ema": 0.9}),
        ],
        0,
        of=4,
    ),
)
def test_a_run_cut_in_two_is_the_whole_run(tmp_path, kind, options):
    whole = fitted(kind, tmp_path / "whole", 6, **options)
    fitted(kind, tmp_path / "cut", 4, **options)
    cut = fitted(kind, tmp_path / "cut", 6, **options)
    assert int(cut.step) == int(whole.step) == 6
    same(to_arrays(cut), to_arrays(whole))
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("cut", "whole")]
    assert len(lines[0]) == len(lines[1]) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_compiles_once_and_takes_the_old_state_over(kind):
    state, step = begin(kind, ema=0.9)
    for batch in batches(3):
        old, (state, _) = state, step(state, batch)
    assert step._cache_size() == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((old.model, old.carried, old.opt_state, old.ema)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_keeps_what_was_carried(kind):
    _, method = KINDS[kind]
    state, _ = begin(kind, ema=0.9)
    step = make_own_step(method, ema=0.9) if kind == "game" else make_train_step(method, optax.adam(3e-3), ema=0.9)
    step = jax.jit(skip_not_finite(step))
    good, bad, _ = batches(3)
    bad["image"][0, 0, 0, 0] = np.nan
    once, metrics = step(state, good)
    twice, skipped = step(once, bad)
    assert (bool(metrics["skipped"]), bool(skipped["skipped"])) == (False, True)
    for name in ("model", "opt_state", "ema", "carried"):
        same(getattr(twice, name), getattr(once, name))
    assert int(twice.step) == 2


def test_a_run_that_carries_nothing_is_what_it_was():
    """No array more in the state, so none in its programs and checkpoints."""
    init = lambda key: vectors(key, 48, 4)  # noqa: E731
    state = init_state(init, optax.sgd(0.1), jax.random.key(0))
    assert state.carried is None
    assert sorted(to_arrays(state)) == ["key", "model.up0.up.kernel", "step"]


def test_a_checkpoint_without_what_is_carried_is_refused_with_a_sentence(tmp_path):
    state, _ = begin("queue")
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, replace(state, carried=None), {})
        with pytest.raises(CheckpointError, match=r"checkpoint 1 does not fit: carried.queue is missing"):
            checkpoints.restore(state)


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (lambda old: {"queue": old["queue"][1:]}, r"got queue as float32\[2, 4\], which was float32\[3, 4\]"),
        (lambda old: {"queue": old["queue"].astype("int32")}, r"got queue as int32\[3, 4\]"),
        (lambda old: {}, r"got queue as nothing, which was float32\[3, 4\]"),
        (lambda old: {**old, "more": old["queue"]}, r"got more as float32\[3, 4\], which was nothing"),
    ],
)
def test_what_is_carried_keeps_its_shapes(new, told):
    carry = Carry(begin=lambda model, key: {"queue": jnp.zeros((3, 4))})
    plain = lambda model, batch: (jnp.sum(model["a"] * batch), {"count": jnp.float32(2)})  # noqa: E731
    in_loss = Carrying(lambda model, batch, *, key, carried: (*plain(model, batch), new(carried)), carry)
    kept = lambda model, batch, *, key, carried: (*plain(model, batch), carried)  # noqa: E731
    after = Carrying(kept, replace(carry, after=lambda model, carried: new(carried)))
    for objective, accumulate in ((in_loss, 1), (in_loss, 2), (after, 1)):
        make = functools.partial(init_state, lambda key: {"a": jnp.ones(())}, optax.sgd(0.1), carry=carry)
        step = make_train_step(objective, optax.sgd(0.1), accumulate=accumulate)
        with pytest.raises(ValueError, match=told):
            jax.eval_shape(step, jax.eval_shape(make, jax.random.key(0)), jnp.ones(4))


def test_a_state_without_what_the_objective_carries_is_told_so():
    state = adopt_state(network(jax.random.key(0)), optax.sgd(0.1), jax.random.key(0))
    with pytest.raises(
        ValueError, match="the objective carries state, the training state has none: make it with carry="
    ):
        make_train_step(STATISTICS, optax.sgd(0.1))(state, batches(1)[0])


# Batch statistics.


def test_statistics_are_no_parameters_and_come_back_into_the_model():
    model = network(jax.random.key(0))
    parameters, statistics = without_statistics(model), statistics_of(model)
    assert sorted(statistics) == ["inner_norm.mean", "inner_norm.var", "norm.mean", "norm.var"]
    named = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(parameters)}
    assert not named & set(statistics)
    again = with_statistics(parameters, statistics)
    assert jax.tree.structure(again) == jax.tree.structure(model)
    same(again, model)


def test_batch_statistics_follow_the_batches():
    _, state = run("statistics", 0)
    _, step = begin("statistics")
    for batch in batches(3):
        model = evaluated_model(state, STATISTICS.carry)
        values = model.conv(batch["image"]).reshape(-1, 8)
        before = {name: np.asarray(state.carried[f"norm.{name}"]) for name in ("mean", "var")}
        state, _ = step(state, batch)
        np.testing.assert_allclose(state.carried["norm.mean"], 0.9 * before["mean"] + 0.1 * values.mean(0), atol=1e-6)
        var = 0.9 * before["var"] + 0.1 * values.var(0, ddof=1)
        np.testing.assert_allclose(state.carried["norm.var"], var, rtol=1e-5)


def test_statistics_have_no_gradient_no_moments_and_are_averaged_with_the_parameters():
    _, state = run("statistics", 5, ema=0.5)
    moments = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.opt_state)]
    assert not any(name.endswith(("mean", "var")) for name in moments)
    seen, (last, step) = [], begin("statistics", ema=0.5)
    for batch in batches(5):
        last, _ = step(last, batch)
        seen.append(np.asarray(last.carried["norm.mean"]))
    average = seen[0]
    for t, mean in enumerate(seen[1:], 2):
        average = average + max(0.5, 9 / (10 + t)) * (mean - average)
    np.testing.assert_allclose(state.ema.norm.mean[...], average, atol=1e-6)
    assert evaluated_model(state, STATISTICS.carry) is state.ema


@pytest.mark.slow
def test_accumulation_is_one_part_after_the_other():
    """Gradients at the same parameters, statistics of each part on top of the last one's."""
    state, step = begin("statistics", accumulate=4, optimizer=optax.sgd(1.0))
    first = jax.tree.map(jnp.copy, state)
    (batch,) = batches(1)
    new, metrics = step(state, batch)
    carried, total, loss = first.carried, jax.tree.map(jnp.zeros_like, first.model), 0.0
    objective = jax.value_and_grad(lambda *given, **options: _aux(STATISTICS(*given, **options)), has_aux=True)
    for part in range(4):
        rows = jax.tree.map(lambda leaf, part=part: leaf[part::4], batch)
        (value, carried), grads = objective(first.model, rows, carried=carried)
        total, loss = jax.tree.map(jnp.add, total, grads), loss + value
    same(new.carried, carried, rtol=1e-5, atol=1e-6)
    same(new.model, jax.tree.map(lambda w, g: w - g / carriers.ROWS, first.model, total), rtol=1e-5, atol=1e-6)
    assert float(metrics["loss"]) == pytest.approx(float(loss) / carriers.ROWS, rel=1e-5)


def _aux(result):
    loss, _, carried = result
    return loss, carried


def test_a_plain_objective_takes_statistics_for_constants():
    """As frozen batch normalisation does; otherwise the optimizer would train them."""
    plain = lambda model, batch, *, key: carriers.classified(model(batch["image"]), batch)  # noqa: E731
    state = adopt_state(network(jax.random.key(0)), optax.sgd(0.1), jax.random.key(0))
    step = jax.jit(make_train_step(plain, optax.sgd(0.1)))
    new, _ = step(state, batches(1)[0])
    same(statistics_of(new.model), statistics_of(state.model))
    assert not np.array_equal(new.model.norm.scale[...], state.model.norm.scale[...])


def test_a_new_model_needs_the_statistics_of_its_batches():
    """With means of 0 and variances of 1 it would train without a word; one that is loaded may keep what it has."""
    key, rule = jax.random.key(0), "trained by their batches' statistics.* of inner_norm and 1 more"
    with pytest.raises(ValueError, match=rule):
        check_new_statistics(jax.eval_shape(network, key), NOTHING)
    with pytest.raises(ValueError, match=rule):
        new_state(network(key), optax.sgd(0.1), False, key)
    for carry in (STATISTICS.carry, BatchStatistics(of=LabelLoss()).carry):
        new_state(network(key), optax.sgd(0.1), False, key, carry)
    seen = with_statistics(network(key), {name: leaf + 1 for name, leaf in statistics_of(network(key)).items()})
    new_state(jax.tree.map(lambda leaf: leaf + 1, seen), optax.sgd(0.1), False, key)
    new_state(FrozenBatchNorm(3), optax.sgd(0.1), False, key)


@pytest.mark.parametrize("pattern", ["^(inner_norm|head)", r"^norm\.scale"])
def test_freezing_and_layer_rates_leave_statistics_moving(pattern):
    config = OptimizerConfig(
        name="adamw", weight_decay=0.1, trainable=pattern, schedule=ScheduleConfig(name="constant")
    )
    optimizer, objective = make_optimizer(config, 10), freeze(STATISTICS, pattern)
    assert carry_of(objective) is STATISTICS.carry
    state = init_state(network, optimizer, jax.random.key(0), carry=carry_of(objective))
    new, _ = jax.jit(make_train_step(objective, optimizer))(state, batches(1)[0])
    moved = {
        path_name(path)
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path(new.model), jax.tree.leaves(state.model), strict=True
        )
        if not np.array_equal(a, b)
    }
    assert moved
    assert all(name.startswith(("inner_norm", "head", "norm.scale")) for name in moved)
    assert all(not np.array_equal(new.carried[name], state.carried[name]) for name in state.carried)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_low_rank_factors_train_beside_statistics(ema):
    base = network(jax.random.key(0))
    kernel = np.asarray(base.head.kernel[...])
    lora = init_lora(base, LoraConfig(rank=2, pattern="head.kernel$"), jax.random.key(1))
    config = OptimizerConfig(trainable=r"^lora\.", learning_rate=0.05, schedule=ScheduleConfig(name="constant"))
    optimizer, objective = make_optimizer(config, 10), adapt(STATISTICS)
    carry = carry_of(objective)
    state = adopt_state(Adapted(base, lora), optimizer, jax.random.key(0), ema=ema > 0, carry=carry)
    assert statistics_of(state.model) == {}
    step, losses = jit_train_step(make_train_step(objective, optimizer, ema=ema), state), []
    for batch in batches(8):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0]
    model = evaluated_model(state, carry)
    assert isinstance(model, carriers.Network)
    assert not np.allclose(model.head.kernel[...], kernel)
    if not ema:
        same(statistics_of(model), state.carried)
    assert float(np.abs(statistics_of(model)["norm.mean"]).max()) > 0


def test_the_best_model_has_the_statistics_of_its_step(tmp_path):
    losses, seen = {2: 0.5, 4: 0.1, 6: 0.9}, {}

    def evaluate(state, step):
        seen[step] = jax.tree.map(np.asarray, (state.model, state.carried))
        return {"loss": losses[step]}

    best = fitted("statistics", tmp_path, 6, evaluate=evaluate, keep_best=True)
    same((best.model, best.carried), seen[4])
    assert not np.array_equal(seen[6][1]["norm.mean"], seen[4][1]["norm.mean"])


def test_an_average_of_checkpoints_is_of_whole_models(tmp_path):
    state, step = begin("statistics")
    seen = []
    with Checkpoints(tmp_path) as checkpoints:
        for at, batch in enumerate(batches(2)):
            state, _ = step(state, batch)
            checkpoints.save(at, state, {})
            checkpoints.wait()
            seen.append(jax.tree.map(np.asarray, evaluated_model(state, STATISTICS.carry)))
        model = average_models(checkpoints, state.model, [0, 1], STATISTICS.carry, state.carried)
    same(model, jax.tree.map(lambda a, b: (a + b) / 2, *seen), rtol=1e-6)


def test_statistics_that_are_no_numbers_do_not_get_into_a_checkpoint(tmp_path):
    carry = Carry(begin=lambda model, key: jnp.zeros(()))
    plain = lambda model, batch: (jnp.sum(model["a"] * batch["image"]), {"count": jnp.float32(16)})  # noqa: E731
    objective = Carrying(lambda model, batch, *, key, carried: (*plain(model, batch), carried + jnp.log(-1.0)), carry)
    state = init_state(lambda key: {"a": jnp.ones(())}, optax.sgd(0.1), jax.random.key(0), carry=carry)
    step = jit_train_step(make_train_step(objective, optax.sgd(0.1)), state)
    with (
        Checkpoints(tmp_path / "checkpoints") as checkpoints,
        pytest.raises(NotFinite, match=r"what is carried stopped being finite at step 2; .* is none"),
    ):
        fit(
            state, step, ImageSplit(), TrainConfig(steps=2, log_every=9), checkpoints=checkpoints,
            evaluation=Evaluation(lambda state, step: {"loss": 1.0}),
            reporting=Reporting(JsonLines(tmp_path / "metrics.jsonl"), lambda step: 0.1),
        )  # fmt: skip


# Teachers and queues.


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_teacher_moves_once_a_step_towards_the_new_model(accumulate):
    state, step = begin("teacher", accumulate=accumulate)
    teacher = jax.tree.map(np.asarray, state.model)
    same(state.carried, teacher)
    for batch in batches(4):
        state, metrics = step(state, batch)
        teacher = jax.tree.map(lambda t, w: 0.8 * t + 0.2 * np.asarray(w), teacher, state.model)
        same(state.carried, teacher, rtol=1e-5, atol=1e-6)
    assert float(metrics["error"]) > 0


def test_a_teacher_with_a_decay_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], got 1.5"):
        momentum_teacher(1.5)


def test_a_queue_holds_the_newest_keys_first():
    state, step = begin("queue")
    queue, unit = np.asarray(state.carried["queue"]), lambda h: h / np.linalg.norm(h, axis=-1, keepdims=True)
    for batch in batches(4):
        keys = unit(np.asarray(carriers.forward(state.carried["teacher"], carriers.pixels(batch))))
        state, _ = step(state, batch)
        queue = np.concatenate([keys, queue])[:48]
        np.testing.assert_allclose(state.carried["queue"], queue, rtol=1e-5, atol=1e-6)


def test_a_queue_is_drawn_from_the_seed_alone():
    one, two = (run("queue", 0)[1].carried["queue"] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert 0.5 < float(jnp.std(one)) < 1.5


# A step of one's own.


@pytest.mark.slow
def test_two_optimizers_play_as_by_hand():
    losses, state = run("game", 5, ema=0.5)
    model = carriers.players(jax.random.split(jax.random.key(0))[0])
    optimizers = {"generator": carriers.FIRST, "discriminator": carriers.SECOND}
    opt_state = {name: optimizer.init(model[name]) for name, optimizer in optimizers.items()}
    by_hand = []

    def doubt(other, one, x, noise):
        fake = carriers.forward(other, carriers.forward(one, noise))
        return jnp.mean(jax.nn.softplus(fake) + jax.nn.softplus(-carriers.forward(other, x)))

    def fool(one, other, x, noise):
        return jnp.mean(jax.nn.softplus(-carriers.forward(other, carriers.forward(one, noise))))

    for at, batch in enumerate(batches(5)):
        x, key = carriers.pixels(batch), jax.random.fold_in(state.key, at)
        noise = jax.random.normal(key, (len(x), 8))
        by_hand.append(float(doubt(model["discriminator"], model["generator"], x, noise)))
        for name, against, loss in (("discriminator", "generator", doubt), ("generator", "discriminator", fool)):
            grads = jax.grad(loss)(model[name], model[against], x, noise)
            updates, opt_state[name] = optimizers[name].update(grads, opt_state[name])
            model = {**model, name: optax.apply_updates(model[name], updates)}
    np.testing.assert_allclose(losses, by_hand, rtol=1e-5)
    same(state.model, model, rtol=1e-4, atol=1e-5)
    assert int(state.step) == 5
    assert not np.array_equal(state.ema["generator"]["up0"]["up"]["kernel"], model["generator"]["up0"]["up"]["kernel"])


def test_a_step_that_reports_too_little_is_told_what_it_lacks():
    own = OwnStep(lambda model: (), lambda state, batch, *, key: (state, {"loss": jnp.float32(1)}))
    state = init_state(lambda key: {"a": jnp.ones(())}, own, jax.random.key(0))
    with pytest.raises(ValueError, match="must report loss, gradient_norm, count, got no gradient_norm, count"):
        make_own_step(own)(state, None)


# Objectives that are not separable.


def pairs(model, batch, *, key=None):
    """A contrastive loss over all pairs of rows."""
    h = carriers.forward(model, carriers.pixels(batch))
    losses = optax.softmax_cross_entropy_with_integer_labels(h @ h.T, jnp.arange(len(h)))
    return losses.sum(), {"count": jnp.float32(len(h))}


pairs.separable = False


@pytest.mark.parametrize(
    "wrapped",
    [
        pairs,
        functools.partial(pairs),
        freeze(pairs, "up0"),
        adapt(pairs),
        multi_task({"one": pairs, "two": carriers.taught}),
        Carrying(carriers.contrasted, carriers.MOMENTUM, separable=False),
        batch_statistics(carriers.observed),
        BatchStatistics(of=LabelLoss()),
    ],
)
def test_an_objective_over_all_pairs_is_not_cut_into_parts(wrapped):
    assert not is_separable(wrapped)
    make_train_step(wrapped, optax.sgd(0.1))
    with pytest.raises(ValueError, match="not separable over rows, got accumulate=4; it must be 1"):
        make_train_step(wrapped, optax.sgd(0.1), accumulate=4)


@pytest.mark.parametrize(("separable", "rows"), [(True, 16), (False, 13)])
def test_rows_of_nothing_are_for_separable_objectives(separable, rows):
    """They would be compared with all the others."""
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(mesh):
        assert len(fill_rows({"image": np.ones((13, 2))}, separable)["image"]) == rows


def test_objectives_are_separable_and_carry_nothing_where_they_do_not_say():
    for objective in (carriers.taught, functools.partial(carriers.taught), freeze(carriers.taught, "a")):
        assert is_separable(objective)
        assert carry_of(objective) is NOTHING
    assert carry_of(functools.partial(STATISTICS)) is STATISTICS.carry


def test_tasks_on_one_model_must_carry_nothing():
    with pytest.raises(ValueError, match="must carry nothing beside gradients, got pictures"):
        multi_task({"pictures": STATISTICS, "pairs": pairs})


def test_flax_batch_normalisation_is_carried_too():
    """Its statistics, changed in place in the copy a loss is given, are read off the model."""
    model = lambda key: nnx.BatchNorm(3, momentum=0.5, rngs=nnx.Rngs(key))  # noqa: E731

    def loss(model, batch, *, key):
        y = model(batch, use_running_average=False)
        return jnp.sum(y * batch), {"count": jnp.float32(len(batch))}, statistics_of(model)

    objective, x = batch_statistics(loss), np.random.default_rng(0).normal(2, 3, (8, 3)).astype(np.float32)
    state = init_state(model, optax.sgd(0.0), jax.random.key(0), carry=objective.carry)
    new, _ = jax.jit(make_train_step(objective, optax.sgd(0.0)))(state, x)
    np.testing.assert_allclose(new.carried["mean"], 0.5 * x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(new.carried["var"], 0.5 + 0.5 * x.var(0), rtol=1e-5)
