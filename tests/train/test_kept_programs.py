"""Compiled steps are found where they match, change nothing, and are never needed."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer.task.experiment import train
from flax_transformer.train.compilation import Compilations
from flax_transformer.train.compiled_step import canonical
from tests.fake_devices import on_eight
from tests.recipe import tiny_translation

pytestmark = pytest.mark.proves("training", "compiled steps kept in a folder, and loaded where they match")

RECIPE = tiny_translation()


def lasting(workdir, programs="", recipe=RECIPE):
    """Train; give the parameters, the losses, and how often the step was compiled."""
    with Compilations() as compiled:
        model = train(recipe, workdir, programs=str(programs))
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    return jax.tree.leaves(model), losses, compiled.names.count("jit(train_step)")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    return folder / "programs", lasting(folder / "run", folder / "programs")


def same(one, other):
    assert all(np.array_equal(mine, its) for mine, its in zip(one[0], other[0], strict=True))
    assert one[1] == other[1]


@pytest.mark.rotates
def test_what_was_compiled_before_is_loaded_and_the_same(first, tmp_path, capsys):
    folder, made = first
    assert len(list(folder.iterdir())) == 1
    before = lasting(tmp_path / "none")
    again = lasting(tmp_path / "again", folder)
    assert "compiled before: traced and loaded" in capsys.readouterr().out
    same(made, before)
    same(made, again)
    assert (made[2], before[2], again[2]) == (1, 1, 0)


@pytest.mark.slow
def test_another_step_is_compiled_and_added(first, tmp_path):
    folder, _ = first
    count = len(list(folder.iterdir()))
    recipe = replace(RECIPE, optimizer=replace(RECIPE.optimizer, b2=0.9))
    assert lasting(tmp_path / "run", folder, recipe)[2] == 1
    assert len(list(folder.iterdir())) == count + 1


@pytest.mark.slow
def test_a_damaged_program_is_told_and_compiled_again(first, tmp_path, capsys):
    _, made = first
    folder = tmp_path / "programs"
    lasting(tmp_path / "one", folder)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    same(made, lasting(tmp_path / "two", folder))
    said = capsys.readouterr().out
    assert "compiled again: a compiled program that is damaged" in said
    assert str(file) in said
    assert len(file.read_bytes()) > 0.9 * len(whole)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"programs must be a folder that can be made, got .*file: File exists"):
        train(RECIPE, tmp_path / "run", programs=str(tmp_path / "file"))
    assert not (tmp_path / "run").exists()


def test_programs_are_told_apart_by_what_they_do_not_by_how_their_functions_are_called():
    def lowered(scale, before):
        inner = jax.jit(lambda x: scale * x)
        outer = jax.jit(lambda x: inner(x) + jax.jit(lambda x: x - 1)(x))
        first = jax.jit(lambda x: x + 1) if before else (lambda x: x + 1)
        return jax.jit(lambda x: outer(first(x))).lower(1.0).as_text()

    text = lowered(2.0, before=True)
    other = text.replace("<lambda>_1", "<lambda>_7").replace("<lambda>_0", "<lambda>_1")
    assert other != text
    assert canonical(other) == canonical(text)
    assert len({canonical(lowered(scale, before)) for scale in (2.0, 3.0) for before in (True, False)}) == 4


PLANNED = """
import json, sys, jax
from dataclasses import replace
from pathlib import Path
from flax_transformer.bench.experiment import from_experiment
from flax_transformer.bench.workload import Size
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh
from flax_transformer.task.experiment import train
from flax_transformer.train.compiled_step import program_file
from flax_transformer.train.step import laid_out
from tests.task.test_classify_images import cct, experiments, short, with_head

folder = Path(sys.argv[2])
model = cct(embed=8, heads=2, depth=1, inner=8, image=32, stem=(4,), pool=False)
recipe = short(experiments("classify_images")["cct"], model=with_head(model, outputs=2, pool="weighted"))
recipe = replace(recipe, mesh=MeshConfig(data=2, fsdp=4))
work = from_experiment("tiny", recipe, Size())
mesh = make_mesh(recipe.mesh)
place = batch_sharding(mesh)
batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), work.batch)
with jax.set_mesh(mesh):
    lowered = laid_out(work.step, work.state, mesh).trace(work.state, batch).lower(lowering_platforms=("cpu",))
planned = program_file(folder / "programs", lowered, list(mesh.devices.flat))
train(recipe, folder / "run", programs=str(folder / "programs"))
train(recipe, folder / "again", programs=str(folder / "programs"))
print(json.dumps([planned.name, [file.name for file in (folder / "programs").iterdir()]]))
"""


@pytest.mark.rotates
def test_a_plan_names_the_step_that_training_takes(tmp_path):
    """The program that a plan traces, without parameters or data, is that of the run, on eight devices."""
    (planned, kept), _ = on_eight("-c", PLANNED, tmp_path)
    assert kept == [planned]
