"""Models of videos have the published sizes, and see what they are said to see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.video.timesformer import TimeSformer, TimeSformerConfig, timesformer_encoder
from flax_transformer.models.video.tubelet import TubeletConfig
from flax_transformer.models.video.videomae import VideoMAE, tube_places, videomae_pretraining
from flax_transformer.models.video.vivit import ViViT, ViViTConfig, vivit_encoder
from flax_transformer.nn import Grid, with_fields
from flax_transformer.train.state import parameter_count

SIZES = {
    "vivit_base": 88_954_000, "vivit_large": 307_508_624, "timesformer_base": 121_566_352,
    "timesformer_high_resolution": 122_024_080, "timesformer_long": 121_633_936, "videomae_small": 22_033_936,
    "videomae_base": 86_534_800, "videomae_large": 304_270_736, "videomae_huge": 632_119_440,
    "videomae_pretraining": 94_210_944,
}  # fmt: skip
SMALL = {"embed": 8, "heads": 2, "inner": 12, "depth": 2, "init_std": 0.5}
VIDEOS = np.random.default_rng(0).standard_normal((2, 4, 8, 8, 3), dtype=np.float32)


@pytest.mark.rotates
@pytest.mark.parametrize("name", SIZES)
def test_presets_have_the_published_sizes(name):
    assert parameter_count(abstract(find_preset(name)())) == SIZES[name]


def timesformer(**changes):
    config = with_fields(timesformer_encoder("base", frames=4, image=8, patch=4, **changes), **SMALL)
    return TimeSformer(config, rngs=nnx.Rngs(0))


def vivit(**changes):
    config = with_fields(vivit_encoder("base", frames=4, image=8, patch=4, **changes), **SMALL)
    return ViViT(config, rngs=nnx.Rngs(0))


MODELS = {
    "divided": timesformer, "joint": lambda: timesformer(divided=False),
    "space only": lambda: timesformer(divided=False, time=False), "vivit": vivit,
}  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_vmap_is_the_batch(make):
    model = make()
    np.testing.assert_allclose(jax.vmap(model)(VIDEOS), model(VIDEOS), atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", MODELS)
def test_only_without_time_the_order_of_frames_says_nothing(name):
    model = MODELS[name]()
    moved = np.abs(model(VIDEOS)[:, 0] - model(VIDEOS[:, ::-1])[:, 0]).max()
    assert (moved < 1e-5) == (name == "space only")


@pytest.mark.rotates
def test_a_block_of_divided_attention_sees_a_place_in_time_and_then_a_frame():
    """After one block a patch knows its own place in all frames, and the other places of every frame."""
    config = with_fields(timesformer_encoder("base", frames=4, image=8, patch=4), **{**SMALL, "depth": 1})
    model = TimeSformer(config, rngs=nnx.Rngs(0))
    x = jnp.asarray(model.embed(VIDEOS[0]))
    block = jax.tree.map(lambda leaf: leaf[0], model.trunk.blocks)
    time = jax.jacobian(lambda x: block.time(x, grid=Grid(4, 4)).sum(-1))(x)
    space = jax.jacobian(lambda x: block.attention(x, grid=Grid(4, 4)).sum(-1))(x)
    number = np.arange(16).reshape(4, 4)
    for layer, axis in ((time, 0), (space, 1)):
        seen = np.asarray(layer).any(-1)[1:, 1:]
        for i in range(16):
            at = np.argwhere(number == i)[0][axis]
            assert set(np.flatnonzero(seen[i])) == set(number.take(at, axis))
    assert not np.asarray(time)[0].any()
    assert np.asarray(space).any(-1)[0].all()


@pytest.mark.rotates
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("shape", [(4, 12, 8), (7, 8, 8), (2, 17, 9)])
def test_clips_of_any_size_are_encoded(make, shape):
    assert np.isfinite(make()(np.ones((1, *shape, 3), np.float32))).all()


def test_a_tubelet_is_the_same_patch_of_frames_that_follow_each_other():
    config = TubeletConfig(embed=2 * 3 * 4 * 1, frames=4, span=2, image=(6, 9), patch=(3, 4), channels=1, bias=False)
    layer = config.build(nnx.Rngs(0))
    layer.tubelet.kernel[...] = jnp.eye(24).reshape(2, 3, 4, 1, 24)
    clip = np.arange(5 * 6 * 9, dtype=np.float32).reshape(5, 6, 9, 1)
    found = layer(clip).reshape(2, 2, 2, 2, 3, 4, 1)
    np.testing.assert_array_equal(found[1, 0, 1], clip[2:4, :3, 4:8])


def test_tubes_are_masked_through_all_times():
    noise = np.random.default_rng(0).random((3, 7))
    kept, masked = tube_places(noise, 3, 2)
    assert kept.shape == (3, 6)
    for one, other in zip(kept, masked, strict=True):
        assert sorted([*one.tolist(), *other.tolist()]) == list(range(21))
        assert len({place % 7 for place in one.tolist()}) == 2


@pytest.mark.rotates
def test_what_is_masked_does_not_reach_the_encoder():
    sizes = {"frames": 4, "image": (8, 8), "patch": (2, 2), "embed": 8, "heads": 2, "inner": 12, "depth": 1}
    config = with_fields(videomae_pretraining(), **sizes)
    model = VideoMAE(config, rngs=nnx.Rngs(0))
    noise = np.random.default_rng(0).random((2, 16), dtype=np.float32)
    kept, _ = tube_places(noise, 2, 2)
    assert model.hidden_states(VIDEOS, noise).shape == (2, 28, 8)
    assert model.output(model.hidden_states(VIDEOS, noise)).shape == (2, 28, 24)
    slope = jax.grad(lambda videos: (model.hidden_states(videos, noise) ** 3).sum())(VIDEOS)
    seen = np.abs(np.asarray(slope)).max(-1).reshape(2, 2, 2, 4, 2, 4, 2)
    places = seen.max((2, 4, 6)).reshape(2, 32)
    for row, own in zip(places, kept, strict=True):
        assert set(np.flatnonzero(row)) == set(own.tolist())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vivit_encoder("base", frames=1, image=16), "a video must hold a tubelet of 2 frames, got 1"),
        (lambda: vivit_encoder("base", frames=4, image=16, mask_token=True), "leaves masked tubelets out"),
        (lambda: timesformer_encoder("base", frames=0, image=16), "frames must be at least 1, got 0"),
        (lambda: timesformer_encoder("base", frames=4, image=16, time=False), "need positions of frames"),
        (lambda: vivit()(np.ones((8, 8, 3), np.float32)), r"videos must be \[\*B, I, H, W, C\], got shape \(8, 8, 3\)"),
        (lambda: timesformer()(np.ones((4, 8, 8, 1), np.float32)), r"with C=3 channels, got shape \(4, 8, 8, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_configs_are_of_their_modules():
    assert isinstance(vivit_encoder("base", frames=4, image=16), ViViTConfig)
    assert isinstance(timesformer_encoder("base", frames=4, image=16), TimeSformerConfig)
