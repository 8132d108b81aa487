"""Parts of episodes, laid out as a decision transformer reads them.

Axes: B rows, T steps, S numbers of a state, A kinds of actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Arrays
from flax_transformer.data.identity import digest
from flax_transformer.data.trajectory.episode import Episodes
from flax_transformer.frozen import frozen


@dataclass(frozen=True, eq=False)
class EpisodeWindows(Sequence[Any]):
    """Example i is the T steps from step i on, fewer where the episode ends before."""

    episodes: Episodes
    length: int
    """T."""

    def __len__(self) -> int:
        return len(self.episodes.states)

    @cached_property
    def _of(self) -> Int[np.ndarray, " N"]:
        return np.repeat(np.arange(len(self.episodes)), self.episodes.ends - self.episodes.starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        found, episode = self.episodes, self._of[index]
        steps = slice(index, min(index + self.length, found.ends[episode]))
        times = np.arange(steps.start, steps.stop) - found.starts[episode]
        return {
            "states": found.states[steps], "actions": found.actions[steps], "returns": found.to_go[steps],
            "times": times,
        }  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """Name which parts they are."""
        return digest(self.episodes.fingerprint, str(self.length))


@frozen
class StepRows:
    """Lay out parts of episodes: `states`, one-hot `actions`, `returns` and `times` are inputs, the actions' kinds are
    labels; what is after the end has weight 0.
    """

    length: int
    kinds: int
    """A."""
    mean: tuple[float, ...]
    """What is taken from states."""
    std: tuple[float, ...]
    """What the rest is divided by."""
    scale: float = 1.0
    """What returns are divided by."""
    condition: bool = True
    """Whether returns are told; else they are 0, and actions are copied from whoever took them."""

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        B, T, S = len(examples), self.length, len(self.mean)
        states, returns = np.zeros((B, T, S), np.float32), np.zeros((B, T, 1), np.float32)
        labels, times = np.zeros((B, T), np.int32), np.zeros((B, T), np.int32)
        weights = np.zeros((B, T), np.float32)
        for row, each in enumerate(examples):
            if each is not None:
                n = len(each["actions"])
                states[row, :n] = (each["states"] - np.array(self.mean)) / np.array(self.std)
                labels[row, :n], times[row, :n], weights[row, :n] = each["actions"], each["times"], 1
                if self.condition:
                    returns[row, :n, 0] = each["returns"] / self.scale
        actions = np.eye(self.kinds, dtype=np.float32)[labels] * weights[..., None]
        inputs = {"states": states, "actions": actions, "returns": returns, "times": times}
        return {"inputs": inputs, "labels": labels, "weights": weights}
