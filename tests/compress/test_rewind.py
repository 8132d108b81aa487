"""Lottery tickets: the zeros of one model, the values of another, and training that leaves the zeros alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.compress import Pruning, Quantization, prune_model, quantize_model, rewind
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.parallel import path_name
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.sparsity import SparsityConfig

pytestmark = pytest.mark.proves("kernels with zeros", "lottery tickets: an early model with the zeros of a pruned one")


def gpt2(seed, **changes):
    config = with_fields(gpt2_tiny(vocab=20, dropout=0.0), embed=8, heads=2, inner=16, depth=2)
    return with_fields(config, **changes).build(nnx.Rngs(seed))


@pytest.mark.rotates
def test_values_are_of_the_early_model_and_zeros_of_the_pruned_one():
    early, pruned = gpt2(0), prune_model(gpt2(1), Pruning(share=0.6))
    ticket = rewind(early, pruned)
    named = [{path_name(p): np.asarray(leaf) for p, leaf in jax.tree_util.tree_leaves_with_path(m)} for m in
             (early, pruned, ticket)]  # fmt: skip
    for name, value in named[2].items():
        zeros = named[1][name] == 0 if name.endswith("kernel") else np.zeros(value.shape, bool)
        np.testing.assert_array_equal(value, np.where(zeros, 0, named[0][name]))
        assert not name.endswith("kernel") or abs(zeros.mean() - 0.6) < 0.02
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, sparsity=SparsityConfig(keep=True)), 10)
    gradient = jax.tree.map(jnp.ones_like, ticket)
    updates, _ = optimizer.update(gradient, optimizer.init(ticket), ticket)
    moved = np.asarray(updates.trunk.blocks.feedforward.up.kernel[...])
    assert ((moved == 0) == (np.asarray(ticket.trunk.blocks.feedforward.up.kernel[...]) == 0)).all()


@pytest.mark.rotates
def test_what_cannot_be_is_refused():
    early, pruned = gpt2(0), prune_model(gpt2(1), Pruning(share=0.6))
    with pytest.raises(ValueError, match="taken from a model that was pruned, this one has none"):
        rewind(early, gpt2(1))
    with pytest.raises(ValueError, match=r"both must have the same kernels, those of trunk\.blocks\.feedforward\.down"):
        rewind(gpt2(0, inner=24), pruned)
    with pytest.raises(ValueError, match=r"zeros are of kernels that are whole, .* is a Quantized"):
        rewind(quantize_model(early, Quantization(weights="int8")), pruned)
