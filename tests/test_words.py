"""Prose uses the field's words: those of CONTRIBUTING.md's table that are retired do not come back."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("flax_transformer", "tests", "experiments", "notebooks", "website", "docs")
TABLE = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text().split("## Words")[1], re.M)[1:]
RETIRED = re.compile(rf"(?<![\w/.`\"'-])({'|'.join(old for old, _ in TABLE)})(?![\w(=/\"`_]|\.\w)", re.IGNORECASE)


def prose(path):
    """Return the docstrings and comments of a Python file, or the text of a page without its code."""
    text = path.read_text()
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    said = (token.string for token in tokens if token.type in (tokenize.STRING, tokenize.COMMENT))
    return "\n".join(each for each in said if each.startswith(('"""', 'r"""', "#")))


FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))] + [
    path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.name != "matrix.md"
]


def test_the_table_has_words():
    assert len(TABLE) >= 4
    assert RETIRED.search("what a picture shows")


@pytest.mark.parametrize("room", [*ROOMS, "README.md"])
def test_retired_words_stay_away(room):
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in FILES
        if path.relative_to(ROOT).parts[0] == room
        for match in RETIRED.finditer(prose(path))
    }
    assert not found
