"""Experiments that carry state or bring their own step, for tests of the runner and the commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from flax_transformer.parallel import MeshConfig
from flax_transformer.task.experiment import Experiment, Task, launch
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

try:
    import carriers
except ModuleNotFoundError:  # a process of its own, started with the file alone
    import sys

    sys.path.append(str(Path(__file__).parent.parent / "train"))
    import carriers


class ImageSplit:
    """The batches of `carriers.images`, with a position."""

    def __init__(self):
        self.step, self._batches = 0, carriers.images()

    def __iter__(self):
        return self

    def __next__(self):
        self.step += 1
        return next(self._batches)

    def get_state(self):
        return {"step": self.step}

    def set_state(self, state):
        while self.step < state["step"]:
            next(self)


@dataclass(frozen=True, kw_only=True)
class Carried(Experiment):
    """One of `carriers.KINDS`, which writes what it ends with to model.npz."""

    kind: Literal["statistics", "teacher", "queue", "game"] = "statistics"

    def task(self, folder):
        init, method = carriers.KINDS[self.kind]
        game = self.kind == "game"
        held_out = next(ImageSplit())

        def evaluate(model, step):
            if self.kind != "statistics":
                return {"loss": 1.0}
            loss, metrics = carriers.classified(model(held_out["image"]), held_out)
            return {"loss": float(loss) / 16, "accuracy": float(metrics["accuracy"]) / 16}

        def finish(model, writer):
            named = jax.tree_util.tree_leaves_with_path(model)
            np.savez(folder.root / "model.npz", **{carriers.path_name(path): leaf for path, leaf in named})

        return Task(
            init=init,
            objective=None if game else method,
            step=method if game else None,
            batches=ImageSplit(),
            evaluate=evaluate,
            finish=finish,
        )


EXPERIMENT = Carried(
    optimizer=OptimizerConfig(learning_rate=3e-3, schedule=ScheduleConfig(name="constant")),
    train=TrainConfig(steps=6, log_every=3, eval_every=3, checkpoint_every=3),
    mesh=MeshConfig(),
)

if __name__ == "__main__":
    launch(EXPERIMENT)
