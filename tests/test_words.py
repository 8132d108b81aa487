"""Prose uses the field's words: those of CONTRIBUTING.md's table that are retired do not come back."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("flax_transformer", "tests", "experiments", "notebooks", "website", "docs")
WORDS = (ROOT / "CONTRIBUTING.md").read_text().split("## Words")[1].split("and from the names")
TABLE = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", WORDS[0], re.M)[1:]
NAMES = {
    *("told", "picture", "pictures", "sound", "sounds", "clips", "film", "heard", "guess", "guessed", "chances"),
    *("forth", "fade", "foretold", "dictated", "twins", "meet", "agreed"),
}
"""Words that no name of the package has among its parts: those of the second table that mean nothing else anywhere."""
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


def names_of(path):
    """Return the names that a file of Python defines or uses."""
    return {
        token.string
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME
    }


def test_retired_names_stay_away():
    assert all(word in WORDS[1] for word in NAMES)
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "flax_transformer").rglob("*.py"))
        for name in names_of(path)
        if NAMES & set(re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().split("_"))
    }
    assert not found


@pytest.mark.rotates
@pytest.mark.parametrize("room", [*ROOMS, "README.md"])
def test_retired_words_stay_away(room):
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in FILES
        if path.relative_to(ROOT).parts[0] == room
        for match in RETIRED.finditer(prose(path))
    }
    assert not found
