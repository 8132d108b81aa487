"""Recipes that classify images: where a run ends, what its export sees, and what commands say of image files."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.synthetic import DrawnShapes, LabelledImageData
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.registry import find_uses
from flax_transformer.models.head import with_head
from flax_transformer.models.preset import abstract
from flax_transformer.models.vision.cct import cct
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.models.vision.vit_mae import MAE, mae_base
from flax_transformer.nn import with_fields
from flax_transformer.task.checkpoint import tokenizer_of
from flax_transformer.task.classification import KEPT, telling
from flax_transformer.task.embedding import embed_images
from flax_transformer.task.experiment import launch, train
from flax_transformer.task.image_classification import classify_images
from flax_transformer.task.recipe import _wrapped
from flax_transformer.task.run import open_run
from flax_transformer.task.spec import Spec, sized
from flax_transformer.task.start import load_start
from flax_transformer.task.text_classification import classify
from flax_transformer.train.loop import TrainConfig

ROOT = Path(__file__).parents[2]
SHAPES = LabelledImageData(shapes=DrawnShapes(train=40, held_out=12, size=9))


def experiments(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "experiments" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EXPERIMENTS


def short(recipe, **changes):
    """Make a recipe of two steps over a few small images."""
    schedule = replace(recipe.optimizer.schedule, warmup=1)
    return replace(
        recipe, data=SHAPES, examples=replace(recipe.examples, rows=8),
        optimizer=replace(recipe.optimizer, schedule=schedule),
        train=TrainConfig(steps=2, log_every=1, eval_every=2, checkpoint_every=2), **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "cct"
    model = cct(embed=8, heads=2, depth=1, inner=8, image=32, stem=(4,), pool=False)
    recipe = experiments("classify_images")["cct"]
    train(short(recipe, model=with_head(model, outputs=2, pool="weighted")), folder)
    return folder


@pytest.mark.rotates
@pytest.mark.proves("cct", "train", "[`classify_images`](../experiments/classify_images.py)")
def test_a_run_keeps_the_most_wrong_pictures_and_counts_all(finished):
    confusion = json.loads((finished / "confusion.json").read_text())
    assert confusion["classes"] == ["ellipse", "rectangle", "triangle", "cross"]
    assert np.sum(confusion["counts"]) == 12
    samples = [json.loads(line) for line in (finished / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 12
    wrong = [each["target"] != each["hypothesis"] for each in samples]
    assert wrong == sorted(wrong, reverse=True)
    record = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["accuracy"] == pytest.approx(1 - np.mean(wrong))
    assert all((finished / each["picture"]).is_file() for each in samples)
    assert (finished / "report.html").is_file()


@pytest.mark.rotates
@pytest.mark.proves("cct", "weights", "the export of a run tells the same of files")
def test_the_export_tells_of_files_what_the_run_told(finished, run):
    samples = [json.loads(line) for line in (finished / "samples.jsonl").read_text().splitlines()]
    files = [finished / each["picture"] for each in samples]
    pretrained = hub.load(finished / "export")
    told = classify_images(pretrained, files)
    assert [labels[0].name for labels in told] == [each["hypothesis"] for each in samples]
    np.testing.assert_allclose([labels[0].probability for labels in told], [each["score"] for each in samples], 1e-4)
    code, out, _ = run("classify", finished, files[0])
    assert (code, len(out.splitlines())) == (0, 4)
    assert out.split("\t")[1].startswith(samples[0]["hypothesis"])
    code, out, _ = run("embed", finished, *files[:3])
    lines = [line.split("\t") for line in out.splitlines()]
    assert [name for name, _ in lines] == [str(file) for file in files[:3]]
    vectors = [[float(value) for value in numbers.split()] for _, numbers in lines]
    np.testing.assert_allclose(vectors, embed_images(pretrained, files[:3]), rtol=1e-4)


def test_what_is_no_picture_is_said(finished, run, tmp_path):
    note = tmp_path / "note.txt"
    note.write_text("no image")
    for file, said in ((note, "note.txt must be an image"), ("a cat", "reads images, and there is no file 'a cat'")):
        code, _, error = run("classify", finished, file)
        assert (code, len(error.splitlines())) == (1, 1)
        assert said in error
    code, _, error = run("classify", finished, "--pair", "one", "two")
    assert "pairs are of texts, the checkpoint reads images" in error
    with pytest.raises(ValueError, match="to classify takes a checkpoint that can, got a GPT2LMHeadModel"):
        classify_images(hub.load(ROOT / "tests/hub/golden/gpt2"), [])
    picture = next((finished / "samples").iterdir())
    with pytest.raises(ValueError, match=r"a BertForPreTraining reads text, it was given the image .*\.png"):
        tokenizer_of(hub.load(ROOT / "tests/hub/golden/bert"), "a cat", str(picture))
    with pytest.raises(ValueError, match="a CCTForImageClassification reads images, it was given text"):
        classify(hub.load(finished / "export"), ["a cat"])


@pytest.mark.slow
@pytest.mark.proves("cct", "train", "[`finetune_image`](../experiments/finetune_image.py), at another resolution")
@pytest.mark.parametrize("kind", ["whole", "lora"])
def test_a_checkpoint_learns_at_another_resolution(finished, tmp_path, kind):
    recipe = short(experiments("finetune_image")[kind], init=str(finished / "export"))
    data = LabelledImageData(shapes=replace(SHAPES.shapes, size=16))
    train(replace(recipe, data=data, examples=replace(recipe.examples, size=12)), tmp_path)
    tuned = hub.load(tmp_path / "export")
    assert tuned.config["image_size"] == 12
    assert tuned.model.backbone.positions.shape[0] == 9
    assert tuned.processor.config["size"] == {"shortest_edge": 14}
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file() == (kind == "lora")


def autoencoder(folder):
    """Save a tiny masked autoencoder with an image processor; give its folder."""
    small = {"embed": 8, "heads": 2, "inner": 12, "depth": 1}
    whole = mae_base()
    encoder, decoder = (
        with_fields(whole.encoder, **small, image=(12, 12), patch=(4, 4)),
        with_fields(whole.decoder, **small),
    )
    processor = ImageProcessor.of({"image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 12}})
    model = MAE(replace(whole, encoder=encoder, decoder=decoder), rngs=nnx.Rngs(0))
    hub.save(hub.wrap(model, "ViTMAEForPreTraining", processor=processor), folder)
    return folder


@pytest.mark.rotates
def test_training_begins_with_the_encoder_of_an_autoencoder(tmp_path):
    spec = Spec(uses=("classification",), classes=("a", "b", "c"), image=(16, 16, 3))
    folder = autoencoder(tmp_path)
    start, mae = load_start(str(folder), spec, None, seed=0), hub.load(folder)
    assert start.config["architectures"] == ["ViTForImageClassification"]
    assert start.model.cfg.head.outputs == 3
    assert start.model.backbone.positions.shape == (17, 8)
    ours, theirs = start.model.backbone.trunk, mae.model.encoder.trunk
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(ours), jax.tree.leaves(theirs))


@pytest.mark.slow
@pytest.mark.proves("vit_mae", "train", "[`finetune_image`](../experiments/finetune_image.py), as a ViT")
def test_an_autoencoder_becomes_a_classifier_of_pictures(tmp_path):
    recipe = short(experiments("finetune_image")["whole"], init=str(autoencoder(tmp_path / "mae")))
    train(recipe, tmp_path / "run")
    tuned = hub.load(tmp_path / "run/export")
    assert (tuned.config["model_type"], tuned.config["image_size"]) == ("vit", 12)
    assert not [name for name in tuned.config if "decoder" in name]
    samples = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    told = classify_images(tuned, [tmp_path / "run" / each["picture"] for each in samples])
    assert [labels[0].name for labels in told] == [each["hypothesis"] for each in samples]


@pytest.mark.rotates
@pytest.mark.parametrize("image", [(28, 28, 1), pytest.param((32, 32, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["cct", "cct_2_3x2", "vit", "swin", "mixer", "resnet"])
def test_every_model_is_sized_by_the_data_and_exported(name, image):
    recipe = experiments("classify_images")[name]
    config = sized(recipe.model, Spec(uses=("classification",), classes=("a", "b", "c"), image=image))
    exported = _wrapped(abstract(config), find_uses(recipe.family, "classification"), {})
    assert exported.config["num_channels"] == image[2]
    assert exported.config["num_labels"] == 3


@pytest.mark.rotates
@pytest.mark.parametrize("options", [{}, {"average": 2}])
def test_a_run_of_pictures_is_opened_with_its_statistics(tmp_path, options):
    """A ResNet's running means and variances are carried beside its parameters, and belong to the model."""
    network = ResNetConfig(stem=4, widths=(4,), depths=(1,), block="basic", small=True)
    recipe = short(experiments("classify_images")["resnet"], model=with_head(network, outputs=2, pool="mean"))
    recipe = replace(recipe, train=replace(recipe.train, eval_every=1, checkpoint_every=1, ema=0.0, **options))
    model = train(recipe, tmp_path)
    run = open_run(tmp_path)
    assert run.tokenizer is None
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(run.model), jax.tree.leaves(model))
    assert jax.tree.structure(run.model) == jax.tree.structure(model)


def test_an_experiment_is_named_by_the_first_word(capsys):
    for arguments, said in ((["tct"], "the first word must be one of cct, cct_2_3x2, vit"), (["--help"], None)):
        with pytest.raises(SystemExit) as stop:
            launch(experiments("classify_images"), arguments)
        assert stop.value.code == (2 if said else 0)
        shown = capsys.readouterr()
        assert said is None or said in shown.err


def test_kept_samples_are_the_surest_mistakes_and_a_spread():
    rng = np.random.default_rng(0)
    chances, truth = np.asarray(jax.nn.softmax(rng.normal(size=(1000, 4)) * 3)), rng.integers(4, size=1000)
    kept = telling(truth, chances)
    wrong = kept[: KEPT // 2]
    assert len(set(kept.tolist())) == KEPT
    assert (chances[wrong].argmax(1) != truth[wrong]).all()
    assert (np.diff(chances[wrong].max(1)) <= 0).all()
    assert kept[KEPT // 2 :].min() < 100
    assert kept[KEPT // 2 :].max() > 900
