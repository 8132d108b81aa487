"""The tree of a beam search: its leaves are the hypotheses that are returned, its branches what was looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.decode import Beam, PowerPenalty, beam_search, beam_search_with_candidates, beam_tree
from tests.decode.test_beam import EOS, PAD, markov, move, random_table, start

CONFIGS = [
    Beam(
        max_length=6, eos=EOS, pad=PAD, beams=beams, n_best=beams, length_penalty=PowerPenalty(alpha=alpha),
        early_stopping=early,
    )
    for beams, alpha, early in [(2, 0.0, False), (3, 1.0, True), (4, 0.6, "never")]
]  # fmt: skip


def searches(config):
    """Compile both forms of the search."""
    options = {"reorder": move}
    plain = jax.jit(lambda cache, prompt: beam_search(markov, cache, prompt, config, **options))
    return plain, jax.jit(lambda cache, prompt: beam_search_with_candidates(markov, cache, prompt, config, **options))


COMPILED = {i: searches(config) for i, config in enumerate(CONFIGS)}


def path(nodes, node):
    """Return the nodes from the first step to one."""
    found = [node]
    while found[0].parent >= 0:
        found.insert(0, nodes[found[0].parent])
    return found


@pytest.mark.rotates
@pytest.mark.parametrize("which", COMPILED)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.floats(0.1, 4.0))
def test_leaves_are_the_hypotheses_that_are_returned(which, seed, scale):
    config, (plain, watched) = CONFIGS[which], COMPILED[which]
    cache, prompt = start(random_table(seed, 6, scale=scale), 2, config.beams), jnp.array([0, 3])
    expected, (decoded, candidates) = plain(cache, prompt), watched(cache, prompt)
    for ours, theirs in zip(decoded, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for row in range(2):
        nodes = beam_tree(decoded, candidates, row)
        leaves = {node.rank: node for node in nodes if node.rank >= 0}
        assert sorted(leaves) == [i for i in range(config.n_best) if decoded.lengths[row, i]]
        for rank, leaf in leaves.items():
            way, length = path(nodes, leaf), int(decoded.lengths[row, rank])
            assert [node.token for node in way] == decoded.tokens[row, rank, :length].tolist()
            np.testing.assert_allclose([n.logprob for n in way], decoded.logprobs[row, rank, :length], atol=1e-6)
            assert leaf.score == float(decoded.scores[row, rank])
            assert leaf.score == pytest.approx(leaf.total / config.length_penalty(length), rel=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("which", COMPILED)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_branches_add_up_and_go_on_from_what_was_kept(which, seed):
    config, (_, watched) = CONFIGS[which], COMPILED[which]
    nodes = beam_tree(*watched(start(random_table(seed, 7), 1, config.beams), jnp.array([0])))
    ways = [tuple(node.token for node in path(nodes, node)) for node in nodes]
    assert len(set(ways)) == len(ways)
    for number, node in enumerate(nodes):
        before = nodes[node.parent] if node.parent >= 0 else None
        assert node.parent < number
        assert node.depth == (before.depth + 1 if before else 0)
        assert node.total == pytest.approx(node.logprob + (before.total if before else 0), abs=1e-4)
        assert before is None or (before.kept and not before.ends)
    for depth in range(config.max_length):
        step = [node for node in nodes if node.depth == depth]
        assert sum(node.kept and not node.ends for node in step) <= config.beams
        totals = [node.total for node in step]
        assert totals == sorted(totals, reverse=True)
        others = [node.total for node in step if not node.kept and node.token != EOS]
        kept = [node.total for node in step if node.kept and not node.ends]
        assert not others or not kept or max(others) <= min(kept) + 1e-6
