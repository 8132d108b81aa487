import importlib.util
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from flax_transformer.bench.chip import CHIPS, GIB, Topology
from flax_transformer.bench.compile_ahead import Case, Compiled, CompilerError, _overflow, compile_case
from flax_transformer.bench.device import known_peak
from flax_transformer.bench.minimum_bytes import minimum_bytes
from flax_transformer.bench.plan import CompiledPlan, all_reduced, render
from flax_transformer.bench.target import find_target, find_workload
from flax_transformer.bench.workload import Size
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.parallel import AXES, MeshConfig, abstract_mesh, path_name, tree_shardings
from flax_transformer.parallel.collectives import Collective, collective_bytes

pytestmark = pytest.mark.proves(
    "plan", "memory, communication, bounds, cost for TPUs that are not here, against hand counts"
)

needs_compiler = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
CASE = Case(target="transformer_tiny", topology="v5e:2x2", size={"batch": 64, "length": 64, "dtype": "bfloat16"})
COMPILED = Compiled(
    parameters=1_000, shape={"rows": 8, "length": 16}, dtype="bfloat16", items=128, unit="tokens",
    flops=4 * 197 * 10**12,
    seconds=3.0, minimum={"data": 4_000}, arguments=GIB, temporaries=2 * GIB, outputs=0, used=3 * GIB,
    limit=int(15.75 * GIB),
    collectives=(
        {"kind": "all-reduce", "bytes": 50 * 10**9, "times": 2, "origin": ""},
        {"kind": "all-gather", "bytes": 100 * 10**9, "times": 1, "origin": ""},
    ),
)  # fmt: skip


def count(name, program="train", **size):
    return find_workload(name, Size(**size)).facts((program,)).flops[program].model


