"""Classifiers of images and `transformers`: what it makes is fine-tuned, what a run exports it opens and feeds."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from flax_transformer.data.synthetic import DrawnShapes, LabelledImageData  # noqa: E402
from flax_transformer.task.experiment import train  # noqa: E402
from flax_transformer.task.image_classification import LabelledImages  # noqa: E402
from flax_transformer.task.opened import Context  # noqa: E402
from flax_transformer.task.spec import Spec  # noqa: E402
from flax_transformer.task.start import load_start  # noqa: E402
from flax_transformer.train.folder import RunFolder  # noqa: E402
from tests.data.image.image_files import class_folders  # noqa: E402
from tests.task.test_classify_images import experiments, short  # noqa: E402

pytestmark = pytest.mark.parity
TINY = {
    "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip


def made(kind, folder, size=8):
    """Save a tiny random checkpoint and its image processor."""
    config = getattr(transformers, f"{kind[:3]}Config" if kind.startswith("ViT") else f"{kind[:4]}Config")
    torch.manual_seed(0)
    getattr(transformers, kind)(config(**TINY)).save_pretrained(folder)
    sees = {"size": {"height": size, "width": size}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    transformers.ViTImageProcessor(**sees, resample=2).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("size", [None, 10])
def test_exports_see_pictures_as_the_model_was_trained_to(tmp_path, size):
    root = class_folders(tmp_path / "data", classes=("x", "y"))
    examples = LabelledImages(size=size or 8, keep=1.0 if size is None else 0.8, mean=(0.4, 0.5, 0.6), std=(0.3,) * 3)
    found = examples.open(LabelledImageData(root=str(root)), Context(folder=RunFolder(tmp_path / "run")))
    found.processor.save(tmp_path / "export")
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path / "export", backend="pil")
    batch = next(iter(found.test()))
    images = [found.held.table["image"][i] for i in range(len(found.held.table))]
    expected = theirs(images, return_tensors="np")["pixel_values"]
    got = np.moveaxis(batch["inputs"]["images"][: len(images)], -1, 1)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_allclose(found.processor(images)["pixel_values"], expected, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.proves("vit", "train", "[`finetune_image`](../experiments/finetune_image.py), at another resolution")
def test_a_checkpoint_of_theirs_is_tuned_and_opens_there(tmp_path):
    start = made("ViTModel", tmp_path / "start")
    recipe = short(experiments("finetune_image")["whole"], init=start)
    recipe = replace(recipe, data=LabelledImageData(shapes=DrawnShapes(train=16, held_out=8, size=14)))
    train(replace(recipe, examples=replace(recipe.examples, size=12)), tmp_path / "run")
    ours = hub.load(tmp_path / "run/export")
    assert ours.processor.config["image_mean"] == [0.1, 0.2, 0.3]
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "run/export").eval()
    assert (theirs.config.image_size, theirs.config.id2label[3]) == (12, "cross")
    pixels = np.random.default_rng(0).normal(size=(2, 3, 12, 12)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.as_tensor(pixels)).logits.numpy()
    np.testing.assert_allclose(ours(pixel_values=pixels).logits, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["DeiTForImageClassificationWithTeacher", "DeiTForImageClassification"])
def test_a_checkpoint_keeps_its_heads(tmp_path, kind):
    start = made(kind, tmp_path)
    spec = Spec(uses=("classification",), classes=("a", "b", "c"), image=(12, 12, 3))
    assert load_start(start, spec, None, seed=0).config["architectures"] == [kind]


def test_another_count_of_channels_is_refused(tmp_path):
    start = made("ViTModel", tmp_path)
    with pytest.raises(ValueError, match=r"as many channels as those of the checkpoint .*, 3, got 1"):
        load_start(start, Spec(uses=("classification",), classes=("a", "b"), image=(8, 8, 1)), None, seed=0)
