"""Experiments on views of images, as they are planned: at the papers' sizes, with no image read."""

import jax
import pytest

from flax_transformer.bench.experiment import from_experiment
from flax_transformer.bench.workload import Size
from tests.task.test_classify_images import experiments

SIZES = {"moco3": 4_096, "dino": 1_024}
PARAMETERS = {"moco3": 85_798_656, "dino": 21_665_664}
"""Of a ViT-B/16 and a ViT-S/16 of 224 pixels, without a head for classes."""


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.proves("plan", "MoCo v3 and DINO of the papers' sizes, without reading data")
def test_views_are_planned_without_data(name):
    recipe = experiments("self_supervised_imagenet")[name]
    assert recipe.examples.planned() == {"batch": SIZES[name]}
    workload = from_experiment(name, recipe, Size(batch=2))
    assert workload.rows == 2
    assert workload.batch["inputs"]["images"].shape == (2, 224, 224, 3)
    assert "labels" not in workload.batch
    state = workload.state
    assert sum(leaf.size for leaf in jax.tree.leaves(state.model.encoder)) == PARAMETERS[name]
    assert "teacher" in state.carried
