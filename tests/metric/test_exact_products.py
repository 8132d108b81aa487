"""What measures, and what is fitted once, multiplies float32 as such, which TPUs and tensor cores round otherwise."""

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.compress.gptq import gptq
from flax_transformer.compress.input_scale import _search
from flax_transformer.compress.statistics import statistics_of
from flax_transformer.inside.flow import value_weighted_norms
from flax_transformer.inside.probe import _regressions
from flax_transformer.inside.similarity import linear_cka
from flax_transformer.metric.structural_similarity import structural_similarity
from flax_transformer.objective import BEiTLoss
from tests.equations import equations

SQUARE, IMAGES = jnp.eye(8), jnp.zeros((2, 12, 12, 3))


@pytest.mark.parametrize(
    ("measure", "arguments"),
    [
        (structural_similarity, (IMAGES, IMAGES)),
        (jax.grad(lambda one, other: structural_similarity(one, other).sum()), (IMAGES, IMAGES)),
        (linear_cka, (SQUARE, SQUARE)),
        (value_weighted_norms, (jnp.ones((1, 2, 4, 4)), jnp.ones((1, 4, 2, 3)), jnp.ones((2, 3, 6)))),
        (lambda kernel, products: gptq(kernel, products, kind="int8"), (SQUARE, SQUARE)),
        (lambda x: statistics_of(x, products=True), (SQUARE,)),
        (lambda kernel, mean, products: _search("int8", None, kernel, mean, products), (SQUARE, SQUARE[0], SQUARE)),
        (lambda x, labels, by: _regressions(x, labels, by, classes=2), (SQUARE, jnp.arange(8) % 2, jnp.ones(2))),
        (BEiTLoss(patch=4, words=2, codebook=((0.0,) * 48, (1.0,) * 48)).tokens, (IMAGES,)),
    ],
    ids=["ssim", "ssim's slope", "cka", "value norms", "gptq", "statistics", "awq", "probe", "visual words"],
)  # fmt: skip
def test_products_are_of_float32(measure, arguments):
    """Every product asks for it, in the backward pass too."""
    products = [each for each in equations(measure, *arguments) if each.primitive.name == "dot_general"]
    assert products
    assert {each.params["precision"] for each in products} == {(jax.lax.Precision.HIGHEST,) * 2}
