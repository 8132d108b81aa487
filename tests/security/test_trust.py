"""Files of others run no code here, are no programs to us, and lead no writing out of the folder asked for."""

import ast
import json
import pickle
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import numbers
from flax_transformer.data.text import build_pairs, tfds_pairs, train_byte_bpe
from flax_transformer.data.text.batch import load_ragged
from flax_transformer.hub import file
from flax_transformer.hub.convert import describe, save_orbax
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.report.page import Report, write_page
from flax_transformer.train.folder import FolderError, RunFolder, open_folder, read_experiment

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "hub" / "golden" / "gpt2"
TRAP = "import pathlib; pathlib.Path(__file__).with_name('sprung').touch()\n"


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(GOLDEN, tmp_path / "gpt2"))


@pytest.fixture
def outside(tmp_path):
    """Return a file that nobody may change."""
    path = tmp_path / "outside"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"
    assert not path.is_symlink()


def configure(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


# Code


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "tf_model.h5", "flax_model.msgpack"])
def test_formats_that_can_hold_code_are_not_opened(folder, name):
    (folder / file.WEIGHTS).unlink()
    (folder / name).write_bytes(pickle.dumps(Trap(folder / "sprung")))
    said = f"has only {name}; such files can run code .*: GPT2LMHeadModel.from_pretrained"
    if name == file.FLAX:  # arrays are all that can be in it
        said = f"{name} is not a whole msgpack file of Flax arrays"
    with pytest.raises(ValueError, match=said):
        hub.load(folder)
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize("named", [None, [], "BertModel", ["os.system('x')"], [7], ["BertForSequenceClassification"]])
def test_a_pickle_is_converted_by_its_own_class(folder, named):
    (folder / file.WEIGHTS).rename(folder / "pytorch_model.bin")
    configure(folder, architectures=named)
    known = named == ["BertForSequenceClassification"]
    with pytest.raises(ValueError, match=r"has only pytorch_model\.bin") as caught:
        file.open_tensors(folder)
    assert ("BertForSequenceClassification.from_pretrained(" in str(caught.value)) == known
    assert ("CLASS.from_pretrained(" in str(caught.value)) != known


