"""Small valid files of data: records, arrays and recordings, what opens them, and what is done to them."""

import json
import wave
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Case, Corpus, cases_of, json_cases
from mutate import damaged_bytes, damaged_json, damaged_text

from flax_transformer.data.audio.decode import audio_size
from flax_transformer.data.audio.open import SpeechData
from flax_transformer.data.record import open_records, require_split
from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.data.trajectory.episode import read_episodes
from flax_transformer.data.video.skeleton import SkeletonData
from flax_transformer.task.embedding import read_vectors, write_vectors
from flax_transformer.task.explore.case import _read_arrays
from tests.record_forms import table_of, write_form, write_saved

ROWS = [{"text": f'said "{n}",\n— ü', "label": n % 2} for n in range(8)]
CLASSES = {"label": ("dull", "fine")}


# Records


def open_labelled(folder: Path) -> Any:
    data = LabelledText(root=str(folder), labels=("dull", "fine"))
    records = open_records(require_split(folder, "train"))
    return [*records], [records[i] for i in range(len(records))], records.classes, data.read("train").columns


def line_cases(folder: Path, seed: int, amount: int, *, name: str) -> Iterator[Case]:
    """Damage a file of lines, which has no checksum: another text is as good as the one that was there."""
    content = (folder / name).read_bytes()
    for label, changed, _ in damaged_bytes(content, seed, 2 * amount):
        yield from cases_of(name, [(label, changed, True)])
    if name.endswith(".jsonl"):
        first, _, rest = content.partition(b"\n")
        for label, changed, legal in (*damaged_text(first), *damaged_json(first, seed, amount)):
            yield from cases_of(name, [(label, changed + b"\n" + rest, legal)])
        return
    head, _, rest = content.partition(b"\n")
    headers = (
        b"text",
        b"text,text",
        b"label,text",
        b"text,label,",
        b'"text,label',
        b"\xff,label",
        b"text\0,label",
        b"",
    )
    yield from cases_of(name, ((f"header {each!r}", each + b"\n" + rest, each == b"label,text") for each in headers))
    rows = (
        b"a",
        b"a,b,c",
        b'"a,fine',
        b'"a"b,fine',
        b"a\rb,fine",
        b"\xff,fine",
        b",fine",
        b"a,",
        b"a,Fine",
        b'a","fine',
    )
    yield from cases_of(name, ((f"row {each!r}", head + b"\n" + each + b"\n" + rest, False) for each in rows))
    yield from cases_of(name, [("quotes alone", head + b"\n" + b'"' * 99_999, False)])


def make_arrow(folder: Path) -> None:
    """Write a saved data set of which dataset_info.json alone names the classes."""
    write_saved(folder / "train", table_of(ROWS, {}).replace_schema_metadata())
    text = {"dtype": "string", "_type": "Value"}
    features = {"text": text, "label": {"names": ["dull", "fine"], "_type": "ClassLabel"}}
    (folder / "train" / "dataset_info.json").write_text(json.dumps({"features": features, "builder_name": "x"}))


def table_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        yield Case(f"{name}: removed", name, lambda folder, name=name: (folder / name).unlink(), "info" in name)
        if path.suffix == ".json":
            yield from json_cases(folder, seed, amount, name=name)
            continue
        for label, changed, _ in damaged_bytes(path.read_bytes(), seed, 4 * amount):
            yield from cases_of(name, [(label, changed, label.endswith("flipped"))])  # no checksum
        yield from cases_of(name, [("a page", b"<html></html>", False), ("magic alone", b"ARROW1PAR1", False)])


# Arrays

NPZ = {
    "episodes": {
        "obs": np.arange(12, dtype=np.float32).reshape(6, 2), "actions": np.arange(6) % 3,
        "rewards": np.ones(6, np.float32), "terminals": np.array([0, 0, 1, 0, 0, 1], bool),
    },
    "skeletons": {
        "frames": np.random.default_rng(0).uniform(1, 90, (96, 4, 3)), "lengths": np.full(8, 12),
        "action": np.arange(8) % 2 + 1, "subject": np.arange(8) // 2 % 2 + 1,
    },
    "inputs": {"in_input_ids": np.arange(6).reshape(2, 3), "attention_mask": np.ones((2, 3), np.int32)},
}  # fmt: skip


def make_arrays(folder: Path, *, name: str) -> None:
    np.savez(folder / "x.npz", **NPZ[name])


def make_vectors(folder: Path) -> None:
    write_vectors(folder / "x.npz", "model", {"a.png": [1, 2], "b.png": [3, 4]}, np.eye(2, 3, dtype=np.float32))


def open_episodes(folder: Path) -> Any:
    found = read_episodes(folder / "x.npz")
    return [each.tolist() for each in (found.states, found.actions, found.rewards, found.starts)]


def open_skeletons(folder: Path) -> Any:
    found = SkeletonData(root=str(folder / "x.npz"), holdout=0.25).open()
    return sorted(np.asarray(row["joints"]).tolist() for each in found.splits.values() for row in each), found.classes


