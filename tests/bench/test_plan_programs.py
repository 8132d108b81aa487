"""A forward pass and a step of decoding that are planned: what they are, how large, what bounds them, what is not."""

import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import jax
import pytest
from jax.sharding import PartitionSpec

from flax_transformer.bench import compile_ahead
from flax_transformer.bench.compile_ahead import Case, Compiled, compile_case
from flax_transformer.bench.inference import cache_shardings, inference
from flax_transformer.bench.plan import CompiledPlan, render
from flax_transformer.bench.target import find_workload
from flax_transformer.bench.workload import Size
from flax_transformer.nn import KVCache
from flax_transformer.parallel import MeshConfig, abstract_mesh
from flax_transformer.train.compiled_step import COMPILERS, installed

pytestmark = pytest.mark.proves("plan", "forward passes and decoding steps: bytes a token, few bits, their own peaks")

SIZE = {"batch": 4, "length": 16}
DECODE = Case(target="gpt2_tiny", topology="v5e:1x1", size=SIZE, what="decode")
COMPILED = Compiled(
    parameters=1_000, shape={"rows": 8, "positions": 16}, dtype="bfloat16", items=8, unit="tokens", flops=4 * 10**12,
    seconds=3.0, minimum={}, arguments=800, looked_up=300, weights=600, cache=200, temporaries=0, used=800,
    limit=2**30, products=(
        {"kind": "int8", "count": 7, "flops": 75 * 10**10}, {"kind": "bfloat16", "count": 1, "flops": 25 * 10**10},
    ),
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch):
    """Stand in for the compiler, on a slice of one device; give what it was asked to compile."""
    programs = []

    def tell(lowered, *_):
        programs.append(lowered.as_text())
        return {"seconds": 1.0, "arguments": 100, "used": 100, "limit": 200}

    monkeypatch.setattr(compile_ahead, "topology_devices", lambda topology: jax.devices()[:1])
    monkeypatch.setattr(compile_ahead, "_tell", tell)
    return programs


def test_a_step_of_decoding_is_given_weights_and_a_cache(asked):
    known = compile_ahead._compile(DECODE)["known"]
    work = find_workload("gpt2_tiny", Size(**SIZE))
    L, D, V, rows, length = 4, 128, work.shape["vocab"], 4, 16
    parameters = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(work.init, jax.random.key(0))))
    assert known["parameters"] == parameters
    assert known["weights"] == 4 * parameters
    assert known["cache"] // 1000 == 2 * L * rows * length * D * 4 // 1000  # and indices
    assert known["looked_up"] == work_positions(work) * D * 4  # the table of tokens is multiplied with too
    assert (known["items"], known["unit"], known["shape"]) == (rows, "tokens", {"rows": rows, "positions": length})
    linear, attended = 2 * rows * (12 * L * D**2 + V * D), 4 * rows * length * D * L
    assert known["flops"] == linear + attended
    assert "while" in asked[0]


def work_positions(work):
    return jax.eval_shape(work.init, jax.random.key(0)).cfg.embedding.max_length


def test_few_bits_make_weights_and_cache_smaller(asked):
    plain, few = (
        compile_ahead._compile(replace(DECODE, size={**SIZE, **more}))["known"]
        for more in ({}, {"weights": "int8", "activations": "int8", "cache": "int8"})
    )
    assert few["weights"] < 0.5 * plain["weights"]
    assert few["cache"] == pytest.approx(plain["cache"] * (32 + 4) / (4 * 32), rel=1e-3)
    assert "i8" in asked[1]
    assert "i8" not in asked[0]


def test_a_forward_pass_has_no_cache_and_other_tokens(asked):
    known = compile_ahead._compile(replace(DECODE, what="forward"))["known"]
    assert (known["cache"], known["items"], known["shape"]["length"]) == (0, 64, 16)


@pytest.mark.parametrize(
    ("case", "rule"),
    [
        ({"what": "decode", "target": "bert_base_uncased"}, "must be one of forward, train, got 'decode'"),
        ({"what": "decode", "programs": "kept"}, "compiled steps are kept of experiments on several devices"),
        ({"what": "train", "size": {"cache": "int4"}}, "caches are rounded to int8 or float8_e4m3fn, got 'int4'"),
        (
            {"what": "forward", "target": "swin_tiny", "size": {"cache": "int8"}},
            "a cache is of models that decode token",
        ),
        ({"size": {"group": 32}}, "group=32 is of weights of few bits, got none"),
    ],
)
def test_what_cannot_be_planned_is_said(case, rule, asked):
    with pytest.raises(ValueError, match=rule):
        compile_ahead._compile(replace(DECODE, **case))


