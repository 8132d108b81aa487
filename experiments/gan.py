r"""Make images of noise by a TransGAN, trained against its discriminator.

    python experiments/gan.py                                                        # drawn shapes
    python experiments/gan.py --workdir runs/gan --data.root FASHION_MNIST --model.generator.cell 7 \
        --model.discriminator.cell 7
    python experiments/gan.py plain --workdir runs/plain                             # not told the classes

`--evaluators.0.classifier RUN` names a classifier, such as one of `classify_images.py`, by whose features the samples
are compared with the test's images (FID, KID, precision, recall). Images are changed before they are judged
(`--objective.changes`), and the gradient of the discriminator is bounded (`--objective.penalty`).

    python experiments/gan.py --workdir runs/gan --data.root FASHION_MNIST --data.holdout 0.02 \
        --model.generator.cell 7 --model.discriminator.cell 7 --train.steps 10000 --train.ema 0.998

reached FID 0.233 and KID 0.0006 by features of a CCT of 92.8 % test accuracy, by which a Gaussian of each class's
pixels has 0.870, and the CCT took 86.5 % of the samples for the class that was asked for (10,000 samples, one seed,
90 minutes of CPU time at the most, of two cores of an AMD EPYC, the first 1,342 steps on a schedule of 12,000,
2026-11-29). After 2,500 steps FID was 0.49 by 1,000 samples. With twice the width, nothing modulated, Adam and the
non-saturating loss it had been 0.81 after 9,000 steps, with 87.8 % of the class asked for.

After 1,000 steps of a schedule of 3,000, one seed (FID of 1,000 samples, recall, class asked for):

    width 64, modulated, Adam at 0.001, non-saturating              5.52  0.17  58.5 %
    the same by Muon at 0.004 / 0.012, momentum 0.5                 2.49  0.11  78.0 % / 2.27  0.10  79.6 %
    Muon at 0.004 / 0.012, relativistic, both gradients bounded     2.82  0.22  77.9 % / 2.29  0.15  82.2 %
    the latter, classes beside the noise, where they were added     1.96  0.12  87.5 %
    and an auxiliary classifier, weight 0.3                         1.96  0.25  80.9 %
    and a stem of convolutions in place of that                     1.87  0.07  83.9 %

    python experiments/self_supervised.py mae --workdir runs/mae --data.root FASHION_MNIST --data.holdout 0.02 \
        --model.encoder.depth 4 --train.steps 2000
    python experiments/gan.py features --workdir runs/features --warm-start runs/mae --data.root FASHION_MNIST \
        --data.holdout 0.02 --model.generator.cell 7 --train.steps 1500

judges images by what an encoder says of them that has learned without labels and stays as it is. With the generator and
the optimizer of before it had FID 2.75 and 77.4 % of the class asked for after 1,500 steps, where the discriminator of
pixels had 3.46 and 66.1 % after as many, and the hinge loss without a penalty 3.04 (2,000 images, a CCT of 92.8 %, one
seed each, 17 and 16 CPU minutes on a core of an AMD EPYC, and 11 for the encoder, 2026-11-29). With those of now it
has not been run.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.synthetic import DrawnShapes, LabelledImageData
from flax_transformer.models.vision.feature_discriminator import FeatureDiscriminatorConfig
from flax_transformer.models.vision.image_to_image import AdversarialConfig
from flax_transformer.models.vision.transgan import TransGANDiscriminatorConfig, TransGANGeneratorConfig
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import TrunkConfig, transformer_block, with_fields
from flax_transformer.objective import SampleLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.gan import AtOnce, SampledImages
from flax_transformer.task.generated_image import SampleDistances, SampleGrids
from flax_transformer.task.recipe import Recipe
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

TRANSGAN = AdversarialConfig(
    generator=TransGANGeneratorConfig(embed=64, depths=(2, 1), patch=2, modulated=True),
    discriminator=TransGANDiscriminatorConfig(embed=64, depths=(2,), patch=4, stem=(32,), auxiliary=True),
)
ENCODER = with_fields(
    vit_encoder("tiny", 4, image=32), embed=128, heads=4, inner=256, depth=4, out_bias=True, unroll=True
)
"""As that of `self_supervised.py` with four layers."""
HEAD = TrunkConfig(
    block=transformer_block(embed=64, heads=4, inner=128, norm_position="pre", activation="gelu"), depth=1, unroll=True
)
FEATURES = AdversarialConfig(
    generator=TRANSGAN.generator, discriminator=FeatureDiscriminatorConfig(trunk=HEAD), encoder=ENCODER
)
LOSS = SampleLoss(
    loss="relativistic", changes=("translation",), penalty="both", penalty_weight=0.05, penalty_every=4, auxiliary=0.3
)
WITHOUT_AUXILIARY = replace(LOSS, auxiliary=0.0)


def experiment(**parts: Any) -> Recipe:
    """Return a recipe, whose sizes of images and classes are those of the data."""
    common = {
        "model": TRANSGAN,
        "data": LabelledImageData(shapes=DrawnShapes(noise=8.0)),
        "examples": SampledImages(rows=32),
        "objective": LOSS,
        "evaluators": (SampleDistances(how=AtOnce()), SampleGrids(how=AtOnce())),
        "optimizer": OptimizerConfig(
            name="muon", learning_rate=0.012, momentum=0.5, b1=0.0, b2=0.99, eps=1e-8,
            schedule=ScheduleConfig(name="cosine", warmup=50, final=0.1),
        ),
        "train": TrainConfig(steps=2_000, log_every=50, eval_every=500, checkpoint_every=500, ema=0.995),
    }  # fmt: skip
    return Recipe(**{**common, **parts})


EXPERIMENTS = {
    "classes": experiment(),
    "plain": experiment(model=with_fields(TRANSGAN, conditional=False, auxiliary=False), objective=WITHOUT_AUXILIARY),
    "features": experiment(model=FEATURES, objective=WITHOUT_AUXILIARY),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
