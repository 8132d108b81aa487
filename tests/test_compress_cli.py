"""The command `compress`: folders that other commands take, its table and page, and what is refused."""

import json

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.quantized.model import quantized_kernels
from flax_transformer.task.spec import Spec
from flax_transformer.task.start import load_start
from tests.task.test_use import CAUSAL, ENCODER, PLAIN, HubTokenizer, make


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("compress")
    marked = HubTokenizer.of_encoder(PLAIN.with_mask())
    names = {"id2label": {"0": "bad", "1": "good"}}
    hub.save(make("BertForSequenceClassification", marked, **names, **ENCODER), root / "classes")
    deep = make("BertForSequenceClassification", marked, **names, **{**ENCODER, "num_hidden_layers": 2})
    hub.save(deep, root / "deep")
    hub.save(make("GPT2LMHeadModel", HubTokenizer.of(PLAIN), **CAUSAL), root / "causal")
    rows = "".join(f"the dog barks {'at' * (i % 3)} the cat\t{('bad', 'good')[i % 2]}\n" for i in range(12))
    for name in ("train", "test"):
        (root / f"{name}.tsv").write_text(rows)
    return root


@pytest.mark.rotates
def test_a_classifier_gets_smaller_and_is_still_one(run, folders, tmp_path):
    output = tmp_path / "small"
    code, out, err = run(
        "compress", folders / "classes", "--output", output, "--activations", "int8", "--ranges", "percentile",
        "--calibrate", folders, "--data", folders, "--rows", 8,
    )  # fmt: skip
    assert code == 0, err
    assert "calibration: batch 1 of 1" in err
    table = {line.split("  ")[0]: line for line in out.splitlines()}
    assert {"size on disk", "bits a parameter", "FLOPs of a call", "memory of a call", "accuracy"} <= table.keys()
    page = (output / "compression.html").read_text()
    assert "<script" not in page
    assert "attention.query.kernel" in page
    small = hub.load(output)
    assert quantized_kernels(small.model)
    assert all(each.input_scale is not None for each in quantized_kernels(small.model).values())
    code, out, err = run("classify", output, "the dog", "--jsonl")
    assert code == 0, err
    whole = hub.load(folders / "classes")
    ids = whole.tokenizer(["the dog"])
    probabilities = np.asarray(whole(**ids).logits)
    found = np.asarray(small(**ids).logits)
    assert 0 < np.abs(found - probabilities).max() < 0.3 * np.abs(probabilities).max()
    assert {"bad", "good"} <= set(json.dumps(json.loads(out)).split('"'))


METHODS = {
    "gptq": ("--weights", "int4", "--group", 8, "--embeddings"), "awq": ("--weights", "int4", "--group", 8),
    "smoothquant": ("--activations", "int8", "--ranges", "absmax"),
}  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize(
    "method", [each if each == "gptq" else pytest.param(each, marks=pytest.mark.slow) for each in METHODS]
)
def test_a_language_model_of_few_bits_by_calibration_goes_on_writing(run, folders, tmp_path, method):
    text = tmp_path / "text.txt"
    text.write_text("the dog barks at the cat " * 20)
    given = ("compress", folders / "causal", "--method", method, *METHODS[method])
    code, out, err = run(*given, "--output", tmp_path / "small", "--calibrate", text, "--data", text)
    assert code == 0, err
    assert "perplexity" in out
    code, out, err = run("generate", tmp_path / "small", "the dog", "--max-new-tokens", 4)
    assert (code, out[:7]) == (0, "the dog"), err


@pytest.mark.rotates
def test_zeros_are_written_and_counted(run, folders, tmp_path):
    given = ("compress", folders / "classes", "--weights", "none", "--output")
    code, out, err = run(*given, tmp_path / "half", "--prune", 0.5)
    assert code == 0, err
    assert out.splitlines()[1].startswith("zeros in kernels")
    kernel = np.asarray(hub.load(tmp_path / "half").model.backbone.trunk.blocks.feedforward.up.kernel[...])
    assert (kernel == 0).mean() == 0.5
    code, _, err = run(*given, tmp_path / "none")
    assert (code, (tmp_path / "none").exists()) == (1, False)
    assert "nothing becomes smaller: give --weights, --layers, --heads, --neurons, --prune, --block or --like" in err


