"""Recordings of a folder: in whichever form, held out by rule, refused by name; and sentences made of recordings."""

import json
import re

import numpy as np
import pytest

from flax_transformer.data.audio import SpeechData, load_audio
from flax_transformer.data.synthetic import AudioData, SpokenStringConfig, SpokenStringData, TouchTones
from flax_transformer.data.synthetic.audio import HIGH, LOW
from tests.data.audio.test_sound import tone, wav

SPLITS = ("train", "validation", "test")


def write(path, samples=None, rate=8_000):
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = tone(440, rate, 0.1) if samples is None else samples
    path.write_bytes(wav(np.asarray(samples, np.float32).reshape(len(samples), -1) * 0.9, rate=rate))
    return path


def spoken(folder, takes=8, people=("ann", "bob_k")):
    for label in "37":
        for person in people:
            for take in range(takes):
                hertz = 100 * int(label) + 40 * len(person) + take
                write(folder / f"{label}_{person}_{take}.wav", tone(hertz, 8_000, 0.05 + 0.01 * take))
    return folder


def test_names_say_class_speaker_and_number_and_the_first_five_are_the_test(tmp_path):
    found = AudioData(root=str(spoken(tmp_path))).open()
    assert (found.kind, found.classes) == ("classes", ("3", "7"))
    assert [len(found.splits[split]) for split in SPLITS] == [10, 2, 20]
    assert set(found.splits["test"]["take"]) == {0, 1, 2, 3, 4}
    assert set(found.splits["train"]["take"]) <= {5, 6, 7}
    example = found.splits["test"][0]
    assert example.keys() == {"audio", "name", "label", "speaker", "take"}
    assert example["name"].endswith(f"{found.classes[example['label']]}_{example['speaker']}_{example['take']}.wav")


def test_an_unpacked_archive_is_looked_into(tmp_path):
    spoken(tmp_path / "archive" / "recordings")
    assert len(AudioData(root=str(tmp_path)).open().splits["test"]) == 20


def test_class_folders_are_read_with_splits_and_without(tmp_path):
    for name in ("dog", "cat"):
        for number in range(10):
            write(tmp_path / "all" / name / f"{number}.wav")
            write(tmp_path / "parted" / ("train" if number < 8 else "test") / name / f"{number}.wav")
    found = AudioData(root=str(tmp_path / "all")).open()
    assert found.classes == ("cat", "dog")
    assert [len(found.splits[split]) for split in SPLITS] == [16, 2, 2]
    assert found.splits["test"].fingerprint == AudioData(root=str(tmp_path / "all")).open().splits["test"].fingerprint
    parted = AudioData(root=str(tmp_path / "parted")).open()
    assert [len(parted.splits[split]) for split in SPLITS] == [14, 2, 4]


def refused(message, data):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as stop:
        data.open()
    assert "\n" not in str(stop.value)


def test_what_a_folder_lacks_is_said(tmp_path):
    refused("must be a folder of recordings, there is none", AudioData(root=str(tmp_path / "none")))
    (tmp_path / "empty").mkdir()
    refused("must have class folders, or recordings whose names say the class", AudioData(root=str(tmp_path / "empty")))
    write(tmp_path / "odd" / "3_ann_1.wav")
    write(tmp_path / "odd" / "noise.wav")
    refused(r"must be named as 3_theo_12\.wav.*got .*noise\.wav", AudioData(root=str(tmp_path / "odd")))
    for take in range(7):
        write(tmp_path / "one" / f"3_ann_{take}.wav")
    refused("must have recordings of at least two classes, got 3", AudioData(root=str(tmp_path / "one")))
    spoken(tmp_path / "early", takes=4)
    refused("with numbers from 0 to 4, for the test, and others, got 0 to 3", AudioData(root=str(tmp_path / "early")))
    write(tmp_path / "early" / "3_ann_9.wav")
    refused(r"every class must have recordings to train on, that of .*7_", AudioData(root=str(tmp_path / "early")))
    for name in ("cat", "dog"):
        write(tmp_path / "uneven" / "train" / name / "1.wav")
    write(tmp_path / "uneven" / "test" / "cat" / "2.wav")
    write(tmp_path / "uneven" / "test" / "cow" / "2.wav")
    refused("the same classes, test and train differ in cow, dog", AudioData(root=str(tmp_path / "uneven")))
    write(tmp_path / "few" / "cat" / "1.wav")
    write(tmp_path / "few" / "dog" / "1.wav")
    few = AudioData(root=str(tmp_path / "few"))
    refused("a class must have at least 3 recordings for train, validation, test", few)


