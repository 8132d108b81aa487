"""Derivatives of every kind: forward, backward, of each other, whichever kernel or loss is chosen."""

import re
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Mask, attention, chunked_cross_entropy, cross_entropy
from flax_transformer.ops.attention import blockwise
from flax_transformer.ops.linear_map import linear_map
from tests.shares import share

pytestmark = pytest.mark.proves("attention", "derivatives of every kind and order")

KEYS = jax.random.split(jax.random.key(0), 9)
LABELS = jnp.arange(15).reshape(3, 5) % 7


def scores(backend):
    def scalar(q, k, v, bias):
        mask = Mask(causal=True, lengths=jnp.array([3, 11]))
        return jnp.sum(attention(q, k, v, mask, bias, backend=backend) ** 3)

    return scalar


def loss(run):
    options = {"label_smoothing": 0.1, "z_loss": 0.1}
    if run == "whole":
        return lambda h, e, b, w: cross_entropy(h @ e.T + b, LABELS, w, **options)[0]
    return lambda h, e, b, w: chunked_cross_entropy(h, e, LABELS, w, bias=b, chunk=4, **options)[0]


def normal(*shapes):
    return tuple(jax.random.normal(key, shape) for key, shape in zip(KEYS, shapes, strict=False))


CASES = {
    "attention": (scores("xla"), scores("blockwise"), normal((2, 10, 4, 4), (2, 11, 2, 4), (2, 11, 2, 4), (4, 1, 11))),
    "loss": (loss("whole"), loss("chunked"), normal((3, 5, 4), (7, 4), (7,), (3, 5))),
}

every = (0, 1, 2, 3)
DERIVATIVES = {
    "backward": lambda f, xs: jax.grad(f, every)(*xs),
    "forward": lambda f, xs: jax.jvp(f, xs, tuple(x**2 for x in xs)),
    "forward of one": lambda f, xs: jax.jvp(lambda x: f(x, *xs[1:]), xs[:1], xs[:1]),
    "forward of the last": lambda f, xs: jax.jvp(lambda x: f(*xs[:-1], x), xs[-1:], xs[-1:]),
    "linearized": lambda f, xs: jax.linearize(f, *xs)[1](*xs),
    "forward over backward": lambda f, xs: jax.jvp(jax.grad(f, every), xs, tuple(x**2 for x in xs)),
    "backward over forward": lambda f, xs: jax.grad(lambda *xs: jax.jvp(f, xs, xs)[1], every)(*xs),
    "backward over backward": lambda f, xs: jax.grad(lambda *xs: jnp.sum(jax.grad(f)(*xs) ** 2), every)(*xs),
    "hessian": lambda f, xs: jax.hessian(lambda s: f(*(s * x for s, x in zip(s, xs, strict=True))))(jnp.ones(4)),
    "of many": lambda f, xs: jax.vmap(jax.grad(f), (0, None, None, None))(jnp.stack([xs[0], 2 * xs[0]]), *xs[1:]),
    "many, forward": lambda f, xs: jax.jvp(jax.vmap(lambda x: f(*xs[:-1], x)), *2 * ((jnp.stack([xs[-1]] * 2),),)),
    "remat": lambda f, xs: jax.grad(jax.checkpoint(f), every)(*xs),
    "in a loop": lambda f, xs: jax.jvp(
        lambda x: jax.lax.scan(lambda x, _: (x + f(x, *xs[1:]) / 1000, None), x, None, length=2)[0], xs[:1], xs[:1]
    ),
}


@pytest.mark.rotates
@pytest.mark.parametrize(("case", "derivative"), share(product(CASES, DERIVATIVES), 1, of=6))
def test_every_derivative_is_that_of_the_plain_formula(case, derivative, monkeypatch):
    monkeypatch.setattr(blockwise, "_BLOCK", 4)
    *functions, xs = CASES[case]
    plain, ours = (jax.jit(lambda xs, f=f: DERIVATIVES[derivative](f, xs))(xs) for f in functions)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5 * float(jnp.abs(a).max()))


@pytest.mark.parametrize("T", [2047, 2048])
def test_forward_mode_does_not_end_where_auto_changes_the_kernel(T):
    q = jax.ShapeDtypeStruct((1, T, 1, 8), jnp.float32)
    moved = jax.eval_shape(lambda q: jax.jvp(lambda q: attention(q, q, q), (q,), (q,))[1], q)
    assert moved.shape == q.shape


@pytest.mark.parametrize("derivative", ["forward", "backward"])
@pytest.mark.parametrize("case", CASES)
def test_short_floats_are_multiplied_by_short_floats(case, derivative):
    *_, ours, xs = CASES[case]
    xs = tuple(x.astype(jnp.bfloat16) for x in xs[:3]) + xs[3:]
    program = jax.jit(lambda xs: DERIVATIVES[derivative](ours, xs)).lower(xs).as_text()
    kinds = re.findall(r"dot_general .* : \(tensor<[\dx]+x(\w+)>, tensor<[\dx]+x(\w+)>\)", program)
    assert len(kinds) > 2
    assert set(kinds) == {("bf16", "bf16")}


@pytest.mark.rotates
def test_a_linear_map_leaves_out_what_is_none_and_knows_its_transpose():
    double = lambda factor, xs: [factor * x for x in xs if x is not None]  # noqa: E731
    back = lambda factor, ys: (3 * factor * ys[0], ys[-1])  # noqa: E731
    f = lambda x: linear_map(double, back, jnp.float32(2), (x, None))[0]  # noqa: E731
    x = jnp.array([1.0, 4.0])
    pull = jax.vjp(f, x)[1]
    assert f(x).tolist() == [2, 8]
    assert pull(x)[0].tolist() == [6, 24]  # what was given for the transpose, be it right or wrong
    assert jax.vmap(lambda x: jax.vjp(f, x)[1](x)[0])(jnp.stack([x, x])).tolist() == [[6, 24]] * 2
