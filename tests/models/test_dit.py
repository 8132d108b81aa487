"""Diffusion Transformers: published sizes, adaLN-Zero, what conditions do, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.vision.dit import DiT, dit
from flax_transformer.nn import adaptive_block, transformer_block

pytestmark = pytest.mark.proves("diffusion Transformers", "adaLN-Zero against NumPy, published sizes")
PUBLISHED = {"dit_s_2": 33, "dit_b_2": 130, "dit_l_2": 458, "dit_xl_2": 675}
CONFIG = dit(16, 2, 2, image=8, patch=4, channels=2, classes=3)


def drawn(config=CONFIG):
    """Make a model none of whose parameters is zero."""
    model = config.build(nnx.Rngs(0))
    leaves, tree = jax.tree.flatten(model)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([0.2 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])


@pytest.fixture(scope="module")
def model():
    return drawn()


@pytest.fixture(scope="module")
def batch():
    return jax.tree.map(jnp.asarray, DiT.example_batch(CONFIG, 3)["inputs"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    config = find_preset(name)()
    assert round(sum(leaf.size for leaf in jax.tree.leaves(abstract(config))) / 1e6) == PUBLISHED[name]
    assert config.shape == (32, 32, 4)


@pytest.mark.rotates
def test_a_new_model_passes_patches_through_and_predicts_zero(batch):
    model = CONFIG.build(nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 16)).astype(np.float32))
    hidden = model.trunk(x, condition=jnp.ones((3, 16), jnp.float32))
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(hidden, centred / np.sqrt(x.var(-1, keepdims=True) + 1e-6), atol=1e-4)
    assert not np.any(model(**batch))


@pytest.mark.rotates
def test_a_block_is_modulated_as_the_paper_says(model):
    """x + gate · f((1 + scale) · norm(x) + shift), of each sublayer, by NumPy."""
    block = jax.tree.map(lambda leaf: leaf[0], model.trunk.blocks)
    x, c = (np.random.default_rng(i).normal(size=(4, 16)).astype(jnp.float32)[: 4 if i else 1] for i in (1, 0))
    y = np.float64(x)
    for name in ("attention", "feedforward"):
        around = getattr(block, f"{name}_residual").modulation
        silu = np.float64(c) / (1 + np.exp(-np.float64(c)))
        shift, scale, gate = np.split(silu @ np.asarray(around.kernel[...]) + np.asarray(around.bias[...]), 3, axis=-1)
        normed = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6)
        y = y + gate * np.asarray(getattr(block, name)(jnp.asarray(normed * (1 + scale) + shift, jnp.float32)))
    np.testing.assert_allclose(block(jnp.asarray(x)[None], condition=jnp.asarray(c))[0], y, atol=1e-5)


@pytest.mark.rotates
def test_time_and_class_change_what_is_predicted_of_their_row_alone(model, batch):
    before = model(**batch)
    for name, value in (("times", 5.0), ("classes", 3)):
        changed = {**batch, name: jnp.where(jnp.arange(3) == 1, value, batch[name]).astype(batch[name].dtype)}
        far = np.abs(np.asarray(model(**changed) - before)).max(axis=(1, 2, 3))
        assert far[1] > 1e-4
        np.testing.assert_allclose(far[[0, 2]], 0, atol=1e-6)


@pytest.mark.rotates
def test_no_class_is_the_null_class(model, batch):
    images, times = batch["images"], batch["times"]
    np.testing.assert_array_equal(model(images, times), model(images, times, jnp.full(3, CONFIG.null)))


def test_vmap_is_the_batch_and_jit_is_eager(model, batch):
    found = jax.jit(lambda model, batch: model(**batch))(model, batch)
    np.testing.assert_allclose(jax.vmap(lambda row: model(**row))(batch), found, atol=1e-5)
    np.testing.assert_allclose(model(**batch), found, atol=1e-5)


@pytest.mark.rotates
def test_every_patch_sees_every_other(model, batch):
    def one(image):
        return model(image, batch["times"][0], batch["classes"][0])

    slopes = jax.jacobian(one)(jnp.asarray(batch["images"][0]))
    patches = np.abs(slopes).reshape(2, 4, 2, 4, 2, 2, 4, 2, 4, 2).sum(axis=(1, 3, 4, 6, 8, 9))
    assert (patches > 1e-8).all()


@pytest.mark.rotates
def test_a_learned_variance_is_beside_the_prediction():
    model = drawn(dit(16, 1, 2, image=8, patch=4, channels=2, classes=0, learned_sigma=True))
    images = jnp.ones((1, 8, 8, 2), jnp.float32)
    whole = model(images, jnp.ones(1, jnp.float32))
    assert whole.shape == (1, 8, 8, 4)
    np.testing.assert_array_equal(model.predict(images, jnp.ones(1, jnp.float32)), whole[..., :2])
    with pytest.raises(ValueError, match="images without classes is given none"):
        model(images, jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.int32))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dit(16, 1, 2, image=9, patch=4, channels=1, classes=1), "patches divide, got 9×9 pixels in patches"),
        (lambda: dit(16, 1, 2, image=8, patch=4, channels=1, classes=-1), "classes must be at least 0, got -1"),
        (lambda: drawn()(jnp.ones((1, 4, 8, 2), jnp.float32), jnp.ones(1, jnp.float32)), r"= \(8, 8, 2\), got shape"),
        (lambda: adaptive_block(transformer_block(embed=8, heads=2, inner=8)), "got norm_position='post'"),
    ],
)
def test_what_does_not_fit_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
