"""Recordings of whichever form a folder has them in: class folders, or names that say the class; or made by rule."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from flax_transformer.data.audio.decode import is_audio_name
from flax_transformer.data.audio.recording import AudioFiles, Recordings
from flax_transformer.data.folder import FileType, sort_names
from flax_transformer.data.json_line import SUFFIXES, JsonLineSchema, open_json_lines, read_json_lines
from flax_transformer.data.split import complete_splits, normal
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen

AUDIO_FILES = FileType(
    one="recording",
    many="recordings",
    named=is_audio_name,
    forms="class folders, or recordings whose names say the class, as 3_theo_12.wav does",
)


LINES = JsonLineSchema(
    one="recording",
    many="recordings and what is said in them",
    names=("audio", "file", "path", "audio_filepath"),
    said="what is said",
    texts=("text", "sentence", "transcript", "transcription"),
    places=("", "audio", "clips", "wavs", "wav"),
    several=False,
)


NAME = re.compile(r"(?P<label>[^_]+)_(?P<speaker>.+)_(?P<take>[0-9]{1,6})\.\w+")
"""What a name says: the class, who speaks, and which recording of the two it is."""


TEST_TAKES = 5
"""Recordings 0 to 4 of each class and speaker are the test's, as of the free spoken digits."""


def read_labels(root: Path) -> tuple[dict[str, Recordings], tuple[str, ...]]:
    """Read the classes of recordings that JSON lines tell: `{"audio": "…", "label": "…"}` each.

    Raises:
      ValueError: what `data.json_line.open_json_lines` refuses, one class, or one without recordings to train on.
    """
    found = open_json_lines(root, replace(LINES, said="a class", texts=("label", "class")))
    classes = sort_names(sorted({label for each in found.values() for (label,) in each.texts}))
    if len(classes) < 2:
        raise ValueError(f"{root} must have recordings of at least two classes, got {classes[0]}")
    known = {label for (label,) in found["train"].texts} if "train" in found else set(classes)
    if new := [label for label in classes if label not in known]:
        raise ValueError(f"every class must have recordings to train on, {new[0]!r} has none in {root}")
    return {
        split: Recordings.of(
            AudioFiles(each.root, each.names),
            label=np.array([classes.index(label) for (label,) in each.texts], np.int32),
        )
        for split, each in found.items()
    }, classes


def read_names(root: Path, names: list[str]) -> tuple[dict[str, Recordings], tuple[str, ...]]:
    """Read classes, speakers and numbers off the names of recordings.

    Raises:
      ValueError: a name that does not say them, one class, or a split without recordings.
    """
    parts = [NAME.fullmatch(normal(name)) for name in names]
    if None in parts:
        raise ValueError(
            "a recording must be named as 3_theo_12.wav, after its class, speaker and number, or lie in a class folder"
            f", got {root / names[parts.index(None)]}"
        )
    classes = sort_names(sorted({part["label"] for part in parts}))
    if len(classes) < 2:
        raise ValueError(f"{root} must have recordings of at least two classes, got {classes[0]}")
    known = {
        "label": np.array([classes.index(part["label"]) for part in parts], np.int32),
        "speaker": np.array([part["speaker"] for part in parts]),
        "take": np.array([int(part["take"]) for part in parts]),
    }
    return _tested(Recordings.of(AudioFiles(root, names), **known), str(root)), classes


def has_json_lines(root: str) -> bool:
    """Return whether JSON lines of a folder say what is known of its recordings.

    Raises:
      ValueError: a folder that has recordings beside, whose names say it too.
    """
    place = Path(root).expanduser()
    lines = sorted(path for path in place.glob("*") if path.suffix in SUFFIXES) if root else []
    if not lines:
        return False
    mentioned = {each.name for path in lines for each in read_json_lines(path, LINES)}
    beside = next(
        (name for name in AUDIO_FILES.files(place) if NAME.fullmatch(normal(name)) and name not in mentioned), None
    )
    if beside is not None:
        raise ValueError(
            f"JSON lines or names must say what is known of the recordings of {place}, both are there: {lines[0].name}"
            f", and {beside}, of which no line tells"
        )
    return True


@frozen
class SpeechData:
    """Recordings and what is said in each, as files of JSON lines tell: `{"audio": "…", "text": "…"}` each.

    Which split a file is of, a word in its name says; a single file needs none.
    """

    root: str
    """The folder of the data."""
    holdout: float = 0.1
    """Share of the training recordings for each of validation and test that there is not."""
    split_seed: int = 0
    """Which recordings these are."""

    def open(self) -> DataSet:
        """Open the recordings without decoding them; errors as `data.json_line.open_json_lines`."""
        found = {
            split: Recordings.of(AudioFiles(each.root, each.names), text=np.array([text for (text,) in each.texts]))
            for split, each in open_json_lines(Path(self.root), LINES).items()
        }

        def one_class(each):
            return np.zeros(len(each), np.int32)

        how = {"share": self.holdout, "seed": self.split_seed, "where": self.root, "what": "recordings"}
        return DataSet(complete_splits(found, _names, one_class, **how), kind="texts")


def _names(recordings: Recordings) -> list[str]:
    """Name recordings by what does not depend on where their folder is."""
    return [normal(Path(name).as_posix()) for name in recordings["audio"].names]


def _tested(recordings: Recordings, where: str) -> dict[str, Recordings]:
    """Part recordings by their numbers."""
    takes = recordings["take"]
    tested = takes < TEST_TAKES
    if tested.all() or not tested.any():
        raise ValueError(
            f"{where} must have recordings with numbers from 0 to {TEST_TAKES - 1}, for the test, and others, got "
            f"{takes.min()} to {takes.max()}"
        )
    train, test = (recordings.take(np.flatnonzero(part)) for part in (~tested, tested))
    missing = set(np.unique(recordings["label"])) - set(np.unique(train["label"]))
    if missing:
        name = test["name"][int(np.flatnonzero(test["label"] == min(missing))[0])]
        raise ValueError(f"every class must have recordings to train on, that of {name} has none")
    return {"train": train, "test": test}
