"""Presets by name: the public functions in the files of this folder, and of those in it, that return a config."""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any, get_type_hints

from flax import nnx

from flax_transformer.nn import with_fields

_PACKAGE = __name__.rpartition(".")[0]


def presets() -> dict[str, Callable[[], Any]]:
    """List every preset, in alphabetical order.

    >>> list(presets())
    [...'transformer_base', 'transformer_big', 'transformer_tiny'...]
    """
    found = {name: function for file in _files() for name, function in vars(file).items() if _is_preset(file, function)}
    return dict(sorted(found.items()))


def find_preset(name: str) -> Callable[[], Any]:
    """Look up a preset.

    Raises:
      ValueError: when there is none of that name; the message has the nearest ones.

    >>> find_preset("transformer_base")().encoder.depth
    6
    """
    known = presets()
    if name not in known:
        near = difflib.get_close_matches(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
        raise ValueError(f"no preset is called {name!r}; {hint}")
    return known[name]


def module_of(config: Any) -> type[nnx.Module]:
    """Return the class of the module that a config's `build` makes: by its annotation, or of what it returns.

    Raises:
      ValueError: a config without `build(rngs)`, or one that returns no module.
    """
    rule = "a model's config must have `build(self, rngs: nnx.Rngs)`, which returns the model"
    if not hasattr(config, "build"):
        raise ValueError(f"{rule}, {type(config).__name__} has none")
    made = get_type_hints(config.build).get("return")
    made = made if inspect.isclass(made) else type(nnx.eval_shape(lambda: config.build(nnx.Rngs(0))))
    if not issubclass(made, nnx.Module):
        raise ValueError(f"{rule}, that of {type(config).__name__} returns {made.__name__}")
    return made


@lru_cache(maxsize=16)
def abstract(config: Any) -> nnx.Module:
    """Return the model of a config with shapes in place of parameters; kept, as to trace a model costs most of a load.

    Nobody may write to it.
    """
    return nnx.eval_shape(lambda: config.build(nnx.Rngs(0)))


def narrowed(config: Any, *, embed: int, heads: int, inner: int, depth: int) -> Any:
    """Make a small encoder-decoder of a preset: the same in kind, with heads of width D / N."""
    config = replace(config, output_scale=config.output_scale if config.output_scale == 1 else embed**-0.5)
    return with_fields(config, embed=embed, heads=heads, head_width=None, inner=inner, depth=depth)


def _files() -> list[ModuleType]:
    package = importlib.import_module(_PACKAGE)
    return [importlib.import_module(file.name) for file in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}.")]


def _is_preset(file: ModuleType, function: Any) -> bool:
    if not inspect.isfunction(function) or function.__module__ != file.__name__ or function.__name__.startswith("_"):
        return False
    signature = inspect.signature(function)
    returns = signature.return_annotation
    own = inspect.isclass(returns) and returns.__module__.startswith(_PACKAGE) and returns.__name__.endswith("Config")
    return own and all(p.default is not p.empty for p in signature.parameters.values())
