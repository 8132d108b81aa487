"""Distances of samples beside torchmetrics', where that is installed, of the same features."""

import numpy as np
import pytest

from flax_transformer.metric.sample_distance import frechet_distance, kernel_distance

torch = pytest.importorskip("torch")
fid, kid = (pytest.importorskip(f"torchmetrics.image.{name}") for name in ("fid", "kid"))
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


class Given(torch.nn.Module):
    """Features, which are given in place of images."""

    def __init__(self, width):
        super().__init__()
        self.num_features = width

    def forward(self, x):
        return x


def drawn(rows, width, seed, shift=0.0):
    draw = np.random.default_rng(seed)
    mixed = draw.normal(size=(rows, width)) @ draw.normal(size=(width, width)) / np.sqrt(width)
    return (mixed + shift).astype(np.float32)


def measured(metric, one, two):
    for x, real in ((one, True), (two, False)):
        metric.update(torch.from_numpy(x), real=real)
    return metric.compute()


@pytest.mark.proves("distances of samples", "FID and KID beside torchmetrics', of the same features")
@pytest.mark.parametrize(("rows", "width", "shift"), [(300, 5, 0.0), (400, 64, 0.3), (1_000, 96, 1.0)])
def test_distances_are_those_of_torchmetrics(rows, width, shift):
    one, two = drawn(rows, width, 0), drawn(rows, width, 1, shift)
    metric = fid.FrechetInceptionDistance(feature=Given(width)).set_dtype(torch.float64)
    theirs = float(measured(metric, one.astype(np.float64), two.astype(np.float64)))
    assert frechet_distance(one, two) == pytest.approx(theirs, rel=1e-4, abs=1e-4)
    kernel = kid.KernelInceptionDistance(feature=Given(width), subsets=1, subset_size=rows)
    theirs = float(measured(kernel, one, two)[0])
    assert kernel_distance(one, two, subsets=1, size=rows).mean == pytest.approx(theirs, rel=1e-3, abs=1e-5)
