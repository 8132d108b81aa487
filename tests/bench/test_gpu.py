"""Steps are compiled for NVIDIA GPUs that are not here, and what is reckoned beside the compiler is checked."""

import json
from dataclasses import replace
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.bench import compile_ahead, gpu, kernel, plan
from flax_transformer.bench.chip import GIB, Topology
from flax_transformer.bench.compile_ahead import Case, CompilerError, compile_case
from flax_transformer.bench.device import known_peak
from flax_transformer.bench.plan import ESTIMATE, CompiledPlan, render
from flax_transformer.ops import Mask, attention
from flax_transformer.parallel import MeshConfig
from tests.bench.test_plan import CASE, COMPILED

HERE = any(find_spec(f"jax_plugins.xla_cuda{version}") for version in (12, 13) if find_spec("jax_plugins"))
needs_compiler = pytest.mark.skipif(not HERE, reason="needs jax-cuda13-plugin or jax-cuda12-plugin, the GPU compiler")
pytestmark = pytest.mark.proves("plan", "memory, communication and kernels for a100, h100, h200 and b200, an estimate")

KNOWN = replace(COMPILED, limit=gpu.GPUS["h100"].room)


def test_gpus_are_a_number_in_hosts_of_eight_or_hosts_of_some():
    shapes = {name: Topology.of(name).shape for name in ("h100:1", "a100:8", "h200:16", "b200:3x4")}
    assert shapes == {"h100:1": (1, 1), "a100:8": (1, 8), "h200:16": (2, 8), "b200:3x4": (3, 4)}
    assert Topology.of("b200:3x4").devices == 12
    assert Topology.of("b200:3x4").options["topology"] == "1x3x4"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("h100", "GPU:N, as h100:8"), ("h100:12", "a multiple of 8"), ("h100:2x2x2", "a number, or HOSTSxGPUS"),
        ("h100:0", "a number, or HOSTSxGPUS"), ("h10:8", "did you mean h100?"),
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_are_refused(name, rule):
    with pytest.raises(ValueError, match=rule.replace("?", r"\?")):
        Topology.of(name)


@pytest.mark.parametrize("name", gpu.GPUS)
def test_every_gpu_has_a_peak_and_a_description(name):
    card = gpu.GPUS[name]
    assert known_peak(card.name, "bfloat16")
    text = gpu.target_config(card)
    assert f"core_count: {card.processors}" in text
    assert text.count("{") == text.count("}")
    assert Topology.of(f"{name}:8").spec.room == int(0.75 * card.memory)


def test_a_plan_for_gpus_says_that_it_is_an_estimate():
    made = CompiledPlan(case=replace(CASE, topology="h100:16", mesh=MeshConfig(data=2, fsdp=8)), compiled=KNOWN)
    text = render(made, tokens=1e9, price=2.0)
    assert "GPUs" in text
    assert "h100:16: 16 GPUs, 2 hosts of 8, data 2 × fsdp 8" in text
    assert "fits, by estimate: 3.00 GiB of 59.33 GiB a device" in text
    assert "450 GB/s a GPU" in text
    assert "GPU-hours" in text
    assert text.endswith(ESTIMATE)


def test_what_does_not_fit_a_gpu_is_told_with_what_it_is_made_of():
    """The compiler does not refuse it, so all is known."""
    large = replace(KNOWN, arguments=60 * GIB, workspace=GIB, used=63 * GIB)
    text = render(CompiledPlan(case=replace(CASE, topology="h100:4"), compiled=large))
    assert "DOES NOT FIT, by estimate: 63.00 GiB of 59.33 GiB a device, 3.67 GiB too much" in text
    assert "1.00 GiB of cuDNN, reckoned" in text
    assert "MFU" not in text


