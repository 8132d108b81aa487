"""Losses of two players, penalties, pixel shuffle, structural similarity and differentiable changes of images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.metric.structural_similarity import structural_similarity
from flax_transformer.ops.adversarial import ADVERSARIAL_LOSSES, gradient_penalty, r1_penalty
from flax_transformer.ops.differentiable_augment import CHANGES, differentiable_augment
from flax_transformer.ops.pixel_shuffle import pixel_shuffle
from flax_transformer.train.game import Player, alternate

X = np.linspace(-3, 3, 7)


@pytest.mark.parametrize(
    ("name", "real", "fake", "fool"),
    [
        ("hinge", np.maximum(0, 1 - X), np.maximum(0, 1 + X), -X),
        ("non-saturating", np.log(1 + np.exp(-X)), np.log(1 + np.exp(X)), np.log(1 + np.exp(-X))),
        ("least-squares", (X - 1) ** 2, X**2, (X - 1) ** 2),
        ("wasserstein", -X, X, -X),
    ],
)
def test_losses_are_their_formulas(name, real, fake, fool):
    loss, x, other = ADVERSARIAL_LOSSES[name], jnp.asarray(X, jnp.float32), jnp.asarray(X[::-1] ** 2, jnp.float32)
    found = (loss.critic(x, other)[0], loss.critic(other, x)[1], loss.fool(x, lambda: other))
    for each, expected in zip(found, (real, fake, fool), strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-6)


def test_the_relativistic_loss_is_of_pairs():
    """Each player's loss is that of the difference, whatever both numbers have in common."""
    real, fake = jnp.asarray(X, jnp.float32), jnp.asarray(np.cos(X), jnp.float32)
    loss = ADVERSARIAL_LOSSES["relativistic"]
    for shift in (0.0, 5.0):
        critic = sum(loss.critic(real + shift, fake + shift))
        np.testing.assert_allclose(critic, np.log1p(np.exp(np.cos(X) - X)), rtol=1e-5)
        fooled = loss.fool(fake + shift, (real + shift).copy)
        np.testing.assert_allclose(fooled, np.log1p(np.exp(X - np.cos(X))), rtol=1e-5)


def test_penalties_are_those_of_gradients_known_by_hand():
    """Of a critic w·x + ½ |x|² the gradient is w + x."""
    rng = np.random.default_rng(0)
    w, real = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 2), (4, 3, 2)))

    def critic(x):
        return jnp.sum(w * x + x**2 / 2, axis=(1, 2))

    squared = np.sum((w + real) ** 2, axis=(1, 2))
    np.testing.assert_allclose(r1_penalty(critic, real), squared / 2, rtol=1e-5)
    same = gradient_penalty(critic, real, real, jax.random.key(0))  # between a row and itself is the row
    np.testing.assert_allclose(same, (np.sqrt(squared) - 1) ** 2, rtol=1e-4)


@pytest.mark.parity
def test_penalties_and_their_gradients_are_those_of_torch_autograd():
    import torch

    rng = np.random.default_rng(1)
    one, two, real, fake = (rng.normal(size=s).astype(np.float32) for s in ((6, 5), (5,), (4, 6), (4, 6)))
    share = np.asarray(jax.random.uniform(jax.random.key(3), (4, 1)))

    def ours(one):
        critic = lambda x: jnp.tanh(x @ one) @ two  # noqa: E731
        return jnp.sum(r1_penalty(critic, real)) + jnp.sum(gradient_penalty(critic, real, fake, jax.random.key(3)))

    weight = torch.tensor(one, requires_grad=True)

    def slope(x):
        x = torch.tensor(x, requires_grad=True)
        told = (torch.tanh(x @ weight) @ torch.tensor(two)).sum()
        return torch.autograd.grad(told, x, create_graph=True)[0]

    r1 = (slope(real) ** 2).sum() / 2
    gp = ((slope(share * real + (1 - share) * fake).norm(dim=1) - 1) ** 2).sum()
    (r1 + gp).backward()
    value, grads = jax.value_and_grad(ours)(one)
    np.testing.assert_allclose(value, (r1 + gp).item(), rtol=1e-5)
    np.testing.assert_allclose(grads, weight.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_pixel_shuffle_is_its_definition():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 18)).astype(np.float32)
    y = np.asarray(pixel_shuffle(jnp.asarray(x), 3))
    for (h, w, c), (i, j) in zip([(0, 1, 0), (2, 3, 1), (1, 0, 1)], [(0, 2), (2, 1), (1, 1)], strict=True):
        np.testing.assert_array_equal(y[:, 3 * h + i, 3 * w + j, c], x[:, h, w, c * 9 + i * 3 + j])
    assert y.shape == (2, 9, 12, 2)
    with pytest.raises(ValueError, match="a multiple of factor², got C=18, factor=2"):
        pixel_shuffle(jnp.asarray(x), 2)


