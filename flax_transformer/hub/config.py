"""Config tables: which field of a config.json is which of our config, read in both directions.

A table has a config of ours that says what a config.json without any fields means, and for each of their fields where
ours is: `"hidden_size": "embed"`. A place is the path of a field, of which all but the last part may be left out:
`embed` is every field of that name, at any depth; `encoder.heads` every `heads` somewhere in `encoder`; `.depth` is
the config's own. How the value is spelled in JSON follows from the type of ours.

>>> from flax_transformer.models.text.bert import bert_base_uncased
>>> rows = {"hidden_size": "embed", "layer_norm_eps": ("norm_eps", "embedding.norm")}
>>> table = ConfigTable(bert_base_uncased().encoder, rows)
>>> table.read(Fields.of({"hidden_size": 96})).block.attention.embed
96
>>> table.write(table.like)
{'hidden_size': 768, 'layer_norm_eps': 1e-12}
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.listing import listed
from flax_transformer.nn import AttentionConfig
from flax_transformer.nn.config import configs_in

Path = tuple[str, ...]

HEAD_WIDTH = "head_dim"
"""Llama's name of the width of heads, which a family without such a field gets from us where heads were removed; of it
`transformers` knows nothing, and so opens no such folder."""


@dataclass(frozen=True)
class FieldMapping:
    """How a field of theirs becomes those of ours, and back."""

    ours: tuple[str, ...]
    """Places; the first of what they are is written."""
    read: Callable[[Fields, str], Any]
    """`read(fields, name)`: our value, of a field that is there."""
    write: Callable[[Any], Any]
    """`write(value)`: theirs."""


def choice(ours: str | tuple[str, ...], values: Mapping[Any, Any]) -> FieldMapping:
    """Spell a field of few values otherwise than ours: `values` has ours by theirs."""

    def read(given: Fields, name: str) -> Any:
        found = [mine for theirs, mine in values.items() if theirs == given[name] and type(theirs) is type(given[name])]
        if not found:
            raise ValueError(f"config.json has {name}={given[name]!r}; supported are {', '.join(map(str, values))}")
        return found[0]

    def write(value: Any) -> Any:
        found = [theirs for theirs, mine in values.items() if mine == value]
        if not found:
            raise ValueError(f"config.json has words for {', '.join(map(str, values.values()))}, got {value!r}")
        return found[0]

    return FieldMapping(_tuple(ours), read, write)


def sides(ours: str | tuple[str, ...]) -> FieldMapping:
    """Read a height and a width, which are one number where they are equal."""

    def read(given: Fields, name: str) -> tuple[int, int]:
        value = given[name]
        both = value if isinstance(value, list) else [value, value]
        if len(both) != 2:
            raise ValueError(f"config.json must give {name} as a height and a width, or one number, it is {value!r}")
        return tuple(Fields.of({name: each}).integer(name) for each in both)

    return FieldMapping(_tuple(ours), read, lambda value: value[0] if value[0] == value[1] else list(value))


@dataclass(frozen=True, eq=False)
class ConfigTable:
    """The fields of config.json and those of our config, one by one; a few by functions of their own."""

    like: Any
    """Our config of a config.json that says nothing."""
    rows: Mapping[str, str | tuple[str, ...] | FieldMapping]
    """Where ours is, by the name of theirs."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Fields that have, where they are given, the one value that is supported."""
    adds: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are written besides, and not read."""
    reads: Callable[[Fields], Mapping[str, Any]] | None = None
    """`reads(fields)`: values by our places, of what is not one to one; all fields of the rows are there."""
    writes: Callable[[Any], Mapping[str, Any]] | None = None
    """`writes(config)`: the fields that `reads` reads."""

    @cached_property
    def ways(self) -> dict[str, FieldMapping]:
        """Every row as a `FieldMapping`."""
        return {
            name: row if isinstance(row, FieldMapping) else _way(self.like, _tuple(row))
            for name, row in self.rows.items()
        }

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What the fields of the rows are where config.json lacks them."""
        return {name: way.write(_first(_spelled(self.like), way.ours)) for name, way in self.ways.items()}

    def read(self, fields: Fields) -> Any:
        """Make our config of config.json's fields.

        Raises:
          ValueError: for a value that is not supported.
        """
        fields.only(**self.only)
        whole = Fields.of({**self.defaults, **fields})
        values = {place: way.read(whole, name) for name, way in self.ways.items() for place in way.ours}
        values |= {} if self.reads is None else self.reads(whole)
        if HEAD_WIDTH in fields and not any(place.split(".")[-1] == "head_width" for place in values):
            values["head_width"] = fields.integer(HEAD_WIDTH)
        return _changed(self.like, {path: value for place, value in values.items() for path in self._paths(place)})

    def _paths(self, place: str) -> list[Path]:
        if place not in self._known:
            self._known[place] = _paths(self.like, place)
        return self._known[place]

    @cached_property
    def _known(self) -> dict[str, list[Path]]:
        return {}

    def write(self, config: Any) -> dict[str, Any]:
        """Make config.json's fields of our config; what it is besides, they do not say.

        Raises:
          ValueError: heads of several widths that are not D / N, for which config.json has one number.
        """
        said, found = {}, _spelled(config)
        for name, way in self.ways.items():
            value = _first(found, way.ours)
            said[name] = self.defaults[name] if value is None else way.write(value)
        said |= dict(self.adds) | ({} if self.writes is None else dict(self.writes(config)))
        layers = [each for each in configs_in(config) if isinstance(each, AttentionConfig)]
        if all(map(_usual, layers)) or HEAD_WIDTH in said or self._has_head_width:
            return said
        first, *others = dict.fromkeys(each.width for each in layers)
        if others:
            raise ValueError(
                f"config.json has one width for all heads, {HEAD_WIDTH}, where they are not D / N wide, got "
                f"{listed([first, *others])}"
            )
        return said | {HEAD_WIDTH: first}

    @cached_property
    def _has_head_width(self) -> bool:
        """Whether the family has a field of its own for the width of heads."""
        return any("head_width" in _tuple(way.ours) for way in self.ways.values())


