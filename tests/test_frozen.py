"""A config says what its fields mean to whoever asks for help."""

import copy
import importlib
import pickle
import pkgutil
import pydoc
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest

from flax_transformer.frozen import frozen, meanings


@frozen
class Base:
    """What is inherited.

    In a second paragraph, more of it.
    """

    width: int = 4
    """Columns, of
    which there are some."""
    silent: int = 0


@frozen
class Derived(Base):
    """What inherits."""

    depth: int = 2
    """Rows."""
    width: int = 8


def test_help_says_what_fields_mean_those_inherited_too():
    assert Base.__doc__ == (
        "What is inherited.\n\nIn a second paragraph, more of it.\n\n"
        "Attributes:\n  width: Columns, of which there are some."
    )
    shown = pydoc.render_doc(Derived, renderer=pydoc.plaintext)
    assert "Derived(*, width: int = 8, silent: int = 0, depth: int = 2)" in shown
    assert "width: Columns, of which there are some.\n |    depth: Rows." in shown


def test_it_is_a_frozen_dataclass_with_keywords_only():
    value = Derived(depth=3)
    assert [field.name for field in fields(value)] == ["width", "silent", "depth"]
    assert value == replace(Derived(), depth=3) == pickle.loads(pickle.dumps(value)) == copy.copy(value)
    assert hash(value) == hash(Derived(depth=3))
    with pytest.raises(FrozenInstanceError):
        value.depth = 1
    with pytest.raises(TypeError, match="positional"):
        Derived(8)


def test_a_class_without_source_keeps_its_docstring():
    names = {"frozen": frozen}
    exec("@frozen\nclass Made:\n  'As written.'\n  a: int = 1\n  'Lost.'", names)
    assert names["Made"].__doc__ == "As written."


def test_the_options_of_a_command_are_explained_as_before(capsys):
    import tyro

    with pytest.raises(SystemExit):
        tyro.cli(Derived, args=["--help"], prog="x")
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--width INT Columns, of which there are some. (default: 8)" in said
    assert "--depth INT Rows. (default: 2)" in said
    assert "What inherits." in said
    assert "Attributes" not in said


def configs(rooms):
    """The configs of rooms: frozen dataclasses with keywords only, equal where their fields are."""
    for room in rooms:
        package = importlib.import_module(f"flax_transformer.{room}")
        for file in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            here = [kind for kind in vars(importlib.import_module(file.name)).values() if isinstance(kind, type)]
            own = [kind for kind in here if is_dataclass(kind) and kind.__module__ == file.name]
            own = [kind for kind in own if kind.__dataclass_params__.eq]
            yield from (kind for kind in own if all(field.kw_only for field in fields(kind)))


ROOMS = (
    "bench", "data", "decode", "hub", "launch", "models", "nn", "objective", "parallel", "report", "task", "train",
)  # fmt: skip


@pytest.mark.parametrize("kind", configs(ROOMS), ids=lambda kind: kind.__name__)
def test_help_for_a_config_of_the_package_says_what_its_fields_mean(kind):
    for name, meaning in meanings(kind).items():
        assert f"  {name}: {meaning}" in kind.__doc__.splitlines()


def test_true_is_not_one_where_a_field_may_be_both():
    """Else a compiled function that is kept for one runs for the other; the rest of equality stays."""

    @frozen
    class Loop:
        unroll: int | bool = 1
        flag: bool = True

    @frozen
    class Longer(Loop):
        depth: int = 2

    for kind in (Loop, Longer):
        assert kind() != kind(unroll=True)
        assert (kind(), 1) != (kind(unroll=True), 1)
        assert len({kind(), kind(unroll=True), kind(unroll=2), kind(unroll=1)}) == 3
        assert kind(unroll=True) == kind(unroll=True) == replace(kind(), unroll=True)
    assert Loop() != Longer()
    assert Loop(flag=True) == Loop(flag=1)
