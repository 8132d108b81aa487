"""Parts of episodes, for models that choose actions."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Arrays
from flax_transformer.data.trajectory import EpisodeWindows, StepRows
from flax_transformer.frozen import frozen
from flax_transformer.task.example.opened import Context, Opened, check_rows, stream
from flax_transformer.task.spec import Spec

LONGEST = 4096
"""Steps of an episode at most: more need a table of more times."""


@dataclass(frozen=True, eq=False)
class HeldPlay:
    """What it takes to play: how steps are laid out, and what returns there were."""

    rows: StepRows
    returns: Any
    """[E], of the training episodes."""


@frozen
class TrajectoryParts:
    """Lay out parts of episodes, from any step on; the model is told the return that was still to come."""

    rows: int = 64
    """Parts a batch."""
    length: int = 20
    """T, steps of each at most."""
    scale: float | None = None
    """What returns are divided by; None: the largest of an episode."""
    condition: bool = True
    """Whether returns are told; without, it is behaviour cloning."""

    def __post_init__(self):
        check_rows(self.rows, self.length)
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def open(self, data: Any, context: Context) -> Opened:
        """Open the episodes; held out is `HeldPlay`.

        Args:
          data: has `open()`, which gives `Episodes` of `train` and `validation`.
        """
        found = data.open()
        train = found["train"]
        longest = max(int((each.ends - each.starts).max()) for each in found.values())
        if longest > LONGEST:
            raise ValueError(f"an episode must have at most {LONGEST} steps, got {longest}")
        for split, each in found.items():
            low, high = each.returns.min(), each.returns.max()
            print(
                f"{split}: {len(each):,} episodes, {len(each.states):,} steps, returns {low:g} to {high:g}, "
                f"mean {each.returns.mean():.1f}", flush=True,
            )  # fmt: skip
        kinds = 1 + max(int(each.actions.max()) for each in found.values())
        std = train.states.std(0)
        rows = StepRows(
            length=self.length, kinds=max(kinds, 2), mean=tuple(train.states.mean(0).tolist()),
            std=tuple((std + (std == 0)).tolist()), condition=self.condition,
            scale=float(self.scale or abs(train.returns).max() or 1.0),
        )  # fmt: skip
        once = partial(_once, EpisodeWindows(found["validation"], self.length), rows, context.held_rows(self.rows))
        return Opened(
            spec=Spec(uses=("act",), sizes={"states": train.states.shape[1], "actions": rows.kinds}),
            batches=stream(shuffled(EpisodeWindows(train, self.length), seed=context.seed), rows, self.rows),
            validation=once,
            test=once,
            held=HeldPlay(rows, train.returns),
            fields={"state_mean": list(rows.mean), "state_std": list(rows.std), "return_scale": rows.scale},
        )


def _once(windows: EpisodeWindows, rows: StepRows, count: int) -> Iterable[Arrays]:
    return each_once(windows, rows=count, collate=rows)