def test_each_kind_of_product_is_bounded_by_its_own_peak():
    made = CompiledPlan(case=replace(DECODE, topology="v5e:2x2"), compiled=COMPILED)
    assert made.bounds.compute == pytest.approx(4e12 / 4 * (0.75 / 394e12 + 0.25 / 197e12))
    assert made.bounds.memory == pytest.approx(500 / 819e9)
    assert made.read_each == 500 * 4 / 8
    assert made.utilisation == pytest.approx(1)
    older = replace(made, case=replace(made.case, topology="tpu7x:1x1x1"))  # whose pages name no peak of int8
    assert older.bounds.compute == pytest.approx(4e12 / 2 / 1153.5e12)
    text = render(made)
    assert "7 products of int8: 750 G a device, at 394 TFLOP/s" in text
    assert "1 product of bfloat16: 250 G a device, at 197 TFLOP/s" in text
    assert "read a token     250 B" in text
    assert "not fused" not in text
    assert made.record["read_each"] == 250


def test_attention_that_is_not_fused_says_why():
    seen = {f"call {n}": {"splash": f"cannot: reason {n // 2}", "xla": "chosen"} for n in range(3)}
    text = render(
        CompiledPlan(case=replace(DECODE, what="forward"), compiled=replace(COMPILED, kernels=0, attention=seen))
    )
    assert "not fused by splash: reason 0; reason 1" in text
    none = render(
        CompiledPlan(case=replace(DECODE, what="forward"), compiled=replace(COMPILED, kernels=0, attention={}))
    )
    assert "not fused by splash: there is none" in none


def test_a_plan_of_training_says_nothing_of_products():
    text = render(CompiledPlan(case=replace(DECODE, what="train"), compiled=replace(COMPILED, products=())))
    assert "product" not in text
    assert "read a" not in text


def test_caches_lie_by_rows_and_heads():
    mesh = abstract_mesh(MeshConfig(data=2, tensor=2))
    work = find_workload("transformer_tiny", Size(batch=4, length=8, cache="int8"))
    model = jax.eval_shape(work.init, jax.random.key(0))
    cache, _ = jax.eval_shape(partial(work.start, length=8), model, work.batch)
    places = cache_shardings(cache, mesh)
    split = PartitionSpec(None, "data", "tensor", None, None)
    for node in (places.layers, places.memory):
        assert node.key.qvalue.spec == node.key.scale.spec == node.value.scale.spec == split
    assert places.layers.index.spec == PartitionSpec()
    assert isinstance(places.layers, KVCache)
    odd = cache_shardings(cache, abstract_mesh(MeshConfig(data=1, tensor=8)))  # of 4 heads
    assert odd.layers.value.qvalue.spec == PartitionSpec()


@pytest.mark.rotates
def test_a_step_of_latents_is_given_latents_and_rotary_keys_alone():
    """DeepSeek-V3's 61 layers, 512 + 64 numbers a position of each: split by rows, as all heads share them."""
    work = find_workload("deepseek_v3", Size(batch=8, length=4096, dtype="bfloat16"))
    indices, numbers = 4 * (61 + 1), 61 * 8 * 4096 * (512 + 64)
    alone = inference(work, "decode", abstract_mesh(MeshConfig(data=1)))
    assert alone.cache == 2 * numbers + indices
    split = inference(work, "decode", abstract_mesh(MeshConfig(data=2, tensor=4)))
    assert split.cache == numbers + indices
    key = split.arguments[1].layers[1].key
    assert key.sharding.spec == PartitionSpec(None, "data", None, None, None)
    # A step multiplies queries of N heads with C + R numbers a position, and C of them with the weights.
    one, two = (
        inference(find_workload("deepseek_v3", Size(batch=1, length=n)), "decode", abstract_mesh(MeshConfig(data=1)))
        for n in (1024, 2048)
    )
    assert two.facts.flops["decode"].model - one.facts.flops["decode"].model == 2 * 61 * 1024 * 128 * (2 * 512 + 64)


NARROW = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
TPU = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
GPU = pytest.mark.skipif(not any(map(installed, COMPILERS[1:])), reason="needs the GPU compiler")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        pytest.param("v5e:2x2", MeshConfig(data=1, tensor=4), marks=TPU), pytest.param("h100:1", None, marks=GPU),
    ],
)  # fmt: skip
def test_products_in_the_compiled_program_are_of_what_was_asked_for(topology, mesh, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(NARROW))
    size = {"batch": 16, "length": 32, "dtype": "bfloat16", "params": "bfloat16"}
    found = {}
    for kind in (None, "int8", "float8_e4m3fn"):
        few = {} if kind is None else {"weights": kind, "activations": kind, "cache": kind}
        case = Case(target=str(tmp_path), topology=topology, mesh=mesh, size={**size, **few}, what="decode")
        found[kind] = compile_case(case)
    kinds = {kind: {each["kind"]: each["count"] for each in known.products} for kind, known in found.items()}
    assert kinds[None].keys() == {"bfloat16"}
    assert kinds["int8"]["int8"] >= 4
    assert kinds["float8_e4m3fn"]["float8_e4m3fn"] >= 4
    assert found["int8"].weights < 0.75 * found[None].weights
    assert found["int8"].arguments < 0.75 * found[None].arguments
    assert found["int8"].products[0]["flops"] <= found["int8"].flops / (4 if mesh else 1)
