"""All attention variants by name, and which of them can serve a call: `explain_variants`, as `explain_attention`.

Axes as in `attention`. Variants with parameters are layers: `nn.linformer`, `nn.nystrom`, `nn.talking_heads`.
"""

import jax
from jaxtyping import Array, Float

from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.entmax import EntmaxAttention, SparsemaxAttention
from flax_transformer.ops.fixed_sparse import FixedAttention
from flax_transformer.ops.linear import LinearAttention
from flax_transformer.ops.local import LocalAttention
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.nystrom import NystromAttention
from flax_transformer.ops.performer import PerformerAttention
from flax_transformer.ops.strided_sparse import StridedAttention
from flax_transformer.ops.variant import Variant

VARIANTS: dict[str, Variant] = {
    "local": LocalAttention(window=128),
    "strided": StridedAttention(),
    "fixed": FixedAttention(),
    "linear": LinearAttention(),
    "performer": PerformerAttention(),
    "nystrom": NystromAttention(),
    "sparsemax": SparsemaxAttention(),
    "entmax": EntmaxAttention(),
}
"""Each with the options that `bench variants` measures it by."""


def explain_variants(
    q: Float[Array | jax.ShapeDtypeStruct, "*B T N H"],
    k: Float[Array | jax.ShapeDtypeStruct, "*B S K H"],
    v: Float[Array | jax.ShapeDtypeStruct, "*B S K H"],
    mask: Mask | None = None,
    bias: Float[Array | jax.ShapeDtypeStruct, "*#B #N #T #S"] | None = None,
    *,
    scale: float | None = None,
    dropout: Dropout | None = None,
) -> str:
    """Return which variants can serve a call, and why others cannot. Shapes alone will do.

    >>> q = jax.ShapeDtypeStruct((2, 96, 4, 32), "float32")
    >>> print(explain_variants(q, q, q, Mask(causal=True), scale=1.0))
    local      can
    strided    can
    fixed      can
    linear     cannot: it takes no scale of scores
    performer  can
    nystrom    cannot: it takes no causal mask
    sparsemax  can
    entmax     can
    """
    reasons = {
        name: variant.refuses(q, k, v, mask, bias, scale=scale, dropout=dropout) for name, variant in VARIANTS.items()
    }
    return "\n".join(f"{name:<11}{f'cannot: {why}' if why else 'can'}" for name, why in reasons.items())
