from typing import get_type_hints

import numpy as np
import pytest

from flax_transformer.train.schedule import ScheduleConfig, make_schedule, noam_schedule

pytestmark = pytest.mark.proves("training", "8 schedules, as Optax")

STEPS, WARMUP, PEAK = 100, 10, 0.5


def rates(name, steps=STEPS, **options):
    schedule = make_schedule(ScheduleConfig(name=name, **options), PEAK, steps)
    return np.array([float(schedule(count)) for count in range(steps)])


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "inverse_sqrt", "exponential", "step", "wsd"])
def test_warmup_rises_linearly_to_the_peak(name):
    found = rates(name, warmup=WARMUP)
    np.testing.assert_allclose(found[:WARMUP], PEAK * np.arange(1, WARMUP + 1) / WARMUP, rtol=1e-6)
    assert found.max() == pytest.approx(PEAK, rel=1e-6)


NAMES = get_type_hints(ScheduleConfig)["name"].__args__
FALLING = ("linear", "cosine", "wsd")
CORNERS = [(1, 1), (1, 0), (2, 0), (2, 1), (10, 0), (10, 9), (10, 10), (100, 90), (100, 99)]


@pytest.mark.parametrize(("steps", "warmup"), CORNERS)
@pytest.mark.parametrize("name", NAMES)
def test_the_first_the_highest_and_the_last_rate_of_a_run(name, steps, warmup):
    """The first is peak / warmup, step `warmup` (or the first) has the peak, the last has what is fallen to."""
    if name in ("inverse_sqrt", "noam") and not warmup:
        pytest.skip("needs a warmup")
    found = rates(name, steps=steps, warmup=warmup, final=0.1)
    peak = PEAK * (512 * warmup) ** -0.5 if name == "noam" else PEAK
    top = max(warmup, 1)
    assert found[0] == pytest.approx(peak / top, abs=1e-6 * peak)  # Optax comes from the peak, in float32
    assert found[top - 1] == found.max() == pytest.approx(peak, rel=1e-6)
    if name in FALLING and steps > top:
        assert found[-1] == pytest.approx(0.1 * peak, rel=1e-6)


@pytest.mark.parametrize(("steps", "warmup"), CORNERS)
@pytest.mark.parametrize("name", NAMES)
def test_rates_fall_without_a_jump_after_the_peak(name, steps, warmup):
    if name in ("inverse_sqrt", "noam") and not warmup:
        pytest.skip("needs a warmup")
    options = {"final": 0.1, "decay_every": 7}
    fall = -np.diff(rates(name, steps=steps, warmup=warmup, **options)[max(warmup, 1) - 1 :])
    assert (fall >= -1e-9).all()
    if name in ("linear", "wsd"):  # in equal parts
        parts = fall[fall > 1e-6]
        np.testing.assert_allclose(parts, parts[:1].repeat(len(parts)), rtol=1e-3)


@pytest.mark.parametrize("final", [0.0, 0.25])
@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_decays_end_at_final_times_peak(name, final):
    found = rates(name, warmup=WARMUP, final=final)
    assert found[-1] == pytest.approx(final * PEAK, abs=1e-7)
    assert (np.diff(found[WARMUP:]) <= 1e-9).all()
    assert found[-2] > final * PEAK


def test_wsd_stays_until_its_last_fifth():
    found = rates("wsd", warmup=WARMUP, decay_fraction=0.2)
    np.testing.assert_allclose(found[WARMUP:80], PEAK, rtol=1e-6)
    np.testing.assert_allclose(found[80:], PEAK * np.arange(19, -1, -1) / 20, rtol=1e-5, atol=1e-7)


def test_wsd_falls_in_what_a_long_warmup_leaves():
    found = rates("wsd", warmup=90, decay_fraction=0.5, final=0.5)
    np.testing.assert_allclose(found[89:], PEAK * np.linspace(1, 0.5, 11), rtol=1e-6)


