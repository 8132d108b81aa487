"""Decoding any model through one step function: greedy, sampling, beam search; streaming, constraints."""

from flax_transformer.decode.beam import beam_search, gather_rows
from flax_transformer.decode.chain import greedy, sample
from flax_transformer.decode.config import Beam, Decoded, GNMTPenalty, Greedy, PowerPenalty, Sampling, room
from flax_transformer.decode.process import Constraints, make_process
from flax_transformer.decode.stream import stream
from flax_transformer.decode.timestamp import Timestamps

__all__ = [
    "Beam",
    "Constraints",
    "Decoded",
    "GNMTPenalty",
    "Greedy",
    "PowerPenalty",
    "Sampling",
    "Timestamps",
    "beam_search",
    "gather_rows",
    "greedy",
    "make_process",
    "room",
    "sample",
    "stream",
]
