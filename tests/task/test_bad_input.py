"""What cannot work is said in one sentence, with exit code 2 and nothing changed."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from flax_transformer.task.experiment import launch

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"


def experiment(name):
    spec = importlib.util.spec_from_file_location(f"experiment_{name}", EXPERIMENTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, "EXPERIMENT", None) or next(iter(module.EXPERIMENTS.values()))


@pytest.fixture
def refused(capsys, monkeypatch, tmp_path):
    """Run an experiment that must be refused; give what it said, spaces evened out."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["experiment.py"])

    def call(name, *arguments, workdir=None):
        with pytest.raises(SystemExit) as stop:
            launch(experiment(name), ["--workdir", str(workdir or tmp_path / "run"), *map(str, arguments)])
        said = capsys.readouterr()
        assert stop.value.code == 2, said
        assert "Traceback" not in said.err
        return " ".join((said.out + said.err).replace("│", " ").split())

    return call


def test_heads_that_do_not_divide(refused, tmp_path):
    assert "heads must divide the model width, got D=128, N=5" in refused(
        "translate_numbers", "--model.encoder.block.attention.heads", 5
    )
    assert not (tmp_path / "run").exists()


def test_a_mesh_larger_than_the_devices(refused, tmp_path):
    said = refused("translate_numbers", "--mesh.data", 4, "--mesh.fsdp", 2)
    assert "larger than the devices" in said
    assert "needs 8, there are 1" in said
    assert not (tmp_path / "run").exists()


def test_warmup_longer_than_the_run(refused):
    said = refused("translate_numbers", "--optimizer.schedule.warmup", 4000, "--train.steps", 100)
    assert "warmup must not be longer than the run, got warmup=4000, steps=100" in said


def test_a_run_too_short_for_its_recipe_is_told_the_option_that_makes_it_fit(refused):
    (option,) = re.findall(r"add (--optimizer\S+ \d+)", refused("translate_numbers", "--train.steps", 20))
    # With it the next setting that cannot work is reached.
    assert "warmup" not in refused("translate_numbers", "--train.steps", 20, *option.split(), "--mesh.data", 8)


@pytest.mark.parametrize(("wrong", "right"), [("--train.stepz", "--train.steps"), ("--mesh.dta", "--mesh.data")])
def test_a_misspelt_flag_is_answered_with_the_nearest(refused, wrong, right):
    said = refused("translate_numbers", wrong, 4)
    assert f"Unrecognized options: {wrong}" in said
    assert said.index("Perhaps you meant:") < said.index(right)


def test_a_value_of_the_wrong_kind(refused):
    assert "--train.steps" in refused("translate_numbers", "--train.steps", "many")


def test_no_data(refused, tmp_path):
    said = refused("translate_text")
    assert "no data: give --data.root FOLDER with parallel text, or --data.tfds NAME" in said
    # And the folder may then be used with data.
    assert "no folder" in refused("translate_text", "--data.root", tmp_path / "none")


@pytest.mark.rotates
def test_a_refusal_leaves_no_folder_that_was_not_there(refused, tmp_path):
    (tmp_path / "runs").mkdir()
    for workdir in ("run", "runs/some/run", "runs/other"):
        refused("translate_text", workdir=tmp_path / workdir)
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]
    (tmp_path / "runs/mine").mkdir()
    (tmp_path / "runs/mine/notes.txt").write_text("")
    refused("translate_text", workdir=tmp_path / "runs/mine")
    assert (tmp_path / "runs/mine/notes.txt").is_file()


def parallel(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        (folder / name.replace("_", ".")).write_bytes(lines)
    return folder


LINES = b"a b c\n" * 20


def test_a_missing_file_names_its_neighbours(refused, tmp_path):
    root = parallel(tmp_path / "data", train_en=LINES, train_tok_de=LINES)
    said = refused("translate_text", "--data.root", root, "--data.source", "en", "--data.target", "de")
    assert "no file train.de" in said
    assert "train.tok.de" in said


def test_unequal_line_counts_name_both(refused, tmp_path):
    root = parallel(tmp_path / "data", train_en=LINES, train_de=LINES + LINES)
    assert "got 20 in" in refused("translate_text", "--data.root", root, "--data.source", "en", "--data.target", "de")


def test_an_empty_file_and_a_line_that_is_not_utf8(refused, tmp_path):
    root = parallel(tmp_path / "data", train_en=b"", train_de=LINES)
    assert "train.en is empty" in refused("translate_text", "--data.root", root)
    parallel(root, train_en=b"a\nb\n\xff\xfe\n")
    assert "train.en, line 3: not UTF-8" in refused("translate_text", "--data.root", root)


@pytest.mark.parametrize(
    ("name", "part"),
    [("wmt14_translat", "nearest: wmt14_translate"), ("wmt14_translate/de-en", "tfds build wmt14_translate")],
)
def test_a_tfds_name_that_cannot_be_opened(refused, tmp_path, name, part):
    assert part in refused("translate_text", "--data.tfds", name, "--data.data-dir", tmp_path)


def test_a_folder_of_another_configuration_is_left_as_it_is(refused, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "5").mkdir(parents=True)
    config = {"type": "flax_transformer.task.recipe:Recipe", "init": "x"}
    (run / "config.json").write_text(json.dumps(config))
    said = refused("translate_numbers")
    assert "holds a run of another configuration" in said
    assert "init: x → " in said
    assert json.loads((run / "config.json").read_text()) == config
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "config.json"]


@pytest.mark.rotates
def test_a_run_of_another_kind_is_refused_in_one_sentence(refused, tmp_path):
    (tmp_path / "run" / "checkpoints" / "5").mkdir(parents=True)
    config = {"type": "flax_transformer.task.translation:Translation", "samples": 3}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    said = refused("translate_numbers")
    assert said.endswith("run holds a run of a Translation, this is a Recipe; use another --workdir")


def test_a_file_where_the_folder_should_be(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot write to" in refused("translate_numbers", workdir=tmp_path / "file")


def test_a_tracker_that_does_not_exist(refused):
    assert "track may name wandb and trackio, got mlflow" in refused("translate_numbers", "--track", "mlflow")


def test_pairs_longer_than_the_limit(refused):
    said = refused("translate_numbers", "--batch.max-tokens", 2, "--batch.tokens", 64, "--data.train", 50)
    assert "pair has at most max_tokens=2 tokens" in said


def test_batches_too_small_for_the_longest_pair(refused):
    said = refused("translate_numbers", "--batch.tokens", 80, "--data.train", 300, "--bpe.merges", 10)
    assert "a batch must hold at least" in said


def test_an_activation_is_read_by_its_name(refused):
    said = refused("translate_numbers", "--model.encoder.block.feedforward.activation", "rleu")
    assert "unknown activation 'rleu'; nearest: relu" in said
