"""Recordings: files of every width of numbers, another rate, several channels, and what is refused."""

import io
import wave

import numpy as np
import pytest

from flax_transformer.data.audio import decode_audio, log_mel, mono, resample


def wav(samples, rate=8_000, width=2):
    """Write samples [T, C] between -1 and 1 as a WAV file."""
    whole = np.round(np.asarray(samples) * 2.0 ** (8 * width - 1)).clip(max=2.0 ** (8 * width - 1) - 1).astype(np.int64)
    content = (whole + 128).astype(np.uint8).tobytes() if width == 1 else whole.astype("<i8").tobytes()
    if width > 1:
        content = np.frombuffer(content, np.uint8).reshape(-1, 8)[:, :width].tobytes()
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((np.shape(samples)[1], width, rate, 0, "NONE", ""))
        out.writeframes(content)
    return file.getvalue()


def tone(hertz, rate, seconds=1.0):
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_file_of_any_width_is_read_as_it_was_written(width):
    samples = np.random.default_rng(0).uniform(-1, 1, (50, 1))
    found = decode_audio(wav(samples, width=width))
    assert (found.samples.dtype, found.rate) == (np.float32, 8_000)
    np.testing.assert_allclose(found.samples, samples[:, 0], atol=max(2.0 ** (1 - 8 * width), 1e-7))


def test_of_several_channels_the_mean_is_taken(tmp_path):
    samples = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    (tmp_path / "three.wav").write_bytes(wav(samples, width=4))
    np.testing.assert_allclose(decode_audio(tmp_path / "three.wav").samples, samples.mean(1), atol=1e-6)
    np.testing.assert_array_equal(mono(samples), mono(samples.T))


def test_files_of_other_kinds_are_read_by_the_library():
    soundfile, file = pytest.importorskip("soundfile"), io.BytesIO()
    samples = tone(440, 8_000, 0.1)
    soundfile.write(file, samples, 8_000, format="FLAC", subtype="PCM_24")
    found = decode_audio(file.getvalue())
    assert found.rate == 8_000
    np.testing.assert_allclose(found.samples, samples, atol=1e-6)


@pytest.mark.parametrize(("rate", "to"), [(8_000, 16_000), (44_100, 16_000), (22_051, 16_000), (48_000, 16_000)])
def test_a_tone_stays_that_tone_at_another_rate(rate, to):
    found = resample(tone(440, rate), rate, to)
    assert len(found) == -(-rate * to // rate)
    inside = slice(to // 10, -to // 10)  # the filter has nothing to look at beyond the ends
    np.testing.assert_allclose(found[inside], tone(440, to)[inside], atol=5e-3)


def test_what_the_lower_rate_cannot_hold_is_taken_away():
    found = resample(tone(11_000, 48_000), 48_000, 16_000)
    assert np.abs(found[1600:-1600]).max() < 1e-2


def test_the_same_rate_changes_nothing():
    samples = tone(440, 8_000)
    assert resample(samples, 8_000, 8_000) is samples


def test_a_tone_is_loudest_in_its_own_bin():
    loud = [log_mel(tone(hertz, 16_000), bins=80, window=400, hop=160, rate=16_000)[:, 50].argmax() for hertz in
            (200, 400, 1000, 4000)]  # fmt: skip
    assert loud == sorted(set(loud))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(0), r"a recording must be samples \[T\] or \[T, C\], got float64 of shape \(0,\)"),
        (np.zeros((2, 2, 2)), r"got float64 of shape \(2, 2, 2\)"),
        (np.array(["a"]), "a recording must be samples"),
        (np.array([0.0, np.nan]), "samples of a recording must be finite numbers"),
    ],
)
def test_what_is_no_sound_is_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        mono(samples)


@pytest.mark.parametrize("content", [b"", b"no recording", wav(np.zeros((9, 1)))[:20]])
def test_a_file_that_is_no_sound_is_refused_in_a_sentence(content):
    with pytest.raises(ValueError, match="a recording is no "):
        decode_audio(content)


def test_rates_and_lengths_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="rates must be whole numbers of samples a second, at least 1, got 0 and 8000"):
        resample(np.zeros(3, np.float32), 0, 8_000)
    with pytest.raises(ValueError, match="a recording must be as long as a frame's step of 160 samples, got 159"):
        log_mel(np.zeros(159, np.float32), bins=80, window=400, hop=160, rate=16_000)
    with pytest.raises(ValueError, match="a recording must be samples"):
        decode_audio(wav(np.zeros((0, 1))))
