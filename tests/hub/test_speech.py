"""What speech is written down with: the tokens that a text begins with, windows, and what is refused; on the golden
checkpoint, whose words are 0 to 19, times 29 and up."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.fallback import mean_logprobs
from flax_transformer.hub.settings import make_settings
from flax_transformer.hub.speech import Speech, begin, cut, segments

FOLDER = Path(__file__).parent / "golden/whisper"
END, START, EN, DE, TRANSLATE, TRANSCRIBE, NONE, FIRST = 20, 21, 22, 23, 24, 25, 28, 29


@pytest.fixture(scope="module")
def whisper():
    return hub.load(FOLDER)


def frames(length=14, rows=1):
    return np.random.default_rng(0).normal(size=(rows, 5, length)).astype(np.float32)


def begun(whisper, **how):
    settings = make_settings(whisper.config, whisper.generation, {})
    return begin(whisper, frames(), Speech(**{"return_timestamps": False, **how}), settings)[0].tolist()


def test_a_text_begins_with_what_is_asked(whisper):
    assert begun(whisper, language="de") == [START, DE, TRANSCRIBE, NONE]
    assert begun(whisper, language="<|EN|>", task="translate") == [START, EN, TRANSLATE, NONE]
    assert begun(whisper, language="german") == begun(whisper, language="German") == begun(whisper, language="de")
    assert begun(whisper, language="english", task="translate") == [START, EN, TRANSLATE, NONE]
    assert begun(whisper, language="en", return_timestamps=True) == [START, EN, TRANSCRIBE]
    assert begun(whisper, language="en", prompt_ids=(7, 8)) == [7, 8, START, EN, TRANSCRIBE, NONE]


def test_a_language_that_nobody_says_is_detected(whisper):
    ids = np.full((1, 1), START)
    logits = np.asarray(whisper(input_features=frames(), decoder_input_ids=ids).logits)[0, -1]
    assert begun(whisper) == [START, max((EN, DE), key=lambda token: logits[token]), NONE]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"language": "xx"}, "language must be one of de, en, got 'xx'"),
        ({"task": "sing"}, "task must be one of transcribe, translate, got 'sing'"),
        ({"language": ("en", "de")}, "there must be a language for each recording, got 2 and 1 recordings"),
    ],
)
def test_what_the_checkpoint_has_no_token_for_is_refused(whisper, how, message):
    with pytest.raises(ValueError, match=message):
        begun(whisper, **how)


def test_a_checkpoint_for_english_takes_no_language(whisper):
    english = replace(whisper, generation=whisper.generation.updated({"is_multilingual": False}))
    with pytest.raises(ValueError, match="a checkpoint for English alone has no tokens for language='en'"):
        begun(english, language="en")


A, B, C = FIRST, FIRST + 2, FIRST + 5


@pytest.mark.parametrize(
    ("tokens", "pieces", "moved"),
    [
        ((1, 2), [(0.0, 0.14, (1, 2))], 14),  # no times: all of the window
        ((A, 1, B), [(0.0, 0.04, (A, 1, B))], 14),  # nothing is said after the last time
        ((A, 1, B, B, 2), [(0.0, 0.04, (A, 1, B, B))], 4),  # what is unfinished is heard again
        ((A, 1, B, B, 2, C), [(0.0, 0.04, (A, 1, B)), (0.04, 0.1, (B, 2, C))], 14),
        ((A, 1, B, B, 2, C, C), [(0.0, 0.04, (A, 1, B)), (0.04, 0.1, (B, 2, C, C))], 10),
        ((), [(0.0, 0.14, ())], 14),
        ((1, A, A), [(-0.56, 0.0, (1, A, A))], 14),  # no time to go on from: the next window is behind this one
    ],
)
def test_a_window_is_cut_at_times_told_twice(tokens, pieces, moved):
    found, width = cut(tokens, 14, FIRST, 2)
    assert [each[2] for each in found] == [each[2] for each in pieces]
    np.testing.assert_allclose([each[:2] for each in found], [each[:2] for each in pieces])
    assert width == moved


@pytest.mark.rotates
def test_windows_cover_a_long_sound_in_order(whisper):
    (found,) = segments(whisper, frames(100), None, Speech(language="en"), {"max_new_tokens": 6})
    starts = [segment.start for segment in found]
    assert starts == sorted(starts)
    assert len(starts) >= 100 / 14
    assert found[-1].end <= 100 * 0.01 + 12 * 0.02


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        (100, {"return_timestamps": False}, "a recording longer than a window is cut at times it tells"),
        (14, {"do_sample": True}, "speech is written down greedily or by beams"),
        (14, {"max_new_tokens": 24}, "must fit into the positions, got 24 and 4, 24 positions"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(whisper, length, options, message):
    with pytest.raises(ValueError, match=message):
        whisper.generate(frames(length), language="en", **options)


def test_frames_of_another_shape_are_refused(whisper):
    with pytest.raises(
        ValueError, match=r"input_features must be floats \[B, 5, T\], got float32 of shape \[1, 4, 14\]"
    ):
        whisper.generate(frames()[:, :4])
    with pytest.raises(ValueError, match="recordings longer than a window need an attention_mask"):
        whisper.generate(frames(20, rows=2))
    with pytest.raises(ValueError, match=r"input_features must be \[B, 5, 14\], bins before frames"):
        whisper(input_features=frames(12), decoder_input_ids=np.ones((1, 2), int))


def written(whisper, rows=2, **settings):
    return np.asarray(whisper.generate(frames(rows=rows), language="en", max_new_tokens=6, **settings))


@pytest.mark.rotates
def test_a_text_that_looks_right_is_not_written_again(whisper):
    plain = written(whisper)
    again = {"temperature": (0.0, 0.8), "key": jax.random.key(0)}
    np.testing.assert_array_equal(written(whisper, **again, compression_ratio_threshold=99.0), plain)
    np.testing.assert_array_equal(written(whisper, **again, logprob_threshold=-99.0), plain)


@pytest.mark.rotates
def test_one_that_looks_wrong_is_written_at_the_next_temperature(whisper):
    key = {"key": jax.random.key(3)}
    last = written(whisper, temperature=0.8, **key)
    assert not np.array_equal(last, written(whisper))
    for wrong in ({"compression_ratio_threshold": 0.0}, {"logprob_threshold": 1.0}):
        np.testing.assert_array_equal(written(whisper, temperature=(0.0, 0.4, 0.8), **key, **wrong), last)


@pytest.mark.rotates
def test_a_recording_draws_the_same_in_any_batch(whisper):
    drawn = {"temperature": 0.9, "key": jax.random.key(1), "logprob_threshold": -99.0}
    alone, (first, _) = written(whisper, 1, **drawn)[0], written(whisper, 2, **drawn)
    np.testing.assert_array_equal(alone, first[: len(alone)])
    assert (first[len(alone) :] == END).all()


@pytest.mark.rotates
def test_drawn_tokens_are_judged_at_temperature_1(whisper):
    begun = np.array([[START, EN, TRANSCRIBE, NONE]])
    tokens, suppressed = np.array([[3, 5, END, 0]]), (2, 7)
    ids = np.concatenate([begun, tokens[:, :2]], axis=1)
    logits = np.asarray(whisper(input_features=frames(), decoder_input_ids=ids).logits, np.float64)[0, 3:]
    logits[:, suppressed] = -np.inf
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.mean([logprobs[i, token] for i, token in enumerate((3, 5, END))])
    found = mean_logprobs(whisper, frames(), begun, tokens, np.array([3]), suppressed)
    np.testing.assert_allclose(found, [expected], rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": (0.0, 0.2)}, r"temperatures above 0 need a key, .*, got \(0.0, 0.2\)"),
        ({"temperature": -1.0}, "temperature must be numbers of at least 0"),
        ({"no_speech_threshold": 0.5}, "no_speech_threshold needs a logprob_threshold too, got 0.5"),
    ],
)
def test_words_of_fallback_that_make_no_sense_are_refused(whisper, settings, message):
    with pytest.raises(ValueError, match=message):
        written(whisper, **settings)
