"""What it costs to survive: training steps alone, and with watchdog, preemption polling, metrics and checkpoints.

    python benchmarks/overhead.py [--rounds 80] [--json benchmarks/results/overhead-cpu.json]

The 2017 Transformer of width 128, 2 + 2 layers, 16 × 32 tokens a side, V = 8,000, Adam with a moving average,
float32. Turns of 30 steps are taken by: `plain`, the compiled step in a loop; `watched`, the training loop with
watchdog, preemption polling (by JAX's service) and metrics (JSON lines and TensorBoard) every 10 steps; `saved`, the
same with an asynchronous checkpoint in the middle of the turn. What a save costs beyond `watched` is spread over the
500 steps that lie between two of them by default. The goal: at most 2 % of a step in all.

Single steps vary by half on a machine that is shared. So every step of a turn is timed by itself; its median over all
rounds is taken, which keeps what happens at certain steps only, and these are summed. The interval is that of 2,000
resamplings of the rounds (bootstrap, 95 %). Beside the clock the processor's time is read, of all threads. What the
loop costs beside saving does not depend on the model, so it is also measured where it can be seen best: over 2,000
steps of a model of 12 numbers.
"""

import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from results import arguments, turns, write

from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_fields
from flax_transformer.objective import OBJECTIVES
from flax_transformer.parallel import multihost
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.loop import Evaluation, Reporting, TrainConfig, fit
from flax_transformer.train.metrics import JsonLines, TensorBoard, Writers
from flax_transformer.train.state import TrainState, init_state, parameter_count
from flax_transformer.train.step import jit_train_step, make_train_step

STEPS = 30
BAR = 0.02
RESAMPLINGS = 2_000


