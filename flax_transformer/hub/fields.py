"""A checkpoint's config.json, read field by field, and the names that it has for activations."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_REQUIRED = object()
PICTURED = "vision_config", "encoder", "backbone_config"
"""Objects of config.json in which the part stands that reads images, where there are several parts."""


@dataclass(frozen=True)
class Fields(Mapping):
    """A checkpoint's config.json: hashable, equal where the text is, every field kept, known or not."""

    text: str

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Fields":
        """Wrap what was read from config.json."""
        return cls(json.dumps(data, sort_keys=True))

    @cached_property
    def data(self) -> dict[str, Any]:
        """The fields, a copy of nothing: do not change it."""
        return json.loads(self.text)

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.data:
            raise AttributeError(f"config.json has no field {name!r}")
        return self.data[name]

    def updated(self, changes: Mapping[str, Any]) -> "Fields":
        """Return a copy with some fields changed."""
        return Fields.of({**self.data, **changes})

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """Read a number that is not negative; without a default it must be there.

        Raises:
          ValueError: when it is missing or something else.
        """
        value = self.data.get(name, default)
        if value is default and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            found = "is missing" if value is _REQUIRED else f"is {value!r}"
            raise ValueError(f"config.json must give {name} as a number of at least 0, it {found}")
        return value

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        """Read a whole number, as `number` does, of 31 bits at most, as indices are."""
        value = self.number(name, default)
        if value is not default and (value != int(value) or value >= 2**31):
            raise ValueError(f"config.json must give {name} as a whole number, it is {value!r}, and below 2**31")
        return value if value is default else int(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Read true or false; without a default it must be there."""
        value = self.data.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"config.json must give {name} as true or false, it is {value!r}")
        return value

    def only(self, **allowed: Any) -> None:
        """Demand that fields, where they are given, have the one value that is supported."""
        for name, value in allowed.items():
            if name in self.data and self.data[name] != value:
                raise ValueError(f"config.json has {name}={self.data[name]!r}, of which only {value!r} is supported")

    def activation(self, name: str, default: str | None = None) -> str:
        """Read the name of an activation, in our spelling; without a default it must be there."""
        value = self.data.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ValueError(f"config.json has {name}={value!r}; supported are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    @property
    def labels(self) -> int:
        """How many classes a classifier has."""
        names = self.data.get("id2label")
        return len(names) if isinstance(names, dict) else self.integer("num_labels", 2)

    @property
    def channels(self) -> int | None:
        """How many channels images have, where it is said, be it of one tower or side of several."""
        inner = next((each for name in PICTURED if isinstance(each := self.data.get(name), dict)), self.data)
        return inner.get("num_channels", self.data.get("num_channels"))

    @property
    def frames(self) -> int | None:
        """How many images a row may have, where it may have several."""
        return self.integer("num_image_with_embedding", None)

    def relabelled(self, changes: Mapping[str, Any]) -> "Fields":
        """Return a copy with some fields changed, in which what is said of classes agrees.

        Names that are given are the classes; a number of them that is given keeps the names there are where they are as
        many, and else numbers the classes, as transformers does.

        Raises:
          ValueError: as many names as another number that is given.
        """
        changed = self.updated(changes)
        given, number = changes.get("id2label"), changes.get("num_labels")
        if given is None and number is None:
            return changed
        if number is None:
            number = len(given)
        number = changed.updated({"num_labels": number}).integer("num_labels")
        names = changes["id2label"] if "id2label" in changes else self.get("id2label")
        if given is not None and len(given) != number:
            raise ValueError(f"num_labels must be how many names id2label has, got {number} and {len(given)}")
        if not isinstance(names, dict) or len(names) != number:
            names = {str(i): f"LABEL_{i}" for i in range(number)}
        numbers = {name: int(i) for i, name in names.items()}
        return changed.updated({"num_labels": number, "id2label": names, "label2id": numbers})


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "swish",
    "tanh": "tanh",
    "linear": "identity",
}
"""Hugging Face's names of activations and ours."""

SPELLING = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""Our names of activations and Hugging Face's."""


def spelled(activation: Any) -> str:
    """Return Hugging Face's name of an activation.

    Raises:
      ValueError: for one that it has no name for, such as a function of one's own.
    """
    if not isinstance(activation, str) or activation not in SPELLING:
        raise ValueError(f"config.json has names for the activations {', '.join(SPELLING)}, got {activation!r}")
    return SPELLING[activation]
