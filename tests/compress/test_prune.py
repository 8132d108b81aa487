"""One-shot pruning: shares of layers and of the whole model, patterns, what is left alone, and what is refused."""

import numpy as np
import pytest
from flax import nnx

from flax_transformer.compress import Pruning, Quantization, prune_model, quantize_model
from flax_transformer.compress.kernel import kernels_of, linear_kernels
from flax_transformer.compress.prune import zero_share
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields

pytestmark = pytest.mark.proves("kernels with zeros", "a share of every layer or of the model in one shot")


@pytest.fixture(scope="module")
def model():
    return with_fields(gpt2_tiny(vocab=40), embed=16, heads=2, inner=24, depth=3).build(nnx.Rngs(0))


def kernels(model):
    found = kernels_of(model)
    return {path: np.asarray(found[path]) for path in linear_kernels(model)}


def test_a_share_of_every_layer_goes_and_the_rest_stays(model):
    before, after = kernels(model), kernels(prune_model(model, Pruning(share=0.5)))
    for path, kernel in after.items():
        for layer, whole in zip(kernel, before[path], strict=True):
            assert (layer == 0).sum() == layer.size // 2
            np.testing.assert_array_equal(layer[layer != 0], whole[layer != 0])
            assert np.abs(whole[layer == 0]).max() <= np.abs(layer[layer != 0]).min()
    assert zero_share(prune_model(model, Pruning(share=0.5))) == pytest.approx(0.5)


def test_a_share_of_the_model_is_of_all_kernels_together(model):
    after = kernels(prune_model(model, Pruning(share=0.7, scope="model")))
    sizes = np.concatenate([np.abs(each).reshape(-1) for each in kernels(model).values()])
    left = np.concatenate([each.reshape(-1) for each in after.values()])
    assert (left == 0).sum() == int(0.7 * sizes.size)
    assert np.abs(left[left != 0]).min() == np.sort(sizes)[int(0.7 * sizes.size)]
    shares = [(each == 0).mean() for each in after.values()]
    assert max(shares) - min(shares) > 0.01


def test_a_pattern_leaves_so_many_of_each_few_inputs(model):
    after = kernels(prune_model(model, Pruning(block=(2, 4), pattern="feedforward")))
    up = after["trunk.blocks.feedforward.up.kernel"].reshape(3, 4, 4, 24)
    assert ((up != 0).sum(2) == 2).all()
    assert (after["trunk.blocks.attention.query.kernel"] != 0).all()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Pruning(block=(3, 5)), "must divide the inputs, got 3:5 for 16 inputs"),
        (Pruning(share=0.5, pattern="nowhere"), "a rule must take a kernel of a linear layer, there are"),
    ],
)
def test_what_cannot_be_is_refused(model, rule, message):
    with pytest.raises(ValueError, match=message):
        prune_model(model, rule)


def test_kernels_are_pruned_before_they_are_quantized(model):
    with pytest.raises(ValueError, match=r"are pruned before they are quantized, .* is a Quantized"):
        prune_model(quantize_model(model, Quantization()), Pruning(share=0.5))
    both = quantize_model(prune_model(model, Pruning(share=0.5)), Quantization())
    found = kernels_of(both)
    for path in linear_kernels(model):
        assert (np.asarray(found[path].values) == 0).mean() >= 0.5
