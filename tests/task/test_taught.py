"""Images with a teacher: what it says of them, teachers that do not fit, a student's run."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.image import ImageData, Normalise
from flax_transformer.models.head import head_of, with_head
from flax_transformer.models.vision.deit import DistilledConfig
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.objective import DistilLoss
from flax_transformer.task.distillation import TaughtImages
from flax_transformer.task.experiment import train
from flax_transformer.task.image_input import Augment, named_classes, processor_of
from flax_transformer.task.opened import Context
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.data.image.image_files import idx_folder

CNN = with_head(
    ResNetConfig(small=True, channels=1, stem=4, widths=(4, 8), depths=(1, 1), block="basic"), outputs=2, pool="mean"
)
SEEN = processor_of((), Normalise(mean=(0.3,), std=(0.2,)))


def saved(
    folder, *, architecture="ResNetForImageClassification", classes=("0", "1"), config=CNN, processor=SEEN, seed=3
):
    model = jax.tree.map(lambda leaf: leaf + 0.1, config.build(nnx.Rngs(seed)))
    hub.save(hub.wrap(model, architecture, processor=processor, **named_classes(classes)), folder)
    return str(folder)


def opened(tmp_path, teacher, **options):
    examples = TaughtImages(rows=4, augment=Augment(shift=1), mean=(0.5,), std=(0.25,), teacher=teacher, **options)
    context = Context(folder=RunFolder(tmp_path / "run"), seed=1)
    return examples.open(ImageData(root=str(idx_folder(tmp_path / "data"))), context)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("teacher"))


@pytest.mark.rotates
def test_the_teacher_scores_each_picture_as_the_student_sees_it(tmp_path, teacher):
    found = opened(tmp_path, teacher)
    batch = found.batches.make(3)
    pixels = batch["inputs"]["images"] * 0.25 + 0.5
    expected = hub.load(teacher)(pixel_values=np.moveaxis((pixels - 0.3) / 0.2, -1, 1)).logits
    np.testing.assert_allclose(batch["teacher"]["logits"], expected, rtol=1e-5, atol=1e-5)
    assert np.ptp(batch["teacher"]["logits"]) > 1e-3
    plain = opened(tmp_path, "")
    jax.tree.map(
        np.testing.assert_array_equal, plain.batches.make(3), {n: v for n, v in batch.items() if n != "teacher"}
    )
    assert "teacher" not in next(iter(found.validation()))
    with pytest.raises(ValueError, match="takes no workers, got 2"):
        found.batches.work_in(2)
    found.batches.share((1,), 2)
    np.testing.assert_allclose(found.batches.make(3)["teacher"]["logits"], batch["teacher"]["logits"][2:], rtol=1e-5)
    other = opened(tmp_path, saved(tmp_path / "other", seed=4))
    with pytest.raises(ValueError, match="belongs to one pipeline, got another: teacher: saved"):
        other.batches.set_state(found.batches.get_state())


VIT = with_fields(vit_encoder("tiny", 2, image=8), embed=8, heads=2, inner=16, depth=1, channels=1)


@pytest.mark.rotates
@pytest.mark.parametrize(("options", "message"), [
    ({"classes": ("0", "7")}, r"must tell 2 classes \(0, 1\), as the labels do, .*teacher tells 2 classes \(0, 7\)"),
    ({"config": with_fields(CNN, channels=3), "processor": None}, "of 1 channels, as the student does, .* sees 3"),
    ({"config": with_head(VIT, outputs=2, pool="first"), "architecture": "ViTForImageClassification"},
     "images of 4 × 5 pixels, as the student does, .* sees 8 × 8"),
    ({"config": with_head(VIT, outputs=0, pool="first", dense="tanh"), "architecture": "ViTModel"},
     "to classify takes a checkpoint that can, got a ViTModel"),
])  # fmt: skip
def test_teachers_of_other_pictures_are_refused(tmp_path, options, message):
    folder = saved(tmp_path / "teacher", **options)
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, folder)


@pytest.mark.slow
@pytest.mark.proves("deit", "train", "[`distil_deit`](../experiments/distil_deit.py), resumed bit for bit")
def test_a_student_goes_on_as_if_it_had_not_stopped(tmp_path, teacher):
    encoder = with_fields(
        vit_encoder("tiny", 2, image=8, tokens=("class_token", "distillation_token")),
        embed=8,
        heads=2,
        inner=16,
        depth=1,
    )
    config = TrainConfig(steps=4, log_every=1, eval_every=4, checkpoint_every=2)
    recipe = Recipe(
        model=DistilledConfig(backbone=encoder, head=head_of(encoder, outputs=2, pool="first")),
        family="deit",
        data=ImageData(root=str(idx_folder(tmp_path / "data"))),
        examples=TaughtImages(rows=4, size=8, augment=Augment(flip=0.5), teacher=teacher),
        objective=DistilLoss(),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-2, schedule=ScheduleConfig(name="constant")),
        train=config,
    )
    train(recipe, tmp_path / "whole")
    train(replace(recipe, train=replace(config, steps=2)), tmp_path / "parts")
    train(recipe, tmp_path / "parts")
    losses = [
        [
            json.loads(line)["loss"]
            for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()
            if '"train"' in line
        ]
        for run in ("whole", "parts")
    ]
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]
    exported = hub.load(tmp_path / "whole" / "export")
    assert exported.config["architectures"] == ["DeiTForImageClassificationWithTeacher"]
