r"""Generate images of a class by a diffusion Transformer (DiT): drawn shapes, or out of any folder of labelled images.

    python experiments/diffusion.py                                                # flow matching, drawn shapes
    python experiments/diffusion.py ddpm --workdir runs/clothes --data.root FASHION_MNIST

The first word is the objective: `flow` predicts the velocity of a rectified flow, `ddpm` the noise of a process of a
thousand times.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.synthetic import DrawnShapes, LabelledImageData
from flax_transformer.models.vision.dit import dit
from flax_transformer.objective import DenoisingLoss, FlowMatchingLoss
from flax_transformer.ops.diffusion import NoiseSchedule
from flax_transformer.task.diffusion import ImagesOfClasses
from flax_transformer.task.experiment import launch
from flax_transformer.task.generated_image import SampleDistances, SampleGrids
from flax_transformer.task.image_input import Augment
from flax_transformer.task.recipe import Recipe
from flax_transformer.train import TrainConfig, muon_cosine


def experiment(objective: Any) -> Recipe:
    """Return the recipe for an objective; size and classes of the model are those of the data."""
    return Recipe(
        model=replace(dit(128, 6, 4, image=32, patch=4, channels=3, classes=1), unroll=True),
        data=LabelledImageData(shapes=DrawnShapes(size=32, noise=0.0)),
        family="dit",
        examples=ImagesOfClasses(rows=64, augment=Augment(flip=0.5)),
        objective=objective,
        evaluators=(SampleDistances(), SampleGrids()),
        optimizer=muon_cosine(1e-2),
        train=TrainConfig(steps=600, log_every=50, eval_every=300, checkpoint_every=300, ema=0.99),
    )


EXPERIMENTS = {
    "flow": experiment(FlowMatchingLoss()),
    "ddpm": experiment(DenoisingLoss(schedule=NoiseSchedule(kind="cosine"), predicts="v_prediction")),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
