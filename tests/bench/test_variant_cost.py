"""What attention variants cost, counted: FLOPs of the program, memory and turns of loops of the compiled one."""

import re

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.bench import count_flops
from flax_transformer.ops import FixedAttention, LinearAttention, LocalAttention, Mask, StridedAttention, attention

pytestmark = pytest.mark.proves("attention variants", "cost by the length, counted in compiled programs")


def cost(variant, length, backward):
    """FLOPs and bytes of temporaries, of a compiled program, and how often its loops turn."""
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    run = lambda q, k, v: variant(q, k, v, Mask(causal=True))  # noqa: E731
    both = jax.grad(lambda *x: run(*x).sum(), (0, 1, 2)) if backward else run
    compiled = jax.jit(both).lower(x, x, x).compile()
    # The compiler counts a turn of a loop, whatever their number: it writes the number beside.
    turns = sum(int(n) for n in re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', compiled.as_text()))
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    return count_flops(both, x, x, x).model, temporaries, turns, compiled.cost_analysis()["flops"]


GROWTH = [
    ("local", LocalAttention(window=64), 2),
    ("linear", LinearAttention(), 2),
    ("strided", StridedAttention(), 2**1.5),
    ("fixed", FixedAttention(), 2**1.5),
]


@pytest.mark.rotates
@pytest.mark.parametrize("backward", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "variant", "factor"), GROWTH, ids=lambda value: str(value)[:9])
def test_cost_grows_as_told(name, variant, factor, backward):
    """FLOPs of twice the length: 2 times for windows and sums, 2√2 for patterns of √T; memory nowhere by T²."""
    short, long = (cost(variant, length, backward) for length in (4096, 16384))
    assert 0.9 * factor**2 < long[0] / short[0] < 1.15 * factor**2
    assert long[1] < 1.15 * factor**2 * short[1]
    assert long[1] < 16384**2 * 4 / 8  # an eighth of one float32 T × T array
    if name == "local":  # of the compiled program: four times the turns, each as costly as before
        assert long[2] <= 4.2 * short[2]
        assert long[3] < 1.1 * short[3]


def test_the_measure_sees_quadratic_cost():
    short, long = (cost(lambda q, k, v, mask: attention(q, k, v, mask), length, False) for length in (4096, 16384))
    assert long[0] > 15 * short[0]
