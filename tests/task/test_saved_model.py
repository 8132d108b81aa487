"""Checkpoints as SavedModels: what transformers said, by TensorFlow; in a process without JAX; and what is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.task.saved_model import export_saved_model, open_saved_model
from tests.hub.test_golden import GOLDEN
from tests.task.golden_program import OTHER, assert_as_expected, read_expected, with_what_is_asked_for
from tests.task.test_program import FOLDER, unchecked

pytestmark = pytest.mark.usefixtures("unchecked")
__all__ = ["unchecked"]


@pytest.mark.parity
@pytest.mark.proves("programs", "as a SavedModel, every family: what transformers said, by TensorFlow")
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda folder: folder.name)
def test_every_family_s_saved_model_gives_what_transformers_said(tmp_path, golden):
    pytest.importorskip("tensorflow")
    if golden.name in OTHER:
        return
    given, expected = read_expected(golden)
    with_what_is_asked_for(partial(export_saved_model, hub.load(golden), tmp_path / "program"), given)
    program = open_saved_model(tmp_path / "program")
    assert program.about["largest_difference"] <= 1e-5
    assert_as_expected(program, given, expected)


@pytest.mark.parity
def test_saved_models_run_without_jax(tmp_path):
    """Of other rows and lengths than they were checked with, by TensorFlow alone."""
    pytest.importorskip("tensorflow")
    draw, sides, expected = np.random.default_rng(1), {"b": 3, "t": 11, "s": 6}, {}
    for name in ("bert", "t5", "vit", "gpt2"):
        pretrained, folder, given = hub.load(FOLDER / name), tmp_path / name, {}
        about = export_saved_model(pretrained, folder, platforms=["cpu"]).about
        for each, said in about["inputs"].items():
            shape = [sides.get(side, side) for side in said["shape"]]
            random = draw.normal(size=shape) if said["dtype"] == "float32" else draw.integers(0, 2, shape)
            given[each] = random.astype(said["dtype"])
        np.savez(folder / "inputs.npz", **given)
        output = pretrained(**given)
        expected[folder] = {each: np.asarray(output[each]) for each in about["outputs"]}
    code = """
import sys
sys.modules["jax"] = None
import numpy as np, tensorflow as tf
for folder in sys.argv[1:]:
    program = tf.saved_model.load(folder)
    run = program.signatures["serving_default"]
    given = {name: tf.constant(value) for name, value in np.load(folder + "/inputs.npz").items()}
    assert {*run.structured_input_signature[1]} == {*given}
    np.savez(folder + "/outputs.npz", **{name: value.numpy() for name, value in run(**given).items()})
"""
    subprocess.run([sys.executable, "-c", code, *map(str, expected)], check=True, cwd=tmp_path)
    for folder, outputs in expected.items():
        found = dict(np.load(folder / "outputs.npz"))
        assert {*found} == {*outputs}
        for each, value in found.items():
            np.testing.assert_allclose(value, outputs[each], atol=1e-5, err_msg=f"{folder.name} {each}")


@pytest.mark.parity
def test_the_command_writes_a_saved_model(run, tmp_path):
    pytest.importorskip("tensorflow")
    options = ("--to", "saved-model", "--length", 16, "--platforms", "cpu")
    code, out, err = run("export", FOLDER / "longformer", tmp_path / "program", *options)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["input", "input_ids", "int32", "b", "×", "16"]
    about = json.loads((tmp_path / "program" / "program.json").read_text())
    assert about["platforms"] == ["cpu"]
    assert out.splitlines()[-1].startswith(f"as the checkpoint to {about['largest_difference']:.1e}")
    code, _, err = run("export", FOLDER / "longformer", tmp_path / "other", "--to", "saved-model")
    assert code == 1
    assert "computes otherwise for other lengths" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.parity
def test_inputs_that_do_not_fit_a_saved_model(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    program = export_saved_model(hub.load(FOLDER / "gpt2"), tmp_path / "program", platforms=["cpu"])
    with pytest.raises(ValueError, match="the program takes input_ids, attention_mask, got input_ids"):
        program(input_ids=np.zeros((1, 3), np.int32))
    with pytest.raises(tensorflow.errors.InvalidArgumentError, match=r"Expected value <= 32|t <= 32|Input shapes"):
        program(input_ids=np.zeros((1, 40), np.int32), attention_mask=np.ones((1, 40), np.int32))
    with pytest.raises(ValueError, match="a program is written to a new or empty folder"):
        export_saved_model(hub.load(FOLDER / "gpt2"), tmp_path / "program")


def test_what_is_of_other_formats_is_refused(run, tmp_path):
    code, _, err = run("export", FOLDER / "gpt2", tmp_path / "program", "--to", "saved-model", "--rows", 2)
    assert code == 1
    assert "--rows is of --to onnx" in err
    with pytest.raises(FileNotFoundError, match=r"has saved_model\.pb and program\.json, .* has no"):
        open_saved_model(tmp_path)


@pytest.mark.parity
def test_a_saved_model_keeps_the_types_of_parameters(tmp_path):
    """Halves and whole numbers of 8 bits go along; of 4 bits there are none, as in other programs."""
    pytest.importorskip("tensorflow")
    pretrained, ids = hub.load(FOLDER / "gpt2", dtype="bfloat16"), np.array([[4, 5, 6]], np.int32)
    program = export_saved_model(pretrained, tmp_path / "half", platforms=["cpu"])
    assert {each.dtype.name for each in program.loaded.parameters.values()} == {"bfloat16"}
    found = program(input_ids=ids, attention_mask=np.ones_like(ids))["logits"]
    expected = pretrained(input_ids=ids, attention_mask=np.ones_like(ids)).logits
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(expected, np.float32))
    plain = hub.load(FOLDER / "llama")
    few = replace(plain, model=quantize_model(plain.model, Quantization(weights="int8")))
    assert export_saved_model(few, tmp_path / "int8", platforms=["cpu"]).about["largest_difference"] <= 1e-5
    fewer = replace(plain, model=quantize_model(plain.model, Quantization(weights="int4", group=8)))
    with pytest.raises(ValueError, match="8 bits or more, the checkpoint has kernels of int4"):
        export_saved_model(fewer, tmp_path / "int4")


@pytest.mark.parity
def test_versions_that_do_not_go_together_are_said(tmp_path, monkeypatch):
    """As TensorFlow tells them, in the midst of a text of many lines."""
    tensorflow = pytest.importorskip("tensorflow")
    text = (
        "Graph execution error:\n\nDetected at node XlaCallModule\n<unknown>:0: note: produced by: StableHLO_v9.1.0\n"
        "<unknown>:0: error: failed to deserialize portable artifact using StableHLO_v1.13.7\n\n\t [[{{node}}]]"
    )

    def load(folder):
        raise tensorflow.errors.InvalidArgumentError(None, None, text)

    monkeypatch.setattr(tensorflow.saved_model, "load", load)
    message = r"has no SavedModel: JAX \S+ writes StableHLO 9\.1\.0, TensorFlow \S+ reads 1\.13\.7; it takes a newer"
    with pytest.raises(ValueError, match=message):
        export_saved_model(hub.load(FOLDER / "gpt2"), tmp_path / "program", platforms=["cpu"])
    assert not (tmp_path / "program").exists()


def test_without_tensorflow_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ValueError, match="a SavedModel takes TensorFlow: pip install"):
        export_saved_model(hub.load(FOLDER / "gpt2"), tmp_path / "program")
    assert not (tmp_path / "program").exists()
