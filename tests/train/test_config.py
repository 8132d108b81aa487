import dataclasses
import json

import pytest

from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import Rotary, transformer_block
from flax_transformer.ops import attention
from flax_transformer.train.config import differences, from_json, to_json
from flax_transformer.train.folder import FolderError, RunFolder, open_folder, read_config, read_experiment
from flax_transformer.train.loop import TrainConfig


def through_text(value, **options):
    return from_json(json.loads(json.dumps(to_json(value))), **options)


@pytest.mark.parametrize(
    "config",
    [
        transformer_tiny(),
        transformer_block(embed=8, heads=2, inner=16, rotary=Rotary(base=500.0), attend=attention),
        TrainConfig(patience=3, ema=0.999),
    ],
)
def test_round_trip_through_text(config):
    assert through_text(config) == config


def test_functions_come_back_as_themselves():
    assert through_text(transformer_block(embed=8, heads=2, inner=16)).attention.attend is attention


@dataclasses.dataclass(frozen=True)
class Mine:
    size: int = 3


def test_types_of_other_packages_need_permission():
    data = to_json(Mine(4))
    with pytest.raises(ValueError, match=r"a config may name what is in flax_transformer, got .*test_config:Mine"):
        from_json(data)
    package = Mine.__module__.split(".")[0]
    assert from_json(data, packages=("flax_transformer", package)) == Mine(4)


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:exec",
        "subprocess:run",
        "flax_transformer_evil:f",
        "flax_transformer.train.folder:os",
        "flax_transformer.train.folder:Path",
        "flax_transformer.train.folder:json",
        "flax_transformer.no_such:f",
        "flax_transformer.train.config:no_such",
        "flax_transformer.train.config:",
        "",
        7,
    ],
)
def test_names_outside_the_package_are_refused(name):
    with pytest.raises(ValueError, match="config"):
        from_json({"function": name})
    with pytest.raises(ValueError, match="config"):
        from_json({"type": name})


def test_values_are_validated_on_the_way():
    data = to_json(transformer_block(embed=8, heads=2, inner=16))
    with pytest.raises(ValueError, match="heads must divide the model width, got D=8, N=3"):
        from_json({**data, "attention": {**data["attention"], "heads": 3}})
    with pytest.raises(ValueError, match=r"TransformerBlockConfig has no field depht; it has attention, .*residual"):
        from_json({**data, "depht": 3})
    with pytest.raises(ValueError, match="must be a dataclass"):
        from_json({"type": data["attention"]["attend"]["function"]})


@pytest.mark.parametrize("value", [lambda x: x, object(), {1, 2}])
def test_what_text_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="a config may hold"):
        to_json({"a": value})


def test_differences_name_paths_and_both_values():
    old = to_json(TrainConfig(steps=10, seed=1))
    assert differences(old, old) == []
    assert differences(old, to_json(TrainConfig(steps=20, seed=1))) == ["steps: 10 → 20"]
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "d": 4}}) == [
        "a.b: 1 → 3",
        "a.c: 2 → nothing",
        "a.d: nothing → 4",
    ]


@dataclasses.dataclass(frozen=True)
class Run:
    width: int = 4
    train: TrainConfig = TrainConfig()


def begin(root, run):
    folder = open_folder(root, run)
    (folder.checkpoints / "5").mkdir(parents=True, exist_ok=True)
    return folder


def test_a_bucket_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FolderError, match="a run folder is a path, got gs://bucket/run; a bucket must be mounted"):
        open_folder("gs://bucket/run", Run())
    assert not list(tmp_path.iterdir())


def test_a_run_may_go_on_longer(tmp_path):
    begin(tmp_path, Run())
    longer = Run(train=TrainConfig(steps=9_000, log_every=7, eval_every=7, checkpoint_every=7))
    assert read_config(open_folder(tmp_path, longer))["train"]["steps"] == 9_000


def test_a_run_of_another_configuration_is_refused_untouched(tmp_path):
    folder = begin(tmp_path, Run())
    folder.tokenizer.write_text("{}")
    before = folder.config.read_bytes()
    with pytest.raises(FolderError, match=r"another configuration:\n  width: 4 → 5\n  train.seed: 0 → 1\n"):
        open_folder(tmp_path, Run(width=5, train=TrainConfig(seed=1, steps=7)))
    assert folder.config.read_bytes() == before
    assert folder.tokenizer.exists()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            {"type": "flax_transformer.nn.config:BlockConfig", "embed": 8},
            "there is no flax_transformer.nn.config:Block",
        ),
        (
            {"type": "flax_transformer.nn.relative:RelativeConfig", "slope": 8},
            "RelativeConfig has no slope",
        ),
    ],
)
def test_a_run_of_another_version_is_refused_in_a_sentence(tmp_path, model, reason):
    folder = begin(tmp_path, Run())
    folder.config.write_text(json.dumps({**json.loads(folder.config.read_text()), "model": [model]}))
    before = folder.config.read_bytes()
    for wrong in (lambda: open_folder(tmp_path, Run()), lambda: read_experiment(folder)):
        with pytest.raises(FolderError, match=f"holds a run of another version of flax_transformer: here {reason}"):
            wrong()
    assert folder.config.read_bytes() == before


def test_a_run_that_never_began_gives_way(tmp_path):
    folder = open_folder(tmp_path, Run())
    folder.tokenizer.write_text("{}")
    open_folder(tmp_path, Run())
    assert folder.tokenizer.exists()
    assert read_config(open_folder(tmp_path, Run(width=5)))["width"] == 5
    assert not folder.tokenizer.exists()


def test_folders_that_are_no_run_are_named(tmp_path):
    with pytest.raises(FolderError, match=r"is not a run folder: it has no config\.json"):
        read_config(RunFolder(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FolderError, match=r"config\.json is not JSON"):
        open_folder(tmp_path, Run())
    (tmp_path / "config.json").write_text('{"type": "os:system"}')
    with pytest.raises(FolderError, match=r"config\.json: a config may name"):
        read_experiment(RunFolder(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"cannot write to .*file"):
        open_folder(tmp_path / "file" / "run", Run())
