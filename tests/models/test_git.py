"""GIT has the published sizes; images see all of themselves, texts the images and their past, one token at a time
too.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal
from flax_transformer.models.multimodal.git import Prefixed, PrefixedConfig, git_text, git_vision
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.text.llama import llama3_2_1b
from flax_transformer.nn import with_fields
from flax_transformer.objective import TokenLoss
from flax_transformer.train.state import parameter_count
from tests.models.families import narrow

PUBLISHED = {"git_base": 176_619_066, "git_large": 394_196_026}
SMALL = PrefixedConfig(
    vision=git_vision(image=8, patch=4, embed=8, heads=2, depth=1),
    text=git_text(vocab=20, embed=12, heads=2, depth=2, length=16, dropout=0.0),
    frames=2,
)
P, T = 10, 6
"""Positions of two images, and tokens."""


@pytest.fixture(scope="module")
def model():
    strong = jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, Prefixed(SMALL, rngs=nnx.Rngs(0)))
    strong.frames = nnx.Param(jax.random.normal(jax.random.key(1), strong.frames.shape))
    return strong


@pytest.fixture(scope="module")
def given():
    draw = np.random.default_rng(0)
    images = draw.standard_normal((2, 2, 8, 8, 3), dtype=np.float32)
    return jnp.asarray(draw.integers(3, 20, (2, T))), jnp.asarray(images)


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    model = abstract(find_preset(name)())
    assert parameter_count(model) == PUBLISHED[name]
    if name == "git_base":  # the paper counts without tables: 129 M
        tables = parameter_count((model.text.embedding, model.text.head, model.text.output_bias))
        assert round((PUBLISHED[name] - tables) / 1e6) == 129


@pytest.mark.rotates
def test_pictures_see_themselves_and_texts_the_past(model, given):
    tokens, images = given
    x = jax.random.normal(jax.random.key(2), (1, P + T, 12))
    by = jax.random.normal(jax.random.key(3), (12,))
    reads = jax.jacobian(lambda x: model.text.trunk(x, mask=model.text._mask(P)) @ by)(x)
    seen = np.abs(np.asarray(reads)).sum(-1)[0, :, 0] > 0
    at = np.arange(P + T)
    np.testing.assert_array_equal(seen, (at[None] <= at[:, None]) | (at[None] < P))
    plain, states = model(tokens, images), model.encode(tokens, images)
    assert states.shape == (2, P + T, 12)
    np.testing.assert_array_equal(model(tokens.at[:, 4:].set(2), images)[:, :4], plain[:, :4])
    assert np.abs(model(tokens, images[:, ::-1]) - plain).max(-1).min() > 1e-4


@pytest.mark.rotates
@pytest.mark.proves("git", "decode", "a token at a time as all at once")
@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize("beams", [1, 3])
def test_one_token_at_a_time_is_all_at_once(model, given, begin, beams):
    """Hypotheses of an image change places; prompts of other lengths are padded on the left."""
    tokens, images = given
    random, rows = np.random.default_rng(0), np.repeat(np.arange(2), beams)
    read = np.asarray(tokens)[rows].copy()
    read[:, begin:] = random.integers(3, 20, read[:, begin:].shape)
    prompts = jnp.pad(tokens[:, :begin], ((0, 0), (2, 0)), constant_values=1) if begin else tokens[:, :0]
    padding = jnp.arange(begin + 2)[None].repeat(2, 0) < 2 if begin else None
    logits, cache = jax.jit(type(model).prefill)(model, prompts, padding, images=images)
    whole = jax.jit(lambda model, read: model(read, images[rows]))
    if begin:
        np.testing.assert_allclose(logits, whole(model, jnp.asarray(read))[::beams, begin - 1], rtol=1e-4, atol=1e-4)
    cache, step = cache.fork(beams, prompts.shape[1] + T), jax.jit(type(model).step)
    for t in range(begin, T):
        logits, cache = step(model, cache, jnp.asarray(read[:, t]))
        np.testing.assert_allclose(logits, whole(model, jnp.asarray(read))[:, t], rtol=1e-4, atol=1e-4)
        chosen = (np.arange(2)[:, None] * beams + random.integers(0, beams, (2, beams))).reshape(-1)
        cache = cache.reorder(jnp.asarray(chosen))
        read[:, : t + 1] = read[chosen, : t + 1]


@pytest.mark.rotates
def test_laid_out_for_decoding_it_is_the_same(model, given):
    tokens, images = given
    plain, laid = (each.prefill(tokens, images=images)[0] for each in (model, model.for_decoding()))
    np.testing.assert_allclose(plain, laid, rtol=1e-5, atol=1e-5)


def test_without_a_picture_it_is_a_language_model(model, given):
    tokens, _ = given
    np.testing.assert_array_equal(model(tokens), model.text(tokens))


@pytest.mark.rotates
@pytest.mark.proves("git", "train", "gradients of all that it reads")
def test_a_text_is_learned_from_its_picture(model, given):
    batch = jax.tree.map(jnp.asarray, Prefixed.example_batch(SMALL, 2, T))
    loss = lambda model: TokenLoss()(model, batch)[0]  # noqa: E731
    gradient = jax.grad(loss)(model)
    assert all(np.abs(leaf).max() > 0 for leaf in (gradient.vision.patches.patch.kernel, gradient.frames))
    assert Prefixed.describe_batch(SMALL, batch).items == 2 * T


@pytest.mark.rotates
def test_what_cannot_be_a_prefix_is_refused(model, given):
    tokens, images = given
    with pytest.raises(ValueError, match=r"a row has at most 2 images, got images of shape \[2, 3, 8, 8, 3\]"):
        model(tokens, jnp.concatenate([images, images[:, :1]], axis=1))
    with pytest.raises(ValueError, match="a row has at most 1 images"):
        Prefixed(replace(SMALL, frames=None), rngs=nnx.Rngs(0))(tokens, images)
    rotary = Causal(narrow(with_fields(llama3_2_1b(), vocab=20)), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="a prefix is of models without windows, rotary or relative positions"):
        rotary.encode(tokens, prefix=jnp.zeros((2, 3, 32)))
    with pytest.raises(ValueError, match="D must be 12, got 8: a prefix has shape"):
        model.text.encode(tokens, prefix=jnp.zeros((2, 3, 8)))
