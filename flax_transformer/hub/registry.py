"""The families there are tables for: what the files of `hub/family` say."""

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from flax_transformer.hub import family as folder
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.sentence import is_sentence, sentence_family
from flax_transformer.listing import listed

_registered: dict[str, Family] = {}


def families() -> Mapping[str, Family]:
    """Return every family by the `model_type` of its config.json: those of the package, and those registered."""
    return {**_own(), **_registered}


@cache
def _own() -> Mapping[str, Family]:
    """Return the `FAMILIES` of all files in `hub/family`."""
    files = pkgutil.iter_modules(folder.__path__, f"{folder.__name__}.")
    return {kind: found for file in files for kind, found in importlib.import_module(file.name).FAMILIES.items()}


def register(families: Mapping[str, Family]) -> None:
    """Add families of one's own; what is registered again takes the place of what was.

    Args:
      families: by `model_type`, as the `FAMILIES` of a file in `hub/family`.

    Raises:
      ValueError: a model type or an architecture of the package.
    """
    for kind, family in families.items():
        if kind != family.model_type:
            raise ValueError(f"a family is registered by its model_type, {family.model_type!r}, got {kind!r}")
        for known, own in _own().items():
            if kind == known or family.architectures.keys() & own.architectures:
                raise ValueError(f"a family must not take names of another, got {kind!r} with names of {known!r}")
    _registered.update(families)


def find_family(config: Mapping[str, Any]) -> tuple[Family, Architecture]:
    """Find what a config.json asks for.

    Raises:
      ValueError: a model type or an architecture that is not supported; the message lists those that are.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in families():
        raise ValueError(f"config.json has model_type={kind!r}; supported are {listed(families(), 60)}")
    family = families()[kind]
    if family.looks is not None and config.get("add_cross_attention") is True:
        family = family.looks()
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise ValueError(
            f"config.json must name its architecture in a list `architectures`, it has {named!r}; give one of "
            f"{listed(family.architectures, 20)}"
        )
    if named[0] not in family.architectures:
        raise ValueError(
            f"config.json has the architecture {named[0]!r}; supported of {kind} are {listed(family.architectures, 20)}"
        )
    if family.composed is not None:
        family = family.composed(config if isinstance(config, Fields) else Fields.of(config))
    if is_sentence(config):
        family = sentence_family(family, named[0], config if isinstance(config, Fields) else Fields.of(config))
    return family, family.architectures[named[0]]


def find_use(model_type: str, *uses: str) -> str:
    """Name the first of `find_uses`."""
    return find_uses(model_type, *uses)[0]


def read_as(config: Fields, architecture: str) -> Fields:
    """Read a checkpoint as another architecture, of its own family or of that one's kin."""
    kind = config.get("model_type")
    kin = families()[kind].kin if isinstance(kind, str) and kind in families() else ""
    other = {"model_type": kin} if kin and architecture in families()[kin].architectures else {}
    return config.updated({"architectures": [architecture], **other})


def find_uses(model_type: str, *uses: str) -> list[str]:
    """Name the architectures of a family, or else of its kin, that can do exactly this, the usual one first.

    Raises:
      ValueError: a family that is not supported, or that has no such architecture; the message lists what there is.
    """
    if model_type not in families():
        raise ValueError(f"no family is called {model_type!r}; supported are {listed(families(), 60)}")
    known = families()[model_type].architectures
    found = [name for name, each in known.items() if set(each.uses) == set(uses)]
    if not found and (kin := families()[model_type].kin):
        return find_uses(kin, *uses)
    if not found:
        can = "; ".join(f"{name}: {', '.join(each.uses)}" for name, each in known.items())
        raise ValueError(f"no architecture of {model_type} does {' and '.join(uses)}; there are {can}")
    return found


def find_architecture(name: str) -> tuple[Family, Architecture]:
    """Look up an architecture by its name alone.

    Raises:
      ValueError: when no family has it; the message lists those there are.
    """
    known: list[str] = []
    for family in families().values():
        if name in family.architectures:
            return family, family.architectures[name]
        known += family.architectures
    nearest = difflib.get_close_matches(name, known, len(known), 0.0)
    raise ValueError(f"no architecture is called {name!r:.80}; supported are {listed(nearest)}")
