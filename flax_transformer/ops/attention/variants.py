"""Attention variants by name; those with parameters are layers: `nn.linformer`, `nn.nystrom`, `nn.talking_heads`."""

from flax_transformer.ops.attention.capped import CappedAttention
from flax_transformer.ops.attention.entmax import EntmaxAttention, SparsemaxAttention
from flax_transformer.ops.attention.fixed_sparse import FixedAttention
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.linear import LinearAttention
from flax_transformer.ops.attention.local import LocalAttention
from flax_transformer.ops.attention.nystrom import NystromAttention
from flax_transformer.ops.attention.performer import PerformerAttention
from flax_transformer.ops.attention.strided_sparse import StridedAttention

VARIANTS: dict[str, AttentionFunction] = {
    "local": LocalAttention(window=128),
    "strided": StridedAttention(),
    "fixed": FixedAttention(),
    "linear": LinearAttention(),
    "performer": PerformerAttention(),
    "nystrom": NystromAttention(),
    "sparsemax": SparsemaxAttention(),
    "entmax": EntmaxAttention(),
    "capped": CappedAttention(),
}
"""Each with the options that `bench variants` measures it by; `explain_attention(…, functions=VARIANTS)` says which can
serve a call."""
