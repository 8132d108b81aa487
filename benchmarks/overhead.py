"""What it costs to survive: training steps alone, and with watchdog, preemption polling, metrics and checkpoints.

    python benchmarks/overhead.py [--rounds 9] [--json benchmarks/results/overhead-cpu.json]

The 2017 Transformer of width 128, 2 + 2 layers, 16 × 32 tokens a side, V = 8,000, Adam with a moving average,
float32. Turns of 60 steps are taken by: `plain`, the compiled step in a loop; `watched`, the training loop with
watchdog, preemption polling (by JAX's service) and metrics (JSON lines and TensorBoard) every 10 steps; `saved`, the
same with two asynchronous checkpoints within the turn. What a save costs beyond `watched` is spread over the 500 steps
that lie between two of them by default. The goal: at most 2 % of a step in all. Beside the clock the processor's time
is read, of all threads. What the loop costs beside saving does not depend on the model, so it is also measured where
it can be seen best: over 2,000 steps of a model of 12 numbers.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from results import arguments, turns, write

from flax_transformer.bench.family import FAMILIES
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.models.transformer import transformer_tiny
from flax_transformer.parallel import multihost
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.loop import TrainConfig, fit
from flax_transformer.train.metrics import JsonLines, TensorBoard, Writers
from flax_transformer.train.state import TrainState, init_state, parameter_count
from flax_transformer.train.step import jit_train_step, make_train_step

STEPS, SAVES = 60, 2
BAR = 0.02
FAMILY = FAMILIES[Seq2SeqConfig]


def now() -> np.ndarray:
    """Read the clock and the processor's time, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


class Same(Iterator):
    """The same batch again and again; `taken` is the time from the first request to the last."""

    def __init__(self, batch: dict):
        self._batch, self._began, self.taken = batch, None, None

    def __next__(self) -> dict:
        self._began = now() if self._began is None else self._began
        self.taken = now() - self._began
        return self._batch

    def get_state(self) -> dict:
        return {}

    def set_state(self, state: dict) -> None:
        pass


def plain(step, state: TrainState, batch: Any, steps: int = STEPS) -> np.ndarray:
    """Take the steps, the host one ahead of the device; give the time until the last one is begun."""
    began, before = now(), None
    for _ in repeat(None, steps - 1):
        state, metrics = step(state, batch)
        if before is not None:
            jax.block_until_ready(before)
        before = metrics
    taken = now() - began
    jax.block_until_ready(step(state, batch))
    return taken


def looped(step, state: TrainState, batch: Any, checkpoint_every: int, steps: int = STEPS) -> np.ndarray:
    """Take them in the training loop."""
    config = TrainConfig(steps=steps, log_every=10, eval_every=steps, checkpoint_every=checkpoint_every, stall=600)
    batches = Same(batch)
    with tempfile.TemporaryDirectory() as folder, Checkpoints(Path(folder) / "checkpoints") as checkpoints:
        writer = Writers([JsonLines(Path(folder) / "metrics.jsonl"), TensorBoard(Path(folder) / "tensorboard")])
        fit(
            state, step, batches, config, checkpoints=checkpoints, writer=writer,
            evaluate=lambda model, at: {"loss": 0.0}, schedule=lambda at: 0.0,
        )  # fmt: skip
        writer.close()
    return batches.taken


def main() -> None:
    options = arguments(__doc__, rounds=9)
    multihost.start(multihost.Multihost(coordinator="127.0.0.1:12361", processes=1, index=0))  # so that polling is real
    cfg = replace(transformer_tiny(8_000, dropout=0.1), encoder_depth=2, decoder_depth=2)
    optimizer = optax.adam(1e-4)
    first = init_state(lambda key: Seq2Seq(cfg, rngs=nnx.Rngs(key)), optimizer, jax.random.key(0), ema=True)
    step = jit_train_step(make_train_step(FAMILY.objective, optimizer, ema=0.99), first)
    batch = FAMILY.batch(cfg, 16, 32)
    fresh = lambda: jax.block_until_ready(jax.tree.map(jnp.copy, first))  # noqa: E731
    seconds: dict[str, list] = {"plain": [], "watched": [], "saved": []}
    runs = {
        "plain": lambda: plain(step, fresh(), batch),
        "watched": lambda: looped(step, fresh(), batch, STEPS),
        "saved": lambda: looped(step, fresh(), batch, STEPS // (SAVES + 1) + 1),
    }
    plain(step, fresh(), batch)
    turns({name: lambda n=name: seconds[n].append(runs[n]() / (STEPS - 1)) for name in runs}, options.rounds)
    print(f"{parameter_count(first.model):,} parameters")
    result = {"steps": STEPS, "saves": SAVES, "bar": BAR}
    for number, kind in enumerate(("clock", "processor")):
        result[kind] = compare({name: [float(pair[number]) for pair in pairs] for name, pairs in seconds.items()})
        watching, saving = result[kind]["watching"], result[kind]["saving"]
        print(
            f"{kind}: {1000 * statistics.median(result[kind]['step_seconds']['plain']):.1f} ms a step alone; watchdog, "
            f"polling and metrics {100 * watching:+.2f} %, a save every {TrainConfig().checkpoint_every} steps "
            f"{100 * saving:+.2f} %, together {100 * (watching + saving):+.2f} % (bar {100 * BAR:.0f} %)"
        )
    result["host_seconds"] = host_cost(options.rounds)
    share = result["host_seconds"] / statistics.median(result["clock"]["step_seconds"]["plain"])
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
        alone = plain(step, fresh(), batch, steps)[0]
        differences.append((looped(step, fresh(), batch, steps, steps)[0] - alone) / (steps - 1))
    return statistics.median(differences)


def compare(seconds: dict[str, list[float]]) -> dict:
    """Say which share of a plain step the rest costs, by medians of what was measured in one round."""
    rounds = list(zip(*seconds.values(), strict=True))
    alone = statistics.median(seconds["plain"])
    save = statistics.median((saved - watched) * (STEPS - 1) / SAVES for _, watched, saved in rounds)
    return {
        "step_seconds": seconds,
        "watching": statistics.median(watched / plain - 1 for plain, watched, _ in rounds),
        "saving": save / TrainConfig().checkpoint_every / alone,
    }


if __name__ == "__main__":
    main()
