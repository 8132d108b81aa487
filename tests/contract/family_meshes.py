"""Run by test_family.py with eight CPU devices and names of families; prints how each does on a mesh, as JSON."""

import contextlib
import json
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp

from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.models.preset import abstract
from flax_transformer.nn import with_precision
from flax_transformer.parallel import MeshConfig, make_mesh, path_name, tree_shardings
from tests.contract.golden import GOLDEN, error, load, scores

MESHES = MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=2, fsdp=4)
"""Of which each family takes the first that its heads can be shared out to."""

TAKEN_AWAY = (
    "key.bias", "tokens.down.bias", "feedforward.correction", *(f"pixels.project{i}.bias" for i in range(3)),
    *(f"backbone.norm{i}.bias" for i in range(1, 5)),
    *(f"mask_head.conv{i}.bias" for i in range(1, 5)),
)  # fmt: skip
"""Of the golden checkpoints; the last are of channels that are each a group of a norm."""


@jax.jit
def both(pretrained, inputs):
    """Scores, and the gradient of what is made of them."""

    def loss(pretrained):
        found = scores(pretrained, inputs)
        return sum(jnp.sum(jnp.sin(x)) for x in found.values()), found

    (_, found), gradient = jax.value_and_grad(loss, has_aux=True)(pretrained)
    # The gradient by a key's bias is zero but for rounding, and so is that by what norms take away: the same to all
    # channels.
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    return found, {path_name(path): leaf for path, leaf in leaves if not path_name(path).endswith(TAKEN_AWAY)}


def doubled(tree):
    """Turn floats into float64, so that what a mesh does otherwise than one device is not lost in rounding."""
    return jax.tree.map(lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def load_doubled(folder):
    """Read a golden checkpoint and its inputs, each twice, and compute in float64."""
    pretrained, inputs, _ = load(folder)
    config = with_precision(pretrained.model.cfg, compute="float64", params="float64")
    model = doubled(pretrained.model)
    model = jax.tree.unflatten(jax.tree.structure(abstract(config)), jax.tree.leaves(model))
    return replace(pretrained, model=model), doubled({name: jnp.concatenate([x, x]) for name, x in inputs.items()})


def lay_out(pretrained):
    """Return a mesh and the place of every parameter on it."""
    *sizes, last = MESHES
    for size in sizes:
        with contextlib.suppress(ValueError):
            mesh = make_mesh(size)
            return mesh, tree_shardings(pretrained, mesh)
    return (mesh := make_mesh(last)), tree_shardings(pretrained, mesh)


def few_bits(pretrained, inputs, mesh):
    """Return how far scores of int8 kernels on a mesh are from those on one device, and how many scales are split."""
    small = replace(pretrained, model=doubled(quantize_model(pretrained.model, Quantization())))
    expected, places = jax.device_get(scores(small, inputs)), tree_shardings(small, mesh)
    with jax.set_mesh(mesh):
        laid = jax.device_put(small, places), jax.device_put(inputs, jax.sharding.PartitionSpec())
        found = jax.device_get(scores(*laid))
    leaves = jax.tree_util.tree_leaves_with_path(places)
    split = [not place.is_fully_replicated for path, place in leaves if path_name(path).endswith("scale")]
    return {"few_bits": error(found, expected), "scales": sum(split)}


def main(*names):
    found = {}
    for folder in (folder for folder in GOLDEN if folder.name in names):
        pretrained, inputs = load_doubled(folder)
        expected = jax.device_get(both(pretrained, inputs))
        mesh, places = lay_out(pretrained)
        leaves = [(leaf.ndim, place) for leaf, place in zip(*map(jax.tree.leaves, (pretrained, places)), strict=True)]
        with jax.set_mesh(mesh):
            laid = jax.device_put(pretrained, places), jax.device_put(inputs, jax.sharding.PartitionSpec())
            found[folder.name] = {
                "error": error(jax.device_get(both(*laid)), expected),
                "kernels": sum(ndim > 2 for ndim, _ in leaves),
                "split": sum(ndim > 2 and not place.is_fully_replicated for ndim, place in leaves),
            }
        if folder.name != "resnet":  # which has no linear layers that are quantized
            found[folder.name] |= few_bits(pretrained, inputs, mesh)
        jax.clear_caches()
    print(json.dumps(found))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(*sys.argv[1:])
