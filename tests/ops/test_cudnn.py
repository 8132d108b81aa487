import importlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from flax_transformer.ops import Dropout, Mask, attention
from flax_transformer.ops.attention import Call, cudnn
from flax_transformer.ops.attention.cudnn import CudnnAttention
from flax_transformer.ops.platform import platform

pytestmark = pytest.mark.proves(
    "attention", "cuDNN: asked for what JAX lets it serve; output and gradients as XLA's on an H200"
)


def shape(T=16, H=64, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct((2, T, 4, H), dtype)


@pytest.mark.parametrize(
    ("q", "mask", "dropout", "reason"),
    [
        (shape(dtype=jnp.float32), None, None, "float16 or bfloat16, got float32"),
        (shape(H=36), None, None, "multiple of 8 up to 128, got 36"),
        (shape(), None, Dropout(0.1, jax.random.key(0)), "takes no dropout"),
        (shape(), Mask(dense=jnp.ones((16, 16), bool)), None, "no dense mask"),
        (shape(T=8), Mask(causal=True), None, "T = S, got T=8, S=16"),
        (shape(T=15), None, None, "even, got T=15, S=16"),
        (shape(), Mask(causal=True, offset=1), None, "no offset"),
        (shape(), Mask(window=3), None, "must be causal"),
    ],
)
def test_it_says_why_it_cannot_serve(monkeypatch, q, mask, dropout, reason):
    monkeypatch.setattr(cudnn, "platform", lambda: "gpu")
    k = jax.ShapeDtypeStruct((2, 16, 4, q.shape[-1]), q.dtype)
    assert reason in CudnnAttention().refuses(Call(q, k, k, mask, dropout=dropout))
    assert (
        CudnnAttention().refuses(Call(shape(), shape(), shape(), Mask(causal=True, lengths=jnp.ones(2, int)))) is None
    )


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize(
    "mask",
    [None, Mask(causal=True), Mask(causal=True, window=100), Mask(lengths=jnp.array([0, 77]))],
    ids=["none", "causal", "window", "lengths"],
)
@pytest.mark.parametrize("biased", [False, True])
def test_output_and_gradients_equal_xla(mask, biased):
    key = jax.random.split(jax.random.key(0), 5)
    heads = (8, 2, 2, 8)
    q, k, v, pull = (jax.random.normal(x, (2, 256, n, 64), jnp.bfloat16) for x, n in zip(key[:4], heads, strict=True))
    bias = jax.random.normal(key[4], (1, 8, 256, 256)) if biased else None

    def both(backend):
        out, back = jax.vjp(lambda q, k, v: attention(q, k, v, mask, bias, backend=backend), q, k, v)
        return out, *back(pull)

    for ours, theirs in zip(both("cudnn"), both("xla"), strict=True):
        np.testing.assert_allclose(ours.astype(jnp.float32), theirs.astype(jnp.float32), atol=0.06, rtol=0.03)


SWEEP = [
    (T, S, K, H, bias, mask)
    for T, S in [(1, 1), (1, 16), (15, 15), (16, 16), (16, 15), (7, 20)]
    for K, H in [(4, 64), (2, 8), (4, 36), (1, 136), (4, 256), (4, 264)]
    for bias in (None, (4, T, S), (1, 1, T, S), (2, 4, T, S), (4, 1, S))
    for mask in (
        None,
        Mask(causal=True),
        Mask(causal=True, window=5),
        Mask(window=(5, 0)),
        Mask(lengths=jnp.array([0, 9])),
    )
]


@pytest.mark.parametrize("capability", [None, (7, 5), (8, 6), (9, 0), (10, 0)])
def test_jax_takes_every_call_it_takes(monkeypatch, capability):
    """Forward and backward, by JAX's own checks, without a GPU."""
    theirs = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(cudnn, "platform", lambda: "gpu")
    monkeypatch.setattr(cudnn, "compute_capability", lambda: capability)
    monkeypatch.setattr(theirs, "check_cudnn_version", lambda: 91100)
    asked = lambda name: tuple(map(int, name.split(".")))  # noqa: E731
    monkeypatch.setattr(theirs, "check_compute_capability", lambda name: (capability or (0, 0)) >= asked(name))
    monkeypatch.setattr(theirs, "is_cuda_compute_capability_equal", lambda name: capability == asked(name))
    seen = set()
    for T, S, K, H, bias, mask in SWEEP:
        q, k = (jax.ShapeDtypeStruct((2, length, n, H), jnp.bfloat16) for length, n in ((T, 4), (S, K)))
        biases = () if bias is None else (jax.ShapeDtypeStruct(bias, jnp.float32),)
        kind = (T, S, H, bias is None, mask is None)
        if CudnnAttention().refuses(Call(q, k, k, mask, *biases)) is None and kind not in seen:
            seen.add(kind)
            attend = lambda q, k, v, bias=None, mask=mask: CudnnAttention()(q, k, v, mask, bias).sum()  # noqa: E731
            jax.eval_shape(jax.grad(attend, range(3 + len(biases))), q, k, k, *biases)
    assert (len(seen) == 0) if capability == (7, 5) else any(H > 128 for _, _, H, *_ in seen) == (capability == (9, 0))


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ({"device_kind": "NVIDIA H200", "client": SimpleNamespace(platform_version="PJRT C API\ncuda 12090")}, "gpu"),
        ({"device_kind": "AMD Instinct MI300X", "client": SimpleNamespace(platform_version="rocm 60300")}, "rocm"),
        ({"device_kind": "gfx942", "client": SimpleNamespace(platform_version="PJRT C API\nrocm 70000")}, "rocm"),
        ({"device_kind": "Radeon RX 7900 XTX"}, "rocm"),
    ],
)
def test_graphics_processors_of_other_makers_have_no_cudnn(monkeypatch, device, name):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", **device)])
    reason = CudnnAttention().refuses(Call(shape(), shape(), shape()))
    assert platform() == name
    assert reason == (None if name == "gpu" else "it needs an NVIDIA GPU, the platform is 'rocm'")


def test_what_a_mesh_splits_that_cudnn_needs_whole_is_not_its_to_serve(monkeypatch):
    monkeypatch.setattr(cudnn, "platform", lambda: "gpu")
    k = jax.ShapeDtypeStruct((2, 16, 1, 64), jnp.bfloat16)
    for axis, reason in (
        ("sequence", "whole sequences"),
        ("tensor", "kv heads must be a multiple of tensor = 2, got K=1"),
    ):
        with jax.sharding.use_abstract_mesh(AbstractMesh((2,), (axis,), axis_types=(AxisType.Auto,))):
            assert reason in CudnnAttention().refuses(Call(shape(), k, k))
