"""What every family promises with kernels of few bits, and with zeros: transforms change nothing, training sees it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.compress import Pruning, Quantization, prune_model, quantize_model
from flax_transformer.compress.kernel import kernels_of, linear_kernels
from flax_transformer.compress.straight_through import rounded_in_passing
from flax_transformer.hub.quantized.model import dequantize_model, quantized_kernels
from flax_transformer.parallel import path_name
from tests.contract.golden import FEW, GOLDEN, error, load, scores

pytestmark = [pytest.mark.proves("kernels of few bits", "every family: vmap is the batch, training is the export")]

NEAR = 1e-5
INT8 = Quantization()
one_of_few = pytest.mark.parametrize("golden", FEW, ids=lambda folder: folder.name, indirect=True, scope="module")


@pytest.fixture(params=GOLDEN, ids=lambda folder: folder.name, scope="module")
def golden(request):
    found = load(request.param)
    if found.pretrained.config["model_type"] == "resnet":
        pytest.skip("of models with linear layers")
    return found


@pytest.fixture(scope="module")
def small(golden):
    return replace(golden.pretrained, model=quantize_model(golden.pretrained.model, INT8))


@pytest.mark.rotates
@one_of_few
def test_compiled_is_eager_and_vmap_is_the_batch(golden, small):
    expected = jax.device_get(scores(small, golden.inputs))
    with jax.disable_jit():
        eager = small(**golden.inputs)
    assert error({name: eager[name] for name in expected}, expected) <= NEAR
    rows = jax.vmap(lambda row: scores(small, jax.tree.map(lambda x: x[None], row)))(golden.inputs)
    apart = {name: value for name, value in expected.items() if name != "logits_per_text"}
    assert error({name: rows[name][:, 0] for name in apart}, apart) <= NEAR


@pytest.mark.rotates
@one_of_few
def test_training_sees_the_export_and_its_gradient_comes_to_every_kernel(golden, small):
    whole, inputs = golden.pretrained, golden.inputs

    def loss(model):
        found = scores(replace(whole, model=model), inputs).values()
        return sum(jnp.sum(x[..., :3] ** 2) + jnp.sum(x * jnp.sin(x)) for x in found)

    value, gradient = jax.jit(jax.value_and_grad(lambda model: loss(rounded_in_passing(model, INT8))))(whole.model)
    np.testing.assert_allclose(value, jax.jit(loss)(small.model), rtol=1e-6)
    straight = jax.jit(jax.grad(loss))(dequantize_model(small.model))
    kernels, compared = set(quantized_kernels(small.model)), set()
    leaves = (jax.tree_util.tree_leaves_with_path(each) for each in (gradient, straight))
    for (path, one), (_, other) in zip(*leaves, strict=True):
        if path_name(path) in kernels:
            compared.add(path_name(path))
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * float(np.abs(other).max() + 1e-6))
    assert compared == kernels


@pytest.mark.rotates
def test_zeros_are_so_many_and_are_written(golden, tmp_path):
    rule, whole = Pruning(share=0.5), kernels_of(golden.pretrained.model)
    pruned = replace(golden.pretrained, model=prune_model(golden.pretrained.model, rule))
    taken = {path for path in linear_kernels(pruned.model) if rule.takes(path)}
    for path, kernel in kernels_of(pruned.model).items():
        if path in taken:
            assert 0.4 <= np.mean(kernel == 0) <= 0.5, path
        else:
            np.testing.assert_array_equal(kernel, whole[path])
    hub.save(pruned, tmp_path)
    for path, kernel in kernels_of(hub.load(tmp_path).model).items():
        np.testing.assert_array_equal(kernel, kernels_of(pruned.model)[path])
