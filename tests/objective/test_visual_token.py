"""Visual words of masked patches: found in images, told by the nearest, masked in blocks, beside formulas by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import BEiTLoss
from flax_transformer.objective.visual_token import mask_blocks
from tests.contract.objectives import case

DRAW = np.random.default_rng(0)


def test_words_are_found_again():
    """Of images made of four kinds of patches these are the words, and every patch is its own kind."""
    kinds = DRAW.integers(0, 256, (4, 4, 4, 3)).astype(np.uint8)
    which = DRAW.integers(0, 4, (10, 2, 3))
    images = kinds[which].transpose(0, 1, 3, 2, 4, 5).reshape(10, 8, 12, 3)
    loss = BEiTLoss(words=4)
    found = loss.learned(images, 0)["codebook"]
    np.testing.assert_allclose(
        np.sort(np.array(found), axis=0), np.sort(kinds.reshape(4, -1) / 127.5 - 1, axis=0), atol=1e-6
    )
    tokens = np.asarray(BEiTLoss(words=4, codebook=found).tokens(jnp.float32(images) / 127.5 - 1))
    names = [np.argmin(np.abs(np.array(found) - kind.reshape(-1) / 127.5 + 1).sum(1)) for kind in kinds]
    np.testing.assert_array_equal(tokens, np.array(names)[which.reshape(10, -1)])
    with pytest.raises(ValueError, match="at least words=5 different patches, got 4"):
        BEiTLoss(words=5).learned(images, 0)


@pytest.mark.proves("beit", "train", "visual words by k-means, masked in blocks, beside formulas by hand")
def test_the_loss_is_the_cross_entropy_of_masked_patches():
    scores, truth = DRAW.normal(size=(3, 6, 5)), DRAW.integers(0, 5, (3, 6))
    masked, weights = DRAW.random((3, 6)) < 0.5, np.array([1.0, 0.0, 1.0])
    total, metrics = BEiTLoss().over(*map(jnp.asarray, (jnp.float32(scores), truth, masked, jnp.float32(weights))))
    logs = np.log(np.exp(scores) / np.exp(scores).sum(-1, keepdims=True))
    each = [-logs[b, p, truth[b, p]] for b in (0, 2) for p in range(6) if masked[b, p]]
    np.testing.assert_allclose(total / metrics["count"], np.mean(each), rtol=1e-5)
    right = [scores[b, p].argmax() == truth[b, p] for b in (0, 2) for p in range(6) if masked[b, p]]
    np.testing.assert_allclose(metrics["accuracy"] / metrics["count"], np.mean(right), rtol=1e-6)


def test_blocks_mask_nearly_what_they_may():
    draw = jax.jit(jax.vmap(partial(mask_blocks, grid=(8, 8), most=26, least=4)))
    masks = np.asarray(draw(jax.random.split(jax.random.key(0), 200)))
    count = masks.sum(1)
    assert count.max() <= 26
    assert count.mean() > 22
    assert masks.mean(0).min() > 0.05  # corners are in the fewest blocks
    grid = masks.reshape(-1, 8, 8)
    alike = (grid[:, 1:] == grid[:, :-1]).mean()
    alone = np.random.default_rng(0).permuted(masks, axis=1).reshape(-1, 8, 8)
    assert alike > (alone[:, 1:] == alone[:, :-1]).mean() + 0.2


def test_what_does_not_fit_is_refused():
    _, model, batch = case("BEiTLoss")
    with pytest.raises(ValueError, match="a codebook must be found in the images of training first"):
        BEiTLoss()(model, batch)
    with pytest.raises(ValueError, match="a model must score V=2 words, got 4 outputs"):
        BEiTLoss(codebook=((0.0,) * 48, (1.0,) * 48))(model, batch)
    with pytest.raises(ValueError, match=r"mask_ratio must be in \(0, 1\), words at least 2"):
        BEiTLoss(mask_ratio=1.0)