def test_without_the_compiler_the_extra_that_brings_it_is_named(monkeypatch):
    monkeypatch.setattr(compile_ahead, "installed", lambda package: None)
    for topology, package, extra in (("h100:8", "jax-cuda13-plugin", "gpu"), ("v5e:4x4", "libtpu", "tpu")):
        with pytest.raises(CompilerError, match=rf"{package}.*pip install 'flax_transformer\[{extra}\]'"):
            plan.compile(jnp.sin, jnp.ones(3), topology=topology)


CALL = (
    "%b = (bf16[8,12,1024,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k), "
    'custom_call_target="__cudnn$fmhaSoftmaxBackward", '
    "operand_layout_constraints={bf16[8,1024,12,64]{3,2,1,0}, bf16[8,1024,12,64]{3,2,1,0}}"
)


def test_the_workspace_of_a_backward_pass_is_what_cudnn_said_of_it():
    """24.4 MiB for this call, by cuDNN 9.28 itself."""
    assert kernel.workspace(CALL) / 2**20 == pytest.approx(24.4, abs=0.05)
    assert kernel.workspace(CALL.replace("Backward", "")) == 0
    assert kernel.kernels(CALL) == {"cuDNN": 1}


def program(options, dtype=jnp.bfloat16, heads=(8, 8), width=64, biased=False):
    """Return the gradients of attention, and arguments of one shape."""
    query, key = (jax.ShapeDtypeStruct((2, 256, count, width), dtype) for count in heads)
    bias = jax.ShapeDtypeStruct((2, heads[0], 256, 256), dtype) if biased else None
    lengths = jax.ShapeDtypeStruct((2,), jnp.int32) if "lengths" in options else None

    def loss(q, k, v, bias, lengths):
        mask = Mask(**{**options, **({} if lengths is None else {"lengths": lengths})})
        return jnp.sum(attention(q, k, v, mask, bias).astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1, 2)), (query, key, key, bias, lengths)


PATHS = {
    "whole": program({}),
    "float16": program({}, dtype=jnp.float16),
    "causal": program({"causal": True}),
    "wide": program({"causal": True}, width=128),
    "grouped": program({"causal": True}, heads=(8, 2)),
    "lengths": program({"lengths": None}),
    "causal lengths": program({"causal": True, "lengths": None}),
    "window": program({"causal": True, "window": (64, 0)}),
    "bias": program({}, biased=True),
}
"""Every kind of call that `ops.cudnn` serves."""


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("card", ["a100:1", "h100:1"])
@pytest.mark.parametrize("path", PATHS)
def test_fused_attention_compiles_forward_and_backward(path, card, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    function, arguments = PATHS[path]
    assert plan.compile(function, *arguments, topology=card).compiled.kernels == 2


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", gpu.GPUS)
def test_a_sharded_step_compiles(name):
    size = {"batch": 32, "length": 64, "vocab": 512, "dtype": "bfloat16"}
    mesh = MeshConfig(data=2, fsdp=8)
    known = compile_case(Case(target="transformer_tiny", topology=f"{name}:16", mesh=mesh, size=size))
    assert known.fits
    assert known.kernels == 6
    assert known.workspace > 0
    assert {"all-gather", "reduce-scatter"} <= {each["kind"] for each in known.collectives}
    assert known.limit == gpu.GPUS[name].room


@needs_compiler
@pytest.mark.slow
def test_what_is_too_large_for_a_gpu_is_told():
    known = compile_case(Case(target="transformer_tiny", topology="h100:1", size={"batch": 16_384, "length": 256}))
    assert not known.fits


STEP = """
import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.gpu.attention import mha

def step():
    x = jax.ShapeDtypeStruct((2, 256, 4, 64), jnp.bfloat16)
    return lambda q: mha(q, q, q, None, causal=True), (x,)
"""


@needs_compiler
@pytest.mark.slow
def test_a_kernel_of_ones_own_compiles(tmp_path):
    (tmp_path / "mine.py").write_text(STEP)
    known = compile_case(Case(target=f"{tmp_path}/mine.py:step", topology="h100:1"))
    assert known.kernels == 1
    assert json.dumps(known.shape)
