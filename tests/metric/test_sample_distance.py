import numpy as np
import pytest
import scipy.linalg

from flax_transformer.metric.sample_distance import (
    frechet_distance,
    kernel_distance,
    nearest_rows,
    precision_recall,
    squared_mmd,
)

pytestmark = pytest.mark.proves("distances of samples", "FID by scipy's matrix root, KID and k-NN precision by loops")


def features(rows, width, seed, scale=1.0, shift=0.0):
    draw = np.random.default_rng(seed)
    return (draw.normal(size=(rows, width)) @ draw.normal(size=(width, width)) * scale + shift).astype(np.float32)


def sqrtm_distance(one, two):
    """pytorch-fid's `calculate_frechet_distance`, written again."""
    mu = one.mean(axis=0) - two.mean(axis=0)
    sigma, other = np.cov(one, rowvar=False), np.cov(two, rowvar=False)
    root = scipy.linalg.sqrtm(sigma @ other)
    return mu @ mu + np.trace(sigma) + np.trace(other) - 2 * np.trace(root.real)


@pytest.mark.parametrize(("width", "scale", "shift"), [(1, 2.0, 0.0), (7, 1.0, 0.5), (48, 0.3, 2.0)])
def test_frechet_distance_is_that_of_the_matrix_root(width, scale, shift):
    one, two = features(400, width, 0), features(300, width, 1, scale, shift)
    wanted = sqrtm_distance(*(np.float64(each) for each in (one, two))) if width > 1 else None
    if wanted is None:
        mu, other, s, t = one.mean(), two.mean(), np.std(one, ddof=1), np.std(two, ddof=1)
        wanted = float((mu - other) ** 2 + (s - t) ** 2)
    assert frechet_distance(one, two) == pytest.approx(wanted, rel=1e-5, abs=1e-4)
    assert frechet_distance(two, one) == pytest.approx(frechet_distance(one, two), rel=1e-9)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-5)


def test_covariances_without_full_rank_have_a_distance():
    one, two = features(20, 40, 0), features(30, 40, 1)
    one[:, 3] = two[:, 3] = 0.0
    found = frechet_distance(one, two)
    assert 0 < found < np.trace(np.cov(one.T)) + np.trace(np.cov(two.T)) + np.sum((one.mean(0) - two.mean(0)) ** 2)


def test_mmd_is_that_of_sums_over_pairs():
    x, y = features(6, 3, 0), features(5, 3, 1, shift=1.0)

    def k(a, b):
        return (float(np.dot(a, b)) / 3 + 1) ** 3

    same = [np.mean([k(a, b) for i, a in enumerate(s) for j, b in enumerate(s) if i != j]) for s in (x, y)]
    wanted = sum(same) - 2 * np.mean([k(a, b) for a in x for b in y])
    assert squared_mmd(x, y) == pytest.approx(wanted, rel=1e-5)
    whole = kernel_distance(x[:5], y, subsets=3, size=99)
    assert whole.mean == pytest.approx(squared_mmd(x[:5], y), rel=1e-9)
    assert whole.std < 1e-9 * abs(whole.mean)


def test_subsets_of_one_distribution_are_at_no_distance_and_a_seed_repeats():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, 600, 8))
    near, far = kernel_distance(x, y, subsets=20, size=200), kernel_distance(x, y + 1, subsets=20, size=200)
    assert abs(near.mean) < 3 * near.std < far.mean
    assert kernel_distance(x, y, subsets=4, size=100) == kernel_distance(x, y, subsets=4, size=100)
    assert kernel_distance(x, y, subsets=4, size=100) != kernel_distance(x, y, subsets=4, size=100, seed=1)


@pytest.mark.parametrize("k", [1, 3])
def test_precision_and_recall_are_those_of_loops(k):
    x, y = features(40, 2, 0), features(30, 2, 1, 0.5, 1.0)

    def covered(of, rows):
        radius = [sorted(np.linalg.norm(of - each, axis=1))[k] for each in of]
        return np.mean([any(np.linalg.norm(row - a) <= r for a, r in zip(of, radius, strict=True)) for row in rows])

    found = precision_recall(x, y, neighbours=k)
    assert found == pytest.approx((covered(x, y), covered(y, x)))
    assert 0 < found.precision < 1


def test_samples_of_one_mode_are_precise_and_cover_little():
    draw = np.random.default_rng(0)
    modes = draw.normal(size=(200, 4)) + np.repeat([0, 20], 100)[:, None]
    found = precision_recall(modes, draw.normal(size=(150, 4)) * 0.5)
    assert found.precision > 0.9
    assert found.recall < 0.5
    assert precision_recall(modes, modes) == (1.0, 1.0)


def test_nearest_rows_are_found_over_blocks():
    x, y = features(2000, 3, 0), features(50, 3, 1)
    number, distance = nearest_rows(x, y)
    all_distances = np.linalg.norm(x[:, None] - y, axis=-1)
    np.testing.assert_array_equal(number, all_distances.argmin(axis=1))
    np.testing.assert_allclose(distance, all_distances.min(axis=1), atol=1e-4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: frechet_distance(x, x[:, :2]), "one width, got shapes"),
        (lambda x: frechet_distance(x[:1], x), "at least 2 rows each, got 1 and 5"),
        (lambda x: frechet_distance(x, x * np.nan), "must be finite"),
        (lambda x: kernel_distance(x, x, subsets=0), "subsets must be at least 1"),
        (lambda x: precision_recall(x, x, neighbours=0), "neighbours must be at least 1, got 0"),
        (lambda x: precision_recall(x, x, neighbours=5), "at least 6 rows each"),
    ],
)
def test_bad_features_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call(features(5, 3, 0))
