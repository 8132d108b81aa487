"""Episodes of states, actions and rewards in, parts of them out, with the return that was still to come."""

from flax_transformer.data.trajectory.episode import EpisodeData, Episodes, read_episodes
from flax_transformer.data.trajectory.play import DecisionData, PlayedEpisodes, make_environment
from flax_transformer.data.trajectory.window import StepRows, Windows

__all__ = [
    "DecisionData",
    "EpisodeData",
    "Episodes",
    "PlayedEpisodes",
    "StepRows",
    "Windows",
    "make_environment",
    "read_episodes",
]
