"""What is known of trained models is found: induction heads, and the alignment of a translator's cross-attention."""

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
VOCABULARY, LENGTH, HEADS, STEPS = 32, 25, 4, 3_000
PERIODS = 5, 12
"""Of which each text has one: were it the same for all, a fixed distance would do, and no head would have to look for
the token before."""


def repeated(key, rows):
    """Return texts of different random tokens that are said again and again, and which tokens can be known."""
    tokens, period = jax.random.split(key)
    period = jax.random.randint(period, (rows, 1), PERIODS[0], PERIODS[1] + 1)
    drawn = jax.vmap(lambda k: jax.random.permutation(k, VOCABULARY - 1) + 1)(jax.random.split(tokens, rows))
    at = jnp.arange(LENGTH)
    text = jnp.take_along_axis(drawn, at % period, axis=-1)
    return text, at > period


def run(model, tokens):
    return model(tokens)


def accuracy(logits, tokens, known):
    """Return how often the tokens that can be known are the likeliest."""
    right = logits[:, :-1].argmax(-1) == tokens[:, 1:]
    return float((right * known[:, 1:]).sum() / known[:, 1:].sum())


@pytest.fixture(scope="module")
def trained():
    table = EmbeddingConfig(vocab=VOCABULARY, embed=64, position="learned", max_length=32, scaled=False)
    layer = transformer_block(embed=64, heads=HEADS, inner=128, norm_position="pre", activation="gelu", init_std=0.05)
    model = Causal(CausalConfig(embedding=table, block=layer, depth=2), rngs=nnx.Rngs(0))
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 100, STEPS), weight_decay=0.01)

    def loss(model, tokens, known):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens)[:, :-1], tokens[:, 1:])
        return (losses * known[:, 1:]).sum() / known[:, 1:].sum()

    @jax.jit
    def steps(model, state, key):
        def step(carry, key):
            model, state = carry
            value, slope = jax.value_and_grad(loss)(model, *repeated(key, 64))
            updates, state = optimizer.update(slope, state, model)
            return (optax.apply_updates(model, updates), state), value

        return jax.lax.scan(step, (model, state), jax.random.split(key, STEPS))

    return steps(model, optimizer.init(model), jax.random.key(0))[0][0]


@pytest.fixture(scope="module")
def held(trained):
    """Texts, what can be known of them, the heads that the table names for induction, and the one that looks back."""
    tokens, _ = repeated(jax.random.key(1), 64)
    weights = jax.jit(capture(run, "attention_weights"))(trained, tokens)[1][0]
    table = head_table(weights, attention_targets(np.asarray(tokens)))
    named = name_heads(table, 0.3)
    before = (0, int(table["previous"][0].argmax()))
    print({head: kind for head, (kind, _) in named.items()}, "previous", table["previous"].round(2).tolist())
    return *repeated(jax.random.key(2), 64), [head for head, (kind, _) in named.items() if kind == "induction"], before


def test_the_skill_is_that_of_the_heads_that_the_table_names(trained, held):
    tokens, known, induction, _ = held
    assert induction
    assert all(layer == 1 for layer, _ in induction)

    def without(heads):
        off = [(0, head) for head in heads]
        edits = switch_off(run, "head_outputs", trained, tokens, axis=-2, chosen=off)
        return accuracy(jax.jit(intervene(run))(edits, trained, tokens), tokens, known)

    whole, off = without([]), without(induction)
    print(f"accuracy {whole:.3f}; without {induction} {off:.3f}")
    assert whole > 0.95
    assert off < 0.3


def test_alone_the_head_that_looks_back_costs_most(trained, held):
    """Induction heads stand in for each other, but the one that tells them the token before has no other like it."""
    tokens, known, induction, before = held
    chosen, logits = without_each(run, "head_outputs", trained, tokens, axis=-2)
    costs = {head: 1 - accuracy(each, tokens, known) for head, each in zip(chosen, logits, strict=True)}
    print({head: round(cost, 3) for head, cost in costs.items()})
    assert max(costs, key=costs.get) == before
    assert max(cost for head, cost in costs.items() if head not in [*induction, before]) < 0.1
