"""A checkpoint loaded for another size of images computes what it did of them, and is saved as one of that size."""

from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub

GOLDEN = Path(__file__).parent / "golden"
slow = pytest.mark.slow


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "size"),
    [("vit", 20), *(pytest.param(*each, marks=slow) for each in (
        ("deit", 8), ("dinov2", [20, 12]), ("beit", 16), ("swin", 20), ("pvt", 32), ("cct", 14)
    ))],
)  # fmt: skip
def test_positions_are_resampled_as_they_are_for_one_picture(name, size, tmp_path):
    before = hub.load(GOLDEN / name)
    after = hub.load(GOLDEN / name, lenient=hub.Lenient(config={"image_size": size}))
    sides = size if isinstance(size, list) else [size, size]
    pixels = np.random.default_rng(0).normal(size=(2, before.config["num_channels"], *sides)).astype(np.float32)
    expected = before(pixel_values=pixels).last_hidden_state
    np.testing.assert_allclose(after(pixel_values=pixels).last_hidden_state, expected, atol=1e-5)
    hub.save(after, tmp_path / "other")
    assert hub.load(tmp_path / "other").config["image_size"] == size
