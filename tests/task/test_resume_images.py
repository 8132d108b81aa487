"""Every recipe that learns without labels, generates images or turns them into others: 10 steps and 10 more are 20, bit
for bit, in everything that a checkpoint holds: model, optimizers, average, teacher, queue, centres, and what is drawn.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer.task.experiment import train
from flax_transformer.train import Checkpoints, RunFolder, TrainConfig
from tests.task import image_recipes, test_generated_image, test_self_supervised
from tests.task.test_classify_images import experiments

RECIPES = {
    **{name: lambda name=name: test_self_supervised.small(name) for name in experiments("self_supervised")},
    **{name: lambda name=name: test_generated_image.short(name) for name in experiments("diffusion")},
    **{name: lambda name=name: image_recipes.RECIPES[name] for name in image_recipes.RECIPES},
}


def arrays_of(folder):
    """Return all that a run's newest checkpoint holds, by path."""
    with Checkpoints(RunFolder(folder).checkpoints, keep=None) as checkpoints:
        assert checkpoints.steps()[-1] == 20
        return jax.tree.map(np.asarray, checkpoints.restore(checkpoints.shapes())[0])


@pytest.mark.slow
@pytest.mark.proves("learning without labels", "every recipe: 10 + 10 steps = 20, bit for bit")
@pytest.mark.parametrize("name", RECIPES)
def test_ten_steps_and_ten_more_are_twenty(name, tmp_path):
    recipe = replace(RECIPES[name](), evaluators=())

    def trained(steps, folder):
        config = TrainConfig(steps=steps, log_every=5, eval_every=20, checkpoint_every=10, ema=recipe.train.ema)
        train(replace(recipe, train=config), tmp_path / folder)

    trained(20, "whole")
    trained(10, "parts")
    trained(20, "parts")
    whole, parts = arrays_of(tmp_path / "whole"), arrays_of(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for path, array in whole.items():
        np.testing.assert_array_equal(parts[path], array, err_msg=path)
