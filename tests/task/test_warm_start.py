"""A new model begins with another run's tokenizer and parameters."""

import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.nn import with_fields
from flax_transformer.parallel import path_name
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_run
from flax_transformer.task.warm_start import warm_start
from flax_transformer.train.folder import FolderError, RunFolder
from tests.recipe import tiny_translation
from tests.task.test_parallel_translation import recipe

pytestmark = [
    pytest.mark.proves(
        "warm start", "parameters of the same path and shape, to the bit; the tokenizer; what is refused"
    ),
    pytest.mark.rotates,
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    asked = tiny_translation(steps=2, eval_every=2, checkpoint_every=2)
    train(replace(asked, model=with_fields(asked.model, depth=1)), folder)
    return folder


def student(teacher, **changes):
    """Learn from other pairs, so that a tokenizer of one's own would be another."""
    own = recipe("ctc")
    return replace(own, data=replace(own.data, train=60), warm_start=str(teacher), **changes)


def opened(asked, folder):
    folder.mkdir(exist_ok=True)
    return asked.task(RunFolder(folder))


def leaves(model):
    return {path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(model)}


def test_what_fits_is_the_teachers_and_the_rest_is_new(teacher, tmp_path, capsys):
    asked = student(teacher)
    model = leaves(opened(asked, tmp_path / "student").model)
    theirs = leaves(open_run(teacher).model)
    same = {name for name in model if name in theirs and np.array_equal(model[name], theirs[name])}
    assert {name.split(".")[0] for name in same} >= {"embedding", "encoder", "decoder"}
    assert not any(name.startswith("split") for name in same)
    assert same >= {name for name in model if name.startswith("encoder.")}
    assert (tmp_path / "student" / "tokenizer.json").read_bytes() == (teacher / "tokenizer.json").read_bytes()
    assert f"warm start: {sum(model[name].size for name in same):,} of" in capsys.readouterr().out


def test_a_run_that_began_so_goes_on_bit_for_bit(teacher, tmp_path):
    whole = train(student(teacher), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "4")
    jax.tree.map(np.testing.assert_array_equal, train(student(teacher), tmp_path / "again"), whole)


def test_what_cannot_be_a_start_is_refused(teacher, tmp_path):
    with pytest.raises(FolderError, match="nothing"):
        opened(replace(student(teacher), warm_start=str(tmp_path / "nothing")), tmp_path / "a")
    with pytest.raises(ValueError, match=r"same path and shape, .* has none of this model"):
        warm_start({"encoder": jnp.ones(3)}, str(teacher))
    with pytest.raises(ValueError, match="begins with a checkpoint or a run, got init=x, warm_start="):
        student(teacher, init="x")
    other = tmp_path / "b"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="has the tokenizer of"):
        opened(student(teacher), other)
