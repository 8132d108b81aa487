r"""Tell what happens in a video; out of the box, what a drawn shape does, which no single frame shows.

    python experiments/classify_video.py                                  # a ViViT
    python experiments/classify_video.py frame                            # the same, that sees one frame
    python experiments/classify_video.py timesformer --data.root FOLDER --frames 16 --size 112

The first word is the model: `vivit`, `timesformer`, or `frame`. The folder has a folder for each class, perhaps within
`train`, `validation` and `test`, and in it videos: folders of frames, or video files, which take the extra `video`.

Out of the box, with --workdir runs/actions,
the ViViT reached 90.25 % accuracy on 400 test videos after 1,000 steps, in 3.6 minutes;
after 1,000 more on twice as many videos,

    python experiments/classify_video.py --workdir runs/more --init runs/actions/export --data.shapes.train 6000 \
        --optimizer.learning-rate 5e-3 --train.eval-every 500

98.50 %, in 4.1 minutes. The model of one frame reached 10.25 %, where chance is 12.5 (one seed, two cores of an Intel
Xeon beside other work, 2026-11-23).

    python experiments/classify_video.py skeleton --workdir runs/skeletons --data.root MSR_ACTION3D

reads joints as the pixels of a video, and reached 85.1 ± 2.9 % accuracy on the 275 sequences of the subjects of MSR
Action3D that it was not trained on (88.4, 82.9 and 84.0 % with --train.seed 0, 1, 2, in 3.6 minutes of one core of an
AMD EPYC each, 2026-11-29). In papers it is 89 to 94 %. The `timesformer` has not been run to its end.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.synthetic import VideoData
from flax_transformer.data.video import MoveBody, SkeletonData
from flax_transformer.models.head import with_head
from flax_transformer.models.video.timesformer import timesformer_encoder
from flax_transformer.models.video.vivit import vivit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.objective import LabelLoss
from flax_transformer.task.classification import ImageLabels
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.video_classification import LabelledSkeletons, LabelledVideos
from flax_transformer.train import TrainConfig, muon_cosine

SIZES = {"embed": 96, "heads": 4, "inner": 192, "depth": 4, "out_bias": True, "unroll": True}
"""Of a model for small videos."""


def experiment(family: str, backbone: Any, **changes: Any) -> Recipe:
    """Return the recipe for a model, whose size of videos and classes are those of the data."""
    recipe = Recipe(
        model=with_head(backbone, outputs=2, pool="first"),
        family=family,
        data=VideoData(),
        examples=LabelledVideos(),
        objective=LabelLoss(label_smoothing=0.1),
        evaluators=(ImageLabels(),),
        optimizer=muon_cosine(1e-2),
        train=TrainConfig(steps=1000, log_every=100, eval_every=250, checkpoint_every=250, ema=0.99),
    )  # fmt: skip
    return replace(recipe, **changes)


TIMESFORMER = with_fields(timesformer_encoder("base", frames=8, image=32, patch=8), **SIZES)
VIVIT = with_fields(vivit_encoder("base", frames=8, image=32, patch=8), **SIZES)

FRAME = with_fields(VIVIT, frames=1, span=1)
"""The ViViT, of videos of one frame."""

NAMES = (
    "high arm wave", "horizontal arm wave", "hammer", "hand catch", "forward punch", "high throw", "draw x",
    "draw tick", "draw circle", "hand clap", "two hand wave", "side boxing", "bend", "forward kick", "side kick",
    "jogging", "tennis swing", "tennis serve", "golf swing", "pick up and throw",
)  # fmt: skip
"""Of MSR Action3D."""
PAIRS = ((0, 1), (4, 5), (7, 8), (9, 10), (11, 12), (13, 14), (15, 16), (17, 18))
"""Its joints of the left and of the right side."""
SKELETON = replace(with_fields(vivit_encoder("base", frames=32, image=8, patch=1, span=8), **SIZES), drop_path=0.1)

EXPERIMENTS = {
    "vivit": experiment("vivit", VIVIT),
    "timesformer": experiment("timesformer", TIMESFORMER),
    "frame": experiment("vivit", FRAME, examples=LabelledVideos(frames=1)),
    "skeleton": experiment(
        "vivit", SKELETON, data=SkeletonData(root="", names=NAMES),
        examples=LabelledSkeletons(move=MoveBody(pairs=PAIRS)),
        train=TrainConfig(steps=600, log_every=100, eval_every=200, checkpoint_every=200, ema=0.99),
    ),
}  # fmt: skip

if __name__ == "__main__":
    launch(EXPERIMENTS)
