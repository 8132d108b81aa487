"""A small language model in training for kernels with zeros."""

import jax
import numpy as np
import optax
from flax import nnx

from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer


def language_model(config, steps, model=None, state=None, begin=0):
    """Train a small model on noise; give the model and the optimizer's state after some steps."""
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-2, sparsity=config), 20)
    start = with_fields(gpt2_tiny(vocab=20, dropout=0.0), embed=8, heads=2, inner=16, depth=2).build(nnx.Rngs(0))
    model = start if model is None else model
    state = optimizer.init(model) if state is None else state

    @jax.jit
    def step(model, state, key):
        tokens = jax.random.randint(key, (4, 6), 0, 20)
        gradient = jax.grad(lambda m: -jax.nn.log_softmax(m(tokens))[..., 0].mean())(model)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state

    for number in range(begin, begin + steps):
        model, state = step(model, state, jax.random.key(number))
    return model, state


def zero_shares(model):
    """Return the share of zeros in each layer's first feed-forward kernel."""
    up = np.asarray(model.trunk.blocks.feedforward.up.kernel[...])
    return [(layer == 0).mean() for layer in up]
