import jax
import numpy as np
import pytest

from flax_transformer.ops.late_interaction import max_similarity

pytestmark = pytest.mark.proves("late interaction", "sum of largest similarities against NumPy")


def test_each_token_finds_its_best():
    draw = np.random.default_rng(0)
    queries, passages = (draw.normal(size=(n, t, 8)).astype(np.float32) for n, t in ((3, 4), (5, 6)))
    asked, real = draw.random((3, 4)) < 0.7, draw.random((5, 6)) < 0.6
    asked[:, 0], real[:, 0] = True, True
    found = max_similarity(queries, passages, asked, real)
    for q in range(3):
        for n in range(5):
            products = queries[q][asked[q]] @ passages[n][real[n]].T
            np.testing.assert_allclose(found[q, n], products.max(1).sum(), rtol=1e-5)
    alone = jax.jit(max_similarity)(queries[:1], passages)
    np.testing.assert_allclose(alone[0], (queries[0] @ passages.swapaxes(1, 2)).max(-1).sum(-1), rtol=1e-5)


def test_nothing_is_found_in_an_empty_passage():
    real = np.array([[True, True], [False, False]])
    found = max_similarity(np.ones((1, 3, 2), np.float32), np.ones((2, 2, 2), np.float32), passage_mask=real)
    assert found.tolist() == [[6.0, -np.inf]]
