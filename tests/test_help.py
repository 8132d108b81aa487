"""`help` and `inspect` show what is called, not what wraps it."""

import inspect
import pydoc

import pytest
from flax import nnx

import flax_transformer as ft
from flax_transformer.nn import Block, Embedding, EmbeddingConfig
from flax_transformer.nn.module import Module

FUNCTIONS = [
    value
    for room in ("ops", "nn", "decode", "parallel")
    for name, value in vars(getattr(ft, room)).items()
    if callable(value)
    and not inspect.isclass(value)
    and getattr(value, "__module__", "").startswith("flax_transformer")
]
EMBEDDING = Embedding(EmbeddingConfig(vocab=4, embed=8), rngs=nnx.Rngs(0))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_public_function_has_its_own_signature_and_docstring(function):
    shown = pydoc.render_doc(function, renderer=pydoc.plaintext).splitlines()
    written = inspect.unwrap(function)
    assert inspect.isfunction(written)
    assert inspect.signature(function) == inspect.signature(written)
    assert shown[2].startswith(f"{function.__name__}{inspect.signature(written)}"[:80])
    assert shown[3].strip() == inspect.getdoc(written).splitlines()[0]


def test_decorated_methods_show_their_arguments():
    assert list(inspect.signature(Block.__call__).parameters)[:3] == ["self", "x", "memory"]
    assert list(inspect.signature(EMBEDDING).parameters)[:1] == ["tokens"]
    shown = pydoc.render_doc(Block, renderer=pydoc.plaintext)
    assert "__call__(self, x: jaxtyping.Float[" in shown
    assert "mask: what self-attention may see." in shown


def test_a_module_shows_what_it_is_made_from():
    class Scale(Module):
        def __init__(self, width: int, *, rngs: nnx.Rngs):
            self.scale = nnx.Param(rngs.params.normal((width,)))

        def __call__(self, x, *, key=None):
            return x * self.scale

    class Named(Scale):
        """Made as what it inherits from is."""

    for kind in (Scale, Named):
        assert str(inspect.signature(kind)) == "(width: int, *, rngs: flax.nnx.rnglib.Rngs)"
        assert list(inspect.signature(kind(2, rngs=nnx.Rngs(0))).parameters) == ["x", "key"]
