"""Meshes with Explicit axes, JAX's default, give what those with Auto axes give, at the same price."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fake_devices import on_eight

pytestmark = pytest.mark.proves("parallelism", "Explicit axes")

CASES = (
    "block", "lookup", "loss",
    "block, with a mask", "feed-forward", "attention layer", "stack", "gradient of a stack", "xla", "blockwise",
    "products", "decoder", "decoding", "encoder-decoder", "classifier",
)  # fmt: skip


@cache
def run(*names):
    return on_eight(Path(__file__).parent / "explicit_axes.py", *names)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_results_layouts_and_costs_are_those_of_auto_axes(name):
    """Compiled and, as the script itself demands, called as it is. What has rows in front stays split by rows."""
    found = run(*CASES)[name]
    assert found["apart"] < 1e-4
    assert found["flops"] == pytest.approx(1, rel=1e-3)
    if name == "gradient of a stack":
        assert any("'fsdp', 'tensor'" in place for place in found["split"])
    elif name != "loss":
        assert all("('data', 'fsdp')" in place for place in found["split"])
    # Of logits, whose vocabulary is split, the parts are put together.
    assert found["sent"] or name in ("products", "decoder", "decoding", "encoder-decoder")


@pytest.mark.slow
def test_a_run_on_explicit_axes_learns_what_one_device_learns():
    losses = run("train")
    np.testing.assert_allclose(losses["Explicit"], losses["one device"], rtol=1e-5)
    np.testing.assert_allclose(losses["Explicit"], losses["Auto"], rtol=1e-5)