def lines(folder, *rows, name="train.jsonl"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SpeechData(root=str(folder))


def test_lines_tell_what_is_said(tmp_path):
    rows = [{"audio": f"{number}.wav", "text": f"number {number}"} for number in range(10)]
    for number in range(10):
        write(tmp_path / "speech" / "clips" / f"{number}.wav")
    found = lines(tmp_path / "speech", *rows).open()
    assert (found.kind, [len(found.splits[split]) for split in SPLITS]) == ("texts", [8, 1, 1])
    for each in found.splits.values():
        assert each.texts == [f"number {name.split('/')[1][0]}" for name in each["audio"].names]


def test_lines_are_read_wherever_sounds_may_be(tmp_path):
    """So experiments take them by the option that takes folders of other forms."""
    for number in range(10):
        write(tmp_path / f"{number}.wav")
    said = lines(tmp_path, *({"audio": f"{number}.wav", "text": f"number {number}"} for number in range(10)))
    found, direct = SpokenStringData(root=str(tmp_path)).open(), said.open()
    for split in SPLITS:
        assert found.splits[split].fingerprint == direct.splits[split].fingerprint
    refused("must have a class, texts|must have a class, one text", AudioData(root=str(tmp_path)))
    lines(tmp_path, *({"audio": f"{number}.wav", "label": "ab"[number % 2]} for number in range(10)))
    classes = AudioData(root=str(tmp_path)).open()
    assert (classes.kind, classes.classes) == ("classes", ("a", "b"))
    assert [len(classes.splits[split]) for split in SPLITS] == [6, 2, 2]
    lines(tmp_path, {"audio": "0.wav", "label": "a"}, {"audio": "1.wav", "label": "b"})
    lines(tmp_path, {"audio": "2.wav", "label": "c"}, name="test.jsonl")
    refused("every class must have recordings to train on, 'c' has none", AudioData(root=str(tmp_path)))


def test_lines_and_names_that_both_tell_are_refused(tmp_path):
    spoken(tmp_path, takes=6)
    named = sorted(path.name for path in tmp_path.iterdir())
    lines(tmp_path, *({"audio": name, "text": "a"} for name in named))
    assert SpokenStringData(root=str(tmp_path)).open().kind == "texts"
    lines(tmp_path, *({"audio": name, "text": "a"} for name in named[1:]))
    for data in (SpokenStringData, AudioData):
        refused(r"both are there: train\.jsonl, and 3_ann_0\.wav, of which no line tells", data(root=str(tmp_path)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"audio": "1.wav", "text": ["a", "b"]}, r"line 2: the recording 1\.wav must have what is said, one text"),
        ({"audio": "1.wav", "text": " "}, "one text that is not empty"),
        ({"audio": "2.wav", "text": "a"}, r"line 2: the recording 2\.wav must be there"),
        ({"audio": "../2.wav", "text": "a"}, "must lie within the folder"),
        ({"text": "a"}, "line 2 must name its recording as audio, got None"),
        ({"audio": "0.wav", "text": "a"}, r"the recordings must differ, got 0\.wav in lines 1 and 2"),
    ],
)
def test_a_line_that_says_nothing_is_named(tmp_path, row, message):
    for number in (0, 1):
        write(tmp_path / f"{number}.wav")
    refused(message, lines(tmp_path, {"audio": "0.wav", "text": "a"}, row))


def test_damaged_sounds_are_named(tmp_path):
    whole = write(tmp_path / "whole.wav", tone(440, 8_000))
    for name, content, message in (
        ("empty", b"", "empty.wav must be a recording, it is empty"),
        ("other", b"RIFFnothing", "other.wav is no "),
        ("short", whole.read_bytes()[:5_000], "short.wav must have the 8,000 samples that it says"),
        ("none", wav(np.zeros((0, 1))), "none.wav"),
    ):
        (tmp_path / f"{name}.wav").write_bytes(content)
        row = {"audio": f"{name}.wav", "text": "a"}
        rest = [{"audio": f"{number}.wav", "text": "a"} for number in range(3)]
        for number in range(3):
            write(tmp_path / f"{number}.wav")
        found = lines(tmp_path, row, *rest).open()
        with pytest.raises(ValueError, match=re.escape(message)):
            [load_audio(each, 8_000) for each in found.splits.values()]


