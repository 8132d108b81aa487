"""Episodes: the state, action and reward of each step, one episode after another; and parts of them, as a decision
transformer reads them.

Axes: N steps of all episodes, B rows, T steps, S numbers of a state, A kinds of actions, or numbers of one.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from flax_transformer.data.examples import Arrays
from flax_transformer.data.file import load_arrays
from flax_transformer.data.identity import digest
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed

NAMES = {
    "states": ("states", "obs", "observations"), "actions": ("actions",), "rewards": ("rewards",),
    "starts": ("episode_starts",), "ends": ("terminals", "dones", "ends"),
}  # fmt: skip
"""What files may call each array."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """Steps end to end, each episode's after another's."""

    states: Float[np.ndarray, "N S"]
    actions: Int[np.ndarray, " N"] | Float[np.ndarray, "N A"]
    """Kinds of actions, or numbers."""
    rewards: Float[np.ndarray, " N"]
    starts: Int[np.ndarray, " E"]
    """The first step of each episode."""

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def ends(self) -> Int[np.ndarray, " E"]:
        """The step after the last of each."""
        return np.append(self.starts[1:], len(self.states))

    @cached_property
    def returns(self) -> Float[np.ndarray, " E"]:
        """The sum of the rewards of each."""
        return np.add.reduceat(self.rewards, self.starts)

    @cached_property
    def to_go(self) -> Float[np.ndarray, " N"]:
        """The sum of the rewards from each step on."""
        sums = np.cumsum(self.rewards[::-1])[::-1]
        after = np.append(sums, 0.0)[self.ends]
        return sums - np.repeat(after, self.ends - self.starts)

    @property
    def fingerprint(self) -> str:
        """Name which episodes they are."""
        return digest(self.states, self.actions, self.rewards, self.starts)

    def take(self, indices: Int[np.ndarray, "_"]) -> "Episodes":
        """Pick some."""
        parts = [np.arange(self.starts[i], self.ends[i]) for i in indices]
        steps, lengths = np.concatenate(parts), [len(part) for part in parts]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        return Episodes(self.states[steps], self.actions[steps], self.rewards[steps], starts)


@frozen
class EpisodeData:
    """Episodes of a file of arrays (.npz): `obs` or `states` [N, S], `actions` [N] of kinds or [N, A] of numbers,
    `rewards` [N], and `episode_starts` or `terminals` [N].
    """

    root: str
    """The file, or a folder with one."""
    holdout: float = 0.1
    """Share of the episodes for validation."""
    split_seed: int = 0
    """Which ones."""

    def open(self) -> dict[str, Episodes]:
        """Return `train` and `validation`; errors as `read_episodes`."""
        return split_episodes(self.found(), self.holdout, self.split_seed)

    def found(self) -> Episodes:
        """Return all that there are."""
        return read_episodes(self.root)


def split_episodes(episodes: Episodes, share: float, seed: int) -> dict[str, Episodes]:
    """Hold out a share of the episodes.

    Raises:
      ValueError: too few episodes, or a share that leaves none to train on.
    """
    if not 0 < share < 1 or len(episodes) < 2:
        raise ValueError(f"holdout must be in (0, 1) of at least 2 episodes, got {share} of {len(episodes)}")
    order = np.random.default_rng(seed).permutation(len(episodes))
    held = min(max(1, round(share * len(order))), len(order) - 1)
    parts = {"train": order[held:], "validation": order[:held]}
    return {split: episodes.take(np.sort(part)) for split, part in parts.items()}


def read_episodes(root: str | os.PathLike) -> Episodes:
    """Read episodes from a file, or from the one of a folder; nothing in it is run.

    Raises:
      FileNotFoundError: no such file.
      ValueError: arrays that are missing, of other shapes, or no numbers; names the file.
    """
    path = Path(root).expanduser()
    found = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if len(found) != 1:
        raise ValueError(f"{path} must have one file of episodes (.npz), got {len(found)}")
    if not found[0].is_file():
        raise FileNotFoundError(f"{path} must be a file of episodes (.npz), there is none")
    arrays = load_arrays(found[0])
    try:
        return _episodes(arrays)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{found[0]}: {error}") from error


def _episodes(arrays: Mapping[str, np.ndarray]) -> Episodes:
    states, actions, rewards = (_find(arrays, name) for name in ("states", "actions", "rewards"))
    N = len(states)
    rewards = rewards[:, 0] if rewards.shape == (N, 1) else rewards
    actions, wanted = _actions(actions, N)
    if states.ndim != 2 or len(actions) != N or actions.ndim != wanted or rewards.shape != (N,) or not N:
        raise ValueError(
            "states must be [N, S], actions [N] of kinds or [N, A] of numbers, rewards [N], got "
            f"{states.shape}, {actions.shape} and {rewards.shape}"
        )
    if not all(x.dtype.kind in "biuf" and np.isfinite(x).all() for x in (states, actions, rewards)):
        raise ValueError("states, actions and rewards must be finite numbers")
    starts = np.flatnonzero(_begins(arrays, N))
    return Episodes(states.astype(np.float32), actions, rewards.astype(np.float64), starts)


def _actions(actions: np.ndarray, count: int) -> tuple[np.ndarray, int]:
    """Return actions as they are kept, and how many axes they must have."""
    if np.issubdtype(actions.dtype, np.floating):
        return actions.reshape(count, -1 if actions.ndim < 2 else actions.shape[-1]).astype(np.float32), 2
    if not np.issubdtype(actions.dtype, np.integer) or (actions.size and actions.min() < 0):
        raise ValueError(f"actions must be floats, or numbers of their kinds, from 0 on, got {actions.dtype}")
    return (actions[:, 0] if actions.shape == (count, 1) else actions).astype(np.int32), 1


def _begins(arrays: Mapping[str, np.ndarray], count: int) -> Bool[np.ndarray, " N"]:
    """Return at which steps an episode begins."""
    if any(name in arrays for name in NAMES["starts"]):
        begins = _find(arrays, "starts").astype(bool).reshape(-1)
    else:
        ends = _find(arrays, "ends").astype(bool).reshape(-1)
        begins = np.append(True, ends[:-1])
    if begins.shape != (count,) or not begins[0]:
        raise ValueError(f"episodes must begin with the first of {count} steps, got {begins.shape} marks of where")
    return begins


def _find(arrays: Mapping[str, np.ndarray], what: str) -> np.ndarray:
    found = [name for name in NAMES[what] if name in arrays]
    if not found:
        raise ValueError(f"it must have {' or '.join(NAMES[what])}, it has {listed(arrays) if arrays else 'nothing'}")
    return arrays[found[0]]


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
    labels; what is after the end has weight 0. Actions that are numbers are inputs and labels divided by their scale.
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
    action_scale: tuple[float, ...] = ()
    """What each number of an action is divided by, to be between -1 and 1; (): actions are kinds."""

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        B, T, S = len(examples), self.length, len(self.mean)
        states, returns = np.zeros((B, T, S), np.float32), np.zeros((B, T, 1), np.float32)
        labels, times = self.no_actions(B), np.zeros((B, T), np.int32)
        weights = np.zeros((B, T), np.float32)
        for row, each in enumerate(examples):
            if each is not None:
                n = len(each["actions"])
                states[row, :n] = (each["states"] - np.array(self.mean)) / np.array(self.std)
                labels[row, :n] = (
                    each["actions"] / np.array(self.action_scale) if self.action_scale else each["actions"]
                )
                times[row, :n], weights[row, :n] = each["times"], 1
                if self.condition:
                    returns[row, :n, 0] = each["returns"] / self.scale
        actions = labels if self.action_scale else np.eye(self.kinds, dtype=np.float32)[labels] * weights[..., None]
        inputs = {"states": states, "actions": actions, "returns": returns, "times": times}
        return {"inputs": inputs, "labels": labels, "weights": weights}

    def no_actions(self, rows: int) -> Int[np.ndarray, "B T"] | Float[np.ndarray, "B T A"]:
        """Return labels of so many rows before there are any."""
        numbers = len(self.action_scale)
        return np.zeros((rows, self.length, numbers) if numbers else (rows, self.length), "f4" if numbers else "i4")
