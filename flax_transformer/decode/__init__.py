"""Decoding any model through functions: greedy, sampling, drafts, beams, all at once, noise taken away; streaming."""

from flax_transformer.decode.assisted import Draft, Drafted, Proposal, Seen, assisted, lookup_draft, model_draft
from flax_transformer.decode.beam import Candidates, beam_search, beam_search_with_candidates, gather_rows
from flax_transformer.decode.beam_tree import BeamNode, beam_tree
from flax_transformer.decode.chain import greedy, sample
from flax_transformer.decode.compose import compose
from flax_transformer.decode.config import Beam, Decoded, GNMTPenalty, Greedy, PowerPenalty, Sampling, room
from flax_transformer.decode.contrastive import Context, Contrastive, contrastive_search
from flax_transformer.decode.diffusion import DDIM, DDPM, Euler, Heun, Sampler, denoise, guided
from flax_transformer.decode.mask_predict import Parallel, best_path, mask_predict
from flax_transformer.decode.process import Constraints, SourceRules, make_process, process_rows
from flax_transformer.decode.stream import stream
from flax_transformer.decode.timestamp import Timestamps

__all__ = [
    "DDIM",
    "DDPM",
    "Beam",
    "BeamNode",
    "Candidates",
    "Constraints",
    "Context",
    "Contrastive",
    "Decoded",
    "Draft",
    "Drafted",
    "Euler",
    "GNMTPenalty",
    "Greedy",
    "Heun",
    "Parallel",
    "PowerPenalty",
    "Proposal",
    "Sampler",
    "Sampling",
    "Seen",
    "SourceRules",
    "Timestamps",
    "assisted",
    "beam_search",
    "beam_search_with_candidates",
    "beam_tree",
    "best_path",
    "compose",
    "contrastive_search",
    "denoise",
    "gather_rows",
    "greedy",
    "guided",
    "lookup_draft",
    "make_process",
    "mask_predict",
    "model_draft",
    "process_rows",
    "room",
    "sample",
    "stream",
]
