"""Episodes played by policies of every skill, in an environment of gymnasium."""

from dataclasses import field
from typing import Any

import numpy as np

from flax_transformer.data.trajectory.episode import EpisodeData, Episodes
from flax_transformer.frozen import frozen


def make_environment(name: str) -> Any:
    """Make an environment of gymnasium's.

    Raises:
      ValueError: gymnasium is not installed, there is no such environment, or its actions are neither of a few kinds
        nor numbers.
    """
    try:
        import gymnasium
    except ImportError as error:
        raise ValueError(f"to play {name} takes gymnasium: pip install gymnasium") from error
    try:
        made = gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise ValueError(f"{name} must be an environment of gymnasium: {error}") from error
    if not isinstance(made.action_space, gymnasium.spaces.Discrete | gymnasium.spaces.Box):
        raise ValueError(f"actions must be of a few kinds or numbers, those of {name} are {made.action_space}")
    return made


@frozen
class PlayedEpisodes:
    """Episodes of a pole on a cart, most of them bad: each player does at random what it does not do well."""

    environment: str = "CartPole-v1"
    count: int = 400
    """Episodes."""
    play_seed: int = 0
    """Which ones."""

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"count must be at least 2 episodes, got {self.count}")

    def play(self) -> Episodes:
        """Play them all."""
        made, rng = make_environment(self.environment), np.random.default_rng(self.play_seed)
        if not hasattr(made.action_space, "n"):
            raise ValueError(f"actions must be of a few kinds, those of {self.environment} are {made.action_space}")
        states: list[np.ndarray] = []
        actions, rewards, starts = [], [], []
        for number in range(self.count):
            skill = rng.beta(0.7, 0.7)
            state, over = made.reset(seed=self.play_seed * 100_003 + number)[0], False
            starts.append(len(actions))
            while not over:
                lean = state[2] + 0.25 * state[3] + 0.02 * state[0] + 0.05 * state[1]
                action = int(lean > 0) if rng.random() < skill else int(rng.integers(2))
                states.append(np.asarray(state, np.float32))
                state, reward, ended, cut, _ = made.step(action)
                actions.append(action)
                rewards.append(float(reward))
                over = ended or cut
        made.close()
        return Episodes(np.stack(states), np.array(actions, np.int32), np.array(rewards), np.array(starts, np.int64))


@frozen
class DecisionData(EpisodeData):
    """Episodes of a file, or played where none is named."""

    root: str = ""
    """The file, or a folder with one; empty: episodes are played."""
    played: PlayedEpisodes = field(default_factory=PlayedEpisodes)
    """Which ones."""

    def found(self) -> Episodes:
        """Read the file, or play."""
        return super().found() if self.root else self.played.play()
