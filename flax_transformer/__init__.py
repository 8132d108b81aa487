"""The Transformer family in JAX/Flax as pure functions on pytrees.

>>> import flax_transformer as ft
>>> ft.ops.Mask(causal=True).causal
True
"""

import importlib

__all__ = ["bench", "data", "decode", "models", "nn", "ops", "parallel", "report", "task", "train"]


def __getattr__(name: str):
    """Import a part when it is first asked for, so that importing the package costs nothing."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"flax_transformer has no {name!r}; it has {', '.join(__all__)}")
