"""What configs have in common: frozen values, hashable, validated at the door."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache, partial
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops import Mask, rotary, rotary_frequencies, rotary_sections


def check_fields(config: Any) -> None:
    """Raise ValueError where a field of a frozen config is not what its annotation says; ranges are its own business.

    >>> check_fields(Precision())
    """
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        if not _fits(value, hint):
            raise ValueError(f"{name} must be {_rule(hint)}, got {value!r}")


def check_at_least(config: Any, least: int, *names: str) -> None:
    """Raise ValueError where a field, unless it is None, is below `least`."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_stages(config: Any, *names: str) -> None:
    """Raise ValueError unless fields that have an entry for each stage have as many, and one at least."""
    sizes = {name: len(getattr(config, name)) for name in names}
    if not min(sizes.values()) or len({*sizes.values()}) > 1:
        raise ValueError(f"there must be a stage, and an entry for each everywhere, got {sizes}")


def check_rates(config: Any, *names: str) -> None:
    """Raise ValueError where a field is no rate at which something is dropped."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} must be in [0, 1), got {getattr(config, name)}")


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        parts = parts[:1] * len(value) if parts[-1] is ... and isinstance(value, tuple) else parts
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return callable(value) if hint is Callable else hint is Any or isinstance(value, hint)


def _rule(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_rule, get_args(hint)))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        return f"a tuple of {'' if parts[-1] is ... else f'{len(parts)}, each '}{_rule(parts[0])}"
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a name", Callable: "a function"}
    if hint is type(None):
        return "None"
    return words.get(hint) or f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}"


@frozen
class Precision:
    """Number formats: what layers compute in, and what parameters are kept in.

    Softmax, normalisation statistics, logits and losses are float32, or more, whatever stands here.
    """

    compute: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    params: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    wide_residual: bool = False
    """Where layers compute in float16, keep the residual stream in float32, and the feed-forward layer that writes to
    it; for models with numbers that float16 has no room for (T5)."""

    def __post_init__(self):
        check_fields(self)
        if "float64" in (self.compute, self.params) and not jax.config.jax_enable_x64:
            raise ValueError(f"float64 needs jax.config.update('jax_enable_x64', True), got {self}")

    @property
    def residual(self) -> str:
        """What the residual stream is kept in."""
        return "float32" if self.wide_residual and self.compute == "float16" else self.compute

    @property
    def dtypes(self) -> dict[str, jnp.dtype]:
        """`dtype` and `param_dtype` as Flax's layers take them."""
        return {"dtype": jnp.dtype(self.compute), "param_dtype": jnp.dtype(self.params)}


def with_fields(config: Any, **changes: Any) -> Any:
    """Change fields of a config by name, at any depth: wherever one of these names stands, it gets the new value.

    Raises:
      ValueError: a name that stands nowhere, or values that a config refuses.

    >>> with_fields(Precision(), compute="bfloat16")
    Precision(compute='bfloat16', params='float32', wide_residual=False)
    """
    known = field_names(config)
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known) or sorted(known)
            raise ValueError(f"{type(config).__name__} has no field {name}, at any depth; nearest: {', '.join(near)}")
    return map_configs(lambda _: changes, config)


def shared_fields(kind: type, config: Any) -> dict[str, Any]:
    """Return the fields that configs of a kind have, as another config has them.

    >>> shared_fields(Precision, Precision(compute="bfloat16"))
    {'compute': 'bfloat16', 'params': 'float32', 'wide_residual': False}
    """
    return {field.name: getattr(config, field.name) for field in fields(kind)}


def configs_in(config: Any) -> Iterator[Any]:
    """Go through a config and the configs in it, in the order of their fields; nothing where it is none."""
    if isinstance(config, tuple):
        for each in config:
            yield from configs_in(each)
    if _is_config(config):
        yield config
        for field in fields(config):
            yield from configs_in(getattr(config, field.name))


def field_names(config: Any) -> set[str]:
    """Return the names of all fields of a config and of the configs in it."""
    return {field.name for each in configs_in(config) for field in fields(each)}


def map_configs(change: Callable[[Any], Mapping[str, Any]], config: Any) -> Any:
    """Return a config with other fields in it and in the configs in it.

    Args:
      change: from a config to those of its fields that are other, by name; what is in the rest is gone through.
    """
    if isinstance(config, tuple):
        return tuple(map_configs(change, part) for part in config)
    if not _is_config(config):
        return config
    new, names = change(config), [field.name for field in fields(config) if field.init]
    return replace(config, **{n: new[n] if n in new else map_configs(change, getattr(config, n)) for n in names})


def _is_config(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def with_precision(config: Any, **kinds: str | bool) -> Any:
    """Change fields of every `Precision` that a config has, at any depth; one without any stays as it is.

    >>> with_precision(Precision(), compute="bfloat16")
    Precision(compute='bfloat16', params='float32', wide_residual=False)
    """
    return with_fields(config, **kinds) if "compute" in field_names(config) else config


@frozen
class Rotary:
    """Rotary positions (Su et al. 2021): the base of the frequencies and, optionally, other frequencies outright."""

    base: float = 10_000.0
    frequencies: Callable = rotary_frequencies
    """`frequencies(width, base) -> [width / 2]`: a module-level function, `LinearScaling(…)`, `DynamicScaling(…)`,
    `YarnScaling(…)`, `LongScaling(…)` or `Llama3Scaling(…)`; see `ops.rotary_scaling`."""
    width: int | None = None
    """How many channels of a head turn, the first ones; None: all."""
    window: "Rotary | None" = None
    """Those of layers whose mask has a window, where local and global attention take turns; None: the same."""
    sections: tuple[int, ...] | None = None
    """How many pairs of channels each id of a position turns, where positions have several, as time, row and column
    (M-RoPE, Wang et al. 2024, https://arxiv.org/abs/2409.12191); None: they have one."""

    def __post_init__(self):
        check_fields(self)
        if self.base <= 0:
            raise ValueError(f"the base of rotary frequencies must be above 0, got {self.base}")
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise ValueError(f"channels turn in pairs, so that their number must be even and not 0, got {self.width}")
        if self.sections is not None and (not self.sections or min(self.sections) < 1):
            raise ValueError(f"sections must be at least one pair of channels each, got {self.sections}")

    def under(self, mask: Mask | None) -> "Rotary":
        """Return the rotary positions of a layer that is given this mask."""
        return self if self.window is None or mask is None or mask.window is None else self.window

    def turn(self, heads: Sequence[Array], positions: Int[Array, "..."]) -> list[Array]:
        """Turn queries, or keys, [*B, T, N, H] by their positions, the last of which says how long a text is.

        Args:
          positions: [*#B, T], of which all ids agree; or, with every axis of heads' rows, [*#B, T, axes].

        Raises:
          ValueError: positions of several ids without sections for them.
        """
        width = heads[0].shape[-1] if self.width is None else self.width
        several = positions.ndim == heads[0].ndim - 1
        if several and self.sections is None:
            raise ValueError(f"positions of several ids need sections, got positions of shape {positions.shape}")
        last = positions.max((-2, -1) if several else -1)
        length = (last + 1,) if getattr(self.frequencies, "by_length", False) else ()
        turned = partial(
            partial(rotary_sections, sections=self.sections) if several else rotary,
            positions=positions, frequencies=self.frequencies(width, self.base, *length),
            amplitude=getattr(self.frequencies, "amplitude", 1.0),
        )  # fmt: skip
        if width == heads[0].shape[-1]:
            return [turned(each) for each in heads]
        return [jnp.concatenate([turned(each[..., :width]), each[..., width:]], axis=-1) for each in heads]
