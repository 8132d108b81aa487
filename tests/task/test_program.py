"""Checkpoints as programs: against what transformers said, in a process without this library, and what is refused."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.task.program import export_program, open_program
from tests.hub.test_golden import GOLDEN
from tests.task.golden_program import OTHER, assert_as_expected, read_expected, with_what_is_asked_for

pytest.importorskip("flatbuffers")
pytestmark = pytest.mark.usefixtures("unchecked")
FOLDER = Path(__file__).parent.parent / "hub" / "golden"


@pytest.fixture(scope="module")
def unchecked():
    """Switch off the check of annotated shapes, where there is one: it knows no open lengths."""
    import jaxtyping

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


@pytest.mark.rotates
@pytest.mark.proves("programs", "every family exported and run: what transformers said, golden checkpoints")
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda folder: folder.name)
def test_every_family_s_program_gives_what_transformers_said(tmp_path, golden):
    given, expected = read_expected(golden)
    pretrained = hub.load(golden)
    if golden.name in OTHER:
        with pytest.raises(ValueError, match=OTHER[golden.name]):
            export_program(pretrained, tmp_path / "program")
        return
    with_what_is_asked_for(partial(export_program, pretrained, tmp_path / "program"), given)
    program = open_program(tmp_path / "program")
    assert program.about["largest_difference"] <= 1e-5
    assert_as_expected(program, given, expected)


@pytest.mark.rotates
def test_a_program_runs_without_this_library(tmp_path):
    """Of other rows and lengths than it was checked with, by JAX and safetensors alone."""
    pretrained = hub.load(FOLDER / "gpt2")
    export_program(pretrained, tmp_path / "program", platforms=["cpu"])
    ids = np.random.default_rng(1).integers(0, 40, (3, 11)).astype(np.int32)
    mask = np.ones_like(ids)
    np.savez(tmp_path / "inputs.npz", input_ids=ids, attention_mask=mask)
    code = """
import json, sys, jax, numpy as np
from jax import export
from safetensors.numpy import load_file
program = export.deserialize(bytearray(open(sys.argv[1] + "/program.jax", "rb").read()))
got = program.call(load_file(sys.argv[1] + "/parameters.safetensors"), dict(np.load(sys.argv[2])))
assert not [name for name in sys.modules if name.startswith(("flax", "optax"))]
np.save(sys.argv[3], got["logits"])
"""
    paths = (tmp_path / "program", tmp_path / "inputs.npz", tmp_path / "logits.npy")
    subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=True, cwd=tmp_path)
    np.testing.assert_allclose(np.load(paths[2]), pretrained(input_ids=ids, attention_mask=mask).logits, atol=1e-5)


@pytest.mark.rotates
def test_the_command(run, tmp_path):
    code, out, err = run("export", FOLDER / "longformer", tmp_path / "program", "--length", 16, "--platforms", "cpu")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == ["input", "input_ids", "int32", "b", "×", "16"]
    assert open_program(tmp_path / "program").about["platforms"] == ["cpu"]
    code, _, err = run("export", FOLDER / "longformer", tmp_path / "program")
    assert (code, err.startswith("error: a program is written to a new or empty folder")) == (1, True)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("longformer", {}, "computes otherwise for other lengths, .* say which length"),
        ("detr", {}, "takes any: say which"),
        ("vit", {"image": (8, 8)}, "sees images of 12 × 12 pixels, got 8 × 8"),
        ("gpt2", {"length": 40}, "reads from 1 to 32, got length 40"),
        ("gpt2", {"length": 0}, "length must be at least 1, got 0"),
        ("gpt2", {"platforms": ["gpu"]}, "platforms must be some of cpu, cuda, tpu, rocm, got gpu"),
    ],
)
def test_what_is_refused(tmp_path, kind, options, message):
    with pytest.raises(ValueError, match=message):
        export_program(hub.load(FOLDER / kind), tmp_path / "program", **options)
    assert not (tmp_path / "program").exists()


@pytest.mark.rotates
def test_parameters_keep_their_types(tmp_path):
    """Halves and whole numbers of 8 bits go along; of 4 bits there are none in files."""
    pretrained = hub.load(FOLDER / "gpt2", dtype="bfloat16")
    export_program(pretrained, tmp_path / "half", platforms=["cpu"])
    program, ids = open_program(tmp_path / "half"), np.array([[4, 5, 6]], np.int32)
    assert {str(each.dtype) for each in program.parameters.values()} == {"bfloat16"}
    expected = pretrained(input_ids=ids, attention_mask=np.ones_like(ids)).logits
    found = program(input_ids=ids, attention_mask=np.ones_like(ids))["logits"]
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))
    plain = hub.load(FOLDER / "llama")
    few = replace(plain, model=quantize_model(plain.model, Quantization(weights="int8")))
    assert export_program(few, tmp_path / "int8", platforms=["cpu"]).about["largest_difference"] <= 1e-5
    fewer = replace(plain, model=quantize_model(plain.model, Quantization(weights="int4", group=8)))
    with pytest.raises(ValueError, match="8 bits or more, the checkpoint has kernels of int4"):
        export_program(fewer, tmp_path / "int4")


@pytest.mark.rotates
def test_inputs_that_do_not_fit(tmp_path):
    export_program(hub.load(FOLDER / "gpt2"), tmp_path / "program", platforms=["cpu"])
    program = open_program(tmp_path / "program")
    with pytest.raises(ValueError, match="the program takes attention_mask, input_ids, got input_ids"):
        program(input_ids=np.zeros((1, 3), np.int32))
    with pytest.raises(ValueError, match="shapes"):
        program(input_ids=np.zeros((1, 40), np.int32), attention_mask=np.ones((1, 40), np.int32))
    (tmp_path / "program" / "program.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no program\.json"):
        open_program(tmp_path / "program")
