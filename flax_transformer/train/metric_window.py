"""Metrics between two reports, and the one thing that must be seen in them: a loss that is no number."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from flax_transformer.train.state import TrainState
from flax_transformer.train.time_budget import SPEED

WATCHED = ("loss", "gradient_norm")
"""Metrics of a step that must be finite."""


class NotFinite(RuntimeError):
    """The loss or the gradient stopped being a number."""


def skip_not_finite(
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict]],
) -> Callable[[TrainState, Any], tuple[TrainState, dict]]:
    """Drop the update of a batch whose loss or gradient is not finite; the metric `skipped` says so.

    The step counts all the same, so that data and randomness go on as they would.
    """

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict]:
        new, metrics = train_step(state, batch)
        good = jnp.all(jnp.stack([jnp.isfinite(metrics[name]) for name in WATCHED]))

        def keep(new, old):
            return jax.tree.map(lambda n, o: jnp.where(good, n, o), new, old)

        kept = {
            name: keep(getattr(new, name), getattr(state, name)) for name in ("model", "opt_state", "ema", "carried")
        }
        return replace(new, **kept), {**metrics, "skipped": ~good}

    return step


class MetricWindow:
    """Metrics since the last report, on the device until they are needed.

    Args:
      limit: batches that may be skipped in a run.
      skipped: how many of them were before.
      unit: what is counted, for its name and that of the speed.

    Attributes:
      counted: how much of it there was in the window that was taken last.
    """

    def __init__(self, limit: int = 0, skipped: int = 0, unit: str = "items"):
        self._pending: list[tuple[int, dict]] = []
        self._began = time.monotonic()
        self._limit, self.skipped, self._unit, self.counted = limit, skipped, unit, {}

    def add(self, step: int, metrics: dict) -> None:
        """Take the metrics of a step."""
        self._pending.append((step, metrics))
        if len(self._pending) > 1:  # let the host run one step ahead of the device, and no more
            jax.block_until_ready(self._pending[-2][1])

    def take(self) -> dict[str, float]:
        """Average over the window, weighted by count; what was skipped is left out.

        Raises:
          NotFinite: at the first step that is not finite and may not be skipped.
        """
        pending, self._pending = jax.device_get(self._pending), []
        good = [metrics for step, metrics in pending if self._is_good(step, metrics)]
        seconds, self._began = time.monotonic() - self._began, time.monotonic()
        self.counted = {}
        if not good:
            return {}
        count = sum(float(metrics["count"]) for metrics in good)
        self.counted = {self._unit: count}
        names = [name for name in good[-1] if name not in ("count", "gradient_norm", "skipped")]
        means = {n: sum(float(m[n]) * float(m["count"]) for m in good) / max(count, 1) for n in names}
        norm = sum(float(metrics["gradient_norm"]) for metrics in good) / len(good)
        skipped = {"skipped": float(self.skipped)} if self.skipped else {}
        return {**means, "gradient_norm": norm, f"{self._unit}{SPEED}": count / seconds, **skipped}

    def _is_good(self, step: int, metrics: dict) -> bool:
        bad = [name for name in WATCHED if not math.isfinite(metrics[name])]
        if not bad:
            return True
        if self.skipped >= self._limit:
            before = f", after {self.skipped} skipped batches" if self.skipped else ""
            raise NotFinite(f"{' and '.join(bad)} stopped being finite at step {step}{before}")
        self.skipped += 1
        return False

    def restart_clock(self) -> None:
        """Leave out of the speed what was not training."""
        self._began = time.monotonic()


@jax.jit
def all_finite(tree: Any) -> jax.Array:
    """Return whether every number of a tree is finite."""
    real = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in real]))
