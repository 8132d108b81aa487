"""Whisper: published sizes, convolutions over time, and decoding after several tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.speech.whisper import whisper_tiny
from flax_transformer.nn import FeatureExtractorConfig, with_fields
from flax_transformer.objective import TokenLoss

PUBLISHED = {
    "whisper_tiny": 37_760_640, "whisper_base": 72_593_920, "whisper_small": 241_734_912, "whisper_medium": 763_857_920,
    "whisper_large_v3": 1_543_490_560,
}  # fmt: skip
"""What transformers counts of openai/whisper-…; the positions of recordings, which do not learn, among them."""
V, FRAMES = 40, 14


def narrow():
    config = with_fields(whisper_tiny(V), embed=12, heads=3, inner=20, max_length=9, init_std=0.3, depth=2)
    return with_fields(config, channels=5, max_source=FRAMES // 2)


@pytest.fixture(scope="module")
def model():
    return Seq2Seq(narrow(), rngs=nnx.Rngs(0))


def sound(rows=2):
    return jax.random.normal(jax.random.key(1), (rows, FRAMES, 5))


@pytest.mark.rotates
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    assert sum(leaf.size for leaf in jax.tree.leaves(abstract(find_preset(name)()))) == PUBLISHED[name]


@pytest.mark.rotates
@pytest.mark.parametrize("beams", [1, 3])
def test_steps_after_a_beginning_equal_the_whole(model, beams):
    tokens = np.random.default_rng(0).integers(3, V, (2, 7))
    whole = np.repeat(model(sound(), jnp.asarray(tokens)), beams, axis=0)
    cache = model.init_cache(model.encode(sound()), None, 4, beams=beams, begun=jnp.asarray(tokens[:, :3]))
    for t in range(3, 7):
        logits, cache = model.step(cache, jnp.repeat(jnp.asarray(tokens[:, t]), beams))
        np.testing.assert_allclose(logits, whole[:, t], rtol=1e-4, atol=1e-4)
        chosen = np.arange(2 * beams).reshape(2, beams)[:, ::-1].reshape(-1)  # hypotheses change places
        cache = cache.reorder(jnp.asarray(chosen))


@pytest.mark.rotates
def test_vmap_is_the_batch_and_all_of_a_sound_is_heard(model):
    plain = model.encode(sound())
    np.testing.assert_allclose(jax.vmap(model.encode)(sound()), plain, rtol=1e-4, atol=1e-5)
    for frame in (0, FRAMES - 1):
        assert not jnp.allclose(model.encode(sound().at[:, frame].add(1.0))[:, 3], plain[:, 3])


@pytest.mark.rotates
def test_positions_of_sounds_do_not_learn(model):
    batch = jax.tree.map(jnp.asarray, Seq2Seq.example_batch(model.cfg, 2, 5))
    gradient = jax.grad(lambda model: TokenLoss()(model, batch)[0])(model)
    assert not gradient.encoder.positions[...].any()
    assert gradient.encoder.front.conv1.kernel[...].any()


@pytest.mark.rotates
def test_a_sound_shorter_than_the_positions_takes_the_first_of_them_and_a_longer_one_is_refused(model):
    assert model.encode(sound()[:, :7]).shape == (2, 4, 12)
    with pytest.raises(ValueError, match="a recording must fit into the positions: 16 frames, 7 positions of 2 frames"):
        model.encode(jnp.zeros((1, 16, 5)))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [9, 10, 23])
def test_a_front_gives_as_many_positions_as_it_says(padded, length):
    cfg = FeatureExtractorConfig(
        channels=2, before=(3,), embed=4, windows=(4, 3), strides=(2, 1), padded=padded, norm="first"
    )
    shape = jax.eval_shape(lambda x: cfg.build(nnx.Rngs(0))(x), jax.ShapeDtypeStruct((1, length, 2), jnp.float32)).shape
    assert shape == (1, cfg.frames(length), 4)
    shortest = cfg.length_of(cfg.frames(length))
    assert cfg.frames(shortest) == cfg.frames(length) == cfg.frames(shortest - 1) + 1


def test_a_front_of_unequal_parts_is_refused():
    with pytest.raises(ValueError, match="convolutions must have a window, a stride and a width each"):
        FeatureExtractorConfig(embed=4, windows=(4,), strides=(2, 1))
    with pytest.raises(ValueError, match="sequences must be as large as a window of 4 after padding 0, got 3"):
        FeatureExtractorConfig(embed=3, windows=(4,), strides=(2,)).build(nnx.Rngs(0))(jnp.zeros((3, 1)))
