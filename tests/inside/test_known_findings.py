"""What is known of trained models is found: induction heads, which a skill needs, where it needs no other heads."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.inside import (
    Scale,
    attention_targets,
    head_table,
    intervene,
    name_heads,
    switch_off,
    value_weighted_norms,
)
from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.ops import capture, capture_all

pytestmark = [pytest.mark.slow, pytest.mark.proves("inside", "finds induction heads, and that they do the task")]
VOCABULARY, LENGTH, HEADS, STEPS = 32, 32, 4, 2_000
TOKENS = 5, 12
"""Of which each text has so many."""
JUMP = 0.25
"""How often a text goes on somewhere else, so that no fixed distance tells what comes next."""
DROP = 0.25
"""How often each head of the first layer is off in a step of training (DropHead, Zhou et al. 2020,
https://arxiv.org/abs/2004.13342), so that these heads stand in for each other."""
SPARE = 0.1
"""What it costs a head of the second layer to write, times the square root of the norm of its kernel: few heads pay
less than many."""
DRAWS = 10


def walks(key, rows):
    """Return texts in each of which a token has a successor of its own, and which tokens can be known: those that have
    followed the same token before."""
    tokens, counts, jumps, places = jax.random.split(key, 4)
    count = jax.random.randint(counts, (rows,), TOKENS[0], TOKENS[1] + 1)
    drawn = jax.vmap(lambda k: jax.random.permutation(k, VOCABULARY - 1) + 1)(jax.random.split(tokens, rows))
    jump = jax.random.bernoulli(jumps, JUMP, (LENGTH, rows)).at[0].set(True)
    place = jax.random.randint(places, (LENGTH, rows), 0, 10**6) % count

    def step(at, drawn):
        at = jnp.where(drawn[0], drawn[1], (at + 1) % count)
        return at, at

    way = jax.lax.scan(step, place[0], (jump, place))[1].T
    text = jnp.take_along_axis(drawn, way, axis=-1)
    pair = jnp.pad(text[:, :-1] * VOCABULARY + text[:, 1:], ((0, 0), (1, 0)), constant_values=-1)
    before = (pair[:, :, None] == pair[:, None, :]) & jnp.tri(LENGTH, k=-1, dtype=bool)
    return text, before.any(-1) & ~jump.T


def run(model, tokens):
    return model(tokens)


def accuracy(logits, tokens, known):
    """Return how often the tokens that can be known are the likeliest."""
    right = logits[:, :-1].argmax(-1) == tokens[:, 1:]
    return float((right * known[:, 1:]).sum() / known[:, 1:].sum())


def loss(model, key, spare):
    texts, heads = jax.random.split(key)
    tokens, known = walks(texts, 64)
    on = jax.random.bernoulli(heads, 1 - DROP, (2, 1, 1, HEADS, 1)).at[1].set(True).astype(jnp.float32)
    logits, (kernels,) = capture(partial(intervene(run), {"head_outputs": Scale(on)}), "out_kernel")(model, tokens)
    norms = jnp.sqrt(jnp.square(kernels[1]).sum((-1, -2)) + 1e-6)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
    return (losses * known[:, 1:]).sum() / known[:, 1:].sum() + spare * jnp.sqrt(norms + 1e-3).sum()


@pytest.fixture(scope="module")
def trained():
    table = EmbeddingConfig(vocab=VOCABULARY, embed=64, position="learned", max_length=32, scaled=False)
    layer = transformer_block(embed=64, heads=HEADS, inner=128, norm_position="pre", activation="gelu", init_std=0.05)
    model = Causal(CausalConfig(embedding=table, block=layer, depth=2), rngs=nnx.Rngs(0))
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-3, 100, STEPS), weight_decay=0.01)

    @jax.jit
    def steps(model, state, key):
        def step(carry, drawn):
            model, state = carry
            value, slope = jax.value_and_grad(loss)(model, *drawn)
            updates, state = optimizer.update(slope, state, model)
            return (optax.apply_updates(model, updates), state), value

        spare = SPARE * jnp.clip((jnp.arange(STEPS) / STEPS - 0.3) / 0.4, 0, 1)  # once the skill is there
        return jax.lax.scan(step, (model, state), (jax.random.split(key, STEPS), spare))

    return steps(model, optimizer.init(model), jax.random.key(0))[0][0]


@pytest.fixture(scope="module")
def heads(trained):
    """The heads that the table names for induction, and all others."""
    tokens, _ = walks(jax.random.key(100), 64)
    names = "attention_weights", "value", "out_kernel"
    seen = jax.jit(capture_all(run, names.__contains__))(trained, tokens)[1]
    norms = value_weighted_norms(*(seen[name][0] for name in names))
    table = head_table(seen[names[0]][0], attention_targets(np.asarray(tokens)), norms)
    named = name_heads(table, 0.3)
    print({kind: table[kind].round(2).tolist() for kind in ("previous", "induction", "written")}, named)
    induction = [head for head, (kind, _) in named.items() if kind == "induction"]
    return induction, [head for head in np.ndindex(2, HEADS) if head not in induction]


@pytest.fixture(scope="module")
def without(trained):
    """The accuracy on other texts without some heads."""
    (tokens, known), compiled = walks(jax.random.key(200), 64), jax.jit(intervene(run))

    def measure(heads):
        edits = switch_off(run, "head_outputs", trained, tokens, axis=-2, chosen=[(0, head) for head in heads])
        return accuracy(compiled(edits, trained, tokens), tokens, known)

    return measure


def test_the_skill_is_that_of_the_heads_that_the_table_names(heads, without):
    induction, _ = heads
    assert induction
    assert all(layer == 1 for layer, _ in induction)
    whole, off = without([]), without(induction)
    print(f"accuracy {whole:.3f}; without {induction} {off:.3f}")
    assert whole > 0.9
    assert off < 0.3


def test_as_many_other_heads_are_not_missed(heads, without):
    induction, others = heads
    assert len(induction) < len(others)
    rng, whole = np.random.default_rng(0), without([])
    drawn = [[others[i] for i in rng.choice(len(others), len(induction), replace=False)] for _ in range(DRAWS)]
    kept = [without(each) for each in drawn]
    print(f"without as many others, {DRAWS} draws: {np.mean(kept):.3f} on average, {min(kept):.3f} at least")
    assert min(kept) > 0.8 * whole
