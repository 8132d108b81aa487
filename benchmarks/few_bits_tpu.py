"""Llama 2 7B with kernels of few bits, one decoding step on four TPU chips that are not here: bytes and products.

    python benchmarks/few_bits_tpu.py [--topology v5e:2x2] [--json FILE]

The compiler of TPUs is in `libtpu`. A row has the bytes of the weights on a chip, and how many products of the compiled
program are of whole numbers (int32 sums) and of floats; the layers are one loop, so each product counts once.
"""

import argparse
import os
import re

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from results import write

from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.models.text.llama import llama2_7b
from flax_transformer.nn import with_precision
from flax_transformer.parallel import tree_shardings

RULES = {
    "bfloat16": None,
    "int8": Quantization(),
    "int8, inputs int8": Quantization(activations="int8"),
    "int4 in groups of 128": Quantization(weights="int4", group=128),
}
ROWS, LENGTH = 8, 256


def placed(tree, shardings):
    return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree, shardings)


def size(leaf) -> float:
    bits = 4 if leaf.dtype == jnp.int4 else 8 * leaf.dtype.itemsize
    return float(np.prod(leaf.sharding.shard_shape(leaf.shape))) * bits / 8


def compiled(rule: Quantization | None, mesh: Mesh) -> dict[str, float]:
    config = with_precision(llama2_7b(), compute="bfloat16", params="bfloat16")

    def build(key):
        model = config.build(nnx.Rngs(key))
        return model if rule is None else quantize_model(model, rule)

    model = jax.eval_shape(build, jax.random.key(0))
    model = placed(model, tree_shardings(model, mesh))
    everywhere = NamedSharding(mesh, PartitionSpec())
    cache = jax.eval_shape(lambda model: model.init_cache(ROWS, LENGTH), model)
    cache = placed(cache, jax.tree.map(lambda _: everywhere, cache))
    tokens = jax.ShapeDtypeStruct((ROWS,), jnp.int32, sharding=everywhere)
    step = jax.jit(lambda model, cache, tokens: model.step(cache, tokens))
    with jax.set_mesh(mesh):
        text = step.trace(model, cache, tokens).lower(lowering_platforms=("tpu",)).compile().as_text()
    products = re.findall(r"= (s32|bf16|f32)\[[^\n]* (?:convolution|dot)\(", text)
    return {
        "weights_gib_a_chip": sum(map(size, jax.tree.leaves(model))) / 2**30,
        "whole_number_products": products.count("s32"),
        "float_products": len(products) - products.count("s32"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--json")
    options = parser.parse_args()
    devices = topologies.get_topology_desc(options.topology, platform="tpu").devices
    mesh = jax.make_mesh((len(devices),), ("tensor",), devices=devices, axis_types=(AxisType.Auto,))
    results = []
    for name, rule in RULES.items():
        results.append({"topology": options.topology, "rule": name, **compiled(rule, mesh)})
        print(results[-1], flush=True)
    write(options.json, results, compared=("libtpu",))


if __name__ == "__main__":
    main()
