"""A page of the benchmarks' result files: what each says of where it ran, its command, and all of its numbers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ITSELF = "cpu", "hardware", "date"
NAMED = "device", "cores", "jax", "flax", "torch", "transformers", "ctranslate2", "python", "commit"
"""What is told of where a result is from: as it stands, and with its name before it."""
ABOUT = "proves", "command", "environment", "hardware", "jax", "date"
"""Fields of a file that are told above its tables."""
WIDE = 7
"""Tables of more columns than this stand on their side."""

HEAD = """# Results

Every number that is kept in `benchmarks/results`, file by file, with the machine it is from and, where the file
has it, the command. This page is made of those files while the site is built; what they mean is told in
[performance](../docs/performance.md) and the guides. Times that name no unit are in seconds.
"""


def page(folder: Path) -> str:
    """Write the page of a folder of result files."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    rows = []
    for stem, found in files.items():
        of, said = found.get("proves", ("–", _source(folder.parent, stem, found)))
        link = f"[{stem}](#{stem})"
        rows.append({"result": link, "of": spoken(of), "in short": said, "date": f"<nobr>{_date(found)}</nobr>"})
    return "\n\n".join([HEAD, table(rows), *(section(stem, found) for stem, found in files.items())])


def _date(found: dict[str, Any]) -> str:
    return str({**found.get("environment", {}), **found}["date"])[:10]


def _source(folder: Path, stem: str, found: dict[str, Any]) -> str:
    """Say what wrote a file that says nothing of itself: the command line, or the script of its name."""
    if "target" in found:
        return f"`flax-transformer bench {found['target']['name']}`"
    script = folder / f"{stem.replace('-', '_').removesuffix('_large_pages').removesuffix('_cpu')}.py"
    return f"[{script.name}](../{folder.name}/{script.name})" if script.exists() else "–"


def section(stem: str, found: dict[str, Any]) -> str:
    """Write what one file says."""
    where = {**found.get("environment", {}), **found}
    facts = [str(where[name]) for name in ITSELF if name in where]
    facts += [f"{name} {where[name]}" for name in NAMED if name in where]
    parts = [f"## {stem} {{ #{stem} }}"]
    if "proves" in found:
        parts.append(f"{found['proves'][1]}.")
    parts.append(f"*{', '.join(facts)}*")
    if "command" in found:
        parts.append(f"```sh\n{found['command']}\n```")
    rest = {name: value for name, value in found.items() if name not in ABOUT}
    return "\n\n".join([*parts, *tables(rest)])


def tables(found: dict[str, Any]) -> Iterator[str]:
    """Write the tables of a file: one of what stands alone, one of each list or dictionary."""
    alone = {name: value for name, value in found.items() if not isinstance(value, dict) and not _is_rows(value)}
    if alone:
        yield table([dict(flat(alone))])
    for name, value in found.items():
        if _is_rows(value):
            yield f"**{spoken(name)}**\n\n{table([dict(flat(row)) for row in value])}"
        elif name not in alone and value:
            nested = all(isinstance(each, dict) for each in value.values())
            named = ({"": spoken(key), **dict(flat(each))} for key, each in value.items() if nested)
            yield f"**{spoken(name)}**\n\n{table(list(named) or [dict(flat(value))])}"


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def flat(value: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Return the columns of a row; a median stands with its range, a ratio with that of single rounds."""
    ranges = {"median": ("low", "high"), "ratio": ("ratio_range",)}
    for name, each in value.items():
        column = spoken(f"{above} {name}".strip())
        if name in ranges and all(bound in value for bound in ranges[name]):
            low, high = value["ratio_range"] if name == "ratio" else (value["low"], value["high"])
            yield above or column, f"{number(each)}{'×' * (name == 'ratio')} ({number(low)} to {number(high)})"
        elif name in ("low", "high", "ratio_range"):
            continue
        elif isinstance(each, dict):
            yield from flat(each, column)
        elif _is_rows(each):
            yield from flat({key: [row.get(key) for row in each] for key in each[0]}, column)
        elif isinstance(each, list):
            yield column, listed(each)
        else:
            yield column, number(each)


def listed(values: list[Any]) -> str:
    """Write a list, a long one of numbers by its ends."""
    if len(values) > 4 and all(isinstance(value, int | float) for value in values):
        ends = sorted({number(min(values)), number(max(values))}, key=[number(min(values)), number(max(values))].index)
        return f"{' to '.join(ends)}, {len(values)} times"
    return ", ".join(map(number, values)) or "–"


def spoken(name: str) -> str:
    """Write a name as words."""
    return name.replace("_", " ")


def number(value: Any) -> str:
    """Write a value for people: four digits, with the letter of thousands where there are many.

    >>> number(192946432), number(0.24006953), number(None), number(1024)
    ('192.9 M', '0.2401', '–', '1,024')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "\\|")
    for letter, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= unit:
            return f"{value / unit:.4g} {letter}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def table(rows: list[dict[str, str]]) -> str:
    """Write rows as a table, on its side where it would be wide."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[row.get(column, "–") for column in columns] for row in rows]
    if len(columns) > WIDE:
        cells = [list(line) for line in zip(columns, *cells, strict=True)]
        columns, cells = ([""] * len(cells[0]), cells) if cells[0][0] else (cells[0], cells[1:])
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