def open_vectors(folder: Path) -> Any:
    found = read_vectors(folder / "x.npz")
    return found and (found[0], [(name, stamp, row.tolist()) for name, stamp, row in found[1]])


def open_inputs(folder: Path) -> Any:
    return {name: (str(array.dtype), array.tolist()) for name, array in _read_arrays(folder / "x.npz").items()}


def npz_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    """Damage the file, and put other arrays into it."""
    content = (folder / "x.npz").read_bytes()
    for label, changed, _ in damaged_bytes(content, seed, 6 * amount):
        yield from cases_of("x.npz", [(label, changed, label.endswith("flipped"))])  # names of arrays have no checksum
    np.save(folder / "x.npy", np.zeros(3))
    yield from cases_of("x.npz", [("an array", (folder / "x.npy").read_bytes(), False), ("a page", b"<html>", False)])
    (folder / "x.npy").unlink()
    with np.load(folder / "x.npz") as read:
        arrays = {**read}
    for name, array in arrays.items():
        others = {
            "none": None, "a text": np.array("x"), "texts": np.full(array.shape, "x"), "of no axes": np.zeros(()),
            "empty": array[:0], "nan": np.full(array.shape, np.nan), "complex": array + 1j, "less": array[:-1],
            "negative": -1 - array.astype(float), "large": np.full(array.shape, 2**62),
            "times": np.zeros(array.shape, "M8[s]"), "fields": np.zeros(array.shape, "i4,f4"), "flat": array.ravel(),
            "infinite": np.full(array.shape, np.inf), "unsigned": np.full(array.shape, 2**64 - 1, np.uint64),
            "an axis more": array[..., None],
        }  # fmt: skip
        for label, other in others.items():

            def put(folder: Path, name: str = name, other: Any = other) -> None:
                np.savez(folder / "x.npz", **{**arrays, name: other} if other is not None else
                         {each: kept for each, kept in arrays.items() if each != name})  # fmt: skip

            yield Case(f"{name} {label}", "x.npz", put, True)


# Recordings


def make_audio(folder: Path) -> None:
    """Write recordings of 8, 16, 24 and 32 bits, of one and two channels, and lines that tell of them."""
    draw = np.random.default_rng(0)
    for number in range(6):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1 + number % 2)
            file.setsampwidth(1 + number % 4)
            file.setframerate(8_000)
            file.writeframes(draw.bytes((1 + number % 2) * (1 + number % 4) * 50))
    lines = (json.dumps({"audio": f"{number}.wav", "text": f"the {number}"}) for number in range(6))
    (folder / "train.jsonl").write_text("\n".join(lines))


def open_audio(folder: Path) -> Any:
    found = SpeechData(root=str(folder), holdout=0.2).open()
    rows = [row for each in found.splits.values() for row in each]
    heard = [(row["text"], row["audio"].samples.tolist(), row["audio"].rate) for row in rows]
    return sorted(heard), [audio_size(path) for path in sorted(folder.glob("*.wav"))]


def audio_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for path in sorted(folder.glob("*.wav")):
        content = path.read_bytes()
        for label, changed, _ in damaged_bytes(content, seed, amount):
            yield from cases_of(path.name, [(label, changed, label.endswith("flipped"))])  # no checksum
        for at, size in ((4, 4), (16, 4), (22, 2), (24, 4), (32, 2), (34, 2), (40, 4)):  # sizes, channels, rate, width
            for value in (0, 1, 3, 2**15, 2 ** (8 * size) - 1):
                changed = content[:at] + value.to_bytes(size, "little") + content[at + size :]
                yield from cases_of(path.name, [(f"{value} at byte {at}", changed, True)])
        yield from cases_of(path.name, [("a page", b"<html></html>", False), ("a head alone", content[:44], False)])
        yield Case(f"{path.name}: removed", path.name, lambda folder, name=path.name: (folder / name).unlink())
    for case in line_cases(folder, seed, amount, name="train.jsonl"):
        yield replace(case, legal=case.legal or "text [['x']]" in case.label)  # a text may be a list of one


DATA = {
    "csv": Corpus(
        partial(write_form, form="csv", name="train", rows=ROWS, classes=CLASSES),
        open_labelled, partial(line_cases, name="train.csv"),
    ),
    "jsonl": Corpus(
        partial(write_form, form="jsonl", name="train", rows=ROWS, classes=CLASSES),
        open_labelled, partial(line_cases, name="train.jsonl"),
    ),
    "arrow": Corpus(make_arrow, open_labelled, table_cases),
    "parquet": Corpus(
        partial(write_form, form="hub", name="train", rows=ROWS, classes=CLASSES), open_labelled, table_cases
    ),
    "episodes": Corpus(partial(make_arrays, name="episodes"), open_episodes, npz_cases),
    "skeletons": Corpus(partial(make_arrays, name="skeletons"), open_skeletons, npz_cases),
    "vectors": Corpus(make_vectors, open_vectors, npz_cases),
    "inputs": Corpus(partial(make_arrays, name="inputs"), open_inputs, npz_cases),
    "audio": Corpus(make_audio, open_audio, audio_cases),
}  # fmt: skip
