"""Teach a classifier of images, somebody else's or your own, the classes of other images.

    python experiments/finetune_image.py --init google/vit-base-patch16-224 --data.root FLOWERS
    python experiments/finetune_image.py lora --init runs/classify_images/export --data.root CIFAR10 --size 32
    python experiments/finetune_image.py probe --init openai/video-vit-base-patch32 --data.root FLOWERS

`--init` is a folder, a hub id, or the `export` of a run: `vit`, `deit`, `dinov2`, `dinov3_vit`, `beit`, `swin`,
`pvt`, `segformer`, `convnext`, `resnet`, `mixer`, `cct`; `vit_mae`, a masked autoencoder, whose encoder becomes
a ViT and whose decoder is left out; `video` or `siglip`, whose tower of images alone is taken. It gets a new
head for the classes of FLOWERS, which has images in any form. Size, filter and normalisation are those of the
checkpoint's preprocessor_config.json; the shorter side is resized and the middle cut out, and the export says
so in a processor of its own. `--size` takes another resolution, to which tables of positions are resampled.
Statistics of batch norms stay as they are. With `lora` low-rank factors are trained in place of kernels, those
of the head among them; with `probe` the head alone is trained.
On an accelerator `--model.compute bfloat16` computes in bfloat16, with parameters in float32, and `--model.remat full`
saves memory.
"""

from dataclasses import replace

from flax_transformer.data.synthetic import LabelledImageData
from flax_transformer.objective import LabelLoss
from flax_transformer.task.classification import ImageLabels
from flax_transformer.task.experiment import launch
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import Augment
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.start import StartConfig
from flax_transformer.train import LoraConfig, OptimizerConfig, ScheduleConfig, TrainConfig

WHOLE = Recipe(
    model=StartConfig(),
    data=LabelledImageData(),
    examples=LabelledImages(rows=32, keep=0.875, augment=Augment(area=0.3, flip=0.5)),
    objective=LabelLoss(label_smoothing=0.1),
    evaluators=(ImageLabels(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=1e-4, schedule=ScheduleConfig(name="cosine", warmup=50), b2=0.999, eps=1e-8,
        weight_decay=0.05, clip_norm=1.0, trainable=r"^(?!.*\.(mean|var)$)",
    ),
    train=TrainConfig(steps=1_000, log_every=50, eval_every=250, checkpoint_every=250),
)  # fmt: skip

LORA = replace(
    WHOLE,
    lora=LoraConfig(rank=8, alpha=16.0, pattern=r"(query|value|up|down|head\.output)\.kernel$"),
    optimizer=replace(WHOLE.optimizer, learning_rate=2e-3, weight_decay=0.0, trainable=r"^lora\."),
)

PROBE = replace(WHOLE, optimizer=replace(WHOLE.optimizer, learning_rate=2e-3, weight_decay=0.0, trainable=r"^head\."))

EXPERIMENTS = {"whole": WHOLE, "lora": LORA, "probe": PROBE}

if __name__ == "__main__":
    launch(EXPERIMENTS)
