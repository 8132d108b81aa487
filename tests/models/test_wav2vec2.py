"""wav2vec 2.0: published sizes, padding, masked positions, and a kernel that is a direction and a length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.head import head_of
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.speech.classify import AudioClassifierConfig
from flax_transformer.models.speech.wav2vec2 import PlaceConv, Wav2Vec2, wav2vec2_base, wav2vec2_large
from flax_transformer.nn import ConvConfig, with_fields
from flax_transformer.objective import CTCLoss
from flax_transformer.ops import Mask
from tests.shares import only

PUBLISHED = {"wav2vec2_base": 94_396_320, "wav2vec2_large": 315_471_520}
"""What transformers counts of Wav2Vec2ForCTC."""


def narrow(preset, **changes):
    config = with_fields(preset(9, dropout=0.0).backbone, heads=2, inner=20, depth=2, groups=3, window=6)
    return with_fields(config, embed=12, windows=(5, 3), strides=(3, 2), init_std=0.3, **changes)


@pytest.fixture(scope="module", params=only([wav2vec2_base, wav2vec2_large], wav2vec2_large))
def model(request):
    return Wav2Vec2(narrow(request.param), rngs=nnx.Rngs(0))


def sounds(rows=2, length=70):
    return jax.random.normal(jax.random.key(1), (rows, length))


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    assert sum(leaf.size for leaf in jax.tree.leaves(abstract(find_preset(name)()))) == PUBLISHED[name]


@pytest.mark.rotates
def test_what_padding_holds_says_nothing_where_each_position_has_its_own_norm():
    model = jax.jit(Wav2Vec2.__call__)
    made, lengths = Wav2Vec2(narrow(wav2vec2_large), rngs=nnx.Rngs(0)), jnp.array([70, 41])
    plain = model(made, sounds(), mask=Mask(lengths=lengths))
    other = model(made, sounds().at[1, 41:].set(3.0), mask=Mask(lengths=lengths))
    count = made.cfg.front.frames(41)
    np.testing.assert_allclose(other[1, :count], plain[1, :count], rtol=1e-4, atol=1e-5)
    alone = model(made, sounds()[1:, :41])
    np.testing.assert_allclose(plain[1, :count], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
def test_vmap_is_the_batch(model):
    np.testing.assert_allclose(jax.vmap(model)(sounds()), model(sounds()), rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
def test_masked_positions_hold_the_token_and_others_see_it(model):
    plain, masked = model(sounds()), jnp.zeros(model(sounds()).shape[:2], bool).at[0, 3].set(True)
    found = model(sounds(), masked=masked)
    assert not np.allclose(found[0], plain[0])
    np.testing.assert_allclose(found[1], plain[1], rtol=1e-4, atol=1e-5)
    gradient = jax.grad(lambda model: model(sounds(), masked=masked).sum())(model)
    assert gradient.mask_token[...].any()


def test_a_kernel_is_as_long_as_its_scale_says_whatever_its_parameter_is():
    layer = PlaceConv(ConvConfig(channels=4, features=6, window=(5,), groups=2), rngs=nnx.Rngs(0))
    np.testing.assert_allclose(layer.weights(), layer.kernel[...], rtol=1e-5)
    layer.kernel[...] *= jnp.arange(1.0, 6.0)[:, None, None]
    np.testing.assert_allclose(jnp.linalg.norm(layer.weights().reshape(5, -1), axis=1), layer.scale[...], rtol=1e-5)


@pytest.mark.slow
def test_a_transcriber_learns_a_text():
    config = narrow(wav2vec2_large)
    whole = wav2vec2_large(9, dropout=0.0)
    whole = type(whole)(backbone=config, head=with_fields(whole.head, embed=12))
    model = whole.build(nnx.Rngs(0))
    inputs = {"samples": sounds(), "lengths": jnp.array([70, 50])}
    batch = {
        "inputs": inputs,
        "labels": jnp.array([[3, 1, 2], [4, 4, 0]]),
        "weights": jnp.array([[1, 1, 1], [1, 1, 0]]),
    }
    slope = jax.jit(jax.value_and_grad(lambda model: CTCLoss()(model, batch)[0]))
    losses = []
    for _ in range(5):
        loss, gradient = slope(model)
        model = jax.tree.map(lambda p, g: p - 0.01 * g, model, gradient)
        losses.append(float(loss))
    assert losses[-1] < losses[0]


@pytest.mark.rotates
def test_what_cannot_be_is_refused(model):
    with pytest.raises(ValueError, match=r"recordings are padded at their end, Mask\(lengths=…\), got another mask"):
        model(sounds(), mask=Mask(causal=True))
    with pytest.raises(ValueError, match="sequences must be as large as a window of 5 after padding 0, got 4"):
        model(sounds(length=4))
    bare = Wav2Vec2(narrow(wav2vec2_base, mask_token=False), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="a model without a mask token must not be given masked positions"):
        bare(sounds(), masked=jnp.zeros((2, 10), bool))


def told(**head):
    backbone = narrow(wav2vec2_large)
    return AudioClassifierConfig(backbone=backbone, head=head_of(backbone, outputs=3, **head))


@pytest.mark.rotates
def test_a_sound_is_told_by_its_own_positions_whatever_is_beside_it():
    config = told(pool="mean", dense="identity", dense_width=5)
    classifier, lengths = config.build(nnx.Rngs(0)), jnp.array([70, 41])
    scores = lambda samples, **given: classifier.output(classifier.hidden_states(samples, **given))  # noqa: E731
    both = scores(sounds().at[1, 41:].set(3.0), lengths=lengths)
    assert both.shape == (2, 3)
    np.testing.assert_allclose(both[1], scores(sounds()[1:, :41])[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both[0], scores(sounds()[:1])[0], rtol=1e-4, atol=1e-5)
    assert not np.isnan(scores(sounds(), lengths=jnp.array([70, 0]))[0]).any()  # a row that fills a batch


def test_a_sound_is_told_by_a_mean():
    with pytest.raises(ValueError, match="a recording is told by the mean of all positions, got pool='first'"):
        told(pool="first")
