"""Search for lines of text files by meaning, with a sentence encoder.

Axes: N lines, E width of vectors.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from flax_transformer.data.text.plain import read_text
from flax_transformer.hub import Pretrained
from flax_transformer.task.checkpoint import require_use
from flax_transformer.task.embedding import INDEX, checkpoint_name, read_vectors, unit, write_vectors
from flax_transformer.task.sentence_embedding import PASSAGE, QUERY, embed_sentences, prompt_of

SUFFIXES = (".txt", ".md", ".tsv", ".jsonl")
"""Of the files of a folder that are searched."""


@dataclass(frozen=True)
class LineHit:
    """A line that was found."""

    file: Path
    line: int
    """Its number, from 1 on."""
    text: str
    score: float
    """Cosine, from -1 to 1."""


def search_lines(
    pretrained: Pretrained, query: str, path: str | os.PathLike, *, top: int = 10, index: Path | None = None
) -> list[LineHit]:
    """Find the lines of a text file, or of those of a folder and of folders in it, that are nearest to a text.

    Vectors are kept in a file and computed once; those of lines that are new are computed anew.

    Args:
      query: a text, before which the prompt `query` is put where the checkpoint has one.
      path: a file, or a folder of .txt, .md, .tsv and .jsonl; empty lines are left out.
      top: lines at most; the best are given, exactly.
      index: the file; by default `.embeddings.npz` in the folder, or beside the file with its name before that.

    Raises:
      FileNotFoundError: no such file or folder.
      ValueError: no lines, an empty query, vectors of another checkpoint, or a checkpoint that is no sentence encoder.
    """
    require_use(pretrained, "sentence-similarity")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if not query.strip():
        raise ValueError("a text to search by must not be empty")
    root = Path(path).expanduser()
    lines = list(_lines(root))
    if not lines:
        raise ValueError(f"{root} must have lines of text, got none")
    vectors = _indexed(pretrained, [text for _, _, text in lines], index or _beside(root))
    asked = unit(embed_sentences(pretrained, [query], prompt_of(pretrained, QUERY)))[0]
    scores = vectors @ asked
    best = np.argsort(-scores, kind="stable")[:top]
    return [LineHit(*lines[i], float(scores[i])) for i in best]


def _beside(root: Path) -> Path:
    return root / INDEX if root.is_dir() else root.with_name(f"{root.name}{INDEX}")


def _lines(root: Path) -> list[tuple[Path, int, str]]:
    if not root.exists():
        raise FileNotFoundError(f"{root} must be a file or a folder of texts, there is none")
    found = sorted(each for each in root.rglob("*") if each.suffix in SUFFIXES) if root.is_dir() else [root]
    shown = [each for each in found if not any(part.startswith(".") for part in each.relative_to(root).parts)]
    return [
        (file, number, line.strip())
        for file in shown
        for number, line in enumerate(read_text(file).split("\n"), start=1)
        if line.strip()
    ]


def _indexed(pretrained: Pretrained, texts: list[str], index: Path) -> Float[np.ndarray, "N E"]:
    """Return vectors of length 1, those that are kept in a file and others, which are kept there from now on."""
    model, known = checkpoint_name(pretrained), read_vectors(index)
    if known is not None and known[0] != model:
        raise ValueError(f"{index} has the vectors of another checkpoint; delete it, or name another file by --index")
    kept = {} if known is None else {name: row for name, _, row in known[1]}
    if fresh := [text for text in dict.fromkeys(texts) if text not in kept]:
        found = unit(embed_sentences(pretrained, fresh, prompt_of(pretrained, PASSAGE)))
        kept |= dict(zip(fresh, found, strict=True))
        there = list(dict.fromkeys(texts))
        write_vectors(index, model, {text: [] for text in there}, np.stack([kept[text] for text in there]))
    return np.stack([kept[text] for text in texts])
