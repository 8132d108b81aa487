"""Notebooks as pages: their cells, and the outputs that are stored with them."""

import itertools
import json
import re
from pathlib import Path

_FORMULA = re.compile(r"\$\$((?s:.+?))\$\$|\$([^$`\n]+)\$")
_ITEMS = re.compile(r"^\d+\. .*", re.MULTILINE | re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

ROOT = Path(__file__).parent.parent


def pages() -> dict[str, Path]:
    """Return the notebooks by the names of their pages, the book's chapters in their order."""
    found = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/book/*.ipynb")])
    return {path.relative_to(ROOT).with_suffix(".md").as_posix(): path for path in found}


def with_chapters(nav: list) -> list:
    """Put the pages of a folder where a navigation names all of them, as `notebooks/book/*.md`."""
    entries = []
    for entry in nav:
        if isinstance(entry, dict):
            entry = {name: with_chapters(below) if isinstance(below, list) else below for name, below in entry.items()}
        folder = entry.removesuffix("*.md") if isinstance(entry, str) else ""
        entries += [name for name in pages() if name.startswith(folder)] if entry == f"{folder}*.md" else [entry]
    return entries


def page(path: Path) -> str:
    """Write the page of an executed notebook."""
    cells = json.loads(path.read_text())["cells"]
    first, *rest = ["\n\n".join(_cell(cell)) for cell in cells]
    says = (
        f'!!! note ""\n    A notebook, as it was run: the outputs are those stored in [{path.name}]({path.name}). '
        f"Its Python half is [{path.stem}.py]({path.stem}.py)."
    )
    title, _, below = first.partition("\n")
    return "\n\n".join([title, says, below.strip(), *rest])


def _cell(cell: dict) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [_FORMULA.sub(_formula, _ITEMS.sub(_indented, source))]
    parts = [_folded(fenced(source, "python")) if _is_folded(cell) else fenced(source, "python")]
    for printed, outputs in itertools.groupby(cell["outputs"], lambda output: output["output_type"] == "stream"):
        if printed:  # in pieces, as they came
            outputs = [{"text": "".join("".join(output["text"]) for output in outputs)}]
        parts += map(_output, outputs)
    return parts


def _is_folded(cell: dict) -> bool:
    return cell.get("metadata", {}).get("jupyter", {}).get("source_hidden", False)


def _folded(text: str) -> str:
    """Fold what a notebook hides, the solution of an exercise."""
    return '??? example "Solution"\n' + "\n".join(f"    {line}" if line else "" for line in text.split("\n"))


def _indented(items: re.Match) -> str:
    """Indent what belongs to a numbered item by four columns, as Python-Markdown asks, where notebooks have three."""
    return re.sub(r"^ {3}", " " * 4, items[0], flags=re.MULTILINE)


def _formula(found: re.Match) -> str:
    from latex2mathml.converter import convert  # needed by few, and a tool of the site

    if found[1]:
        return convert(found[1], display="block")
    return f"<span>{convert(found[2])}</span>"  # one that begins a line would be taken for a block


def _output(output: dict) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img class="output" alt="what this cell draws" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        return f'<div class="output">{"".join(data["text/html"])}</div>'
    return fenced(_COLOUR.sub("", "".join(data["text/plain"])).rstrip(), "text { .output }")


def fenced(text: str, language: str) -> str:
    """Fence a text, whatever fences it has within."""
    longest = max((len(fence) for fence in re.findall(r"`{3,}", text)), default=2)
    return f"{'`' * (longest + 1)}{language}\n{text}\n{'`' * (longest + 1)}"
