"""Several sources of examples in one, in fixed proportions."""

from collections.abc import Mapping

from flax_transformer.data.examples import Examples


def mixture(parts: Mapping[str, Examples], weights: Mapping[str, float | int]) -> Examples:
    """Interleave sources so that every stretch of examples holds them in proportion to their weights.

    Which source example i comes from, and which of its examples it is, depends on i and the weights alone.

    Raises:
        ValueError: names of parts and weights differ, or a weight is not positive.
    """
    import grain

    if parts.keys() != weights.keys() or not parts:
        raise ValueError(f"each part needs one weight, got parts {sorted(parts)}, weights {sorted(weights)}")
    if min(weights.values()) <= 0:
        raise ValueError(f"weights must be positive, got {dict(weights)}")
    names = sorted(parts)
    dataset = grain.MapDataset.mix([parts[name].dataset for name in names], [float(weights[name]) for name in names])
    identity = {name: {"weight": float(weights[name]), **parts[name].identity} for name in names}
    return Examples(dataset, identity)


def proportional(sizes: Mapping[str, int], *, temperature: float = 1.0, limit: int | None = None) -> dict[str, float]:
    """Weigh tasks by their numbers of examples, each at most ``limit``, to the power 1/temperature; the sum is 1.

    Temperature 1 is examples-proportional mixing, a high one nears equal mixing (Raffel et al. 2020, section 3.5.2,
    https://arxiv.org/abs/1910.10683).

    >>> proportional({"large": 900, "small": 100}, temperature=2.0)
    {'large': 0.75, 'small': 0.25}
    """
    if not sizes or min(sizes.values()) < 1:
        raise ValueError(f"every task must have examples, got {dict(sizes)}")
    if temperature <= 0 or (limit is not None and limit < 1):
        raise ValueError(f"temperature and limit must be positive, got {temperature}, {limit}")
    powers = {name: (size if limit is None else min(size, limit)) ** (1 / temperature) for name, size in sizes.items()}
    total = sum(powers.values())
    return {name: power / total for name, power in powers.items()}
