"""Learned vectors, a row each: positions of a grid, tokens of their own, queries, classes."""

from flax import nnx

from flax_transformer.nn.config import Precision


def make_table(rngs: nnx.Rngs, rows: int, width: int, precision: Precision, *, std: float = 0.02) -> nnx.Param:
    """Make so many learned vectors [rows, width], normally distributed."""
    values = nnx.initializers.normal(std)(rngs.params(), (rows, width), precision.dtypes["param_dtype"])
    return nnx.Param(values, out_sharding=(None, "embed"), eager_sharding=False)
