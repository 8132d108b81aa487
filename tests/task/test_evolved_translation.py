"""An Evolved Transformer is trained, resumed, reported, drawn and used as any other translator."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer.models.text.evolved import evolved_transformer
from flax_transformer.task.attention import TWICE, attention_maps
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_translator
from tests.recipe import tiny_translation

pytestmark = [
    pytest.mark.proves("evolved", "train", "[`translate_text`](../experiments/translate_text.py)"),
    pytest.mark.rotates,
]


def recipe():
    model = evolved_transformer(1, embed=8, heads=2, depths=(1, 2), dropout=0.1)
    return replace(tiny_translation(steps=4, checkpoint_every=2, eval_every=4), model=model, family="")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evolved") / "run"
    return folder, train(recipe(), folder)


def test_a_run_is_reported_and_translates(finished):
    folder, model = finished
    assert (folder / "report.html").stat().st_size > 10_000
    assert not (folder / "export").exists()
    translator, search = open_translator(folder)
    for mine, its in zip(jax.tree.leaves(translator.model), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(mine, its)
    for beams in (1, 3):
        found = translator(["seven", "three hundred five"], replace(search, beams=beams))
        assert len(found) == 2


def test_all_that_attends_is_drawn_in_the_order_it_is_done(finished):
    """Whether layers ran as a scan or one by one."""
    translator, _ = open_translator(finished[0])
    maps = attention_maps(translator, [5, 6, 7], [8, 9])
    assert [each.name for each in maps] == list(TWICE)
    shapes = [(1, 2, 3, 3), (2, 4, 2, 2), (2, 2, 2, 3), (2, 2, 2, 2), (2, 2, 2, 3)]  # twice the heads come first
    assert [each.weights.shape for each in maps] == shapes
    apart = attention_maps(replace(translator, model=translator.model.for_decoding()), [5, 6, 7], [8, 9])
    for each, its in zip(maps, apart, strict=True):
        np.testing.assert_allclose(each.weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(each.weights, its.weights, atol=1e-5)
        assert each.name.startswith("decoder") == (np.triu(each.weights, 1).max() == 0)


def test_a_run_goes_on_bit_for_bit(finished, tmp_path, capsys):
    """From its second step, as if it had been stopped there."""
    folder, model = finished
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    again = train(recipe(), tmp_path / "run")
    assert "resuming from step 2" in capsys.readouterr().out
    for mine, its in zip(jax.tree.leaves(again), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(mine, its)