def test_other_weights_of_the_hub_are_fetched_where_they_are_arrays_alone(monkeypatch, folder):
    asked, there = [], []

    def download(name, *, revision, allow_patterns):
        asked.append((revision, tuple(allow_patterns)))
        return str(folder)

    def listed(name, *, revision):
        if not there:
            raise OSError("offline")
        return there

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.list_repo_files", listed)
    (folder / file.WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        hub.load("owner/name@main")
    there[:] = ["config.json", "pytorch_model.bin", "sub/model.pt"]
    with pytest.raises(ValueError, match=r"owner/name has only pytorch_model\.bin.*GPT2LMHeadModel\.from_pretrained"):
        hub.load("owner/name@main")
    assert asked == [("main", file.PATTERNS)] * 2
    there[:] = ["pytorch_model.bin", "flax_model.msgpack"]
    with pytest.raises(FileNotFoundError, match=r"no flax_model\.msgpack"):
        hub.load("owner/name@main")
    assert asked[2:] == [("main", file.PATTERNS), (folder.name, ("flax_model*.msgpack*",))]


@pytest.mark.parametrize("name", ["x.tokens.npy", "x.offsets.npy"])
def test_pickled_arrays_are_not_opened(tmp_path, name):
    for each in ("x.tokens.npy", "x.offsets.npy"):
        np.save(tmp_path / each, np.zeros(1, np.int32))
    np.save(tmp_path / name, np.array([Trap(tmp_path / "sprung")], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"is damaged: (Object arrays cannot be loaded|.*Python objects)"):
        load_ragged(tmp_path / "x")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.rotates
def test_code_in_a_checkpoint_is_never_imported(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in ("modeling_trap", "tokenization_trap", "configuration_trap"):
        (folder / f"{name}.py").write_text(TRAP)
    code = {"AutoConfig": "configuration_trap.Trap", "AutoModelForCausalLM": "modeling_trap.Trap"}
    configure(folder, auto_map=code, custom_pipelines={"trap": {"impl": "modeling_trap.Trap"}}, trust_remote_code=True)
    HubTokenizer.of(train_byte_bpe(["over"], vocab_size=260)).save(folder)
    (folder / "chat_template.jinja").write_text("{{ cycler.__init__.__globals__.os.system('touch sprung') }}")
    options = json.loads((folder / "tokenizer_config.json").read_text())
    options["auto_map"] = {"AutoTokenizer": ["tokenization_trap.Trap", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    loaded = hub.load(folder)
    loaded.tokenizer(["over"])
    loaded(input_ids=np.ones((1, 2), np.int32))
    assert not (folder / "sprung").exists()
    assert not {"configuration_trap", "modeling_trap", "tokenization_trap"} & sys.modules.keys()


def test_a_config_of_code_alone_is_refused(folder):
    configure(folder, model_type="trap", architectures=["TrapModel"], auto_map={"AutoModel": "modeling_trap.Trap"})
    with pytest.raises(ValueError, match=r"config\.json has model_type='trap'; supported are .*bart, "):
        hub.load(folder)


@pytest.mark.parametrize("name", ["modeling.py", "a.so", "pytorch_model.bin", "x.pkl", "x.npz", "x.jinja", "x.sh", "x"])
def test_nothing_that_could_be_code_is_downloaded(name):
    assert not any(fnmatch(name, pattern) for pattern in file.PATTERNS)


def test_the_revision_asked_for_is_the_one_downloaded(monkeypatch, folder, caplog):
    asked = []

    def download(name, *, revision, allow_patterns):
        asked.append((name, revision, tuple(allow_patterns)))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    hub.load("owner/name", revision="0123abc")
    hub.load("owner/name@0123abc")
    assert asked == [("owner/name", "0123abc", file.PATTERNS)] * 2
    assert not caplog.records
    with pytest.raises(ValueError, match="one revision must be asked for, got owner/name@0123abc and 'main'"):
        hub.load("owner/name@0123abc", revision="main")
    hub.load("owner/name")
    assert asked[2:] == [("owner/name", None, file.PATTERNS)]
    assert f"owner/name@{folder.name} is the same for ever" in caplog.text


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:eval", "flax_transformer.train.folder:os"])
@pytest.mark.parametrize("field", ["type", "function"])
def test_a_run_config_names_nothing_outside_this_package(tmp_path, name, field):
    (tmp_path / "config.json").write_text(json.dumps({field: name, "command": "touch sprung"}))
    with pytest.raises(
        FolderError,
        match=r"config\.json: a config may name what is in flax_transformer|has no|there is no flax_transformer",
    ):
        read_experiment(RunFolder(tmp_path))


def test_a_run_config_imports_no_module_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run_trap.py").write_text(TRAP)
    (tmp_path / "config.json").write_text('{"type": "run_trap:Config"}')
    with pytest.raises(FolderError, match="a config may name what is in flax_transformer, got run_trap:Config"):
        read_experiment(RunFolder(tmp_path))
    assert not (tmp_path / "sprung").exists()


COMMANDS = (
    "translate RUN", "evaluate RUN --source RUN/config.json --reference RUN/config.json", "distil RUN OUT", "show RUN",
    "sharding RUN", "bench RUN", "report RUN", "compare RUN RUN2", "attention RUN x", "generate RUN x",
    "fill-mask RUN x", "classify RUN x", "caption RUN x.png", "ask RUN x.png x", "detect RUN x.png", "search RUN x RUN",
    "transcribe RUN x.wav", "embed RUN x.png", "answer RUN --question x --context x", "convert RUN OUT",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_the_files_of_a_run_without_permission(tmp_path, monkeypatch, run, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text(TRAP + "class Config: pass\n")
    known = {"file": str(tmp_path / "trap.py"), "sha256": "0" * 64, "name": ""}
    for name in ("RUN", "RUN2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"type": "__main__:Config", "evaluators": [{"search": 1}]}')
        (tmp_path / name / "model.json").write_text('{"type": "trap:Config"}')
        (tmp_path / name / "code.json").write_text(
            json.dumps({"modules": {"__main__": known, "trap": {**known, "name": "trap"}}, "path": [str(tmp_path)]})
        )
    before = set(sys.path)
    _, out, err = run(*command.split(), stdin=b"x\n")
    assert not (tmp_path / "sprung").exists()
    assert "Traceback" not in out + err
    assert (set(sys.path), "trap" in sys.modules) == (before, False)


@pytest.mark.parametrize("form", ["pythonClassName", "python_class_name", "type", "nested", "json"])
def test_features_of_a_data_set_import_no_foreign_module(tmp_path, monkeypatch, form):
    build_pairs("words", {"train": numbers(3)}, source="en", target="de", data_dir=tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "features_trap.py").write_text(TRAP)
    trap = {"pythonClassName": "features_trap.Trap", "text": {}}
    features = {
        "nested": {
            "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
            "featuresDict": {"features": {"en": trap}},
        },
        "type": {"type": "features_trap.Trap", "content": {}},
        "json": {
            "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
            "jsonFeature": {"json": json.dumps({"en": {"type": "features_trap.Trap", "content": {}}})},
        },
    }.get(form, {form: "features_trap.Trap", "text": {}})
    (tmp_path / "words" / "1.0.0" / "features.json").write_text(json.dumps(features))
    with pytest.raises(ValueError, match=r"features\.json may name features of TFDS, it names '(features_trap|JSON)"):
        tfds_pairs("words", "train", source="en", target="de", data_dir=tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["huggingface:glue", "kaggle:a/b", "someone:words"])
def test_data_sets_of_a_namespace_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="data sets of a namespace are code from elsewhere"):
        tfds_pairs(name, "train", source="en", target="de", data_dir=tmp_path)


@pytest.mark.rotates
def test_the_package_has_no_way_to_run_data():
    forbidden = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    calls = {"eval", "exec", "compile", "__import__"}
    found = []
    for path in sorted((ROOT / "flax_transformer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            bad = {name.partition(".")[0] for name in names} & forbidden
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in calls:
                bad.add(node.func.id)
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in bad]
    assert not found


# Writing


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("end", ["", ".part"])
def test_saving_replaces_links_and_does_not_follow_them(folder, outside, name, end, tmp_path):
    HubTokenizer.of(train_byte_bpe(["over"], vocab_size=260)).save(folder)
    loaded = hub.load(folder)
    for write in (hub.save, describe, save_orbax):
        made = tmp_path / write.__name__
        made.mkdir()
        (made / f"{name}{end}").symlink_to(outside)
        write(loaded, made)


def test_a_report_and_a_tokenizer_replace_links(tmp_path, outside):
    for name in ("report.html", "report.html.partial", "tokenizer.json", "tokenizer.json.part"):
        (tmp_path / name).symlink_to(outside)
    write_page(tmp_path / "report.html", Report(title="x"))
    train_byte_bpe(["over"], vocab_size=260).save(tmp_path / "tokenizer.json")
    assert "x" in (tmp_path / "report.html").read_text()
    assert "<pad>" in (tmp_path / "tokenizer.json").read_text()


@pytest.mark.parametrize(
    "name", ["config.json", "config.partial", "metrics.jsonl", "checkpoints", "samples.jsonl", "x"]
)
def test_a_run_in_a_folder_that_leads_out_of_itself_is_refused(tmp_path, outside, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(FolderError, match=rf"a run writes only into its folder, .*{name} leads to {outside}"):
        open_folder(tmp_path / "run", {})


def test_links_inside_a_run_are_fine(tmp_path):
    (tmp_path / "run" / "large").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints").symlink_to("large")
    assert open_folder(tmp_path / "run", {}).config.is_file()


@pytest.mark.parametrize("name", ["../outside", "a/b", "..", "/outside"])
def test_a_tensor_or_shard_name_is_never_a_path_to_write(folder, outside, name):
    index = {"weight_map": dict.fromkeys(["wte.weight"], name)}
    (folder / file.WEIGHTS).unlink()
    (folder / file.INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="shards must lie beside their index"):
        hub.load(folder)
