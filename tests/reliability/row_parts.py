"""Run by test_start.py in two processes of two devices: rows of one batch, over meshes in any order of devices."""

import sys

import jax
import numpy as np
from jax.sharding import Mesh

from flax_transformer.parallel import AXES, batch_sharding, multihost
from flax_transformer.train.batch_layout import shared


class Counting:
    def __next__(self):
        return np.arange(16)[:, None] * np.ones((1, 3), int)

    def __iter__(self):
        return self


def check(order, **sizes):
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    mesh = Mesh(np.asarray(jax.devices())[list(order)].reshape(shape), AXES)
    parts, count = multihost.row_parts(mesh)
    own = next(shared(Counting(), parts, count))
    batch = jax.make_array_from_process_local_data(batch_sharding(mesh), own)
    assert batch.shape == (16, 3), (order, sizes, batch.shape)
    for shard in batch.addressable_shards:
        np.testing.assert_array_equal(
            np.asarray(shard.data), np.arange(16)[shard.index[0], None] * np.ones((1, 3), int)
        )
    return parts, count


def main():
    multihost.start()
    first = jax.process_index() == 0
    assert check((0, 1, 2, 3), data=4) == ((0, 1) if first else (2, 3), 4)
    assert check((0, 2, 1, 3), data=4) == ((0, 2) if first else (1, 3), 4)
    assert check((0, 1, 2, 3), data=2, tensor=2) == ((0,) if first else (1,), 2)
    assert check((0, 2, 1, 3), data=2, tensor=2) == ((0, 1), 2)
    assert check((0, 1, 2, 3), data=2, fsdp=2) == ((0, 1) if first else (2, 3), 4)
    assert check((0, 1, 2, 3), tensor=4) == ((0,), 1)
    print("rows are right", flush=True)
    multihost.leave(0)


if __name__ == "__main__":
    sys.exit(main())