@pytest.mark.slow
def test_layers_and_heads_are_removed_and_drawn(run, folders, tmp_path):
    given = ("compress", folders / "deep", "--weights", "none", "--output", tmp_path / "small", "--layers", 1)
    code, out, err = run(*given, "--heads", 0.5, "--calibrate", folders, "--rows", 8)
    assert code == 0, err
    assert "importance of heads: batch 1 of 1" in err
    assert {"parameters", "FLOPs of a call"} <= {line.split("  ")[0] for line in out.splitlines()}
    whole, small = hub.load(folders / "deep"), hub.load(tmp_path / "small")
    before, after = (each.model.cfg.backbone for each in (whole, small))
    assert (after.depth, after.block.attention.heads) == (1, before.block.attention.heads // 2)
    assert small.config["num_hidden_layers"] == 1
    page = (tmp_path / "small" / "compression.html").read_text()
    assert "Heads by importance" in page
    assert page.count("class=gone") == before.block.attention.heads // 2
    assert run("classify", tmp_path / "small", "the dog")[0] == 0


def test_an_early_model_gets_the_zeros_of_a_pruned_one(run, folders, tmp_path):
    given = ("compress", folders / "classes", "--weights", "none", "--output")
    assert run(*given, tmp_path / "half", "--prune", 0.5)[0] == 0
    code, out, err = run(*given, tmp_path / "ticket", "--like", tmp_path / "half")
    assert code == 0, err
    assert out.splitlines()[1].split()[:4] == ["zeros", "in", "kernels", "0.0%"]
    half, ticket = (hub.load(tmp_path / name).model for name in ("half", "ticket"))
    for one, other in zip(jax.tree.leaves(half), jax.tree.leaves(ticket), strict=True):
        np.testing.assert_array_equal(one, other)


def test_training_begins_with_whole_kernels_and_orbax_keeps_no_others(run, folders, tmp_path):
    assert run("compress", folders / "classes", "--output", tmp_path / "small")[0] == 0
    start = load_start(str(tmp_path / "small"), Spec(uses=("classification",), classes=("bad", "good")), None, seed=0)
    assert not quantized_kernels(start.model)
    code, _, err = run("convert", tmp_path / "small", tmp_path / "orbax")
    assert code == 1
    assert "an Orbax folder has whole kernels" in err
    assert run("convert", tmp_path / "small", tmp_path / "orbax", "--dtype", "float32")[0] == 0


REFUSED = {
    "a full folder": (("--output", "{root}"), "the output must be a new or empty folder"),
    "groups": (("--output", "{new}", "--group", 7), "groups must divide the inputs"),
    "no calibration": (("--output", "{new}", "--method", "gptq"), "needs --calibrate FILE, got none"),
    "no inputs": (
        ("--output", "{new}", "--method", "smoothquant", "--calibrate", "{root}"),
        "smoothquant is for inputs that are",
    ),
    "no calibration of heads": (("--output", "{new}", "--heads", 0.5), "--heads needs --calibrate FILE, got none"),
    "all heads": (("--output", "{new}", "--heads", 1, "--calibrate", "{root}"), r"--heads must be a share in [0, 1)"),
    "no such layer": (("--output", "{new}", "--layers", 0, 9), "layers of backbone.trunk must be in 0 … 0, got (0, 9)"),
    "no such stack": (
        ("--output", "{new}", "--layers", 0, "--stacks", "decoder"),
        "has none with 'decoder' in its path",
    ),
    "stacks alone": (("--output", "{new}", "--stacks", "decoder"), "got decoder and no layers"),
    "no zeros": (("--output", "{new}", "--like", "{root}/classes"), "taken from a model that was pruned, this one has"),
    "other kernels": (("--output", "{new}", "--like", "{root}/causal"), "both must have the same kernels"),
    "two kinds of zeros": (
        ("--output", "{new}", "--like", "{root}/classes", "--prune", 0.5),
        "give --like, or --prune or --block",
    ),
    "no such file": (("--output", "{new}", "--calibrate", "nowhere"), "there is no file or folder nowhere"),
    "no rows": (("--output", "{new}", "--calibrate", "{root}", "--rows", 0), "calibration needs at least 1 row, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said_and_writes_nothing(run, folders, tmp_path, name):
    options, message = REFUSED[name]
    new = tmp_path / "new"
    code, _, err = run("compress", folders / "classes", *(str(o).format(root=folders, new=new) for o in options))
    assert code == 1
    assert message in err
    assert not new.exists()


def test_what_is_small_already_is_not_made_smaller_again(run, folders, tmp_path):
    assert run("compress", folders / "classes", "--output", tmp_path / "one")[0] == 0
    code, _, err = run("compress", tmp_path / "one", "--output", tmp_path / "two")
    assert (code, (tmp_path / "two").exists()) == (1, False)
    assert "a model is quantized once" in err
