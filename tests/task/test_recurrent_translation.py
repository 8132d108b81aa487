"""A recurrent translator is trained, resumed, reported, drawn and used as any other."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer.models.preset import abstract
from flax_transformer.models.text.recurrent import luong_lstm
from flax_transformer.nn import with_fields
from flax_transformer.task.attention import attention_maps
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_translator
from tests.recipe import tiny_translation
from tests.task.test_classify_images import experiments

pytestmark = pytest.mark.proves("recurrent", "train", "[`translate_text`](../experiments/translate_text.py)")


def recipe(**changes):
    model = with_fields(luong_lstm(), embed=8, hidden=8, depth=1)
    return replace(tiny_translation(steps=4, checkpoint_every=2, eval_every=4), model=model, family="", **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent") / "run"
    return folder, train(recipe(), folder)


@pytest.mark.rotates
def test_a_run_is_reported_and_translates(finished):
    folder, model = finished
    assert (folder / "report.html").stat().st_size > 10_000
    assert not (folder / "export").exists()
    translator, search = open_translator(folder)
    for mine, its in zip(jax.tree.leaves(translator.model), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(mine, its)
    found = translator(["seven", "three hundred five"], search)
    assert [len(each) for each in found] == [1, 1]


@pytest.mark.rotates
def test_what_it_looks_at_is_drawn(finished):
    translator, _ = open_translator(finished[0])
    (cross,) = attention_maps(translator, [5, 6, 7], [8, 9])
    assert cross.name == "cross"
    assert cross.weights.shape == (1, 1, 2, 3)
    np.testing.assert_allclose(cross.weights.sum(-1), 1, atol=1e-5)


@pytest.mark.rotates
def test_a_run_goes_on_bit_for_bit(finished, tmp_path, capsys):
    """From its second step, as if it had been stopped there."""
    folder, model = finished
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    again = train(recipe(), tmp_path / "run")
    assert "resuming from step 2" in capsys.readouterr().out
    for mine, its in zip(jax.tree.leaves(again), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.rotates
def test_translators_of_the_recipe_have_as_many_parameters_within_a_twentieth():
    count = lambda recipe: sum(  # noqa: E731
        leaf.size for leaf in jax.tree.leaves(abstract(with_fields(recipe.model, vocab=9_728)))
    )
    counts = {name: count(each) for name, each in experiments("translate_text").items() if name != "finetune"}
    assert all(0.95 < number / counts["transformer"] < 1.05 for number in counts.values()), counts
