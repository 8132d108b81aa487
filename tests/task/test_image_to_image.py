"""Images into others, and images of noise: what is learned from, runs of every recipe, the command, what is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import PIL.Image
import pytest
from fake_devices import on_eight
from flax import nnx

from flax_transformer import cli
from flax_transformer.data.image import ImagePairData
from flax_transformer.data.image.image_folder import ImageFolderData, ImageSetsData
from flax_transformer.models.vision.image_to_image import generator_of
from flax_transformer.objective import CycleLoss, PairedLoss
from flax_transformer.task.draw_images import Drawing, draw_by_run
from flax_transformer.task.experiment import train
from flax_transformer.task.gan import AtOnce, sample_run
from flax_transformer.task.generation import sample_images
from flax_transformer.task.image_to_image import ColourImages, PairedImages, SmallAndLarge, grey_and_colour
from flax_transformer.task.opened import Context
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.run import open_run
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.folder import RunFolder
from tests.task import image_recipes
from tests.task.image_recipes import GENERATOR, RECIPES, records


def write(root, *names, size=(12, 12), seed=0):
    """Write images of random pixels."""
    rng = np.random.default_rng(seed)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)).save(root / name)


def opened(examples, data, tmp_path):
    return examples.open(data, Context(folder=RunFolder(tmp_path)))


# What is learned from.


def test_grey_is_pillows_and_small_is_the_mean_of_large():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    grey, colour = grey_and_colour(pixels)
    pillow = np.stack([np.asarray(PIL.Image.fromarray(each).convert("L")) for each in pixels])
    np.testing.assert_array_equal(grey[..., 0], pillow)
    np.testing.assert_array_equal(colour, pixels)
    small, _ = SmallAndLarge(scale=4)(pixels)
    np.testing.assert_array_equal(small[1, 0, 1], np.round(pixels[1, :4, 4:].reshape(-1, 3).mean(axis=0)))


def test_both_images_of_a_pair_are_moved_and_mirrored_alike(tmp_path):
    write(tmp_path / "pairs", *(f"{side}/{i}.png" for side in ("a", "b") for i in range(12)))
    for i in range(12):  # the other is the negative
        pixels = np.asarray(PIL.Image.open(tmp_path / f"pairs/a/{i}.png"))
        PIL.Image.fromarray(255 - pixels).save(tmp_path / f"pairs/b/{i}.png")
    found = opened(
        PairedImages(rows=8, augment=image_recipes.AUGMENT), ImagePairData(root=str(tmp_path / "pairs")), tmp_path
    )
    batch = next(found.batches)
    x, y = batch["inputs"]["images"], batch["labels"]
    inside = np.abs(x + y) < 1e-6  # but for the black that comes in at the edge
    assert inside.mean() > 0.8
    assert np.allclose((x + y)[~inside], -2)
    test = next(iter(found.test()))
    np.testing.assert_allclose(test["inputs"]["images"][0], -test["labels"][0], atol=1e-6)
    assert test["weights"].sum() == 1
    back = opened(PairedImages(rows=8, backward=True), ImagePairData(root=str(tmp_path / "pairs")), tmp_path)
    np.testing.assert_array_equal(next(iter(back.test()))["labels"][0], test["inputs"]["images"][0])


def test_sets_need_no_names_in_common_and_are_not_paired(tmp_path):
    write(tmp_path, *(f"horses/{i}.png" for i in range(12)), *(f"zebras/train/z{i}.png" for i in range(6)))
    data = ImageSetsData(root=str(tmp_path)).open()
    train = data.splits["train"]
    assert data.kind == "sets"
    assert len(train) == 10
    assert {Path(train["other"].name(i)).name for i in range(10)} <= {f"z{i}.png" for i in range(6)}
    flat = ImageFolderData(root=str(tmp_path)).open()
    assert flat.kind == "images"
    assert sum(len(each) for each in flat.splits.values()) == 18


# What is refused.


def test_pairs_that_differ_in_size_are_named(tmp_path):
    write(tmp_path, *(f"{side}/{i}.png" for side in ("a", "b") for i in range(12)))
    write(tmp_path, "b/7.png", size=(12, 14))
    with pytest.raises(ValueError, match=r"must have one size: .*7\.png has 12 × 12 and .*7\.png has 12 × 14"):
        opened(PairedImages(rows=8), ImagePairData(root=str(tmp_path)), tmp_path)
    (tmp_path / "b/7.png").unlink()
    with pytest.raises(ValueError, match=r"a/7\.png must have an image of its name in b, it has none"):
        opened(PairedImages(rows=8), ImagePairData(root=str(tmp_path)), tmp_path)


def test_what_cannot_work_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"moved and mirrored alone, got augment\.jitter"):
        PairedImages(augment=replace(image_recipes.AUGMENT, jitter=0.1))
    with pytest.raises(ValueError, match="the images must have images or classes, they have pairs"):
        opened(ColourImages(), RECIPES["paired"].data, tmp_path)
    with pytest.raises(ValueError, match=r"PairedLoss trains by a step of its own, got train\.accumulate"):
        replace(RECIPES["paired"], train=replace(RECIPES["paired"].train, accumulate=2))
    with pytest.raises(ValueError, match="multiples of the patch's, got 10×10 and 4×4"):
        train(replace(RECIPES["regression"], examples=PairedImages(rows=8, size=10)), tmp_path / "ten")
    with pytest.raises(ValueError, match="multiples of 4 for 2 stages, got 10×10"):
        train(replace(RECIPES["noise"], examples=replace(RECIPES["noise"].examples, size=10)), tmp_path / "noise")
    with pytest.raises(ValueError, match="cycle must be positive"):
        CycleLoss(cycle=0.0)
    assert not (tmp_path / "ten").exists()


# Runs.


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train recipes once, whole."""
    root, done = tmp_path_factory.mktemp("runs"), {}

    def run(name):
        if name not in done:
            train(RECIPES[name], root / name)
            done[name] = root / name
        return done[name]

    return run


