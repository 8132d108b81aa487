"""Images among tokens: each patch sees its own image, padding says nothing, one token at a time is all at once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.multimodal.interleaved import Interleaved, InterleavedConfig
from flax_transformer.models.multimodal.qwen2_vl import qwen2_vl_text
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.vision.packed_vit import PackedViT, packed_vit
from flax_transformer.nn import Rotary, with_fields
from flax_transformer.objective import TokenLoss
from flax_transformer.train.state import parameter_count

PUBLISHED = {
    "qwen2_vl_2b": 2_208_985_600, "qwen2_vl_7b": 8_291_375_616,
    "qwen2_5_vl_3b": 3_754_622_976, "qwen2_5_vl_7b": 8_292_166_656,
}  # fmt: skip
IMAGE = 19
SMALL = InterleavedConfig(
    vision=packed_vit(12, embed=16, heads=2, depth=2, inner=24, patch=2),
    text=with_fields(
        qwen2_vl_text(20, embed=12, inner=20, heads=2, kv_heads=1, depth=2), rotary=Rotary(sections=(1, 1, 1))
    ),
    image_token=IMAGE,
)
GRIDS = [[(1, 2, 4), (1, 4, 2)], [(1, 4, 4), (0, 0, 0)]]
PIECES = [[2, 2, 1, 2, 4], [1, 4, 6]]
"""Tokens of the text, of an image, of the text, and so on."""
T = 11


@pytest.fixture(scope="module")
def model():
    return jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, Interleaved(SMALL, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def given():
    draw = np.random.default_rng(0)
    tokens = draw.integers(3, 19, (2, T))
    for row, pieces in zip(tokens, PIECES, strict=True):
        ends = np.cumsum(pieces)
        for begin, end in zip(ends[::2], ends[1::2], strict=False):
            row[begin:end] = IMAGE
    patches = draw.standard_normal((2, 16, SMALL.vision.numbers), dtype=np.float32)
    return jnp.asarray(tokens), jnp.asarray(patches), jnp.asarray(GRIDS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    assert parameter_count(abstract(find_preset(name)())) == PUBLISHED[name]


@pytest.mark.rotates
def test_patches_see_their_own_image(model, given):
    _, patches, grids = given
    by = jax.random.normal(jax.random.key(3), (16,))
    reads = jax.jacobian(lambda x: model.vision.states(x, grids[0]) @ by)(patches[0])
    seen = np.abs(np.asarray(reads)).sum(-1) > 0
    image = np.repeat([0, 1], 8)
    np.testing.assert_array_equal(seen, image[:, None] == image)


@pytest.mark.rotates
def test_patches_see_their_window_or_their_image_in_turns(given):
    """Of one block of each kind; windows are of one square."""
    _, patches, grids = given
    for window, size in [(1, 4), (None, 8)]:
        config = replace(SMALL.vision, depth=1, windows=(window,))
        encoder, by = PackedViT(config, rngs=nnx.Rngs(0)), jax.random.normal(jax.random.key(3), (16,))
        reads = jax.jacobian(lambda x, encoder=encoder, by=by: encoder.states(x, grids[0]) @ by)(patches[0])
        part = np.arange(16) // size
        np.testing.assert_array_equal(np.abs(np.asarray(reads)).sum(-1) > 0, part[:, None] == part)
    turns = [PackedViT(replace(SMALL.vision, windows=each), rngs=nnx.Rngs(0)) for each in ((1, None), (1,), (None,))]
    both, *alone = [each(patches, grids) for each in turns]
    assert min(np.abs(both - each).max() for each in alone) > 1e-4


@pytest.mark.rotates
@pytest.mark.parametrize("more", [4, 16])
def test_padding_of_patches_and_images_changes_nothing(model, given, more):
    tokens, patches, grids = given
    wide = jnp.pad(patches, ((0, 0), (0, more), (0, 0)), constant_values=7.0)
    many = jnp.pad(grids, ((0, 0), (0, 3), (0, 0)))
    plain = model(tokens, patches, grids)
    np.testing.assert_allclose(model(tokens, wide, many), plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.vision(wide, many)[:, :4], model.vision(patches, grids), rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_rows_apart_are_the_batch(model, given):
    tokens, patches, grids = given
    whole = model(tokens, patches, grids)
    for row in range(2):
        alone = model(tokens[row : row + 1], patches[row : row + 1], grids[row : row + 1])
        np.testing.assert_allclose(alone[0], whole[row], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model(tokens[row], patches[row], grids[row]), whole[row], rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_padding_of_tokens_says_nothing(model, given):
    tokens, patches, grids = given
    before = jnp.pad(tokens, ((0, 0), (3, 0)), constant_values=IMAGE)
    seen = jnp.arange(T + 3)[None].repeat(2, 0) >= 3
    found = model(before, patches, grids, seen=seen)[:, 3:]
    np.testing.assert_allclose(found, model(tokens, patches, grids), rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_texts_see_images_before_them_and_no_token_the_future(model, given):
    tokens, patches, grids = given
    plain = model(tokens, patches, grids)
    np.testing.assert_array_equal(model(tokens.at[:, 9:].set(5), patches, grids)[:, :9], plain[:, :9])
    other = np.abs(model(tokens, patches.at[0, 8:].add(1.0), grids) - plain)[0].max(-1)
    assert (other[:5] == 0).all()
    assert (other[5:] > 1e-5).all()


@pytest.mark.rotates
@pytest.mark.proves("qwen2_vl", "decode", "a token at a time as all at once")
@pytest.mark.parametrize("beams", [1, 3])
def test_one_token_at_a_time_is_all_at_once(model, given, beams):
    """Hypotheses of a row change places; prompts are padded on the left."""
    tokens, patches, grids = given
    random, rows, begin = np.random.default_rng(0), np.repeat(np.arange(2), beams), 8
    read = np.asarray(tokens)[rows].copy()
    read[:, begin:] = random.integers(3, 19, read[:, begin:].shape)
    prompts = jnp.pad(tokens[:, :begin], ((0, 0), (2, 0)), constant_values=1)
    padding = jnp.arange(begin + 2)[None].repeat(2, 0) < 2
    logits, cache = jax.jit(type(model).prefill)(model, prompts, padding, patches=patches, grids=grids)
    whole = jax.jit(lambda model, read: model(read, patches[rows], grids[rows]))
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
    tokens, patches, grids = given
    laid = model.for_decoding()
    plain, other = (each.prefill(tokens, patches=patches, grids=grids)[0] for each in (model, laid))
    np.testing.assert_allclose(plain, other, rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
def test_without_an_image_it_is_a_language_model(model, given):
    tokens = jnp.minimum(given[0], 18)
    np.testing.assert_array_equal(model(tokens), model.text(tokens))
    none = jnp.zeros((2, 4, SMALL.vision.numbers)), jnp.zeros((2, 1, 3), int)
    np.testing.assert_allclose(model(tokens, *none), model.text(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.proves("qwen2_vl", "train", "gradients of all that it reads")
@pytest.mark.parametrize("length", [5, 16, 40])
def test_a_text_is_learned_from_its_images(model, length):
    batch = jax.tree.map(jnp.asarray, Interleaved.example_batch(SMALL, 2, length))
    assert int((batch["inputs"]["tokens"] == IMAGE).sum()) == batch["inputs"]["patches"].shape[1] // 4 * 2
    gradient = jax.grad(lambda model: TokenLoss()(model, batch)[0])(model)
    assert all(
        np.abs(leaf).max() > 0 for leaf in (gradient.vision.patches.tubelet.kernel, gradient.text.head.token.embedding)
    )
    assert Interleaved.describe_batch(SMALL, batch).items == 2 * length


@pytest.mark.rotates
def test_an_encoder_alone_describes_its_batch():
    batch = PackedViT.example_batch(SMALL.vision, 3)
    encoder = SMALL.vision.build(nnx.Rngs(0))
    patches, grids = jax.tree.map(jnp.asarray, (batch["inputs"]["patches"], batch["inputs"]["grids"]))
    assert encoder.hidden_states(patches, grids).shape == (3, 64, 12)
    assert PackedViT.describe_batch(SMALL.vision, batch).items == 3


def test_what_does_not_fit_is_refused(model, given):
    tokens, patches, grids = given
    with pytest.raises(ValueError, match="patches come with the grids of their images, got none"):
        model(tokens, patches)
    with pytest.raises(
        ValueError, match="patches must be of 24 numbers and as many as squares of 4 make, got 15 of 24"
    ):
        model(tokens, patches[:, :15], grids)
    with pytest.raises(ValueError, match="windows must be of at least 1 square, for at least one turn, got"):
        replace(SMALL.vision, windows=(0,))
    with pytest.raises(ValueError, match="all parts must have one model width, got vision=8, text=12"):
        replace(SMALL, vision=replace(SMALL.vision, outputs=8))
    with pytest.raises(ValueError, match="texts need rotary positions with sections for time, row and column"):
        replace(SMALL, text=with_fields(SMALL.text, rotary=Rotary()))
    with pytest.raises(ValueError, match="patches need rotary positions with sections for row and column"):
        with_fields(SMALL.vision, rotary=Rotary())
