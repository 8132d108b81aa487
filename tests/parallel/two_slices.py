"""Run by test_hybrid_mesh.py as `ADDRESS INDEX`, in two processes of four CPU devices each, which stand for slices."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh


def main(address, index):
    jax.distributed.initialize(address, 2, int(index), initialization_timeout=60, shutdown_timeout_seconds=20)
    mesh = make_mesh(MeshConfig(data=4, fsdp=2, slices=2))
    processes = np.vectorize(lambda device: device.process_index)(mesh.devices)
    rows = jax.make_array_from_process_local_data(batch_sharding(mesh), np.arange(4.0) + 4 * int(index))
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(rows)
    print(json.dumps({"processes": processes.reshape(4, 2).tolist(), "sum": float(total)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
