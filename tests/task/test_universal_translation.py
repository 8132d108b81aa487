"""A universal translator is trained, resumed, reported, drawn and used as any other."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer.models.text.universal import universal_adaptive
from flax_transformer.nn import with_fields
from flax_transformer.objective import PonderLoss
from flax_transformer.task.attention import attention_maps
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_translator
from tests.recipe import tiny_translation

pytestmark = [
    pytest.mark.proves("universal", "train", "[`translate_text`](../experiments/translate_text.py)"),
    pytest.mark.rotates,
]


def recipe():
    model = with_fields(universal_adaptive(), embed=16, heads=2, inner=16, depth=3)
    plain = tiny_translation(steps=4, checkpoint_every=2, eval_every=4)
    return replace(plain, model=model, family="", objective=PonderLoss(of=plain.objective))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("universal") / "run"
    return folder, train(recipe(), folder)


def test_a_run_is_reported_translates_and_tells_its_steps(finished):
    folder, _ = finished
    assert (folder / "report.html").stat().st_size > 10_000
    assert '"steps": ' in (folder / "metrics.jsonl").read_text()
    translator, search = open_translator(folder)
    assert [len(each) for each in translator(["seven", "three hundred five"], search)] == [1, 1]


def test_what_each_step_looks_at_is_drawn(finished):
    translator, _ = open_translator(finished[0])
    found = {each.name: each.weights for each in attention_maps(translator, [5, 6, 7], [8, 9])}
    assert {name: weights.shape[0] for name, weights in found.items()} == dict.fromkeys(found, 3)
    for weights in found.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_a_run_goes_on_bit_for_bit(finished, tmp_path, capsys):
    folder, model = finished
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    again = train(recipe(), tmp_path / "run")
    assert "resuming from step 2" in capsys.readouterr().out
    for mine, its in zip(jax.tree.leaves(again), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(mine, its)
