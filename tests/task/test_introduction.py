"""What a run says of itself before it trains."""

import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer.nn.batch_norm import BatchNorm
from flax_transformer.task.experiment import introduction


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        ("", "72 parameters"),
        ("^head", "12 of 72 parameters train"),
        (r"norm\.(scale|mean)$", "4 of 72 parameters train"),
        (".", "72 of 72 parameters train"),
    ],
)
def test_a_run_says_how_many_of_its_parameters_train(trained, said):
    """Statistics are not among them."""
    model = {"body": jnp.ones((4, 13)), "norm": BatchNorm(4), "head": nnx.Param(jnp.ones((4, 3)))}
    assert introduction(model, trained) == said
