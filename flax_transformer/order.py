"""How a module says in which order its layers lie on top of each other.

A module has an attribute `layer_order`: the names of its parts, from those that the inputs come to first up to the
heads. A bare name is a part without layers of its own, such as an embedding or a norm; `Stack`, `Layer` and `Part` name
those that have some. A name may be dotted (`stages.0`), and a module need not have all that its class names, but every
parameter must lie in one of the parts. `layer_decay` and `unfreeze_every` of an optimizer go by it.

>>> class Encoder:
...     layer_order = ("embedding", Stack("blocks"), "norm")
>>> class Classifier:
...     layer_order = (Part("encoder"), "head")
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stack:
    """A stack of layers: its parameters have a leading layer axis, as `nn.init_stack` makes them, or it is a list."""

    name: str


@dataclass(frozen=True)
class Layer:
    """One layer: a part, or several beside each other."""

    names: tuple[str, ...]

    def __init__(self, *names: str):
        object.__setattr__(self, "names", names)


@dataclass(frozen=True)
class Part:
    """A part that says its own order; of several, which lie beside each other, the last layers are level."""

    names: tuple[str, ...]

    def __init__(self, *names: str):
        object.__setattr__(self, "names", names)


Order = tuple[str | Stack | Layer | Part, ...]
"""From the bottom up."""
