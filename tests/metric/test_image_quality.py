"""How near images are to their targets: L1, PSNR, SSIM."""

import numpy as np
import pytest

from flax_transformer.metric.image_quality import image_quality


def test_quality_is_by_its_formulas():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 256, (2, 3, 16, 16, 3)).astype(np.uint8)
    found = image_quality(one, other)
    difference = (one.astype(float) - other.astype(float)) / 255
    np.testing.assert_allclose(found.l1, np.abs(difference).mean(axis=(1, 2, 3)))
    np.testing.assert_allclose(found.psnr, 10 * np.log10(1 / (difference**2).mean(axis=(1, 2, 3))))
    assert abs(found.ssim).max() < 0.2
    same = image_quality(one, one)
    assert same.l1.max() == 0
    assert np.isinf(same.psnr).all()
    assert same.ssim == pytest.approx(np.ones(3), abs=1e-6)