def now() -> np.ndarray:
    """Read the clock and the processor's time, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


class Same(Iterator):
    """The same batch again and again; `asked` is when each was asked for."""

    def __init__(self, batch: dict):
        self._batch, self.asked = batch, []

    def __next__(self) -> dict:
        self.asked.append(now())
        return self._batch

    def get_state(self) -> dict:
        return {}

    def set_state(self, state: dict) -> None:
        pass


def plain(step, state: TrainState, batch: Any, steps: int = STEPS) -> np.ndarray:
    """Take the steps, the host one ahead of the device; give what each took until the last one was begun."""
    batches, before = Same(batch), None
    for _ in repeat(None, steps):
        state, metrics = step(state, next(batches))
        if before is not None:
            jax.block_until_ready(before)
        before = metrics
    jax.block_until_ready(state)
    return np.diff(batches.asked, axis=0)


def looped(step, state: TrainState, batch: Any, checkpoint_every: int, steps: int = STEPS) -> np.ndarray:
    """Take them in the training loop."""
    config = TrainConfig(steps=steps, log_every=10, eval_every=steps, checkpoint_every=checkpoint_every, stall=600)
    batches = Same(batch)
    with (
        tempfile.TemporaryDirectory() as folder,
        Checkpoints(Path(folder) / "checkpoints") as checkpoints,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        writer = Writers([JsonLines(Path(folder) / "metrics.jsonl"), TensorBoard(Path(folder) / "tensorboard")])
        fit(
            state, step, batches, config, checkpoints=checkpoints, reporting=Reporting(writer, lambda at: 0.0),
            evaluation=Evaluation(lambda model, at: {"loss": 0.0}),
        )  # fmt: skip
        writer.close()
    return np.diff(batches.asked, axis=0)


def main() -> None:
    options = arguments(__doc__, rounds=80)
    multihost.start(multihost.Multihost(coordinator="127.0.0.1:12361", processes=1, index=0))  # so that polling is real
    cfg = with_fields(transformer_tiny(8_000, dropout=0.1), depth=2)
    optimizer = optax.adam(1e-4)
    first = init_state(lambda key: Seq2Seq(cfg, rngs=nnx.Rngs(key)), optimizer, jax.random.key(0), ema=True)
    step = jit_train_step(make_train_step(OBJECTIVES[Seq2Seq.use], optimizer, ema=0.99), first)
    batch = Seq2Seq.example_batch(cfg, 16, 32)
    fresh = lambda: jax.block_until_ready(jax.tree.map(jnp.copy, first))  # noqa: E731
    seconds: dict[str, list] = {"plain": [], "watched": [], "saved": []}
    runs = {
        "plain": lambda: plain(step, fresh(), batch),
        "watched": lambda: looped(step, fresh(), batch, STEPS),
        "saved": lambda: looped(step, fresh(), batch, STEPS // 2),
    }
    plain(step, fresh(), batch)
    turns({name: lambda n=name: seconds[n].append(runs[n]()) for name in runs}, options.rounds)
    print(f"{parameter_count(first.model):,} parameters")
    measured = np.array(list(seconds.values()))  # [plain watched saved, rounds, steps, clock and processor]
    result: dict[str, Any] = {"steps": STEPS, "bar": BAR, "rounds": options.rounds}
    for number, kind in enumerate(("clock", "processor")):
        result[kind] = compare(measured[..., number])
        print(f"{kind}: {1000 * result[kind]['step_seconds']:.1f} ms a step alone; of that (bar {100 * BAR:.0f} %)")
        for what, (share, low, high) in result[kind]["shares"].items():
            print(f"  {what:<28}{100 * share:+.2f} %  (95 % interval {100 * low:+.2f} to {100 * high:+.2f})")
    result["host_seconds"] = host_cost(min(options.rounds, 11))
    share = result["host_seconds"] / result["clock"]["step_seconds"]
    print(f"the same, of 12 numbers: {1e6 * result['host_seconds']:.0f} µs a step, {100 * share:.2f} %")
    write(options.json, [result])


def host_cost(rounds: int) -> float:
    """Measure the seconds a step that the loop takes beside the step and saving."""
    steps, optimizer = 2_000, optax.sgd(1e-3)
    state = init_state(lambda key: {"kernel": jax.random.normal(key, (4, 3))}, optimizer, jax.random.key(0))
    objective = lambda model, batch, *, key: (jnp.sum(batch @ model["kernel"]), {"count": jnp.float32(2)})  # noqa: E731
    step, batch = jit_train_step(make_train_step(objective, optimizer), state), np.ones((2, 4), np.float32)
    fresh = lambda: jax.block_until_ready(jax.tree.map(jnp.copy, state))  # noqa: E731
    differences = []
    for _ in range(rounds):
        alone, whole = plain(step, fresh(), batch, steps), looped(step, fresh(), batch, steps, steps)
        differences.append(float((whole - alone)[:, 0].mean()))
    return statistics.median(differences)


def compare(seconds: np.ndarray) -> dict:
    """Say which share of a plain step the rest costs.

    Args:
      seconds: of plain, watched and saved turns, [3, rounds, steps].
    """

    def shares(rounds: np.ndarray) -> np.ndarray:
        plain, watched, saved = np.median(seconds[:, rounds], axis=1).sum(axis=1)
        saving = (saved - watched) / (plain / seconds.shape[2]) / TrainConfig().checkpoint_every
        return np.array([watched / plain - 1, saving, watched / plain - 1 + saving])

    count, random = seconds.shape[1], np.random.default_rng(0)
    again = [shares(random.integers(count, size=count)) for _ in repeat(None, RESAMPLINGS)]
    values = zip(shares(np.arange(count)), *np.percentile(again, (2.5, 97.5), axis=0), strict=True)
    names = ("watchdog, polling, metrics", f"a save every {TrainConfig().checkpoint_every} steps", "together")
    alone = np.median(seconds[0], axis=0)
    return {
        "step_seconds": float(alone.mean()),
        "shares": {name: [float(value) for value in three] for name, three in zip(names, values, strict=True)},
    }


if __name__ == "__main__":
    main()
