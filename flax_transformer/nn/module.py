"""What every module of this library is: Flax's, with a signature that `help`, `inspect` and editors can read."""

import inspect

from flax import nnx


class _Signature:
    """The signature of a class's `__init__`; Flax's metaclass alone would show `*args, **kwargs`."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # calling a module is another thing than making one
        made = inspect.signature(owner.__init__)
        return made.replace(parameters=list(made.parameters.values())[1:], return_annotation=inspect.Signature.empty)


class Module(nnx.Module):
    """A pytree whose call is a pure function: see `flax.nnx.Module`.

    >>> class Scale(Module):
    ...     def __init__(self, width: int, *, rngs: nnx.Rngs):
    ...         self.scale = nnx.Param(rngs.normal((width,)))
    >>> inspect.signature(Scale)
    <Signature (width: int, *, rngs: flax.nnx.rnglib.Rngs)>
    """

    __signature__ = _Signature()
