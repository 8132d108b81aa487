"""Quantization-aware training: products with rounded kernels, of which the gradient is that of whole ones.

The forward pass is that of the quantized model, whole numbers included; the backward pass takes rounding for nothing
(the straight-through estimator, Bengio et al. 2013, https://arxiv.org/abs/1308.3432; Jacob et al. 2017,
https://arxiv.org/abs/1712.05877).
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Float

from flax_transformer.compress.kernel import WrappedKernel, linear_kernels, map_kernels
from flax_transformer.compress.quantize import Quantization
from flax_transformer.listing import listed
from flax_transformer.nn.linear import flat_dot_general
from flax_transformer.nn.quantized import Quantized, quantize


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundedInPassing(WrappedKernel):
    """A whole kernel that is multiplied as if it had few bits."""

    rule: Quantization = field(metadata={"static": True})

    def multiply(self, x: Float[Array, "..."], inputs: int) -> Float[Array, "..."]:
        """Multiply the last axes of x, as many as there are inputs."""
        return _product(self.rule, inputs, x, self.kernel)


def _quantized(rule: Quantization, inputs: int, kernel: Array) -> Quantized:
    made = quantize(kernel, rule.weights, inputs=inputs, group=rule.group)
    return replace(made, activations=rule.activations)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(rule: Quantization, inputs: int, x: Array, kernel: Array) -> Array:
    return _quantized(rule, inputs, kernel).multiply(x, inputs)


def _forward(rule: Quantization, inputs: int, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(rule, inputs, x, kernel), (x, kernel)


def _backward(rule: Quantization, inputs: int, kept: tuple[Array, Array], pull: Array) -> tuple[Array, Array]:
    x, kernel = kept
    whole = _quantized(rule, inputs, kernel).dequantize().astype(x.dtype)
    rest = x.ndim - inputs
    numbers = (tuple(range(rest, x.ndim)), tuple(range(inputs))), ((), ())
    _, pulled = jax.vjp(lambda x, kernel: flat_dot_general(x, kernel, numbers), x, whole)
    to_x, to_kernel = pulled(pull)
    return to_x, to_kernel.astype(kernel.dtype)


_product.defvjp(_forward, _backward)


def rounded_in_passing(model: Any, rule: Quantization) -> Any:
    """Return a model whose products are those of the quantized one, to differentiate through.

    `quantize_model(model, rule)` is what such a model becomes; their outputs are equal.

    Raises:
      ValueError: a rule that needs calibration, that is of tables, or that takes no kernel.
    """
    check_trainable(rule)
    chosen = [path for path in linear_kernels(model) if rule.takes(path)]
    if not chosen:
        raise ValueError(f"a rule must take a kernel, there are {listed(linear_kernels(model)) or 'none'}")
    return map_kernels(lambda path, kernel: RoundedInPassing(kernel, rule) if path in chosen else kernel, model)


def check_trainable(rule: Quantization) -> None:
    """Check that a rule says all that training needs; raise ValueError if not."""
    if rule.calibrated or rule.method != "round":
        raise ValueError(
            "training rounds to the nearest, and inputs by each row's range: method must be round and ranges dynamic, "
            f"got {rule.method} and {rule.ranges}"
        )
    if rule.embeddings:
        raise ValueError("training rounds kernels alone: embeddings must be False, tables may be rounded after it")
