"""`bench variants`: what is measured, what is not run, and the figure."""

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.bench.variants import (
    HeadCounts,
    Limits,
    bench_variants,
    crossing,
    relative_error,
    render_variants,
)
from flax_transformer.bench.variants_figure import save_figure
from flax_transformer.ops import Mask, attention
from flax_transformer.ops.attention.linear import LinearAttention

SIZE = HeadCounts(heads=2, width=8)


@pytest.fixture(scope="module")
def record():
    names = ("xla", "linear", "nystrom")
    heads = jax.random.normal(jax.random.key(0), (3, 2, 40, 2, 8))
    limits = Limits(room=250_000, budget=0.0)
    return bench_variants((32, 64), names=names, size=SIZE, limits=limits, trained=tuple(heads))


@pytest.mark.rotates
def test_errors_memory_and_times_are_told(record):
    found = {(each["name"], each["length"]): each for each in record["results"]}
    assert found["xla", 32]["error"] < 1e-6
    assert found["linear", 32]["error"] > 0
    assert found["linear", 32]["forward_backward"]["time"]["median"] > 0
    assert found["nystrom", 32]["reason"] == "its landmarks must divide the length, got T=32, landmarks=64"
    assert found["nystrom", 64]["error"] < 1e-5  # as many landmarks as positions
    trained = {(each["name"], each["length"]): each for each in record["trained"]}
    assert {length for _, length in trained} == {32, 40}  # no 64: the heads have 40 positions
    assert trained["xla", 32]["error"] < 1e-6 < trained["linear", 40]["error"] != trained["linear", 32]["error"]
    text = render_variants(record)
    assert "not run: nystrom: its landmarks must divide the length" in text
    assert "error on trained heads, by how many of their first positions:" in text
    assert "  nystrom, 40: its landmarks must divide the length" in text


def test_what_does_not_fit_is_compiled_and_not_run():
    heads = tuple(jax.random.normal(jax.random.key(0), (3, 2, 40, 2, 8)))
    limits = Limits(room=1000, budget=0.0)
    record = bench_variants((64,), names=("xla",), size=SIZE, limits=limits, trained=heads)
    (only,), (trained,) = record["results"], record["trained"]
    assert trained["reason"].startswith("it needs ")
    assert "error" not in trained
    assert only["forward"]["temporaries"] > 1000
    assert only["forward"]["reason"].startswith("it needs ")
    assert "time" not in only["forward"]
    assert "error" not in only


def test_a_call_that_would_take_too_long_is_not_made():
    slow = bench_variants((16, 64), names=("xla",), size=SIZE, limits=Limits(patience=1e-9, budget=0.0))["results"]
    assert "time" in slow[0]["forward"]
    assert "would take more than" in slow[1]["forward"]["reason"]


def test_a_variant_crosses_where_it_stays_below():
    rows = [(512, 4, 5), (1024, 16, 10), (2048, 64, 80), (4096, 256, 100)]
    each = lambda length, name, bytes_: {  # noqa: E731
        "length": length, "name": name, "forward_backward": {"temporaries": bytes_}
    }  # fmt: skip
    results = [
        each(length, name, bytes_) for length, *two in rows for name, bytes_ in zip(("xla", "a"), two, strict=True)
    ]
    assert crossing(results, "a") == 4096
    assert crossing(results[:6], "a") is None


def test_the_error_of_a_causal_variant_is_against_the_past():
    q, k, v = jax.random.normal(jax.random.key(1), (3, 1, 300, 2, 4))
    mask = Mask(causal=True)
    assert relative_error(attention, q, k, v, mask) < 1e-6
    whole = jnp.linalg.norm(LinearAttention()(q, k, v, mask) - attention(q, k, v, mask))
    share = whole / jnp.linalg.norm(attention(q, k, v, mask))
    assert abs(relative_error(LinearAttention(), q, k, v, mask) - share) < 0.1 * share


@pytest.mark.rotates
def test_the_figure_is_written(record, tmp_path):
    save_figure(record, tmp_path / "a.svg")
    assert "</svg>" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(size=HeadCounts(heads=0)), "heads must be a positive number, got 0"),
        (dict(names=("lokal",)), "variants are xla, blockwise, local, .*, got lokal"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bench_variants((16,), **options)


def test_the_command_says_what_it_needs(run):
    code, _, err = run("bench", "variants", "--run", "somewhere")
    assert code == 2
    assert "trained heads are those of a --run that reads a --text" in err
