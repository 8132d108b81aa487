"""The families there are tables for; a new one is a file of this folder and a line here."""

import importlib
from collections.abc import Mapping
from typing import Any

from flax_transformer.hub.family import Architecture, Family

MODULES = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "electra": "electra",
    "t5": "t5",
    "mt5": "t5",
    "bart": "bart",
    "marian": "marian",
}
"""`model_type` of config.json, and the file that has its `FAMILIES`."""


def find_family(config: Mapping[str, Any]) -> tuple[Family, Architecture]:
    """Look up what a config.json asks for.

    Raises:
      ValueError: a model type or an architecture that is not supported; the message lists those that are.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MODULES:
        raise ValueError(f"config.json has model_type={kind!r}; supported are {', '.join(MODULES)}")
    family = importlib.import_module(f"flax_transformer.hub.{MODULES[kind]}").FAMILIES[kind]
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise ValueError(
            f"config.json must name its architecture in a list `architectures`, it has {named!r}; give one of "
            f"{', '.join(family.architectures)}"
        )
    if named[0] not in family.architectures:
        raise ValueError(
            f"config.json has the architecture {named[0]!r}; supported of {kind} are {', '.join(family.architectures)}"
        )
    return family, family.architectures[named[0]]


def find_architecture(name: str) -> tuple[Family, Architecture]:
    """Look up an architecture by its name alone.

    Raises:
      ValueError: when no family has it; the message lists those there are.
    """
    known: list[str] = []
    for file in dict.fromkeys(MODULES.values()):
        for family in importlib.import_module(f"flax_transformer.hub.{file}").FAMILIES.values():
            if name in family.architectures:
                return family, family.architectures[name]
            known += family.architectures
    raise ValueError(f"no architecture is called {name!r}; supported are {', '.join(known)}")
