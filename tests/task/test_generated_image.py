"""Runs that learn to generate images: resumed exactly, exported, measured, shown, and asked for images."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import PIL.Image
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.cli import main
from flax_transformer.data.image.palette import Palette
from flax_transformer.data.synthetic import DrawnShapes, LabelledImageData
from flax_transformer.decode import DDIM, Euler
from flax_transformer.hub.diffusers_folder import read_sampler, scheduler_fields
from flax_transformer.models.vision.dit import dit
from flax_transformer.models.vision.imagegpt import imagegpt
from flax_transformer.ops.diffusion import NoiseSchedule
from flax_transformer.task.diffusion import Denoised, Denoising
from flax_transformer.task.draw_images import Drawing, draw_images, write_images
from flax_transformer.task.experiment import train
from flax_transformer.task.generated_image import SampleDistances, SampleGrids, Seen, distances
from flax_transformer.task.generation import sample_images
from flax_transformer.task.image_generation import palette_processor
from flax_transformer.task.image_input import image_bytes, normalised
from flax_transformer.task.spec import Spec, sized
from flax_transformer.train.loop import TrainConfig
from tests.task.test_classify_images import experiments

GOLDEN = Path(__file__).parents[1] / "hub" / "golden"
RNG = np.random.default_rng(0)


def short(name="flow", steps=4, **changes):
    recipe = experiments("diffusion")[name]
    optimizer = replace(recipe.optimizer, schedule=replace(recipe.optimizer.schedule, name="constant", warmup=1))
    return replace(
        recipe, model=dit(8, 1, 2, image=8, patch=4, channels=3, classes=1), optimizer=optimizer,
        data=LabelledImageData(shapes=DrawnShapes(train=24, held_out=8, size=8)),
        examples=replace(recipe.examples, rows=8),
        train=TrainConfig(steps=steps, log_every=2, eval_every=2, checkpoint_every=2, ema=0.5), **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "flow"
    grids = SampleGrids(how=Denoising(steps=2), columns=2, searched=10)
    return folder, train(short(evaluators=(SampleDistances(), grids)), folder)


@pytest.mark.rotates
@pytest.mark.proves("dit", "train", "[`diffusion`](../experiments/diffusion.py), resumed bit for bit")
def test_a_resumed_run_is_the_uninterrupted_one(finished, tmp_path):
    train(short(steps=2, evaluators=()), tmp_path)
    again = train(short(steps=4, evaluators=()), tmp_path)
    for one, two in zip(jax.tree.leaves(again), jax.tree.leaves(finished[1]), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.rotates
def test_a_run_exports_what_it_trained_and_says_how_it_generates(finished):
    folder, model = finished
    loaded = hub.load(folder / "export")
    for one, two in zip(jax.tree.leaves(loaded.model), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(one, two)
    assert read_sampler(loaded.generation, 5) == Euler(steps=5)
    assert "model_type" not in json.loads((folder / "export" / "config.json").read_text())
    assert {file.name for file in (folder / "samples").iterdir()} == {
        "generated.png", "nearest.png", "between.png", "grid-00000002.png", "grid-00000004.png",
    }  # fmt: skip
    shown = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [each["source"] for each in shown] == [
        "generated images", "step 2", "step 4", "copied or made?", "between two",
    ]  # fmt: skip


@pytest.mark.rotates
def test_the_command_generates_images_of_classes(finished, tmp_path, capsys):
    folder = str(finished[0])
    file = tmp_path / "grid.png"
    options = ["--guidance", "2", "--steps", "2", "--seed", "3"]
    main(["generate", folder, "--images", "5", "--output", str(file), "--class", "cross", "0", *options])
    with PIL.Image.open(file) as page:
        assert page.size == (3 * 66 - 2, 2 * 66 - 2)
    few = draw_images(
        hub.load(finished[0] / "export"), Drawing(count=2, classes=("3", "0"), guidance=2, steps=2, seed=3)
    )
    many = draw_images(
        hub.load(finished[0] / "export"), Drawing(count=5, classes=("3", "0"), guidance=2, steps=2, seed=3)
    )
    np.testing.assert_array_equal(few, many[:2])
    for wrong, says in (
        (["--images", "2", "--guidance", "3"], "guidance is towards a class, got guidance=3 and no class"),
        (["--images", "2", "--class", "4"], "a class must be a number from 0 to 3 or one of ellipse"),
        (["--images", "2", "--steps", "0"], "steps must be at least 1, got 0"),
        (["--images", "0"], "count must be at least 1, got 0"),
        (["--steps", "3"], "how many images are to be generated is said by --images"),
        (["a text", "--images", "2"], "images are generated without text, got a prompt"),
        (["--images", "2", "--output", "x.gif"], r"written to a .png, or as an array to a .npy, got x.gif"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["generate", folder, *wrong])
        assert left.value.code == 1
        assert says in capsys.readouterr().err


@pytest.mark.rotates
def test_images_of_a_seed_are_the_same_in_batches_of_any_size():
    model = hub.load(GOLDEN / "dit").model
    classes = np.arange(5) % 4
    how = Denoised(sampler=Euler(steps=2), guidance=1.5)
    whole = sample_images(model, how, classes, seed=1)
    np.testing.assert_allclose(sample_images(model, how, classes, seed=1, rows=2), whole, atol=1e-5)
    assert np.abs(sample_images(model, how, classes, seed=2) - whole).max() > 0.1


def test_bytes_are_what_was_normalised():
    normalise, pixels = normalised((0.5, 0.4, 0.3), (0.5, 0.2, 0.1), 3), RNG.integers(0, 256, (2, 3, 3, 3), np.uint8)
    seen = (pixels / 255 - np.array(normalise.mean)) / np.array(normalise.std)
    np.testing.assert_array_equal(image_bytes(seen.astype(np.float32), normalise.mean, normalise.std), pixels)


def test_latents_are_kept_as_an_array_and_no_image(tmp_path):
    latents = draw_images(hub.load(GOLDEN / "dit"), Drawing(count=2, classes=("1",), steps=2))
    assert latents.shape == (2, 6, 6, 1)
    write_images(latents, tmp_path / "latents.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "latents.npy"), latents)
    with pytest.raises(ValueError, match="of which an autoencoder makes images, and there is no folder `vae`"):
        write_images(latents, tmp_path / "latents.png")


@pytest.mark.rotates
def test_imagegpt_draws_by_the_same_function():
    model = sized(imagegpt(8, 2, 2, dropout=0.0), Spec(vocab=4, length=6)).build(nnx.Rngs(0))
    palette = Palette(colours=((-1.0,), (0.0,), (1.0,)))
    loaded = hub.wrap(model, "ImageGPTForCausalImageModeling", processor=palette_processor(palette, (2, 3), "bilinear"))
    images = draw_images(loaded, Drawing(count=4))
    assert images.shape == (4, 2, 3, 3)
    assert set(np.unique(images)) <= {0, 128, 255}
    assert len(np.unique(images.reshape(4, -1), axis=0)) > 1
    with pytest.raises(ValueError, match="takes no class, guidance or steps"):
        draw_images(loaded, Drawing(count=1, steps=3))


@pytest.mark.parametrize(
    "sampler",
    [
        DDIM(steps=4, schedule=NoiseSchedule(kind="cosine", steps=50), predicts="v_prediction", clip=1.0),
        DDIM(steps=4, schedule=NoiseSchedule(last=0.01)),
        Euler(steps=4),
    ],
)
def test_schedulers_are_read_as_they_are_written(sampler):
    assert read_sampler(scheduler_fields(sampler), 4) == sampler


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "samples take a scheduler_config.json"),
        ({"beta_schedule": "scaled_linear"}, "beta_schedule='scaled_linear'; supported are linear, squaredcos_cap_v2"),
        ({"prediction_type": "flow"}, "prediction_type='flow'; supported are epsilon"),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}, "shift=3.0, of which only 1.0 is supported"),
    ],
)
def test_processes_that_are_not_known_are_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        read_sampler(fields, 4)


def test_images_that_are_the_real_ones_are_at_no_distance():
    seen = Seen(RNG.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 4)
    found = distances(seen, seen, np.arange(40) % 4)
    assert found["fid"] == pytest.approx(0, abs=1e-6)
    assert (found["precision"], found["recall"], found["asked_class"]) == (1, 1, 100)
    assert distances(seen, seen, np.zeros(40))["asked_class"] == 25
