"""A beam search as the tree of the prefixes that it has looked at.

Axes: B batch, M steps, C candidates of a step, n hypotheses.
"""

from typing import NamedTuple

import numpy as np

from flax_transformer.decode.beam import Candidates
from flax_transformer.decode.config import Decoded


class BeamNode(NamedTuple):
    """One prefix: its last token, after the prefix that is its parent."""

    parent: int
    """Number of the node before it, which is smaller than its own; -1 at the first step."""
    depth: int
    """Tokens generated before this one."""
    token: int
    logprob: float
    """Of the token."""
    total: float
    """The sum of the log-probabilities up to it."""
    kept: bool
    """Whether it went on as a beam, or finished; else others were better."""
    ends: bool
    """Whether it is a finished hypothesis."""
    rank: int
    """Which of the hypotheses returned it is, the best 0; -1 where it is none."""
    score: float | None
    """Of a hypothesis that is returned what `Decoded.scores` says: the total divided by the length penalty."""


def beam_tree(decoded: Decoded, candidates: Candidates, row: int = 0) -> list[BeamNode]:
    """Return the prefixes that were looked at in one row, parents first, of one step the best first.

    Every hypothesis that is returned is a node with its rank; the path from the first step to it has its tokens.

    Args:
      decoded, candidates: of `beam_search_with_candidates`.
      row: of the batch.
    """
    seen = Candidates(*(np.asarray(field)[row] for field in candidates))
    tokens, lengths, scores = (np.asarray(each)[row] for each in (decoded.tokens, decoded.lengths, decoded.scores))
    ranks = {tuple(tokens[i, : lengths[i]].tolist()): i for i in reversed(range(len(lengths))) if lengths[i]}
    nodes: list[BeamNode] = []
    beams: dict[int, tuple[int, tuple[int, ...]]] = {0: (-1, ())}
    """By beam the number of its node, and its tokens."""
    for t in range(len(seen.live)):
        if not seen.live[t]:
            break
        after = {}
        for c in np.flatnonzero(seen.score[t] > -1e8):
            parent, before = beams[int(seen.beam[t, c])]
            path, becomes, ends = (*before, int(seen.token[t, c])), int(seen.becomes[t, c]), bool(seen.ends[t, c])
            if becomes >= 0:
                after[becomes] = len(nodes), path
            rank = ranks.get(path, -1) if ends else -1
            total, logprob = float(seen.score[t, c]), float(seen.logprob[t, c])
            score = float(scores[rank]) if rank >= 0 else None
            kept = becomes >= 0 or ends
            nodes.append(BeamNode(parent, t, path[-1], logprob, total, kept, ends, rank, score))
        beams = after
    return nodes