def state_of(folder, recipe):
    """Return every array of a run's newest checkpoint."""
    from flax_transformer.task.experiment import begin_training

    with Checkpoints(RunFolder(folder).checkpoints, keep=None) as checkpoints:
        state = begin_training(recipe, recipe.task(RunFolder(folder)))[0]
        return jax.tree.map(np.asarray, jax.tree.map(_data, checkpoints.restore(state, 4)[0]))


def _data(leaf):
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


@pytest.mark.rotates
@pytest.mark.proves("two players", "both optimizers and the average resumed bit for bit; eight devices = one", "")
@pytest.mark.parametrize("name", ["paired", "noise", pytest.param("unpaired", marks=pytest.mark.slow)])
def test_a_run_goes_on_as_if_it_had_not_stopped(name, runs, tmp_path):
    goes_on(RECIPES[name], runs(name), tmp_path / "parts")


def goes_on(recipe: Recipe, whole, parts):
    """Train in two parts, compare with a whole run, and return the state."""
    train(replace(recipe, train=replace(recipe.train, steps=2, eval_every=2)), parts)
    train(recipe, parts)
    one, two = (state_of(folder, recipe) for folder in (whole, parts))
    assert {"generator", "discriminator"} == set(one.opt_state)
    assert one.ema is not None
    jax.tree.map(np.testing.assert_array_equal, one, two)
    return one


@pytest.mark.rotates
def test_an_encoder_is_another_runs_and_stays_so(runs, tmp_path):
    recipe = replace(image_recipes.FEATURES, warm_start=str(runs("regression")))
    train(recipe, tmp_path / "whole")
    state, theirs = goes_on(recipe, tmp_path / "whole", tmp_path / "parts"), open_run(runs("regression")).model.encoder
    for encoder in (state.model.encoder, state.ema.encoder):
        jax.tree.map(np.testing.assert_array_equal, encoder, theirs)
    with pytest.raises(ValueError, match="encoder must be another run's: give --warm-start RUN"):
        train(image_recipes.FEATURES, tmp_path / "none")
    other = replace(recipe, model=replace(recipe.model, encoder=replace(image_recipes.ENCODER, depth=2)))
    with pytest.raises(ValueError, match=r"all of it, for it is not trained: encoder\.\S+ has the shape"):
        train(other, tmp_path / "other")
    pairs = {"inputs": {"images": np.zeros((2, 12, 12, 3))}, "labels": np.zeros((2, 12, 12, 3)), "weights": np.ones(2)}
    generator = GENERATOR.build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="pairs are judged by their pixels"):
        PairedLoss()(SimpleNamespace(generator=generator, encoder=theirs), pairs)


