"""Batches of recordings: resumed bit for bit, the same from any threads and processes, refused or named at the door."""

import json
from dataclasses import replace
from itertools import islice

import jax
import numpy as np
import pytest

from flax_transformer.data.audio import SpeechData
from flax_transformer.data.synthetic import AudioData, SpokenStringConfig, SpokenStringData, TouchTones
from flax_transformer.task.audio_classification import AudioAugment, LabelledAudio
from flax_transformer.task.opened import Context
from flax_transformer.task.speech_recognition import SpokenLetters, SpokenTexts
from flax_transformer.train.folder import RunFolder
from tests.data.audio.test_sound_sources import lines, spoken, tone, write

pytestmark = pytest.mark.proves("recordings", "batches resumed bit for bit, the same from any threads and processes")

TONES = TouchTones(voices=2, takes=8)
STRINGS = SpokenStringData(tones=TONES, how=SpokenStringConfig(most=2, seconds=1.0, longest=0.05), train=30, held_out=5)
EVERYTHING = AudioAugment(speed=0.1, shift=0.2, gain=6.0, noise=0.2, times=2, bands=2)
KINDS = {
    "classes": (LabelledAudio(rows=4, bins=8, augment=EVERYTHING), AudioData(tones=TONES)),
    "letters": (SpokenLetters(rows=4, seconds=1, augment=replace(EVERYTHING, bands=0)), STRINGS),
    "texts": (SpokenTexts(rows=4, seconds=1, bins=8, augment=EVERYTHING), STRINGS),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def opened(kind, folder, seed=3):
    examples, data = KINDS[kind]
    return examples.open(data, Context(folder=RunFolder(folder), seed=seed))


def batches(stream, count):
    found = list(islice(stream, count))
    stream.close()
    return found


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.rotates
def test_a_stream_goes_on_where_it_was(kind, tmp_path):
    stream = opened(kind, tmp_path).batches
    whole = batches(stream, 8)
    stream = opened(kind, tmp_path).batches
    next(islice(stream, 4, 5))
    state = json.loads(json.dumps(stream.get_state()))
    stream.close()
    again = opened(kind, tmp_path).batches
    again.set_state(state)
    same(batches(again, 3), whole[5:])
    other = opened(kind, tmp_path, seed=4).batches
    with pytest.raises(ValueError, match="a data position belongs to one pipeline"):
        other.set_state(state)


def test_processes_share_what_one_has(kind, tmp_path):
    whole = batches(opened(kind, tmp_path).batches, 2)
    parts = []
    for part in range(2):
        stream = opened(kind, tmp_path).batches
        stream.share((part,), 2)
        parts.append(batches(stream, 2))
    same([jax.tree.map(lambda a, b: np.concatenate([a, b]), *each) for each in zip(*parts, strict=True)], whole)


def test_every_held_out_sound_comes_once_without_chance(kind, tmp_path):
    found = opened(kind, tmp_path)
    one, again = list(found.test()), list(found.test())
    same(one, again)
    present = [row for batch in one for row in batch["weights"].reshape(4, -1).any(axis=1)]
    assert sum(present) == len(found.held.table)
    held = found.held.example(0)
    key = "samples" if kind == "letters" else "frames" if kind == "classes" else "source"
    heard = held["samples" if kind == "letters" else "frames"]
    np.testing.assert_array_equal(one[0]["inputs"][key][0][: len(heard)], heard)


def test_a_model_hears_what_the_exported_extractor_makes(kind, tmp_path):
    found = opened(kind, tmp_path)
    (made,) = found.processor(found.held.table[0]["audio"])[found.processor.kind.name]
    heard = found.held.example(0)["samples"] if kind == "letters" else found.held.example(0)["frames"].T
    np.testing.assert_array_equal(heard, made)


def test_the_letters_of_a_text_are_its_labels(tmp_path):
    found = opened("letters", tmp_path)
    batch = next(iter(found.test()))
    lengths = batch["weights"].sum(axis=1).astype(int)
    texts = [found.tokenizer.decode(row[:n].tolist()) for row, n in zip(batch["labels"], lengths, strict=True)]
    assert texts == [found.held.table[number]["text"] for number in range(4)]
    assert found.spec.sizes["outputs"] == found.tokenizer.vocab_size


def test_a_decoder_is_told_the_text_one_to_the_right(tmp_path):
    found = opened("texts", tmp_path)
    batch = next(iter(found.test()))
    assert (batch["inputs"]["target"][:, 0] == found.tokenizer.bos).all()
    np.testing.assert_array_equal(batch["inputs"]["target"][:, 1:], batch["labels"][:, :-1])
    assert found.tokenizer.decode(batch["labels"]) == [found.held.table[number]["text"] for number in range(4)]


def context(folder):
    return Context(folder=RunFolder(folder))


def test_other_rates_and_long_sounds_are_told(tmp_path, capsys):
    spoken(tmp_path)
    write(tmp_path / "3_ann_8.wav", tone(300, 16_000, 0.1), rate=16_000)
    write(tmp_path / "7_ann_8.wav", tone(300, 8_000, 1.5))
    write(tmp_path / "7_ann_9.wav", np.stack([tone(300, 8_000, 0.2)] * 2, axis=1))
    write(tmp_path / "7_bob_k_8.wav", np.zeros(800))
    found = LabelledAudio(rows=2, rate=8_000).open(AudioData(root=str(tmp_path)), context(tmp_path))
    said = capsys.readouterr().out
    assert "1 recordings at another rate are resampled to 8,000 Hz" in said
    assert "1 recordings longer than 1 s are cut" in said
    for batch in (*islice(found.batches, 8), *found.test(), *found.validation()):
        assert batch["inputs"]["frames"].shape == (2, 100, 40)
        assert np.isfinite(batch["inputs"]["frames"]).all()
    found.batches.close()


def refused(message, examples, data, folder):
    with pytest.raises(ValueError, match=message) as stop:
        examples.open(data, context(folder))
    assert "\n" not in str(stop.value)


@pytest.mark.rotates
def test_what_cannot_be_learned_from_is_refused_by_name(tmp_path):
    for number in range(8):
        write(tmp_path / f"{number}.wav", tone(300, 8_000, 1.4 if number == 3 else 0.2))
    data = lines(tmp_path, *({"audio": f"{number}.wav", "text": "a b"} for number in range(8)))
    for kind in (SpokenLetters, SpokenTexts):
        refused(
            r"must not be longer than the model hears, 1 seconds, got 1\.4 in .*3\.wav", kind(seconds=1), data, tmp_path
        )
    refused("the recordings must have classes, they have texts", LabelledAudio(), data, tmp_path)
    refused("the recordings must have texts, they have classes", SpokenTexts(), AudioData(), tmp_path)
    refused(
        "spectra take a rate that is a multiple of 200, got 11025", LabelledAudio(rate=11_025), AudioData(), tmp_path
    )
    (tmp_path / "5.wav").write_bytes(b"")
    refused(r"5\.wav must be a recording, it is empty", SpokenLetters(), data, tmp_path)
    write(tmp_path / "5.wav")
    bars = lines(tmp_path / "bars", {"audio": "1.wav", "text": "a|b"})
    for number in range(1, 5):
        write(tmp_path / "bars" / f"{number}.wav")
    bars = lines(tmp_path / "bars", *({"audio": f"{number}.wav", "text": "a|b"} for number in range(1, 5)))
    refused(r"none that is '\|', which stands for a space", SpokenLetters(), bars, tmp_path)
    with pytest.raises(ValueError, match=r"samples have no bands to mask, got augment\.bands=2"):
        SpokenLetters(augment=AudioAugment(bands=2))
    with pytest.raises(ValueError, match="changes must not be negative, and of speed less than 1"):
        AudioAugment(speed=1.0)
    with pytest.raises(ValueError, match="rate must be at least 1000"):
        LabelledAudio(rate=10)


def test_sounds_that_memory_has_no_room_for_are_decoded_when_they_are_needed(tmp_path):
    spoken(tmp_path / "recordings")
    data = AudioData(root=str(tmp_path / "recordings"))
    held, read = (
        LabelledAudio(rows=4, bins=8, memory=memory).open(data, context(tmp_path)) for memory in (1, 0)
    )  # fmt: skip
    same(list(held.test()), list(read.test()))
    same(batches(held.batches, 3), batches(read.batches, 3))


def test_speech_of_lines_is_laid_out(tmp_path):
    for number in range(8):
        write(tmp_path / f"{number}.wav", tone(200 + number, 8_000, 0.1 + 0.01 * number))
    lines(tmp_path, *({"audio": f"{number}.wav", "text": "ab" * (number + 1)} for number in range(8)))
    found = SpokenLetters(rows=2, seconds=1).open(SpeechData(root=str(tmp_path)), context(tmp_path))
    batch = next(found.batches)
    found.batches.close()
    assert batch["inputs"]["samples"].shape == (2, 8_000)
    assert batch["labels"].shape[1] >= 16