def test_stairs_are_as_long_as_they_should_be():
    found = rates("step", steps=12, decay_every=4, decay_rate=0.5)
    np.testing.assert_allclose(found, PEAK * np.repeat([1, 0.5, 0.25], 4), rtol=1e-6)
    np.testing.assert_allclose(rates("exponential", steps=9, decay_every=4)[::4], PEAK * np.array([1, 0.5, 0.25]))


def test_constant_stays():
    assert set(rates("constant")) == {PEAK}


def test_noam_is_the_formula_of_the_paper():
    schedule = noam_schedule(512, 4000)
    for step in (1, 2, 1000, 3999, 4000, 4001, 16_000, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert float(schedule(step - 1)) == pytest.approx(paper, rel=1e-6)
    assert float(schedule(3999)) == pytest.approx(6.9877e-4, rel=1e-4)


def test_noam_takes_the_learning_rate_as_its_factor():
    config = ScheduleConfig(name="noam", warmup=10, width=64)
    assert float(make_schedule(config, 2.0, 100)(9)) == pytest.approx(2 * 64**-0.5 * 10**-0.5, rel=1e-6)


@pytest.mark.parametrize("warmup", [1, 10])
@pytest.mark.parametrize("name", ["linear", "cosine", "wsd", "inverse_sqrt", "noam", "exponential", "step", "constant"])
def test_all_rates_are_positive_and_finite(name, warmup):
    found = rates(name, warmup=warmup, final=0.01)
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_warmup_longer_than_the_run_names_both():
    with pytest.raises(ValueError, match="got warmup=4000, steps=800"):
        make_schedule(ScheduleConfig(name="cosine", warmup=4000), PEAK, 800)


@pytest.mark.parametrize(
    "options",
    [
        {"warmup": -1},
        {"name": "noam", "warmup": 0},
        {"name": "step", "decay_every": 0},
        {"final": 1.5},
        {"decay_rate": -0.1},
    ],
)
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="got"):
        ScheduleConfig(**options)


def torch_rates(make):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    schedule = make(torch.optim.lr_scheduler, optimizer)
    found = []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return np.array(found)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "options", "make"),
    [
        ("cosine", {"final": 0.1}, lambda s, o: s.CosineAnnealingLR(o, STEPS - 1, eta_min=0.1 * PEAK)),
        ("linear", {"final": 0.1}, lambda s, o: s.LinearLR(o, 1.0, 0.1, STEPS - 1)),
        ("step", {"decay_every": 30, "decay_rate": 0.5}, lambda s, o: s.StepLR(o, 30, 0.5)),
        ("exponential", {"decay_every": 1, "decay_rate": 0.97}, lambda s, o: s.ExponentialLR(o, 0.97)),
    ],
)
def test_equals_torch(name, options, make):
    np.testing.assert_allclose(rates(name, **options), torch_rates(make), rtol=2e-5, atol=1e-7)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("linear", lambda t, o: t.get_linear_schedule_with_warmup(o, WARMUP, STEPS)),
        ("cosine", lambda t, o: t.get_cosine_schedule_with_warmup(o, WARMUP, STEPS)),
        ("inverse_sqrt", lambda t, o: t.get_inverse_sqrt_schedule(o, WARMUP, WARMUP)),
        ("wsd", lambda t, o: t.get_wsd_schedule(o, WARMUP, 20, STEPS, decay_type="linear")),
    ],
)
def test_equals_transformers_a_step_ahead(name, make):
    """Theirs begin with a step at a rate of zero, ours end with one."""
    transformers = pytest.importorskip("transformers")
    theirs = torch_rates(lambda _, optimizer: make(transformers, optimizer))
    assert theirs[0] == 0
    np.testing.assert_allclose(rates(name, warmup=WARMUP)[:-1], theirs[1:], rtol=2e-5, atol=1e-7)
