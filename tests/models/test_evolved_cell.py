"""The Evolved Transformer's cells: what they see, how they are stacked, and what they carry from step to step."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.evolved_branch import DecoderBranchesConfig, EncoderBranchesConfig
from flax_transformer.models.text.evolved_cell import EvolvedCache, evolved_decoder, evolved_encoder
from flax_transformer.nn import Precision, TrunkConfig, with_fields
from flax_transformer.nn.relative import RelativeConfig
from flax_transformer.nn.trunk import Trunk
from flax_transformer.ops import Mask
from tests.shares import share

pytestmark = pytest.mark.proves("evolved cells", "what windows see, padding, stacks, caches that move and grow")

D, N, B, T, S = 8, 2, 2, 14, 5
ENCODER, DECODER = (make(embed=D, heads=N) for make in (evolved_encoder, evolved_decoder))
LENGTHS = jnp.array([14, 6])


def loud(tree, by=3):
    """Make kernels larger than they begin, so that what is wrong is not lost in rounding."""
    return jax.tree.map(lambda leaf: by * leaf if leaf.ndim > 1 else leaf, tree)


def drawn(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def trunk(block, by=2, depth=2, **options):
    made = jax.jit(lambda: Trunk(TrunkConfig(block=block, depth=depth, **options), causal=True, rngs=nnx.Rngs(0)))()
    return loud(made, by)


def moved(run, x):
    """Say which positions of what a function gives depend on which of what it is given."""
    slopes = jax.jacobian(lambda x: jnp.sin(run(x[None])[0]))(x)
    return np.abs(slopes).max((1, 3)) > 1e-8


def reach(before, after):
    ahead = np.arange(T) - np.arange(T)[:, None]
    return (ahead >= -before) & (ahead <= after)


@pytest.mark.rotates
def test_convolutions_of_an_encoder_see_five_on_either_side():
    """One by the window of 3, four by that of 9."""
    branches = loud(ENCODER.branches.build(nnx.Rngs(0)))
    np.testing.assert_array_equal(moved(branches, drawn(T, D)), reach(5, 5))


@pytest.mark.rotates
def test_convolutions_of_a_decoder_see_sixteen_before_and_none_after():
    """Ten by the window of 11, six by that of 7."""
    branches = loud(DECODER.branches.build(nnx.Rngs(0)))
    long = drawn(1, 20, D)
    seen = moved(branches, long[0, :T])
    np.testing.assert_array_equal(seen, reach(T, 0))
    past = jax.jacobian(lambda x: branches(x)[0, -1].sum())(long)[0]
    np.testing.assert_array_equal(np.abs(past).max(-1) > 0, np.arange(20) >= 20 - 17)


@pytest.mark.rotates
def test_the_future_is_unseen():
    cell, memory = loud(DECODER.build(nnx.Rngs(0))), drawn(1, S, D, seed=1)
    seen = moved(lambda x: cell(x, memory, mask=Mask(causal=True)), drawn(T, D))
    np.testing.assert_array_equal(seen, reach(T, 0))


@pytest.mark.rotates
def test_what_padding_holds_says_nothing_and_nor_does_more_of_it():
    whole, x = trunk(ENCODER), drawn(B, T, D)
    mask, shown = Mask(lengths=LENGTHS), np.arange(T) < LENGTHS[:, None]
    expected = np.asarray(whole(x, mask=mask))[shown]
    more = jnp.where(jnp.arange(T + 4) < LENGTHS[:, None], jnp.moveaxis(jnp.pad(x, ((0, 0), (0, 4), (0, 0))), 2, 0), 9)
    found = whole(jnp.moveaxis(more, 0, 2), mask=mask)[:, :T]
    np.testing.assert_allclose(np.asarray(found)[shown], expected, rtol=1e-4, atol=1e-5)
    alone = whole(x[1:, :6])
    np.testing.assert_allclose(alone[0], expected[-6:], rtol=1e-4, atol=1e-5)


RUNS = [{"unroll": True}, {"unroll": 2}, {"remat": "full"}, {"remat": "dots"}, {"remat": "attention"}]


@pytest.mark.rotates
@pytest.mark.parametrize("options", share(RUNS, 0, of=5), ids=str)
@pytest.mark.parametrize("block", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_a_scan_is_a_loop_and_what_is_computed_again_is_the_same(block, options):
    given = [drawn(B, T, D)] + [drawn(B, S, D, seed=1)] * (block is DECODER)
    plain, other = trunk(block, by=1, depth=3), trunk(block, by=1, depth=3, **options)

    def step(trunk):
        def loss(trunk):
            y = trunk(*given, mask=Mask(causal=True) if block is DECODER else None)
            return jnp.sum(y * drawn(D, seed=2)), y

        return jax.value_and_grad(loss, has_aux=True)(trunk)

    expected, found = (jax.tree.leaves(jax.jit(step)(each)) for each in (plain, other))
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-3, atol=1e-4 * float(jnp.abs(its).max()))


@pytest.mark.rotates
@pytest.mark.parametrize("block", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_compiled_is_eager_and_vmap_is_the_batch(block):
    cell, given = loud(block.build(nnx.Rngs(0))), [drawn(B, T, D)] + [drawn(B, S, D, seed=1)] * (block is DECODER)
    lengths = {"mask": Mask(lengths=LENGTHS)} if block is ENCODER else {"memory_mask": Mask(lengths=jnp.array([5, 2]))}
    run = lambda given, masks: cell(*given, **masks)  # noqa: E731
    compiled = jax.jit(run)(given, lengths)
    with jax.disable_jit():
        np.testing.assert_allclose(run(given, lengths), compiled, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.vmap(run)(given, lengths), compiled, rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
def test_every_parameter_learns():
    for block in (ENCODER, DECODER):
        given = [drawn(B, T, D)] + [drawn(B, S, D, seed=1)] * (block is DECODER)
        slopes = jax.jit(jax.grad(lambda trunk, given=given: jnp.sum(jnp.sin(trunk(*given)))))(trunk(block))
        assert all(np.abs(leaf).max() > 1e-7 for leaf in jax.tree.leaves(slopes))


# What is carried from step to step.


def steps(whole, x, memory, parts, *, beams=1, room=T):
    """Read x part by part; give what comes, the last cache, and what each of them was."""
    cache, found, at = whole.init_cache(B, room, beams=beams), [], 0
    projected = whole.project(memory, beams=beams)
    for size in parts:
        y, cache = jax.jit(type(whole).extend)(whole, x[:, at : at + size], cache, projected, index=jnp.int32(at))
        found.append(y)
        at += size
    return jnp.concatenate(found, axis=1), cache


@pytest.mark.rotates
@pytest.mark.parametrize("parts", [[1] * T, [3, 1, 10], [12, 2]], ids=str)
def test_part_by_part_is_all_at_once(parts):
    whole, x, memory = trunk(DECODER), drawn(B, T, D), drawn(B, S, D, seed=1)
    found, cache = steps(whole, x, memory, parts)
    assert isinstance(cache, EvolvedCache)
    np.testing.assert_allclose(found, whole(x, memory, mask=Mask(causal=True)), rtol=1e-4, atol=1e-4)


@pytest.mark.rotates
def test_hypotheses_fork_change_places_and_grow():
    """From a prompt that all hypotheses of a sentence share, in a cache that is full of it."""
    whole, memory, beams, P = trunk(DECODER), drawn(B, S, D, seed=1), 3, 5
    prompt, later = drawn(B, P, D, seed=2), drawn(B * beams, 4, D, seed=3)
    _, cache = steps(whole, prompt, memory, [P], room=P)
    cache = cache.fork(beams, P + 2)
    projected = whole.project(memory).share(beams)
    read, picks = jnp.repeat(prompt, beams, axis=0), np.random.default_rng(0)
    for t in range(4):
        cache = cache.grow(P + 4) if t == 2 else cache
        assert cache.length == P + (2 if t < 2 else 4)
        given = later[:, t : t + 1]
        y, cache = whole.extend(given, cache, projected, index=jnp.int32(P + t))
        read = jnp.concatenate([read, given], axis=1)
        expected = whole(read, jnp.repeat(memory, beams, axis=0), mask=Mask(causal=True))
        np.testing.assert_allclose(y[:, 0], expected[:, -1], rtol=1e-4, atol=1e-4)
        rows = (np.arange(B)[:, None] * beams + picks.integers(0, beams, (B, beams))).reshape(-1)
        cache, read = cache.reorder(jnp.asarray(rows)), read[rows]


@pytest.mark.rotates
def test_a_cell_laid_out_for_decoding_is_the_cell():
    whole, x, memory = trunk(DECODER), drawn(B, T, D), drawn(B, S, D, seed=1)
    apart = whole.for_decoding()
    found, cache = steps(apart, x, memory, [2, 1, 1])
    assert isinstance(cache, tuple)
    np.testing.assert_allclose(found, steps(whole, x, memory, [2, 1, 1])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.rotates
def test_dropout_is_drawn_by_its_key_and_falls_everywhere():
    """Each place by itself: what is left at a rate of 0 is nothing random."""
    x, memory = drawn(B, T, D), drawn(B, S, D, seed=1)
    for block in (ENCODER, DECODER):
        given = [x] + [memory] * (block is DECODER)
        for name in ("dropout", "branch_dropout", "activation_dropout", "attention_dropout", "drop_path"):
            cell = loud(with_fields(block, **{name: 0.5}).build(nnx.Rngs(0)))
            first, again, other = (cell(*given, key=jax.random.key(seed)) for seed in (1, 1, 2))
            np.testing.assert_array_equal(first, again)
            assert np.abs(first - other).max() > 1e-3, name
            np.testing.assert_array_equal(cell(*given), loud(block.build(nnx.Rngs(0)))(*given))


@pytest.mark.rotates
def test_short_floats_are_near_and_stay_short():
    short = Precision(compute="bfloat16")
    for block in (ENCODER, DECODER):
        given = [drawn(B, T, D)] + [drawn(B, S, D, seed=1)] * (block is DECODER)
        near = with_fields(block, precision=short).build(nnx.Rngs(0))(*(x.astype(jnp.bfloat16) for x in given))
        assert near.dtype == jnp.bfloat16
        expected = block.build(nnx.Rngs(0))(*given)
        np.testing.assert_allclose(near.astype(jnp.float32), expected, atol=0.1)


@pytest.mark.rotates
def test_what_does_not_fit_says_why():
    cell, decoder, x = ENCODER.build(nnx.Rngs(0)), DECODER.build(nnx.Rngs(0)), drawn(B, T, D)
    segments = jnp.zeros((B, T), int)
    for mask, name in (
        (Mask(causal=True), "causal"),
        (Mask(window=3), "window"),
        (Mask(segments=(segments, segments)), "segments"),
        (Mask(dense=jnp.ones((T, T), bool)), "dense"),
        (Mask(lengths=LENGTHS) | Mask(causal=True), "also"),
    ):
        with pytest.raises(ValueError, match=f"in their windows but padding, got a mask with {name}"):
            cell(x, mask=mask)
    with pytest.raises(ValueError, match="got a mask with segments"):
        decoder(x, x, mask=Mask(causal=True, segments=(segments, segments)))
    with pytest.raises(ValueError, match="needs a memory, got none"):
        decoder(x)
    with pytest.raises(ValueError, match="relative must be None"):
        trunk(ENCODER, relative=RelativeConfig())(x)
    with pytest.raises(ValueError, match="before its sublayers, got norm_position='post'"):
        replace(ENCODER, residual=replace(ENCODER.residual, norm_position="post"))
    with pytest.raises(ValueError, match="half as wide as the model and the other no narrower, got D=7, F=28"):
        EncoderBranchesConfig(embed=7, inner=28)
    with pytest.raises(ValueError, match="no narrower, got D=8, F=3"):
        DecoderBranchesConfig(embed=8, inner=3)
    with pytest.raises(ValueError, match=r"heads must divide into 3, .* got H=4"):
        replace(DECODER, times=3)
    with pytest.raises(ValueError, match="all parts must have one model width"):
        replace(ENCODER, gate=replace(ENCODER.gate, embed=4))
