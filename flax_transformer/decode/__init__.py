"""Decoding any model through functions: greedy, sampling, beam search, all at once; streaming, constraints."""

from flax_transformer.decode.beam import beam_search, gather_rows
from flax_transformer.decode.chain import greedy, sample
from flax_transformer.decode.config import Beam, Decoded, GNMTPenalty, Greedy, PowerPenalty, Sampling, room
from flax_transformer.decode.mask_predict import Parallel, best_path, mask_predict
from flax_transformer.decode.process import Constraints, make_process
from flax_transformer.decode.stream import stream
from flax_transformer.decode.timestamp import Timestamps

__all__ = [
    "Beam",
    "Constraints",
    "Decoded",
    "GNMTPenalty",
    "Greedy",
    "Parallel",
    "PowerPenalty",
    "Sampling",
    "Timestamps",
    "beam_search",
    "best_path",
    "gather_rows",
    "greedy",
    "make_process",
    "mask_predict",
    "room",
    "sample",
    "stream",
]
