"""Decoding any model through functions: greedy, sampling, beam search, all at once, noise taken away; streaming."""

from flax_transformer.decode.beam import Candidates, beam_search, beam_search_with_candidates, gather_rows
from flax_transformer.decode.beam_tree import BeamNode, beam_tree
from flax_transformer.decode.chain import greedy, sample
from flax_transformer.decode.config import Beam, Decoded, GNMTPenalty, Greedy, PowerPenalty, Sampling, room
from flax_transformer.decode.diffusion import DDIM, DDPM, Euler, Heun, Sampler, denoise, guided
from flax_transformer.decode.mask_predict import Parallel, best_path, mask_predict
from flax_transformer.decode.process import Constraints, make_process
from flax_transformer.decode.stream import stream
from flax_transformer.decode.timestamp import Timestamps

__all__ = [
    "DDIM",
    "DDPM",
    "Beam",
    "BeamNode",
    "Candidates",
    "Constraints",
    "Decoded",
    "Euler",
    "GNMTPenalty",
    "Greedy",
    "Heun",
    "Parallel",
    "PowerPenalty",
    "Sampler",
    "Sampling",
    "Timestamps",
    "beam_search",
    "beam_search_with_candidates",
    "beam_tree",
    "best_path",
    "denoise",
    "gather_rows",
    "greedy",
    "guided",
    "make_process",
    "mask_predict",
    "room",
    "sample",
    "stream",
]