def test_generated_digits_are_the_tones_of_their_keys_and_always_the_same():
    tones = TouchTones(voices=2, takes=7, noise=0.0)
    found = AudioData(tones=tones).open()
    assert [len(found.splits[split]) for split in SPLITS] == [30, 10, 100]
    assert AudioData(tones=tones).open().splits["train"].fingerprint == found.splits["train"].fingerprint
    other = AudioData(tones=TouchTones(voices=2, takes=7, tone_seed=1)).open()
    assert other.splits["train"].fingerprint != found.splits["train"].fingerprint
    for digit in range(10):
        samples = tones.waveform(0, digit, 0)
        power = np.abs(np.fft.rfft(samples, 8_000))
        near = {hertz: power[round(hertz * 0.93) : round(hertz * 1.07)].max() for hertz in (*LOW, *HIGH)}
        low, high = max(LOW, key=near.get), max(HIGH, key=near.get)
        row, column = divmod(digit - 1, 3) if digit else (3, 1)
        assert (LOW.index(low), HIGH.index(high)) == (row, column)


@pytest.fixture
def strings(tmp_path):
    how = SpokenStringConfig(least=2, most=4, shortest=0.01, longest=0.05)
    return SpokenStringData(root=str(spoken(tmp_path)), how=how, train=40, held_out=6)


def test_a_sentence_is_its_recordings_one_after_another(strings, tmp_path):
    found = strings.open()
    held = AudioData(root=str(tmp_path)).open()
    for split in SPLITS:
        names = {name.rpartition("/")[2] for name in held.splits[split]["audio"].names}
        for example in found.splits[split]:
            parts = example["name"].split(" + ")
            assert set(parts) <= names  # and so no recording of the test in training
            assert 2 <= len(parts) <= 4
            assert len({part[2:-6] for part in parts}) == 1  # one speaker
            assert example["text"] == " ".join({"3": "three", "7": "seven"}[part[0]] for part in parts)
            samples, place = example["audio"].samples, 0
            for part in parts:
                (index,) = [i for i, name in enumerate(held.splits[split]["audio"].names) if name.endswith(part)]
                recording = held.splits[split][index]["audio"].samples
                gaps = [gap for gap in range(80, 401) if np.array_equal(
                    samples[place + gap : place + gap + len(recording)], recording)]  # fmt: skip
                assert len(gaps) == 1
                assert not samples[place : place + gaps[0]].any()
                place += gaps[0] + len(recording)
            assert not samples[place:].any()
            assert 80 <= len(samples) - place <= 400


def test_sentences_are_a_function_of_seed_and_number(strings):
    first, again = strings.open().splits["train"], strings.open().splits["train"]
    for index in (7, 0, 39):
        np.testing.assert_array_equal(first[index]["audio"].samples, again[index]["audio"].samples)
    assert first.fingerprint == again.fingerprint
    other = SpokenStringData(root=strings.root, how=strings.how, train=40, held_out=6, string_seed=1).open()
    assert other.splits["train"].fingerprint != first.fingerprint
    assert [each["text"] for each in other.splits["train"]] != [each["text"] for each in first]


def test_words_that_would_make_a_sentence_too_long_are_left_out(strings):
    how = SpokenStringConfig(least=4, most=4, longest=0.02, seconds=0.3)
    found = SpokenStringData(root=strings.root, how=how, train=40, held_out=6).open().splits["train"]
    lengths = [len(each["audio"].samples) for each in found]
    assert max(lengths) <= 2_400
    assert {len(each["text"].split()) for each in found} & {1, 2, 3}
    assert max(map(len, found.texts)) == len("seven seven seven seven")


def test_sentences_need_speakers(tmp_path):
    for name in ("cat", "dog"):
        for number in range(9):
            write(tmp_path / name / f"{number}.wav")
    refused("made of recordings whose names say who speaks", SpokenStringData(root=str(tmp_path)))


@pytest.mark.parametrize("wrong", [{"least": 0}, {"least": 3, "most": 2}, {"shortest": 0.3}])
def test_sentences_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="a sentence must have at least 1 word and gaps that are not negative"):
        SpokenStringConfig(**wrong)
