"""Published sizes of TPU slices."""

import pytest

from flax_transformer.launch import find_accelerator
from flax_transformer.launch.accelerator import ACCELERATORS


@pytest.mark.parametrize(
    ("name", "alias", "chips", "hosts", "pods"),
    [
        ("v4-8", "v4:2x2x1", 4, 1, 1),
        ("v4-32", "v4:2x2x4", 16, 4, 4),
        ("v5litepod-1", "v5e:1x1", 1, 1, 1),
        ("v5litepod-8", "v5e:2x4", 8, 1, 2),
        ("v5litepod-16", "v5e:4x4", 16, 4, 4),
        ("v5litepod-256", "v5e:16x16", 256, 64, 64),
        ("v5p-128", "v5p:4x4x4", 64, 16, 16),
        ("v5p-12288", "v5p:16x16x24", 6144, 1536, 1536),
        ("v6e-256", "v6e:16x16", 256, 64, 64),
        ("tpu7x-128", "tpu7x:4x4x4", 64, 16, 16),
    ],
)
def test_slices_have_their_published_sizes(name, alias, chips, hosts, pods):
    slice = find_accelerator(name)
    assert slice == find_accelerator(alias)
    assert (slice.name, slice.alias) == (name, alias)
    assert (slice.chips, slice.hosts, slice.pods) == (chips, hosts, pods)
    assert slice.pods * slice.pod_chips == slice.chips


def test_names_are_unique():
    names = [name for slice in ACCELERATORS for name in (slice.name, slice.alias)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("v5litepod-12", ("v5litepod-8", "v5litepod-16")),
        ("v5e-16", ("v5litepod-16",)),
        ("v5p-100", ("v5p-128",)),
        ("v5litpod-16", ("v5litepod-16",)),
        ("v6e:4x5", ("v6e:4x4",)),
        ("h100", ("v5litepod-…",)),
        ("", ("v5litepod-…",)),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(asked, near):
    with pytest.raises(ValueError, match="a TPU must be one of") as caught:
        find_accelerator(asked)
    assert all(name in str(caught.value) for name in near)
