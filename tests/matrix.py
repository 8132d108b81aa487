"""Writes docs/matrix.md from what tests say they prove, and from the result files of the benchmarks.

    python tests/matrix.py          # as `make matrix` does

A test says `@pytest.mark.proves("gpt2", "parity", "every class and layer")`, or a file does for all of its tests in
`pytestmark`: a model (a file of hub/family or of a folder of models), several, or a part; one of the words of `COLUMNS`
if it is a model; and what there is to say of it. Marks are read from the source, so that no test has to be imported or
run. A result file says `"proves": ["gpt2", "1.757 on Tiny Shakespeare"]`.
"""

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from flax_transformer.hub import family
from flax_transformer.models.preset import presets

ROOT = Path(__file__).parent.parent
COLUMNS = ("weights", "parity", "train", "decode", "shard", "result")
EVERY = "every family"
"""A subject: all that have a file in hub/family."""

HEAD = """# What works

Made by `make matrix` from what the tests say they prove and from the benchmarks' result files: a cell links to the test
or to the numbers, a dash is what nothing proves yet. Change a mark, not this page.

"""


class Proof(NamedTuple):
    """One mark of a test, or one result."""

    subject: str
    what: str
    note: str
    file: str
    """From the root of the repository."""


def marks(file: Path) -> Iterator[Proof]:
    """Find what the tests of a file prove."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "proves":
            subjects, what, *note = (ast.literal_eval(argument) for argument in node.args)
            for subject in (subjects,) if isinstance(subjects, str) else subjects:
                yield Proof(subject, what, " ".join(note), file.relative_to(ROOT).as_posix())


def results(file: Path) -> Iterator[Proof]:
    """Find what a result file says of a model or a part."""
    if "proves" in (found := json.loads(file.read_text())):
        subject, note = found["proves"]
        yield Proof(subject, "result", note, file.relative_to(ROOT).as_posix())


@cache
def proofs() -> list[Proof]:
    """Collect all marks and results, in the order of their files."""
    found = [proof for file in sorted((ROOT / "tests").rglob("test_*.py")) for proof in marks(file)]
    return found + [proof for file in sorted((ROOT / "benchmarks/results").glob("*.json")) for proof in results(file)]


@cache
def models() -> dict[str, str]:
    """Name every model by its file: what the first line of the file calls it, and the `model_type`s of checkpoints.

    Files of layers, which have neither presets nor proofs of their own, are none.
    """
    known = {function.__module__.rpartition(".")[2] for function in presets().values()}
    known |= {proof.subject for proof in proofs() if proof.what in COLUMNS}
    lines = {
        file.stem: ast.get_docstring(ast.parse(file.read_text()))
        for file in ROOT.glob("flax_transformer/models/*/*.py")
        if file.stem in known
    }
    kinds = {}
    for file in pkgutil.iter_modules(family.__path__):
        module = importlib.import_module(f"{family.__name__}.{file.name}")
        lines.setdefault(file.name, module.__doc__)
        kinds[file.name] = f"({', '.join(f'`{kind}`' for kind in module.FAMILIES)})"
    return {name: f"{_name(line)} {kinds.get(name, '')}".strip() for name, line in sorted(lines.items())}


def _name(line: str) -> str:
    """Shorten a file's first line to what it names: up to the paper, to a colon that explains, or to the full stop."""
    return re.split(r" \(| checkpoints|: |\.$|\n", line)[0]


def render(found: list[Proof]) -> str:
    """Write the page.

    Raises:
      ValueError: a proof of a model that uses none of the words there are.
    """
    rows = models()
    hub = {file.name for file in pkgutil.iter_modules(family.__path__)}
    cells: dict[tuple[str, str], list[Proof]] = {}
    parts: dict[str, list[Proof]] = {}
    for proof in found:
        named = [name for name in rows if name in hub] if proof.subject == EVERY else [proof.subject]
        if proof.subject not in rows and proof.subject != EVERY:
            parts.setdefault(proof.subject, []).append(proof)
        elif proof.what in COLUMNS:
            for name in named:
                cells.setdefault((name, proof.what), []).append(proof)
        else:
            raise ValueError(f"of a model, tests prove {', '.join(COLUMNS)}; {proof.file} says {proof.what!r}")
    page = HEAD + _line("model", *COLUMNS) + _line(*["---"] * (len(COLUMNS) + 1))
    for name, title in rows.items():
        page += _line(title, *(_cell(cells.get((name, column), [])) for column in COLUMNS))
    page += "\n" + _line("part", "what", "proven by") + _line("---", "---", "---")
    for part in sorted(parts, key=str.lower):
        said = dict.fromkeys(proof.what if proof.what != "result" else proof.note for proof in parts[part])
        page += _line(part, "; ".join(said), ", ".join(dict.fromkeys(_link(proof) for proof in parts[part])))
    return page


def _cell(found: list[Proof]) -> str:
    by_note: dict[str, list[str]] = {}
    for proof in found:
        links = by_note.setdefault(proof.note, [])
        links += [link for link in [_link(proof)] if link not in links]
    return (
        "; ".join(f"{note} ({', '.join(links)})" if note else ", ".join(links) for note, links in by_note.items())
        or "–"
    )


def _link(proof: Proof) -> str:
    name = Path(proof.file).stem.removeprefix("test_")
    return f"[{name}](../{proof.file})"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    (ROOT / "docs/matrix.md").write_text(render(proofs()))
