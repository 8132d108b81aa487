"""Every field of a public config says what it is: in a sentence below it, or by name in the docstring of its class."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "flax_transformer"
NAMES = ("Config", "Data", "Augment")


def configs():
    """Yield the path and the syntax of each public class whose name says it is a config."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith(NAMES) and not node.name.startswith("_"):
                yield pytest.param(node, id=f"{path.relative_to(ROOT)}:{node.name}")


def undocumented(node):
    """Return the names of public fields that nothing is said about."""
    said = ast.get_docstring(node) or ""
    for field, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign) and not field.target.id.startswith("_"):
            sentence = isinstance(after, ast.Expr) and isinstance(getattr(after.value, "value", None), str)
            if not sentence and f"`{field.target.id}`" not in said:
                yield field.target.id


@pytest.mark.parametrize("node", configs())
def test_every_field_has_a_sentence(node):
    assert list(undocumented(node)) == []


def test_a_field_without_a_sentence_is_found():
    source = 'class C:\n    """It has `a`."""\n    a: int\n    b: int\n    """Of b."""\n    c: int\n    _d: int = 0'
    assert list(undocumented(ast.parse(source).body[0])) == ["c"]
