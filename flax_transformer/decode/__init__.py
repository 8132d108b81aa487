"""Decoding any model through one step function: greedy, sampling, beam search."""

from flax_transformer.decode.beam import beam_search, gather_rows
from flax_transformer.decode.chain import greedy, sample
from flax_transformer.decode.config import Beam, Decoded, GNMTPenalty, Greedy, PowerPenalty, Sampling

__all__ = [
    "Beam",
    "Decoded",
    "GNMTPenalty",
    "Greedy",
    "PowerPenalty",
    "Sampling",
    "beam_search",
    "gather_rows",
    "greedy",
    "sample",
]
