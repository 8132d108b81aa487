"""Checkpoints as ONNX: what transformers said, by ONNX Runtime; onnx's own checker; and what is refused."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.task.onnx_program import export_onnx, open_onnx
from tests.hub.test_golden import GOLDEN
from tests.task.golden_program import OTHER, assert_as_expected, read_expected, with_what_is_asked_for
from tests.task.test_program import FOLDER, unchecked

pytestmark = pytest.mark.usefixtures("unchecked")
__all__ = ["unchecked"]


@pytest.mark.rotates
@pytest.mark.parity
@pytest.mark.proves("programs", "as ONNX, every family: what transformers said, by ONNX Runtime")
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda folder: folder.name)
def test_every_family_s_onnx_gives_what_transformers_said(tmp_path, golden):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("jax2onnx")
    if golden.name in OTHER:
        return
    given, expected = read_expected(golden)
    export = partial(export_onnx, hub.load(golden), tmp_path / "program")
    with_what_is_asked_for(export, given)
    onnx.checker.check_model(str(tmp_path / "program" / "model.onnx"))
    program = open_onnx(tmp_path / "program")
    assert program.about["largest_difference"] <= 1e-5
    assert_as_expected(program, given, expected)


@pytest.mark.rotates
@pytest.mark.parity
def test_masks_on_a_resnet_have_onnx(tmp_path):
    """The golden checkpoint is on a Swin."""
    pytest.importorskip("jax2onnx")
    from tests.hub.oracle import forward
    from tests.hub.test_mask2former_parity import built

    model, given = built("resnet")
    model.eval().save_pretrained(tmp_path / "model")
    pixels = given["pixel_values"].shape
    program = export_onnx(hub.load(tmp_path / "model"), tmp_path / "program", rows=pixels[0], image=pixels[2:])
    expected, found = forward(model, given), program(**given)
    for name in ("class_queries_logits", "masks_queries_logits"):
        value = np.asarray(expected[name])
        assert np.abs(found[name] - value).max() <= 1e-5 * np.abs(value).max(), name


@pytest.mark.parity
def test_onnx_runs_without_jax(tmp_path):
    """Of other rows and lengths than it was checked with, by ONNX Runtime alone."""
    pytest.importorskip("jax2onnx")
    pretrained = hub.load(FOLDER / "gpt2")
    export_onnx(pretrained, tmp_path / "program")
    ids = np.random.default_rng(1).integers(0, 40, (3, 11)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[1, 7:] = 0
    np.savez(tmp_path / "inputs.npz", input_ids=ids, attention_mask=mask)
    code = """
import sys, numpy as np, onnxruntime
program = onnxruntime.InferenceSession(sys.argv[1] + "/model.onnx")
assert {each.name for each in program.get_inputs()} == {"input_ids", "attention_mask"}
np.save(sys.argv[3], program.run(["logits"], dict(np.load(sys.argv[2])))[0])
assert "jax" not in sys.modules
"""
    paths = (tmp_path / "program", tmp_path / "inputs.npz", tmp_path / "logits.npy")
    subprocess.run([sys.executable, "-c", code, *map(str, paths)], check=True, cwd=tmp_path)
    expected = np.asarray(pretrained(input_ids=ids, attention_mask=mask).logits)
    np.testing.assert_allclose(np.load(paths[2])[mask == 1], expected[mask == 1], atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parity
def test_the_command_writes_onnx(run, tmp_path):
    pytest.importorskip("jax2onnx")
    code, out, err = run("export", FOLDER / "t5", tmp_path / "program", "--to", "onnx", "--length", 8)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["input", "input_ids", "int32", "b", "×", "8"]
    assert (tmp_path / "program" / "tokenizer.json").is_file() == (FOLDER / "t5" / "tokenizer.json").is_file()
    code, _, err = run("export", FOLDER / "t5", tmp_path / "other", "--to", "onnx")
    assert code == 1
    assert "has no ONNX with length open; say which length" in err
    assert not (tmp_path / "other").exists()


def test_what_is_of_the_other_format_is_refused(run, tmp_path):
    for options, message in (
        (("--to", "onnx", "--platforms", "cpu"), "--platforms is of --to stablehlo"),
        (("--rows", 2), "--rows is of --to onnx"),
    ):
        code, _, err = run("export", FOLDER / "gpt2", tmp_path / "program", *options)
        assert code == 1
        assert message in err
    with pytest.raises(FileNotFoundError, match=r"has model\.onnx and program\.json, .* has no"):
        open_onnx(tmp_path)


def test_without_jax2onnx_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(ValueError, match="ONNX takes jax2onnx: pip install"):
        export_onnx(hub.load(FOLDER / "gpt2"), tmp_path / "program")
    assert not (tmp_path / "program").exists()
