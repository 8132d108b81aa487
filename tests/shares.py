"""Which of many parameters `make test` tries; `make slow` tries the others."""

from collections.abc import Iterable

import pytest


def share(values: Iterable, which: int, of: int) -> list:
    """Keep every `of`-th value from the one at `which`; mark the others slow.

    Properties of the same variants that take different shares cover all variants between them.
    """
    return [_marked(value, at % of == which) for at, value in enumerate(values)]


def only(values: Iterable, *quick) -> list:
    """Keep the values that are named; mark the others slow."""
    values = list(values)
    assert all(any(value == name for value in values) for name in quick), f"{quick} must be of {values}"
    return [_marked(value, any(value == name for name in quick)) for value in values]


def _marked(value, quick: bool):
    values = value if isinstance(value, tuple) else (value,)
    return value if quick else pytest.param(*values, marks=pytest.mark.slow)
