"""Tell the class of every pixel: of shapes in generated scenes out of the box, or of a folder in ADE20K's form.

    python experiments/segment_images.py
    python experiments/segment_images.py --workdir runs/ade --data.root ADE20K --data.reduce --size 512 --crop 0.5
    flax-transformer segment runs/segment_images street.jpg --output map.png

A small SegFormer (Xie et al. 2021, https://arxiv.org/abs/2105.15203) that begins with nothing: three stages and a head
of linear layers. The folder has `images/training`, `images/validation`, `annotations/training` and
`annotations/validation`, whose PNG files have the numbers of classes; with `--data.reduce` 0 is no class. The last line
says `test mIoU`, the mean over classes of intersection over union. The run's `export` is a checkpoint that
`transformers` opens.

On 200 drawn scenes mIoU 94.39 %, pixel accuracy 98.99 % (seed 0, 331 CPU seconds, 2026-11-28). After the first 500
steps validation has 66.9 %.
"""

from flax_transformer.data.synthetic import SceneMapData, ShapeScenes
from flax_transformer.models.vision.segformer import SegFormerConfig, with_mlp_head
from flax_transformer.nn import transformer_block
from flax_transformer.objective import BatchStatistics, PixelLabelLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.semantic_segmentation import SegmentationEvaluator, SegmentationImages
from flax_transformer.train import TrainConfig, muon_cosine

ENCODER = SegFormerConfig(
    first=transformer_block(
        embed=24, heads=1, inner=48, norm_eps=1e-5, norm_position="pre", activation="gelu"
    ),
    widths=(24, 48, 96), depths=(1, 1, 2), stage_heads=(1, 2, 4), inners=(48, 96, 192), windows=(7, 3, 3),
    strides=(4, 2, 2), reductions=(4, 2, 1),
)  # fmt: skip

EXPERIMENT = Recipe(
    model=with_mlp_head(ENCODER, 5, embed=64),
    family="segformer",
    data=SceneMapData(shapes=ShapeScenes(size=64, train=8_000, held_out=200)),
    examples=SegmentationImages(rows=16, size=64),
    objective=BatchStatistics(of=PixelLabelLoss()),
    evaluators=(SegmentationEvaluator(),),
    optimizer=muon_cosine(3e-3),
    train=TrainConfig(steps=2_500, log_every=100, eval_every=500, checkpoint_every=500),
)  # fmt: skip

if __name__ == "__main__":
    launch(EXPERIMENT)
