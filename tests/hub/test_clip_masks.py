"""How checkpoints of videos are called: what is refused, and what shapes depend on."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.models.video.videomae import VideoMAE, tube_places, videomae_pretraining
from flax_transformer.nn import with_fields

GOLDEN = Path(__file__).parent / "golden"
SIZES = {
    "frames": 4,
    "image": (8, 8),
    "patch": (4, 4),
    "embed": 8,
    "heads": 2,
    "inner": 12,
    "depth": 1,
    "init_std": 0.5,
}
VIDEOS = np.random.default_rng(0).standard_normal((2, 4, 3, 8, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def autoencoder():
    config = with_fields(videomae_pretraining(), **SIZES)
    return hub.wrap(VideoMAE(config, rngs=nnx.Rngs(0)), "VideoMAEForPreTraining")


def masked(kept, count=8):
    mask = np.ones((len(kept), count), bool)
    for row, places in zip(mask, kept, strict=True):
        row[list(places)] = False
    return mask


@pytest.mark.rotates
def test_a_mask_of_tubes_is_what_noise_draws(autoencoder):
    noise = np.random.default_rng(0).random((2, 4), dtype=np.float32)
    kept, _ = tube_places(noise, 2, 1)
    output = autoencoder(pixel_values=VIDEOS, bool_masked_pos=masked(np.asarray(kept)))
    model = autoencoder.model
    drawn = model.output(model.hidden_states(np.moveaxis(VIDEOS, 2, -1), noise))
    np.testing.assert_allclose(output.logits, drawn, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (masked([(), ()]), "must leave as many patches of each video, some but not all, got one that leaves 0 of 8"),
        (masked([range(8)] * 2), "got one that leaves 8 of 8"),
        (masked([(1, 2), (3,)]), "got one that leaves 1 and 2 of 8"),
        (masked([(1, 2)] * 2, 9), r"must be \[B, P\] of the videos, \[2, 8\], got \[2, 9\]"),
        (masked([(1, 2)] * 3), r"must be \[B, P\] of the videos, \[2, 8\], got \[3, 8\]"),
    ],
)
def test_masks_that_do_not_fit_are_refused(autoencoder, mask, message):
    with pytest.raises(ValueError, match=message):
        autoencoder(pixel_values=VIDEOS, bool_masked_pos=mask)


def test_a_mask_must_be_known_before_a_call_is_compiled(autoencoder):
    mask = masked([(1, 2)] * 2)
    known = jax.jit(lambda videos: autoencoder(pixel_values=videos, bool_masked_pos=mask).logits)(VIDEOS)
    np.testing.assert_allclose(known, autoencoder(pixel_values=VIDEOS, bool_masked_pos=mask).logits, atol=1e-5)
    with pytest.raises(ValueError, match=r"the shapes of a call depend on bool_masked_pos, .* got a traced one"):
        jax.jit(lambda mask: autoencoder(pixel_values=VIDEOS, bool_masked_pos=mask).logits)(mask)


@pytest.mark.parametrize("name", ["vivit", "timesformer", "videomae"])
def test_pictures_are_no_clips(name):
    with pytest.raises(ValueError, match=r"must be \[B, I, 1, H, W\], channels before rows, got \[2, 1, 12, 12\]"):
        hub.load(GOLDEN / name)(pixel_values=np.zeros((2, 1, 12, 12), np.float32))
    with pytest.raises(ValueError, match=r"must be \[B, 1, H, W\], channels before rows, got \[2, 4, 1, 12, 12\]"):
        hub.load(GOLDEN / "vit")(pixel_values=np.zeros((2, 4, 1, 12, 12), np.float32))


@pytest.mark.rotates
def test_positions_fit_another_number_of_frames_and_size(tmp_path):
    """Resampled when a checkpoint is read for them, as a model resamples them for videos of another size."""
    videos = np.random.default_rng(0).standard_normal((1, 6, 1, 16, 20), dtype=np.float32)
    for name in ("vivit", "timesformer"):
        fitted = hub.load(
            GOLDEN / name, lenient=hub.Lenient(config={"num_frames": 6, "image_size": [16, 20]}, initialise=())
        )
        assert fitted.config["num_frames"] == 6
        np.testing.assert_allclose(
            fitted(pixel_values=videos).logits, hub.load(GOLDEN / name)(pixel_values=videos).logits, atol=1e-5
        )
