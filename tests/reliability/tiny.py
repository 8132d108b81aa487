"""A small experiment with dropout, sharded weights and a fault of your choice, for tests that end it in every way.

FAULT is KIND:PROCESS:STEP: what goes wrong, in which process, while it fetches the batch of which step. TERMINATE is
"compiling" or "evaluating": while it does that, the process is sent SIGTERM.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.ops import dropout
from flax_transformer.task.experiment import Experiment, Task, launch, write_samples
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

WIDTH = 8


def at(moment: str) -> None:
    """Say where the run stands, and be told to make way if that is where the test wants it."""
    print(moment, flush=True)
    if os.environ.get("TERMINATE") == moment:
        os.kill(os.getpid(), signal.SIGTERM)


class Rows(Iterator):
    """Whole batches in every process; batch i depends on seed and i alone."""

    def __init__(self, experiment: "Tiny", workdir: Path):
        self._experiment, self._workdir, self.step = experiment, workdir, 0
        kind, process, step = os.environ.get("FAULT", "none:0:0").split(":")
        self._fault, self._at = kind if int(process) == jax.process_index() else "none", int(step)

    def __next__(self) -> dict[str, np.ndarray]:
        self.step += 1
        time.sleep(float(os.environ.get("PACE", 0)))
        random = np.random.default_rng([self._experiment.train.seed, self.step])
        x = random.normal(size=(self._experiment.rows, WIDTH)).astype(np.float32)
        if self.step == self._at:
            self._break(x)
        return {"x": x, "y": np.sin(x)}

    def _break(self, x: np.ndarray) -> None:
        match self._fault:
            case "raise":
                raise RuntimeError("the batch of this process is broken")
            case "hang":
                time.sleep(10_000)
            case "nan":
                x[0, 0] = np.nan
            case "vanish":
                os.rename(self._workdir, f"{self._workdir}-gone")  # at once, whatever is written there meanwhile
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "terminate" | "interrupt":
                os.kill(os.getpid(), signal.SIGTERM if self._fault == "terminate" else signal.SIGINT)

    def get_state(self) -> dict:
        return {"step": self.step, "data": self._experiment.data}

    def set_state(self, state: dict) -> None:
        if state["data"] != self._experiment.data:
            raise ValueError(f"data: saved {state['data']!r}, now {self._experiment.data!r}")
        self.step = state["step"]


def init(key):
    keys = jax.random.split(key)
    return {
        "up": {"kernel": 0.3 * jax.random.normal(keys[0], (WIDTH, 4 * WIDTH)), "bias": jnp.zeros(4 * WIDTH)},
        "down": {"kernel": 0.3 * jax.random.normal(keys[1], (4 * WIDTH, WIDTH))},
    }


def apply(model, x, key=None):
    hidden = jax.nn.gelu(x @ model["up"]["kernel"] + model["up"]["bias"])
    return (hidden if key is None else dropout(hidden, 0.2, key)) @ model["down"]["kernel"]


def loss(model, batch, *, key=None):
    if key is not None:
        at("compiling")
    return jnp.sum((apply(model, batch["x"], key) - batch["y"]) ** 2), {"count": jnp.float32(batch["x"].shape[0])}


@jax.jit
def measure(model, batch):
    return loss(model, batch)[0] / batch["x"].shape[0]


@dataclass(frozen=True, kw_only=True)
class Tiny(Experiment):
    """Learn the sine of eight numbers."""

    rows: int = 16
    data: str = "sine"

    def task(self, folder: RunFolder) -> Task:
        """Make what training needs."""
        if not folder.tokenizer.exists():
            folder.tokenizer.write_text(json.dumps({"written by": jax.process_index()}))
        if os.environ.get("SLOW_START"):
            at("preparing")
            time.sleep(float(os.environ["SLOW_START"]))
        held_out = next(Rows(self, folder.root))

        def finish(model, writer):
            score = float(measure(model, held_out))
            writer.write(self.train.steps, "test", {"loss": score})
            write_samples(folder, [{"y": np.asarray(apply(model, held_out["x"]))[0].tolist()}])
            print(f"test loss {score:.6f}", flush=True)

        def evaluate(model, step):
            at("evaluating")
            return {"loss": float(measure(model, held_out))}

        return Task(init=init, objective=loss, batches=Rows(self, folder.root), evaluate=evaluate, finish=finish)


EXPERIMENT = Tiny(
    optimizer=OptimizerConfig(learning_rate=1e-2, schedule=ScheduleConfig(name="constant")),
    train=TrainConfig(steps=20, log_every=1, eval_every=10, checkpoint_every=5, ema=0.9),
)

if __name__ == "__main__":
    sys.modules["tiny"] = sys.modules["__main__"]
    launch(EXPERIMENT)
