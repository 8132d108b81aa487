"""Recordings to a model's inputs: what is given, what a folder says, what is refused."""

import json

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.audio import Waveform, resample
from flax_transformer.hub.processor.audio import AudioProcessor, load_audio_processor
from flax_transformer.hub.processor.open import Unreadable, open_processor

WHISPER = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 5, "chunk_length": 1}


@pytest.fixture(scope="module")
def processor():
    return AudioProcessor.of(WHISPER)


def noise(count=8_000):
    return (0.1 * np.random.default_rng(0).standard_normal(count)).astype(np.float32)


def test_a_sound_at_another_rate_is_heard_as_the_resampled_one(processor):
    expected = processor(resample(noise(), 8_000, 16_000))["input_features"]
    for given in (processor(noise(), sampling_rate=8_000), processor(Waveform(noise(), 8_000))):
        np.testing.assert_array_equal(given["input_features"], expected)


def test_channels_are_averaged_and_whole_numbers_scaled(processor):
    stereo = (np.stack([noise(), -0.5 * noise()], axis=1) * 2**15).astype(np.int16)
    expected = processor((stereo / 2**15).mean(1))["input_features"]
    np.testing.assert_allclose(processor(stereo)["input_features"], expected, atol=1e-5)


def test_silence_is_a_sound(processor):
    assert (processor(np.zeros(9))["input_features"] == -1.5).all()


def test_several_sounds_are_as_each_alone(processor):
    given = [noise(4_000), noise(9_000)]
    both = processor(given, return_attention_mask=True)
    for row, sound in zip(both["input_features"], given, strict=True):
        np.testing.assert_array_equal(processor(sound)["input_features"][0], row)
    assert both["attention_mask"].sum(1).tolist() == [25, 57]


def test_a_folder_keeps_its_files_byte_for_byte(processor, tmp_path):
    text = json.dumps({**WHISPER, "mine": [1]}, indent=7)
    (tmp_path / "preprocessor_config.json").write_text(text)
    found = open_processor(tmp_path)
    found.save(tmp_path / "again")
    assert (tmp_path / "again/preprocessor_config.json").read_text() == text
    assert (found.rate, found.options["feature_size"]) == (16_000, 5)


def test_options_of_sounds_stand_inside_those_of_a_processor_of_several_kinds(tmp_path):
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": WHISPER}))
    assert open_processor(tmp_path).config == WHISPER


def test_a_checkpoint_is_saved_with_its_processor(processor, tmp_path):
    from pathlib import Path

    whisper = hub.load(Path(__file__).parent / "golden/whisper")
    hub.save(type(whisper)(whisper.model, whisper.config, processor=processor), tmp_path)
    assert hub.load(tmp_path).processor.config == WHISPER


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_size": "5"}, "feature_size must be a int, got '5'"),
        ({"hop_length": 0}, "hop_length must be at least 1 and at most a million, got 0"),
        ({"dither": 0.1}, "dither, which is noise, is not supported but as 0, got 0.1"),
        ({"feature_extractor_type": "Other"}, "feature_extractor_type must be one of .*WhisperFeatureExtractor"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AudioProcessor.of({**WHISPER, **options})


def test_a_broken_processor_does_not_keep_weights_from_loading(tmp_path, caplog):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**WHISPER, "n_fft": -1}))
    with pytest.raises(ValueError, match=r"preprocessor_config.json: n_fft must be at least 1"):
        load_audio_processor(tmp_path)
    assert isinstance(open_processor(tmp_path), Unreadable)
    assert "these weights are without their feature extractor" in caplog.text


@pytest.mark.parametrize(
    ("sounds", "how", "message"),
    [
        ([], {}, "there must be at least one recording, got none"),
        (np.zeros(0), {}, "a recording must be samples"),
        (np.zeros(9), {"padding": "left"}, "padding must be 'max_length' or 'longest', got 'left'"),
        (np.zeros(9), {"return_tensors": "pt"}, "arrays are NumPy's"),
    ],
)
def test_what_cannot_be_heard_is_refused(processor, sounds, how, message):
    with pytest.raises(ValueError, match=message):
        processor(sounds, **how)
