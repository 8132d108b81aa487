"""Every chapter of the book has the parts that a chapter has, runs, and has exercises whose checks can fail."""

import ast
import re
from pathlib import Path

import jupytext
import pytest

pytestmark = pytest.mark.proves("guides", "the book's chapters run, and a wrong solution fails its check")

BOOK = Path(__file__).parent.parent / "notebooks" / "book"
CHAPTERS = sorted(BOOK.glob("*.py"))
SECTIONS = ("The idea", "Ten lines", "The library", "Exercises")


def of_chapters(test):
    return pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)(test)


def cells_of(chapter, tag=None):
    cells = jupytext.read(chapter).cells
    return [cell for cell in cells if tag is None or tag in cell.metadata.get("tags", [])]


def function_of(cell):
    """Return the one function that a solution cell defines."""
    (defined,) = ast.parse(cell.source).body
    assert isinstance(defined, ast.FunctionDef)
    return defined


def wrong(cell):
    """Return the source of a solution that returns nothing."""
    function = function_of(cell)
    function.body = [ast.Return(ast.Constant(None))]
    return ast.unparse(ast.fix_missing_locations(function))


def test_chapters_are_numbered():
    assert CHAPTERS
    numbers = [int(chapter.stem.partition("_")[0]) for chapter in CHAPTERS]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@of_chapters
def test_a_chapter_has_a_title_of_its_number_and_its_sections(chapter):
    texts = [cell.source for cell in cells_of(chapter) if cell.cell_type == "markdown"]
    number = int(chapter.stem.partition("_")[0])
    assert re.match(rf"# {number}\. [A-Z].+\n\n\S", texts[0])
    sections = [line.removeprefix("## ") for text in texts for line in text.splitlines() if line.startswith("## ")]
    assert [each for each in sections if each in SECTIONS] == list(SECTIONS)
    assert len(sections) > len(SECTIONS)  # one that trains
    assert sections[-1] == "Exercises"


@of_chapters
def test_a_chapter_asserts_its_claim_and_draws(chapter):
    source = "\n".join(cell.source for cell in cells_of(chapter) if not cell.metadata.get("tags"))
    assert re.search(r"^if not SMALL:\n    (?:.*\n    )*?(assert|np\.testing\.assert)", source, re.MULTILINE)
    assert "plt." in source


@of_chapters
def test_exercises_have_stubs_hidden_solutions_and_checks(chapter):
    cells = cells_of(chapter)
    stubs = next(cell.source for cell in cells if cell.source.startswith("## Exercises"))
    solutions = [i for i, cell in enumerate(cells) if "solution" in cell.metadata.get("tags", [])]
    assert 2 <= len(solutions) <= 4
    for i in solutions:
        assert cells[i].metadata["jupyter"] == {"source_hidden": True}
        assert cells[i + 1].metadata["tags"] == ["check"]
        assert re.search(rf"def {function_of(cells[i]).name}\(.*\):", stubs)
    assert re.findall(r"def (\w+)\(", stubs) == [function_of(cells[i]).name for i in solutions]


@pytest.mark.rotates
@of_chapters
def test_a_chapter_runs_small_and_its_checks_can_fail(chapter, monkeypatch, tmp_path):
    import matplotlib

    monkeypatch.setenv("BOOK_SMALL", "1")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    with matplotlib.rc_context():
        matplotlib.use("Agg")
        for cell in cells_of(chapter):
            if cell.cell_type == "code":
                exec(compile(cell.source, chapter.name, "exec"), names)
        matplotlib.pyplot.close("all")
    for solution, check in zip(cells_of(chapter, "solution"), cells_of(chapter, "check"), strict=True):
        broken = dict(names)
        exec(wrong(solution), broken)
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever a check that got nothing raises
            exec(check.source, broken)
