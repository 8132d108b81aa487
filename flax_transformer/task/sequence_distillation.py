"""Distillation of sequences: a corpus whose targets are what a run writes (Kim & Rush 2016,
https://arxiv.org/abs/1606.07947, section 3.2).

Models that write all tokens at once learn more from such targets, which are simpler than people's (Gu et al. 2018,
https://arxiv.org/abs/1711.02281, section 4.3).
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.data.text.pair import PairSource
from flax_transformer.task.run import open_translator
from flax_transformer.train.config import differences, parse_object, to_json
from flax_transformer.train.folder import PACKAGES, FolderError, RunFolder, read_experiment

ABOUT = "distil.json"
"""File of the folder that says what wrote it."""


CHUNK = 1024
"""Sentences that are written between two moments at which it may be interrupted without loss."""


SPLITS = ("train", "validation", "test")


def distil(
    workdir: str | Path,
    out: str | Path,
    say: Callable[[str], None] = print,
    packages: tuple[str, ...] = PACKAGES,
    **search: Any,
) -> Path:
    """Write the corpus of a run with the run's own translations as the targets it was trained on.

    `out` gets `train.en` and `train.de`, named by the languages of the run's data, and `validation` and `test` as they
    are: what `ParallelText` reads. A file appears whole or not at all; what was interrupted goes on where it stopped.

    Args:
      say: is told how far it is.
      packages: as `open_run`'s.
      search: fields of the run's own search that are other than there.

    Raises:
      FolderError: when the folder is no translation run, or `out` holds something else.
      ValueError, FileNotFoundError: when the run's data cannot be read.
    """
    translator, own = open_translator(workdir, packages)
    search, out = replace(own, **search), Path(out)
    data = read_experiment(RunFolder(Path(workdir)), packages).data
    about = {
        "run": Path(workdir).resolve().name,
        "data": to_json(data),
        "search": to_json(search),
        "model": _seen(workdir),
    }
    _begin(out, about)
    languages = getattr(data, "source", "en"), getattr(data, "target", "de")
    for split in SPLITS:
        pairs = data.read(split)
        files = [out / f"{split}.{language}" for language in languages]
        _write(files[0], (_line(pairs[at]["source"]) for at in range(len(pairs))))
        if split != "train":
            _write(files[1], (_line(pairs[at]["target"]) for at in range(len(pairs))))
            continue

        def translated(texts):
            return [_line(best[0].text) for best in translator(texts, search)]

        _translate(pairs, files[1], translated, say)
    return out


def _seen(workdir: str | Path) -> list[str]:
    """Name the checkpoints of a run: one that has gone on since is another."""
    return sorted(path.name for path in RunFolder(Path(workdir)).checkpoints.iterdir() if path.name.isdigit())


def _begin(out: Path, about: dict[str, Any]) -> None:
    """Make the folder, or see that it is of the same run, search and data."""
    path = out / ABOUT
    if path.is_file():
        known = parse_object(path.read_bytes(), path)
        if known != json.loads(json.dumps(about)):
            raise FolderError(f"{out} was written otherwise: {'; '.join(differences(known, about))}")
        return
    if out.is_dir() and any(out.iterdir()):
        raise FolderError(f"{out} must be new, empty, or what distil has begun, it holds {min(out.iterdir()).name}")
    out.mkdir(parents=True, exist_ok=True)
    _write(path, [json.dumps(about, indent=2)])


def _translate(
    pairs: PairSource, path: Path, translated: Callable[[list[str]], list[str]], say: Callable[[str], None]
) -> None:
    """Write the translations of all sources, chunk by chunk, into a file that gets its name in the end."""
    if path.is_file():
        say(f"{path} is there already")
        return
    part, total = path.with_name(f"{path.name}.part"), len(pairs)
    done = _whole(part)
    if done:
        say(f"going on after {done:,} of {total:,} sentences")
    with part.open("ab") as file:
        for start in range(done, total, CHUNK):
            texts = [pairs[at]["source"] for at in range(start, min(start + CHUNK, total))]
            file.write("".join(f"{line}\n" for line in translated(texts)).encode())
            file.flush()
            os.fsync(file.fileno())
            say(f"{start + len(texts):,} of {total:,} sentences")
    part.replace(path)


def _whole(part: Path) -> int:
    """Cut what was begun to whole chunks, so that sentences meet the same ones as they would have; count them."""
    if not part.is_file():
        return 0
    lines = part.read_bytes().split(b"\n")[:-1]
    kept = len(lines) // CHUNK * CHUNK
    with part.open("r+b") as file:
        file.truncate(sum(len(line) + 1 for line in lines[:kept]))
    return kept


def _line(text: str) -> str:
    """Return a text as one line."""
    return text.replace("\r", " ").replace("\n", " ")


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file, which appears whole or not at all; one that is there stays."""
    if path.is_file():
        return
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
    part.replace(path)
