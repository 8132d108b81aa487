"""Any function is compiled for a slice that is not here, split as its arguments say."""

import json
import re
from functools import partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from flax_transformer.bench import compile_ahead, plan
from flax_transformer.bench.compile_ahead import Case, mesh_of
from flax_transformer.bench.timing import make_program
from flax_transformer.train import compiled_step as programs_of

MINE = """
import jax, jax.numpy as jnp

def product():
    return jnp.matmul, (jax.ShapeDtypeStruct((8, 4), jnp.bfloat16), jax.ShapeDtypeStruct((4, 2), jnp.bfloat16))
"""
FLOPS = 2 * 8 * 4 * 2


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Stand in for the compiler, on a slice of one device; give what it was asked to compile."""
    programs = []

    def tell(lowered, *_):
        programs.append(lowered.as_text())
        return {"seconds": 1.0, "arguments": 100, "used": 100, "limit": 200}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compile_ahead, "topology_devices", lambda topology: jax.devices()[:1])
    monkeypatch.setattr(programs_of, "version", lambda name: "1.0")
    monkeypatch.setattr(compile_ahead, "_tell", tell)
    return programs


def shape(*sizes, dtype="bfloat16", sharding=None):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)


def test_a_function_has_a_plan(asked):
    found = plan.compile(jnp.matmul, shape(8, 4), shape(4, 2), topology="v5e:1x1")
    assert found.compiled.flops == FLOPS
    assert found.bounds.compute == FLOPS / 197e12
    said = str(found)
    assert "matmul: bfloat16, arrays 2, numbers 40" in said
    assert "parameters" not in said
    assert "items a second" not in said
    assert "attention" not in said
    assert re.search("kernels +0 in Pallas", said)
    assert len(asked) == 1
    assert plan.compile(jnp.matmul, shape(8, 4), shape(4, 2), topology="v5e:1x1").compiled.earlier
    assert len(asked) == 1
    assert not plan.compile(jnp.matmul, shape(8, 4), shape(4, 2), topology="v5e:1x1", fresh=True).compiled.earlier


@pytest.mark.parametrize(("dtype", "peak"), [("int8", 394e12), ("float8_e4m3fn", 197e12), ("int16", 197e12)])
def test_a_type_has_its_own_peak_or_that_of_bfloat16(asked, dtype, peak):
    found = plan.compile(jnp.matmul, shape(8, 4, dtype=dtype), shape(4, 2, dtype=dtype), topology="v5e:1x1")
    assert found.bounds.compute == FLOPS / peak


def test_a_function_of_a_file_has_one_too(asked, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    case = Case(target=f"{tmp_path}/mine.py:product", topology="v5e:1x1")
    known = compile_ahead._compile(case)["known"]
    assert (known["flops"], known["parameters"], known["dtype"]) == (FLOPS, None, "bfloat16")
    assert "dot_general" in asked[0]


def test_a_model_that_nothing_trains_has_no_plan(asked, tmp_path):
    fields = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 50}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=r"a plan is of a training step, and nothing says what .* is trained on"):
        compile_ahead._compile(Case(target=str(tmp_path), topology="v5e:1x1"))


def test_the_arguments_say_over_which_mesh():
    mesh, other = AbstractMesh((4,), ("rows",)), AbstractMesh((2, 2), ("x", "y"))
    split, too = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(other, PartitionSpec("x"))
    assert mesh_of((shape(8, sharding=split), shape(4))) == mesh
    assert mesh_of((shape(8), jnp.ones(3))) is None
    with pytest.raises(ValueError, match="arguments are split over one mesh, got"):
        mesh_of((shape(8, sharding=split), shape(8, sharding=too)))


def test_arguments_on_other_devices_than_the_slice_has_are_refused(asked):
    split = NamedSharding(AbstractMesh((4,), ("rows",)), PartitionSpec("rows"))
    with pytest.raises(ValueError, match="the arguments lie on 4 devices, v5e:1x1 has 1"):
        plan.compile(jnp.sin, shape(8, sharding=split), topology="v5e:1x1")


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
@pytest.mark.slow
def test_axes_of_ones_own_are_split_on_the_slice(tmp_path, monkeypatch):
    """A contraction over a split axis is summed over devices, each of which has a quarter of the operands."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mesh = AbstractMesh((4,), ("mine",), axis_types=(AxisType.Auto,))
    sharding = partial(NamedSharding, mesh)
    x = shape(256, 512, sharding=sharding(PartitionSpec(None, "mine")))
    w = shape(512, 128, sharding=sharding(PartitionSpec("mine", None)))
    found = plan.compile(jnp.matmul, x, w, topology="v5e:2x2")
    assert found.compiled.arguments == 2 * (256 * 512 + 512 * 128) // 4
    assert {each["kind"] for each in found.compiled.collectives} <= {"all-reduce", "reduce-scatter", "all-gather"}
    assert found.compiled.collectives
    assert found.compiled.flops == 2 * 256 * 512 * 128


def test_a_program_of_ones_own_is_jitted_once():
    jitted = jax.jit(jnp.sin)
    assert make_program(jitted, jnp.ones(3)).function is jitted


def test_steps_are_kept_of_experiments_on_several_devices_alone(asked, tmp_path):
    for target, topology in (("transformer_tiny", "v5e:2x2"), ("experiments/classify_images.py:cct", "v5e:1x1")):
        with pytest.raises(ValueError, match=rf"are kept of experiments on several devices, .*; got {target} on"):
            compile_ahead._compile(Case(target=target, topology=topology, programs=str(tmp_path)))