@pytest.mark.parity
def test_pixel_shuffle_is_that_of_torch():
    import torch

    x = np.random.default_rng(0).normal(size=(2, 3, 4, 8)).astype(np.float32)
    theirs = torch.nn.functional.pixel_shuffle(torch.tensor(x).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    np.testing.assert_array_equal(pixel_shuffle(jnp.asarray(x), 2), theirs.numpy())


def test_structural_similarity_is_its_formula_in_every_window():
    """Windows written out, as scikit-image has them: Gaussian weights, σ = 1.5, 11 × 11, the edge left out."""
    rng = np.random.default_rng(0)
    one = rng.uniform(size=(13, 12, 2))
    other = np.clip(one + rng.normal(0, 0.2, one.shape), 0, 1)
    line = np.exp(-0.5 * ((np.arange(11) - 5) / 1.5) ** 2)
    weights = np.outer(line, line) / line.sum() ** 2
    found = []
    for c in range(2):
        for top in range(3):
            for left in range(2):
                a, b = (x[top : top + 11, left : left + 11, c] for x in (one, other))
                ma, mb = (weights * a).sum(), (weights * b).sum()
                va, vb = (weights * a * a).sum() - ma**2, (weights * b * b).sum() - mb**2
                both = (weights * a * b).sum() - ma * mb
                c1, c2 = 0.01**2, 0.03**2
                found.append((2 * ma * mb + c1) * (2 * both + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2)))
    one, other = jnp.asarray(one, jnp.float32), jnp.asarray(other, jnp.float32)
    assert float(structural_similarity(one, other)) == pytest.approx(np.mean(found), abs=1e-5)
    assert float(structural_similarity(2 * one - 1, 2 * other - 1, span=2.0)) < 1
    with pytest.raises(ValueError, match="at least 11×11"):
        structural_similarity(one[:10], other[:10])


@pytest.mark.rotates
@pytest.mark.parametrize("changes", [*((name,) for name in CHANGES), tuple(CHANGES)])
def test_what_is_changed_in_a_row_depends_on_nothing_else_in_the_batch(changes):
    images = jax.random.normal(jax.random.key(0), (3, 8, 12, 2))
    key = jax.random.key(1)
    whole = differentiable_augment(images, key, changes)
    np.testing.assert_array_equal(differentiable_augment(images[:2], key, changes), whole[:2])
    assert all(bool(jnp.any(row != image)) for row, image in zip(whole, images, strict=True)) or "cutout" in changes
    other = images.at[0].set(0)
    np.testing.assert_allclose(differentiable_augment(other, key, changes)[1:], whole[1:], rtol=1e-6, atol=1e-6)


@pytest.mark.rotates
def test_changes_move_pixels_cut_them_out_and_keep_gradients():
    images = jnp.arange(1.0, 65).reshape(1, 8, 8, 1)
    moved = {float(x) for x in differentiable_augment(images, jax.random.key(0), ("translation",)).ravel()}
    assert moved <= {0.0, *map(float, images.ravel())}
    cut = np.asarray(differentiable_augment(images, jax.random.key(0), ("cutout",)))
    assert 4 <= (cut == 0).sum() <= 16
    assert np.isin(cut, np.arange(65.0)).all()
    slope = jax.grad(lambda x: jnp.sum(differentiable_augment(x, jax.random.key(0), ("cutout",))))(images)
    np.testing.assert_array_equal(np.asarray(slope), np.asarray(cut != 0, np.float32))
    coloured = jax.grad(lambda x: jnp.sum(differentiable_augment(x, jax.random.key(0), ("colour",)) ** 2))(images)
    assert bool(jnp.all(coloured != 0))
    with pytest.raises(ValueError, match="changes must be of colour, translation, cutout, got rotation"):
        differentiable_augment(images, jax.random.key(0), ("rotation",))


def test_players_take_turns_each_by_its_own_optimizer():
    """Two numbers that play a · b: by hand, each with its own rate, the second sees what the first has become."""
    import optax
    from flax import nnx

    class Pair(nnx.Module):
        def __init__(self):
            self.a, self.b = nnx.Param(jnp.float32(2)), nnx.Param(jnp.float32(3))

    def loss(model, batch, *, key, sign):
        return sign * 4 * model.a[...] * model.b[...], {"count": jnp.float32(4)}

    def player(name, sign, rate):
        return Player(name, lambda model, batch, *, key: loss(model, batch, key=key, sign=sign), optax.sgd(rate))

    from flax_transformer.train.state import new_state
    from flax_transformer.train.step import make_own_step

    own = alternate([player("b", -1, 0.1), player("a", 1, 0.5)])
    state = new_state(Pair(), own, ema=False, key=jax.random.key(0))
    state, metrics = make_own_step(own)(state, None)
    b = 3 + 0.1 * 2
    assert float(state.model.b[...]) == pytest.approx(b)
    assert float(state.model.a[...]) == pytest.approx(2 - 0.5 * b)
    assert float(metrics["loss"]) == pytest.approx(2 * b)
    assert float(metrics["b_loss"]) == pytest.approx(-6)
    assert float(metrics["gradient_norm"]) == pytest.approx(b)
    assert float(metrics["b_gradient_norm"]) == pytest.approx(2)
