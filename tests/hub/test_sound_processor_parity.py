"""Recordings become a model's inputs as in transformers, by its NumPy path, to the last sample."""

import json

import numpy as np
import pytest

from flax_transformer.data.audio import mel_filters
from flax_transformer.hub.processor.audio import AudioProcessor, load_audio_processor
from flax_transformer.hub.processor.ctc import collapse
from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("recording processors", "parity")]

OPTIONS = {
    "published": {},
    "large-v3": {"feature_size": 128},
    "odd": {"feature_size": 7, "hop_length": 33, "n_fft": 250, "chunk_length": 1, "sampling_rate": 8001},
    "short": {"chunk_length": 3, "padding_value": 0.1},
}


def whisper(options):
    theirs = transformers.WhisperFeatureExtractor(**options)
    return theirs, AudioProcessor.of(json.loads(theirs.to_json_string()))


def sounds(rate):
    draw, t = np.random.default_rng(0), np.arange(5 * rate) / rate
    tone = np.sin(2 * np.pi * 440 * t) * np.exp(-t)
    return [
        (0.1 * draw.standard_normal(rate // 2)).astype(np.float32),
        tone.astype(np.float32),
        np.zeros(rate, np.float32),
        (1e-6 * tone).astype(np.float32)[: rate // 3],
    ]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "how", [{}, {"padding": "longest"}, {"padding": "longest", "truncation": False}], ids=["window", "longest", "whole"]
)
def test_frames_are_those_of_transformers(options, how, monkeypatch):
    theirs, ours = whisper(options)
    monkeypatch.setattr(theirs, "_torch_extract_fbank_features", theirs._np_extract_fbank_features)
    given = sounds(ours.rate)
    expected = theirs(given, sampling_rate=ours.rate, return_tensors="np", return_attention_mask=True, **how)
    found = ours(given, return_attention_mask=True, **how)
    assert found["input_features"].dtype == expected["input_features"].dtype == np.float32
    np.testing.assert_allclose(found["input_features"], expected["input_features"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found["attention_mask"], expected["attention_mask"])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("options", [{}, {"do_normalize": False, "padding_value": 0.5}, {"sampling_rate": 8_000}])
def test_samples_are_those_of_transformers(options, masked):
    theirs = transformers.Wav2Vec2FeatureExtractor(**options)
    ours, given = AudioProcessor.of(json.loads(theirs.to_json_string())), sounds(8_000)
    expected = theirs(
        given, sampling_rate=theirs.sampling_rate, padding=True, return_tensors="np", return_attention_mask=masked
    )
    found = ours(given, return_attention_mask=masked)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(found["input_values"], expected["input_values"], rtol=0, atol=1e-6)
    if masked:
        np.testing.assert_array_equal(found["attention_mask"], expected["attention_mask"])


def test_letters_are_those_of_transformers(tmp_path):
    letters = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4} | {a: 5 + i for i, a in enumerate("ABCDEFGH'")}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    theirs = transformers.Wav2Vec2CTCTokenizer(tmp_path / "vocab.json")
    theirs.save_pretrained(tmp_path)
    ours = load_hub_tokenizer(tmp_path)
    for text in ("A BAD CAB", "HE'D FACE", "AZ", "A<s>B"):
        assert ours([text], padding=False)["input_ids"][0].tolist() == theirs(text)["input_ids"]
    draw = np.random.default_rng(0)
    for _ in range(50):
        ids = np.repeat(draw.integers(0, len(letters), 9), draw.integers(1, 4, 9))
        assert ours.decode(collapse(ids, blank=0), skip_special_tokens=False).strip() == theirs.decode(ids)


@pytest.mark.parametrize(("bins", "window", "rate"), [(80, 400, 16_000), (128, 400, 16_000), (13, 512, 22_051)])
def test_filters_are_those_of_transformers(bins, window, rate):
    from transformers.audio_utils import mel_filter_bank

    expected = mel_filter_bank(window // 2 + 1, bins, 0.0, 8000.0, rate, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(bins, window, rate), expected, rtol=1e-12, atol=1e-15)


def test_a_processor_written_here_is_read_by_transformers_and_back(tmp_path):
    theirs, ours = whisper(OPTIONS["odd"])
    ours.save(tmp_path)
    again = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path)
    assert again.to_dict() == theirs.to_dict()
    theirs.save_pretrained(tmp_path)
    assert load_audio_processor(tmp_path).options == ours.options
