"""The page of what works says what the tests say, and what is nobody's is a dash."""

import pytest

from tests import matrix
from tests.matrix import Proof


@pytest.mark.rotates
def test_the_page_is_what_the_marks_say():
    assert (matrix.ROOT / "docs/matrix.md").read_text() == matrix.render(matrix.proofs()), "run `make matrix`"


@pytest.mark.rotates
def test_a_mark_that_is_gone_is_gone_from_the_page():
    found = matrix.proofs()
    pages = [matrix.render([other for other in found if other != proof]) for proof in dict.fromkeys(found)]
    assert matrix.render(found) not in pages


def test_cells_have_notes_and_links_and_parts_their_own_table():
    found = [
        Proof("gpt2", "parity", "every layer", "tests/hub/test_a.py"),
        Proof("gpt2", "parity", "every layer", "tests/hub/test_b.py"),
        Proof("every family", "weights", "", "tests/hub/test_c.py"),
        Proof("attention", "masks", "", "tests/ops/test_d.py"),
    ]
    page = matrix.render(found)
    row = next(line for line in page.splitlines() if line.startswith("| GPT-2"))
    assert (
        "| [c](../tests/hub/test_c.py) | every layer ([a](../tests/hub/test_a.py), [b](../tests/hub/test_b.py)) |"
        in row
    )
    assert "| attention | masks | [d](../tests/ops/test_d.py) |" in page
    assert page.count("–") > 9


def test_words_that_no_column_has_are_refused():
    with pytest.raises(
        ValueError, match=r"of a model, tests prove weights, parity, .*; tests/test_x.py says 'wieghts'"
    ):
        matrix.render([Proof("gpt2", "wieghts", "", "tests/test_x.py")])
