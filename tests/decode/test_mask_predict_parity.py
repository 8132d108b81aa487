"""Mask-predict against the algorithm of the paper, written again in plain loops over torch's probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.decode import Parallel, mask_predict

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("decoding all tokens at once", "mask-predict, against plain loops on torch"),
]

V, M, MASK = 13, 8, 12


def model(seed):
    """Logits by which a token depends on the real ones beside it; the same in numpy."""
    draw = np.random.default_rng(seed)
    embed, place, out = (draw.normal(size=shape).astype(np.float32) for shape in ((V, 6), (M, 6), (6, V)))

    def logits(tokens, length):
        x = embed[tokens] + place[: len(tokens)]
        return (x + 2 * np.tanh(x[:length]).mean(axis=0)) @ out

    return logits


def by_hand(logits, length, iterations):
    """Return tokens and their probabilities after all passes, by section 3 of the paper."""
    tokens, sure = [MASK] * length, [0.0] * length
    masked = range(length)
    for t in range(iterations):
        if t:
            count = max(1, length * (iterations - t) // iterations)
            masked = sorted(range(length), key=lambda at: sure[at])[:count]
            for at in masked:
                tokens[at] = MASK
        shares = torch.softmax(torch.from_numpy(logits(np.array(tokens), length)).double(), dim=-1)
        for at in masked:
            sure[at], tokens[at] = (float(shares[at].max()), int(shares[at].argmax()))
    return tokens, sure


@pytest.mark.parametrize("iterations", [1, 4, 10])
def test_every_pass_is_that_of_the_paper(iterations):
    tried = np.array([[8, 5, 1], [3, 7, 2]])
    for seed in range(3):
        logits = model(seed)

        def predict(tokens, lengths):
            rows = zip(np.asarray(tokens), np.asarray(lengths), strict=True)
            return jnp.asarray(np.stack([logits(row, length) for row, length in rows]))  # noqa: B023

        found = _eagerly(predict, tried, iterations)
        for row, lengths in enumerate(tried):
            expected = [by_hand(logits, length, iterations) for length in lengths]
            means = [np.log(sure).mean() for _, sure in expected]
            for place, which in enumerate(np.argsort(means)[::-1]):
                tokens, sure = expected[which]
                assert found.lengths[row, place] == len(tokens)
                assert found.tokens[row, place, : len(tokens)].tolist() == tokens
                np.testing.assert_allclose(
                    found.logprobs[row, place, : len(tokens)], np.log(sure), rtol=1e-4, atol=1e-5
                )
                np.testing.assert_allclose(found.scores[row, place], means[which], rtol=1e-4, atol=1e-5)


def _eagerly(predict, tried, iterations):
    """Run the loop with a model that is not JAX's, by a callback."""

    def called(tokens, lengths):
        shape = jax.ShapeDtypeStruct((*tokens.shape, V), jnp.float32)
        return jax.pure_callback(predict, shape, tokens, lengths)

    config = Parallel(max_length=M, mask=MASK, iterations=iterations, beams=3, n_best=3)
    return mask_predict(called, jnp.asarray(tried), config)
