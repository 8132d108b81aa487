"""Names of transforms are the same in every process, so that a run is resumed in another."""

import dataclasses
import json
from collections.abc import Callable

import pytest

from flax_transformer.data.identity import name_function
from flax_transformer.task.image_to_image import Halve, halves


@dataclasses.dataclass(frozen=True)
class Several:
    steps: tuple[Callable, ...]
    count: int = 2
    beside: int = dataclasses.field(default=0, repr=False)

    def __call__(self, x):
        return x


def test_a_function_among_the_fields_goes_by_its_name():
    halve = Halve(split=halves, normalise=(0.5, 0.5))
    assert name_function(halve) == "Halve(split=flax_transformer.task.image_to_image.halves, normalise=(0.5, 0.5))"
    nested = name_function(Several((json.dumps, halve)))
    assert nested == f"Several(steps=(json.dumps, {name_function(halve)}), count=2)"
    assert name_function(Several(())) == repr(Several(()))


def test_what_has_no_name_of_its_own_is_refused():
    with pytest.raises(ValueError, match="a frozen dataclass or a module-level function"):
        name_function(Several((lambda x: x,)))