@pytest.mark.slow
def test_flops_of_three_models_are_those_counted_by_hand():
    rows, length, D, F, L = 8, 128, 512, 2048, 6
    tokens, pairs = rows * length, rows * length**2
    encoder, decoder = 4 * D**2 + 2 * D * F, 8 * D**2 + 2 * D * F
    forward = 2 * tokens * L * (encoder + decoder) + 4 * pairs * D * L * 3 + 2 * tokens * 37_000 * D
    assert count("transformer_base", batch=rows, length=length, vocab=37_000) == 3 * forward
    D, L = 768, 12
    linear, attended = 2 * tokens * L * 12 * D**2, 4 * pairs * D * L
    forward = linear + attended + 2 * tokens * 50_257 * D
    assert count("gpt2", batch=rows, length=length) == 3 * forward
    guessed = rows * -(-length // 7)
    forward = linear + attended + 2 * guessed * D * (D + 30_522)
    assert count("bert_base_uncased", batch=rows, length=length) == 3 * forward


def least(preset, gathers=2, **sizes):
    mesh = AbstractMesh(tuple(sizes.get(axis, 1) for axis in AXES), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    model = abstract(preset)
    shape = {"rows": 16, "length": 128, "source": 128, "target": 128}
    return minimum_bytes(model, tree_shardings(model, mesh), mesh, shape, "bfloat16", gathers=gathers)


def test_of_batches_without_positions_nothing_is_said_of_tensor_parallelism():
    from flax_transformer.models.text.gpt2 import gpt2

    mesh = AbstractMesh((2, 1, 1, 1, 4, 1), AXES, axis_types=(AxisType.Auto,) * len(AXES))
    model = abstract(gpt2())
    assert minimum_bytes(model, tree_shardings(model, mesh), mesh, {"rows": 16}, "bfloat16").keys() == {"data"}


def test_bytes_of_three_models_are_those_counted_by_hand():
    from flax_transformer.models.text.gpt2 import gpt2
    from flax_transformer.models.text.llama import llama2_7b
    from flax_transformer.models.text.transformer import transformer_base

    D, V = 768, 50_257
    # Of 1,024 learned positions 128 are used. Biases and norms are whole everywhere.
    kernels, tables, unused = 12 * 12 * D**2, V * D + 128 * D, 896 * D
    split, sharded = kernels + tables, (3 * kernels + 2 * tables) * 2
    assert least(gpt2(), data=8) == {"data": (124_439_808 - unused) * 2}
    assert least(gpt2(), fsdp=8) == {"fsdp": sharded}
    assert least(gpt2(), fsdp=8, gathers=1) == {"fsdp": (2 * kernels + 2 * tables) * 2}
    both = least(gpt2(), data=2, fsdp=4)
    assert both == {"data": (split // 4 + 124_439_808 - unused - split) * 2, "fsdp": sharded}
    assert least(gpt2(), tensor=4) == {"tensor": 12 * 4 * 16 * 128 * D * 2}
    # The norms of LLaMA are all that fsdp leaves whole; the vocabulary is split over tensor as well.
    whole, tables = 65 * 4096, 2 * 32_000 * 4096
    tensor = least(llama2_7b(), fsdp=8, tensor=2)
    found = 2 * 2 * 128 * 4096 * 2  # of two rows of tokens, and its gradient, in the place of the first table
    assert tensor["fsdp"] == (3 * (6_738_415_616 - whole - tables) + tables) // 2 * 2 + found
    assert tensor["tensor"] == 32 * 4 * 2 * 128 * 4096 * 2
    # A decoder layer has three sums, an encoder layer two.
    assert least(transformer_base(vocab=1024), tensor=2) == {"tensor": 6 * (2 + 3) * 2 * 16 * 128 * 512 * 2}


def test_groups_of_experts_sum_what_they_have_in_common():
    from flax_transformer.models.text.mixtral import mixtral_8x7b

    experts = 32 * 8 * 3 * 4096 * 14_336
    common = 46_702_792_704 - experts
    assert least(mixtral_8x7b(), expert=4) == {"expert": common * 2}
    assert least(mixtral_8x7b(), data=2, expert=4) == {"data": (common + experts // 4) * 2}


def test_of_frozen_parameters_no_gradient_is_sent():
    mesh = abstract_mesh(MeshConfig(data=2, fsdp=2))
    model = {"old": {"up": {"kernel": jax.ShapeDtypeStruct((4, 8), "float32")}}}
    model["new"] = model["old"]
    places = jax.tree.map(lambda leaf: NamedSharding(mesh, PartitionSpec("fsdp")), model)
    sent = partial(minimum_bytes, model, places, mesh, {"rows": 4}, "float32")
    kernel = 4 * 4 * 8
    assert sent() == {"data": 2 * kernel // 2, "fsdp": 4 * kernel}
    new = [True, False]
    assert sent(learns=new) == {"data": kernel // 2, "fsdp": 3 * kernel}
    assert sent(learns=new, gathers=2)["fsdp"] == 5 * kernel


def test_what_learns_is_what_the_loss_depends_on_and_is_not_frozen():
    work = find_workload("bert_base_uncased", Size(batch=2, length=7, vocab=32))
    work = replace(work, optimizer=replace(work.optimizer, trainable="dense|embedding"))
    model = jax.eval_shape(work.init, jax.random.key(0))
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    learning = {name for name, learns in zip(names, work.learning(model), strict=True) if learns}
    # No sentence follows another in what bench makes.
    assert learning == {name for name in names if re.search("dense|embedding", name) and "sentence" not in name}
    assert any("sentence.dense" in name for name in names)


def plan_of(kinds, minimum, mesh=MeshConfig(data=1, fsdp=4)):
    sent = tuple({"kind": kind, "bytes": count, "times": 1, "origin": ""} for kind, count in kinds.items())
    return CompiledPlan(case=replace(CASE, mesh=mesh), compiled=replace(COMPILED, collectives=sent, minimum=minimum))


def test_gradients_of_fsdp_that_become_all_reduces_are_told():
    split = {"all-gather": 10**9, "reduce-scatter": 10**9, "all-reduce": 10**7}
    whole = {"all-gather": 10**9, "all-reduce": 10**9}
    assert all_reduced(plan_of(split, {"fsdp": 2 * 10**9})) is None
    assert "1.00 GB of fsdp's gradients" in all_reduced(plan_of(whole, {"fsdp": 2 * 10**9}))
    # What data must sum is no fault.
    both = MeshConfig(data=2, fsdp=2)
    assert all_reduced(plan_of(whole, {"data": 10**9, "fsdp": 2 * 10**9}, both)) is None
    large = replace(plan_of(whole, {"fsdp": 2 * 10**9}, MeshConfig(data=1, fsdp=256)))
    large = replace(large, case=replace(large.case, topology="v5e:16x16"))
    assert "try --mesh.data 16 --mesh.fsdp 16" in all_reduced(large)
    assert "try --mesh.data 16 --mesh.fsdp 16" in render(large)


def test_a_plan_says_how_much_is_sent_beside_other_work():
    one, other = COMPILED.collectives
    half = replace(COMPILED, collectives=({**one, "times": 1}, {**other, "bytes": 50 * 10**9, "asynchronous": True}))
    assert re.search("asynchronous +50 % of it", render(CompiledPlan(case=CASE, compiled=half)))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("v5e", "GENERATION:AxB"), ("v5e:4x4x4", "lie on 2 axes"), ("v5p:4x4", "lie on 3 axes"),
        ("v5:4x4", "did you mean v5"), ("v5e:0x4", "lie on 2 axes"), ("v5e:4x-4", "GENERATION:AxB"),
    ],
)  # fmt: skip
def test_a_topology_that_is_none_is_refused(name, rule):
    with pytest.raises(ValueError, match=rule):
        Topology.of(name)


@pytest.mark.parametrize("name", CHIPS)
def test_every_generation_has_a_peak(name):
    assert known_peak(CHIPS[name].kind, "bfloat16")


def test_the_slowest_resource_bounds_a_step():
    made = CompiledPlan(case=CASE, compiled=COMPILED)
    assert made.bounds.compute == pytest.approx(1.0)  # 4 chips of 197 TFLOP/s
    assert made.bounds.memory == pytest.approx((1 + 2 * 2) * GIB / 819e9)
    assert made.bounds.links == pytest.approx((2 * 2 * 50e9 + 100e9) / 200e9)  # an all-reduce goes both ways
    assert (made.bounds.step, made.bounds.by) == (made.bounds.links, "links")
    assert made.utilisation == pytest.approx(1 / 1.5)
    assert made.items_per_second == pytest.approx(128 / 1.5)


def test_what_is_computed_again_takes_time_and_is_no_use():
    once, twice = (
        CompiledPlan(case=CASE, compiled=COMPILED),
        CompiledPlan(case=CASE, compiled=replace(COMPILED, again=COMPILED.flops)),
    )
    assert twice.bounds.compute == 2 * once.bounds.compute
    assert twice.utilisation == 1 / 2


def test_a_plan_says_what_a_budget_costs():
    text = render(CompiledPlan(case=CASE, compiled=COMPILED), tokens=128.0 * 2400, price=1.5)
    assert "fits: 3.00 GiB of 15.75 GiB a device, 12.75 GiB to spare" in text
    assert "1.00 hours, 4.00 chip-hours, 6.00 at 1.5 each" in text
    assert "bound by links" in text
    assert "cannot know" in text


def test_too_much_memory_is_a_verdict():
    too_large = replace(COMPILED, used=20 * GIB)
    text = render(CompiledPlan(case=CASE, compiled=too_large))
    assert "DOES NOT FIT: 20.00 GiB of 15.75 GiB a device, 4.25 GiB too much" in text
    assert "MFU" not in text


@pytest.mark.parametrize(
    "message",
    [
        "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded",
        "the total memory required for HLO temporaries (20.50G) exceeds available HBM (15.75G).",
    ],
)
def test_the_compilers_words_on_memory_are_understood(message):
    assert _overflow(message) == (int(20.5 * GIB), int(15.75 * GIB))
    with pytest.raises(CompilerError, match="something else"):
        _overflow("something else")


@needs_compiler
@pytest.mark.slow
def test_a_step_compiles_for_a_slice_that_is_not_here():
    known = compile_case(replace(CASE, mesh=MeshConfig(data=2, fsdp=2)))
    assert known.fits
    assert known.limit == CHIPS["v5e"].room
    assert known.parameters == 2_568_192
    kinds = {each["kind"] for each in known.collectives}
    assert "all-gather" in kinds
    assert known.minimum.keys() == {"data", "fsdp"}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "width", "mesh"),
    [
        ("gpt2", 64, MeshConfig(data=2, fsdp=2)), ("llama2_7b", 128, MeshConfig(data=2, fsdp=2)),
        ("gpt2", 64, MeshConfig(data=2, pipeline=2)), ("gpt2", 64, MeshConfig(data=1, pipeline=4)),
    ],
)  # fmt: skip
def test_packed_rows_take_splash_attention(preset, width, mesh):
    """Forward, backward for queries, backward for keys and values; with `remat` forward once more."""
    block = find_preset(preset)().block
    assert block.attention.width == width
    size = {"batch": 8, "length": 512, "dtype": "bfloat16", "remat": "full", "documents": 3, "dropout": 0.0}
    known = compile_case(Case(target=preset, topology="v5p:2x2x1", mesh=mesh, size=size))
    assert known.kernels == 4


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "size"),
    [
        ("transformer_base", {"batch": 1024, "length": 128, "dtype": "bfloat16"}),
        ("llama2_7b", {"batch": 64, "length": 2048, "dtype": "bfloat16", "remat": "full"}),
    ],
)
def test_a_fully_sharded_model_sends_the_least(preset, size):
    """Kernels are gathered twice, tables once; every gradient is summed once, and by an all-reduce over data alone."""
    known = compile_case(Case(target=preset, topology="v5p:4x4x4", mesh=MeshConfig(data=4, fsdp=16), size=size))
    sent = collective_bytes([Collective(**each) for each in known.collectives])
    assert 0.99 < (sent["all-gather"] + sent["reduce-scatter"]) / known.usual["fsdp"] < 1.01
    assert 0.99 < sent["all-reduce"] / known.minimum["data"] < 1.01
    # Moving a few rows of a table to where they are stored, where it has no whole number of tiles.
    assert sent["collective-permute"] < 1e-3 * sum(sent.values())
    assert sent["all-to-all"] == sent["ragged-all-to-all"] == known.rematerialized == 0


@needs_compiler
@pytest.mark.slow
def test_what_is_too_large_is_told_as_the_compiler_does():
    known = compile_case(replace(CASE, size={"batch": 16_384, "length": 256}))
    assert not known.fits
    assert known.limit == CHIPS["v5e"].room


@pytest.mark.slow
def test_dropout_is_set_everywhere():
    """With it the loss of one batch depends on the key; without, it does not."""
    keys = [jax.random.key(seed) for seed in (1, 2)]
    for rate, equal in ((0.3, False), (0.0, True)):
        work = find_target("gpt2_tiny", Size(batch=2, length=7, vocab=16, dropout=rate))
        model, batch = work.init(jax.random.key(0)), jax.tree.map(jax.numpy.asarray, work.batch)
        one, other = (float(work.objective(model, batch, key=key)[0]) for key in keys)
        assert (one == other) == equal
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got 1.0"):
        Size(dropout=1.0)


def test_packed_rows_have_as_many_documents_as_asked_for():
    batch = find_target("gpt2_tiny", Size(batch=2, length=7, documents=3)).batch
    assert batch["inputs"]["segments"].tolist() == [[1, 1, 1, 2, 2, 3, 3]] * 2
    assert batch["inputs"]["positions"].tolist() == [[0, 1, 2, 0, 1, 0, 1]] * 2
    with pytest.raises(ValueError, match="decoder-only models alone, transformer_tiny is none"):
        find_target("transformer_tiny", Size(documents=3))
    with pytest.raises(ValueError, match="a row of 7 tokens holds as many documents at most, got 8"):
        find_target("gpt2_tiny", Size(length=7, documents=8))


def test_an_experiment_takes_its_own_options():
    experiment = str(Path(__file__).parents[2] / "experiments" / "translate_numbers.py")
    shorter = find_target(experiment, Size(batch=8, length=8, vocab=64), ("--train.accumulate", "4"))
    assert shorter.train.accumulate == 4
    with pytest.raises(ValueError, match=r"does not take --nonsense 3: .*Unrecognized options: --nonsense"):
        find_target(experiment, Size(), ("--nonsense", "3"))
    with pytest.raises(ValueError, match="only experiments have options, got --nonsense for gpt2"):
        find_target("gpt2", Size(), ("--nonsense",))


@pytest.mark.rotates
def test_what_cannot_be_is_said(monkeypatch):
    with pytest.raises(ValueError, match="did you mean transformer_tiny"):
        compile_case(replace(CASE, target="transformer_tinny"))
