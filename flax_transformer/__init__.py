"""The Transformer family in JAX/Flax as pure functions on pytrees.

>>> import flax_transformer as ft
>>> ft.ops.Mask(causal=True).causal
True
"""

import importlib

__all__ = [
    "bench",
    "compress",
    "data",
    "decode",
    "hub",
    "inside",
    "launch",
    "metric",
    "models",
    "nn",
    "objective",
    "ops",
    "parallel",
    "report",
    "task",
    "train",
]
__version__ = "0.1.0"


def __getattr__(name: str):
    """Import a room when it is first asked for, so that importing the package costs nothing."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"flax_transformer has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    """List the rooms, loaded or not; nothing else is for use."""
    return ["__version__", *__all__]
