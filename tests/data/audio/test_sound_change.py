"""What is changed in recordings: within its bounds, the same for the same draws, and nothing of what it was given."""

import numpy as np
import pytest

from flax_transformer.data.audio import (
    Gain,
    MaskFrames,
    MaskSamples,
    Noise,
    ResampleAudio,
    Shift,
    Speed,
    Truncate,
    Waveform,
)
from flax_transformer.data.identity import name_function
from tests.data.audio.test_sound import tone

SAMPLES = tone(440, 8_000, 0.5)
CHANGES = [
    Speed(most=0.1, length=8_000), Shift(most=2_000, length=8_000), Gain(decibels=6.0), Noise(most=0.2),
    MaskSamples(count=2, longest=800), Truncate(length=3_000),
]  # fmt: skip


def changed(change, seed=0, samples=SAMPLES):
    return change({"samples": samples, "label": 3}, np.random.default_rng(seed))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_change_is_a_function_of_the_draws_and_leaves_what_it_was_given(change):
    before = SAMPLES.copy()
    one, again, other = (changed(change, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one["samples"], again["samples"])
    if not isinstance(change, Truncate):
        assert one["samples"].shape != other["samples"].shape or (one["samples"] != other["samples"]).any()
    assert one["samples"].dtype == np.float32
    assert one["label"] == 3
    np.testing.assert_array_equal(SAMPLES, before)
    assert name_function(change)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_silence_stays_silent_and_the_shortest_sound_a_sound(change):
    assert not changed(change, samples=np.zeros(50, np.float32))["samples"].any()
    assert np.isfinite(changed(change, samples=np.ones(1, np.float32))["samples"]).all()


def test_a_faster_sound_is_higher_and_no_change_makes_a_sound_too_long():
    for seed in range(20):
        faster = changed(Speed(most=0.2, length=8_000), seed)["samples"]
        hertz = np.abs(np.fft.rfft(faster, 8_000)).argmax()
        assert hertz == pytest.approx(440 * len(SAMPLES) / len(faster), abs=3)
        assert len(changed(Speed(most=0.2, length=4_100), seed)["samples"]) <= 4_100
        shifted = changed(Shift(most=8_000, length=5_000), seed)["samples"]
        assert len(shifted) <= 5_000
        np.testing.assert_array_equal(shifted[len(shifted) - len(SAMPLES) :], SAMPLES)
    assert len(changed(Shift(most=100, length=10))["samples"]) == len(SAMPLES)


def test_gain_and_noise_are_within_their_bounds():
    for seed in range(20):
        ratio = np.abs(changed(Gain(decibels=6.0), seed)["samples"]).max() / np.abs(SAMPLES).max()
        assert 10 ** (-6 / 20) <= ratio <= 10 ** (6 / 20)
        assert (changed(Noise(most=0.2), seed)["samples"] - SAMPLES).std() <= 0.21 * SAMPLES.std()


def test_masks_are_stretches_of_time_and_bands_of_the_mean():
    frames = np.random.default_rng(0).normal(size=(60, 20)).astype(np.float32)
    change = MaskFrames(times=1, longest=10, bands=1, widest=5)
    masked = [change({"frames": frames}, np.random.default_rng(seed))["frames"] for seed in range(20)]
    for each in masked:
        wrong = each != frames
        assert np.allclose(each[wrong], frames.mean(), atol=1e-6)
        times, bands = wrong.all(axis=1), wrong.all(axis=0)
        assert times.sum() <= 10
        assert bands.sum() <= 5
        assert (wrong == (times[:, None] | bands[None])).all()
    assert len({(each != frames).sum() for each in masked}) > 5


def test_a_sound_is_heard_at_the_rate_that_is_asked_for():
    example = ResampleAudio(rate=4_000)({"audio": Waveform(SAMPLES, 8_000), "text": "a"}, np.random.default_rng(0))
    assert example.keys() == {"samples", "text"}
    assert len(example["samples"]) == len(SAMPLES) // 2
