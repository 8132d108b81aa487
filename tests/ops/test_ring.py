"""Ring attention equals attention on one device; with eight devices, in a process of its own."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight

from flax_transformer.ops import explain_attention
from flax_transformer.ops.attention.ring_block import RingSpec, reaches, spot_of
from flax_transformer.ops.attention.zigzag import from_zigzag, pieces, to_zigzag

pytestmark = [pytest.mark.proves("attention", "ring over a split sequence"), pytest.mark.rotates]

HERE = Path(__file__).parent
FEW = ("causal", "all")
CASES = (
    "nothing", "causal", "window", "causal window, bias", "lengths, bias that every query shares", "segments",
    "dense, bias that heads share", "offset", "other keys", "all",
)  # fmt: skip
MESHES = ("2", "4", "8", "2 × 2 × 2")


def run(*arguments) -> dict:
    return on_eight(HERE / "ring_devices.py", *arguments)[0]


@pytest.fixture(scope="module")
def devices() -> dict:
    return run()


@pytest.fixture(scope="module")
def every() -> dict:
    """What takes long to compile."""
    return run("every")


@pytest.mark.parametrize("case", FEW)
def test_output_and_gradients_equal_one_device(devices, case):
    assert devices["devices"] == 8
    (error,) = devices["errors"][case].values()
    assert error <= 1e-5


def test_keys_and_values_go_round_and_are_never_gathered(devices):
    assert set(devices["collectives"]["2"]) == {"collective-permute"}


@pytest.mark.slow
def test_output_and_gradients_equal_one_device_on_every_mesh(every):
    errors = every["errors"]
    assert set(errors) == set(CASES)
    assert all(set(found) == set(MESHES) and max(found.values()) <= 1e-5 for found in errors.values())


@pytest.mark.slow
def test_gradients_of_a_scanned_rematerialised_stack_with_dropout_equal_one_device(every):
    assert every["stack"] <= 1e-5
    assert every["stack collectives"]["collective-permute"] > 0


@pytest.mark.slow
def test_memory_is_flat_as_devices_and_length_double(every):
    memory = every["memory"]
    assert list(memory) == ["2", "8"]
    assert max(memory.values()) <= 1.1 * min(memory.values())


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["2", "8", "2 × 2 × 2"])
def test_keys_and_values_go_round_on_every_mesh(every, mesh):
    assert set(every["collectives"][mesh]) == {"collective-permute"}


def test_reasons_not_to_serve(devices):
    reasons = devices["reasons"]
    assert "must be multiples of 2 × sequence = 4, got T=15" in reasons["odd"]
    assert "must be multiples of 2 × sequence = 4, got T=1" in reasons["one query"]
    assert "needs a threefry key" in reasons["rbg"]
    assert "T=2084 makes pieces of 521, with no divisor from 8 to 32" in reasons["prime"]
    q = jax.ShapeDtypeStruct((2, 16, 4, 32), "float32")
    assert "ring       cannot: no mesh with an axis 'sequence'" in explain_attention(q, q, q)


def test_eager_calls_work(devices):
    assert devices["eager"] <= 1e-5


def work(ranks, *, zigzag, causal=True, window=None):
    """Count the pairs of pieces that each rank scores at each hop of the ring."""
    size = dict(ranks=ranks, query_piece=8, key_piece=8, rows=8, columns=8)
    kind = dict(scale=1.0, window=window, rate=0.0, drawn=())
    layout, mask = RingSpec(causal=zigzag, **size, **kind), RingSpec(causal=causal, **size, **kind)
    limits = jnp.array([16 * ranks, 0, 0])

    def scored(rank, hop, i, j):
        return reaches(mask, limits, spot_of(layout, rank, (rank - hop) % ranks, i, j))

    every = np.ix_(range(ranks), range(ranks), range(2), range(2))
    return np.array(jax.jit(jnp.vectorize(scored))(*every)).sum((2, 3))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_causal_work_is_the_same_on_every_rank_at_every_hop(ranks):
    expected = np.full((ranks, ranks), 2)
    expected[:, 0] = 3
    np.testing.assert_array_equal(work(ranks, zigzag=True), expected)
    plain = work(ranks, zigzag=False).sum(1)
    assert plain.sum() == expected.sum()
    assert plain.max() - plain.min() == 4 * (ranks - 1)


def test_a_window_skips_what_is_far():
    assert work(8, zigzag=False, causal=False, window=(8, 8)).sum() == 3 * 16 - 2
    assert work(8, zigzag=True, causal=True, window=(8, 0)).sum() == 2 * 16 - 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_zigzag_deals_an_early_and_a_late_piece_and_back(ranks):
    x = jnp.arange(ranks * 2 * 3).reshape(ranks, 6)
    there = jax.jit(jax.vmap(partial(to_zigzag, axis=0, ranks=ranks), axis_name="sequence"))(x)
    expected = [pieces(rank, ranks, True)[:, None] * 3 + jnp.arange(3) for rank in range(ranks)]
    np.testing.assert_array_equal(there, jnp.stack(expected).reshape(ranks, 6))
    back = jax.jit(jax.vmap(partial(from_zigzag, axis=0, ranks=ranks), axis_name="sequence"))(there)
    np.testing.assert_array_equal(back, x)
