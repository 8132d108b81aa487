"""Episodes of states, actions and rewards in, parts of them out, with the return that was still to come."""

from flax_transformer.data.trajectory.episode import EpisodeData, Episodes, EpisodeWindows, StepRows, read_episodes
from flax_transformer.data.trajectory.play import DecisionData, PlayedEpisodes, make_environment

__all__ = [
    "DecisionData",
    "EpisodeData",
    "EpisodeWindows",
    "Episodes",
    "PlayedEpisodes",
    "StepRows",
    "make_environment",
    "read_episodes",
]
