"""What is known of trained models is found: induction heads, and the alignment of a translator's cross-attention."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.inside import attention_targets, head_table, intervene, name_heads, switch_off, without_each
from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.ops import capture

pytestmark = [pytest.mark.slow, pytest.mark.proves("inside", "finds induction heads, and that they do the task")]
VOCABULARY, HALF, HEADS = 32, 12, 4


def repeated(key, rows):
    """Return texts of random tokens that are said twice: the second half can be known, the first not."""
    half = jax.random.randint(key, (rows, HALF), 1, VOCABULARY)
    return jnp.concatenate([jnp.zeros((rows, 1), half.dtype), half, half], axis=-1)


def run(model, tokens):
    return model(tokens)


def accuracy(logits, tokens):
    """Return how often the tokens of the second half but its first are the likeliest."""
    return float((logits[:, HALF + 1 : -1].argmax(-1) == tokens[:, HALF + 2 :]).mean())


@pytest.fixture(scope="module")
def trained():
    table = EmbeddingConfig(vocab=VOCABULARY, embed=64, position="learned", max_length=32, scaled=False)
    layer = transformer_block(embed=64, heads=HEADS, inner=128, norm_position="pre", activation="gelu", init_std=0.05)
    model = Causal(CausalConfig(embedding=table, block=layer, depth=2), rngs=nnx.Rngs(0))
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 2e-3, 50, 1_200), weight_decay=0.01)

    def loss(model, tokens):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens)[:, :-1], tokens[:, 1:])
        return losses[:, HALF + 1 :].mean()

    @jax.jit
    def steps(model, state, key):
        def step(carry, key):
            model, state = carry
            value, slope = jax.value_and_grad(loss)(model, repeated(key, 64))
            updates, state = optimizer.update(slope, state, model)
            return (optax.apply_updates(model, updates), state), value

        return jax.lax.scan(step, (model, state), jax.random.split(key, 1_200))

    return steps(model, optimizer.init(model), jax.random.key(0))[0][0]


def test_the_head_table_names_the_heads_that_do_induction(trained):
    tokens = repeated(jax.random.key(1), 64)
    logits, (weights,) = jax.jit(capture(run, "attention_weights"))(trained, tokens)
    assert accuracy(logits, tokens) > 0.95
    table = head_table(weights, attention_targets(np.asarray(tokens)))
    named = name_heads(table, 0.3)
    induction = {head for head, (kind, _) in named.items() if kind == "induction"}
    print({head: kind for head, kind in named.items()}, "accuracy", accuracy(logits, tokens))
    assert induction
    assert all(layer == 1 for layer, _ in induction)
    assert any(kind == "previous" for kind, _ in named.values())

    def without(heads):
        off = [(0, head) for head in heads]
        edits = switch_off(run, "head_outputs", trained, tokens, axis=-2, chosen=off)
        return accuracy(jax.jit(intervene(run))(edits, trained, tokens), tokens)

    others = [head for head in np.ndindex(2, HEADS) if head[0] == 1 and head not in induction]
    print("without induction heads", without(induction), "without the others of their layer", without(others))
    assert without(induction) < 0.3
    assert not others or without(others) > 0.8


def test_each_head_by_itself_costs_what_the_table_says(trained):
    tokens = repeated(jax.random.key(2), 32)
    chosen, logits = without_each(partial(run), "head_outputs", trained, tokens, axis=-2)
    costs = {head: accuracy(each, tokens) for head, each in zip(chosen, logits, strict=True)}
    print(costs)
    assert min(costs.values()) < max(costs.values())