def _way(like: Any, ours: tuple[str, ...]) -> FieldMapping:
    """Return how their field is spelled, by the type of ours."""
    *inside, last = _paths(like, ours[0])[0]
    for part in inside:
        like = getattr(like, part)
    hint = get_type_hints(type(like))[last]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if last == "activation":
        return FieldMapping(ours, Fields.activation, spelled)
    for kind, read in ((bool, Fields.flag), (int, Fields.integer), (float, Fields.number)):
        if kind in kinds:
            return FieldMapping(ours, read, _same)
        if any(get_origin(each) is tuple and kind in get_args(each) for each in kinds):
            return FieldMapping(ours, lambda given, name, read=read: _several(given, name, read), list)
    raise TypeError(f"a field of config.json is a number, a flag, an activation or several, {ours[0]} is {hint}")


def _usual(attention: AttentionConfig) -> bool:
    return attention.width * attention.heads == attention.embed


def _same(value: Any) -> Any:
    return value


def _several(given: Fields, name: str, read: Callable[[Fields, str], Any]) -> tuple:
    if not isinstance(given[name], list):
        raise ValueError(f"config.json must give {name} as a list, it is {given[name]!r}")
    return tuple(read(Fields.of({name: each}), name) for each in given[name])


def _tuple(places: str | tuple[str, ...]) -> tuple[str, ...]:
    return (places,) if isinstance(places, str) else places


def _walk(config: Any, path: Path = (), *, spell: bool = False) -> Iterator[tuple[Path, Any]]:
    """List every field of a config and of those in it; `spell` out what None stands for, where a config can."""
    config = config.resolved() if spell and hasattr(config, "resolved") else config
    for each in fields(config):
        value = getattr(config, each.name)
        yield (*path, each.name), value
        if is_dataclass(value) and not isinstance(value, type):
            yield from _walk(value, (*path, each.name), spell=spell)


def _spelled(config: Any) -> dict[Path, Any]:
    return dict(_walk(config, spell=True))


def _fits(place: str, path: Path) -> bool:
    """Return whether a path ends as a place does and has its other parts in their order; all of them after a dot."""
    if place.startswith("."):
        return path == tuple(place[1:].split("."))
    *inside, last = place.split(".")
    before = iter(path[:-1])
    return path[-1] == last and all(part in before for part in inside)


def _paths(config: Any, place: str) -> list[Path]:
    found = [path for path, _ in _walk(config) if _fits(place, path)]
    if not found:
        raise ValueError(f"a place must be in the config, {type(config).__name__} has no {place}")
    return found


def _first(found: Mapping[Path, Any], places: tuple[str, ...]) -> Any:
    """Return the value at the first of some places; None where there is no such field."""
    return next((value for place in places for path, value in found.items() if _fits(place, path)), None)


def _changed(config: Any, changes: Mapping[Path, Any]) -> Any:
    """Change fields by path; every config is made once, of all its new values."""
    inside: dict[str, dict[Path, Any]] = {}
    for (name, *rest), value in changes.items():
        inside.setdefault(name, {})[tuple(rest)] = value
    new = {name: below[()] if () in below else _changed(getattr(config, name), below) for name, below in inside.items()}
    return replace(config, **new)