@pytest.mark.slow
def test_eight_devices_train_as_one(runs):
    meshes = on_eight(Path(image_recipes.__file__))[0]
    for name, mesh in meshes.items():
        one = records(runs(name))
        assert len(one) == len(mesh)
        for expected, found in zip(one, mesh, strict=True):
            for metric in expected.keys() & {"loss", "discriminator_loss", "gradient_norm", "l1"}:
                np.testing.assert_allclose(found[metric], expected[metric], rtol=1e-4, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.proves("image_to_image", "train", "[`image_to_image`](../experiments/image_to_image.py)")
@pytest.mark.parametrize("name", ["regression", "paired", "unpaired", "colour", "upscale"])
def test_every_recipe_ends_with_images_and_what_they_are_worth(name, runs):
    folder = runs(name)
    test = records(folder)[-1]
    known = name != "unpaired"
    assert (test["split"] == "test" and {"l1", "ssim", "psnr", "copied_ssim"} <= test.keys()) or not known
    sheet = PIL.Image.open(folder / "samples/0.png")
    side = 16 if name == "upscale" else 12
    assert sheet.size == (3 * side + 8, side)
    assert "SSIM" in (folder / "samples.jsonl").read_text() or not known


@pytest.mark.rotates
def test_the_command_gives_what_the_model_does(runs, tmp_path, capsys):
    folder = runs("paired")
    write(tmp_path, "one.png", size=(30, 20))
    cli.main(["translate-image", str(folder), str(tmp_path / "one.png"), "--output", str(tmp_path / "out.png")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "out.png")
    image = PIL.Image.open(tmp_path / "one.png").resize((12, 12), PIL.Image.Resampling.BICUBIC)
    model = generator_of(open_run(folder).model)
    made = np.asarray(model(np.asarray(image, np.float32)[None] / 127.5 - 1))[0]
    expected = np.round(np.clip(made / 2 + 0.5, 0, 1) * 255)
    assert abs(np.asarray(PIL.Image.open(tmp_path / "out.png")) - expected).max() <= 1
    for given, said in (
        (["--backward"], "the way back is known to a model of both ways, got ImageToImage"),
        (["--output", str(tmp_path / "nowhere/out.png")], "there is no folder"),
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main(["translate-image", str(folder), str(tmp_path / "one.png"), *given])
        assert stop.value.code == 1
        assert said in capsys.readouterr().err


@pytest.mark.rotates
@pytest.mark.proves("transgan", "train", "[`gan`](../experiments/gan.py), resumed bit for bit")
def test_samples_of_a_run_depend_on_their_number_and_class_alone(runs):
    run = open_run(runs("noise"))
    some = sample_images(run.model, AtOnce(), np.array([0, 1, 2]), seed=3)
    more = sample_images(run.model, AtOnce(), np.array([0, 3, 2, 1]), seed=3, rows=2)
    np.testing.assert_allclose(more[[0, 2]], some[[0, 2]], atol=1e-5)
    assert np.abs(more[1] - some[1]).max() > 1e-4
    assert sample_run(run, 5).shape == (5, 8, 8, 3)
    drawn = draw_by_run(runs("noise"), Drawing(count=3, classes=("0", "1", "2"), seed=3))
    np.testing.assert_array_equal(drawn, sample_run(run, 3, classes=(0, 1, 2), seed=3))
    with pytest.raises(ValueError, match="a class of a run is said by its number, got 'cat'"):
        draw_by_run(runs("noise"), Drawing(classes=("cat",)))
    with pytest.raises(ValueError, match="without guidance, steps or temperature"):
        draw_by_run(runs("noise"), Drawing(steps=3))
    assert draw_by_run(runs("paired"), Drawing()) is None
    with pytest.raises(ValueError, match="classes must be numbers from 0 to 3, got 4"):
        sample_run(run, 2, classes=(4,))
    with pytest.raises(ValueError, match="by a TransGANGenerator, got TransGANDiscriminator"):
        sample_images(run.model.discriminator, AtOnce(), np.array([0]))
    with pytest.raises(ValueError, match="by an ImageToImage, got TransGANGenerator"):
        generator_of(run.model)


@pytest.mark.rotates
def test_samples_are_measured_by_the_features_of_a_classifier(runs, tmp_path):
    """Features are what its head pools; of the test's own images the distance is 0."""
    from flax import nnx

    from flax_transformer import hub
    from flax_transformer.data.image import Normalise
    from flax_transformer.metric.sample_distance import frechet_distance
    from flax_transformer.models.head import with_head
    from flax_transformer.models.vision.vit import vit_encoder
    from flax_transformer.nn import with_fields
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.evaluator import Finished
    from flax_transformer.task.generated_image import SampleDistances, SampleGrids, see_images
    from flax_transformer.task.image_input import processor_of

    encoder = with_fields(vit_encoder("tiny", 4, image=8), embed=8, heads=2, inner=8, depth=1)
    config = with_head(encoder, outputs=4, pool="first")
    model = config.build(nnx.Rngs(0))
    half = Normalise(mean=(0.5,) * 3, std=(0.5,) * 3)
    names = opened(RECIPES["noise"].examples, RECIPES["noise"].data, tmp_path).fields
    made = hub.wrap(model, "ViTForImageClassification", processor=processor_of((), half, "ViT"), **names)
    hub.save(made, tmp_path / "vit")
    images = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 3)).astype(np.uint8)
    found = see_images(open_checkpoint(tmp_path / "vit"), images).features
    values = images.astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(found, model.head.pool(model.hidden_states(values)), rtol=1e-4, atol=1e-5)
    assert frechet_distance(found, found) == pytest.approx(0, abs=1e-6)
    recipe, folder = RECIPES["noise"], RunFolder(tmp_path)
    finished = Finished(
        model=open_run(runs("noise")).model,
        pretrained=None,
        opened=opened(recipe.examples, recipe.data, tmp_path),
        objective=recipe.objective,
        folder=folder,
    )
    measured = SampleDistances(how=AtOnce(), classifier=str(tmp_path / "vit"), count=6)(finished).metrics
    assert measured.keys() == {"fid", "kid", "precision", "recall", "asked_class"}
    assert measured["fid"] > 0
    shown = SampleGrids(how=AtOnce(), columns=2, searched=10)(finished)
    assert PIL.Image.open(tmp_path / shown.samples[0]["picture"]).size == (2 * 34 - 2, 4 * 34 - 2)
