"""Properties every encoder-decoder has, whatever its positions and norms."""

import jax
import jax.numpy as jnp
import numpy as np

B, S, T, V = 2, 7, 6, 40


def source():
    """Return source tokens and their lengths."""
    return jax.random.randint(jax.random.key(1), (B, S), 3, V), jnp.array([S, 4])


def steps_equal_the_whole(model, beams):
    """Decode token by token, hypotheses changing places, and demand the logits of reading all at once."""
    tokens, lengths = source()
    random = np.random.default_rng(0)
    read = random.integers(3, V, (B * beams, T))  # what is not read yet cannot be seen
    rows = np.repeat(np.arange(B), beams)
    run = jax.jit(lambda model: model.init_cache(model.encode(tokens, lengths), lengths, T, beams=beams))
    whole = jax.jit(lambda model, read: model(tokens[rows], read, lengths[rows]))
    cache, step = run(model), jax.jit(type(model).step)
    for t in range(T):
        logits, cache = step(model, cache, jnp.asarray(read[:, t]))
        expected = whole(model, jnp.asarray(read))[:, t]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * float(jnp.abs(expected).max()))
        chosen = (np.arange(B)[:, None] * beams + random.integers(0, beams, (B, beams))).reshape(-1)
        cache = jax.jit(type(cache).reorder)(cache, jnp.asarray(chosen))
        read[:, : t + 1] = read[chosen, : t + 1]


def neither_future_nor_padding_is_seen(model):
    """Change what must not matter, and what must."""
    tokens, lengths = source()
    target = jax.random.randint(jax.random.key(2), (B, T), 3, V)
    run = jax.jit(type(model).__call__)
    plain = run(model, tokens, target, lengths)
    np.testing.assert_array_equal(run(model, tokens, target.at[:, 4:].set(2), lengths)[:, :4], plain[:, :4])
    np.testing.assert_array_equal(run(model, tokens.at[1, 4:].set(2), target, lengths), plain)
    assert not jnp.allclose(run(model, tokens.at[1, 3:].set(2), target, lengths)[1], plain[1])
    mapped = jax.jit(jax.vmap(model))(tokens, target, lengths)
    np.testing.assert_allclose(mapped, plain, rtol=1e-4, atol=1e-5 * float(jnp.abs(plain).max()))
