"""Images as sequences: batches, simple models to be beaten, probes, and a run of all of it."""

import json

import jax
import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.data.image import ImageData
from flax_transformer.data.image.palette import Palette
from flax_transformer.models.vision.imagegpt import imagegpt
from flax_transformer.objective import TokenLoss
from flax_transformer.task.experiment import train
from flax_transformer.task.image_generation import (
    Completions,
    PixelBits,
    Pixels,
    PixelSequences,
    count_pixels,
    place_and_copy_bits,
    strip,
)
from flax_transformer.task.opened import Context
from flax_transformer.task.probe import LayerProbe, probe
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.spec import Spec, sized
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.data.image.image_files import class_folders, idx_folder

RNG = np.random.default_rng(0)


def opened(tmp_path, root, init="", **options):
    context = Context(folder=RunFolder(tmp_path), seed=1, init=init)
    return PixelSequences(rows=2, **options).open(ImageData(root=str(root)), context)


@pytest.mark.rotates
@pytest.mark.parametrize("form", [idx_folder, class_folders])
@pytest.mark.parametrize("memory", [0, 64])
def test_a_checkpoint_sees_pictures_as_they_were_learned(tmp_path, form, memory):
    found = opened(tmp_path, form(tmp_path / "data"), size=3, colours=4, memory=memory)
    assert found.spec == Spec(uses=("text-generation",), vocab=5, length=9)
    cfg = sized(imagegpt(8, 2, 1), found.spec)
    assert (cfg.embedding.vocab, cfg.embedding.max_length, cfg.outputs) == (5, 9, 4)
    batch = next(found.batches)
    found.batches.close()
    assert batch["inputs"]["tokens"].shape == batch["labels"].shape == (2, 9)
    held = jax.tree.map(lambda *parts: np.concatenate(parts), *found.test())
    data = ImageData(root=str(tmp_path / "data")).open().splits["test"]
    images = [data[i]["image"].convert("RGB") for i in range(len(data))]
    seen = found.processor(images)["input_ids"]
    np.testing.assert_array_equal(held["labels"][held["weights"][:, 0] > 0], seen)
    again = opened(tmp_path, tmp_path / "data", size=3, colours=4, memory=memory)
    assert again.held.palette == found.held.palette
    assert len(opened(tmp_path, tmp_path / "data", size=3, colours=3, memory=memory).held.palette) == 3


def test_colours_are_those_of_the_checkpoint_that_training_begins_with(tmp_path):
    data, start = idx_folder(tmp_path / "data"), tmp_path / "start"
    found = opened(tmp_path, data, size=3, colours=4)
    found.processor.save(start)
    (start / "config.json").write_text('{"model_type": "imagegpt"}')
    assert opened(tmp_path, data, str(start), size=3, colours=9).held.palette == found.held.palette
    with pytest.raises(ValueError, match="size must be that of the checkpoint, 3 × 3 pixels, got 4 × 4"):
        opened(tmp_path, data, str(start), size=4)
    found.processor.updated(clusters=[[0, 0, 0], [0, 0, 1]]).save(start)
    with pytest.raises(ValueError, match="grey images take a checkpoint whose colours are grey"):
        opened(tmp_path, data, str(start), size=3)


def test_simple_models_are_those_of_counts():
    palette = Palette(colours=((-1.0,), (1.0,)))
    images = RNG.integers(0, 2, (2, 30, 2, 3, 1)).astype(np.uint8) * 255
    images[..., 1, :] = np.where(RNG.random((2, 30, 2, 1)) < 0.8, images[..., 0, :], images[..., 1, :])
    train, test = (count_pixels([{"inputs": {"images": each}, "weights": np.ones(30)}], palette) for each in images)
    tokens = images[..., 0].reshape(2, 30, 6) // 255
    shares = [(1 + (tokens[0] == color).sum(0)) / 32 for color in (0, 1)]
    chances = np.stack(shares, -1)

    def bits(split, share):
        total = 0.0
        for row in tokens[split]:
            for t, token in enumerate(row):
                own = 0 if t % 3 == 0 else share
                total -= np.log2((1 - own) * chances[t, token] + own * (t > 0 and row[t - 1] == token))
        return total / tokens[split].size

    place, copy = place_and_copy_bits(train, test)
    np.testing.assert_allclose(place, bits(1, 0))
    tried = np.linspace(0, 0.99, 100)
    best = tried[np.argmin([bits(0, share) for share in tried])]
    np.testing.assert_allclose(copy, bits(1, best), atol=1e-3)
    assert place_and_copy_bits(Pixels(train.all, 0 * train.copied), test) == (place, place)


@pytest.mark.rotates
def test_a_probe_finds_what_is_linear_and_nothing_else():
    features, labels = RNG.standard_normal((500, 6)).astype(np.float32), RNG.integers(3, size=500)
    centres = 4 * np.eye(3, 6, dtype=np.float32)
    told = features + centres[labels]
    assert min(probe(told[:400], told[400:], labels[:400], labels[400:])) > 0.9
    assert max(probe(features[:400], features[400:], labels[:400], labels[400:])) < 0.55


def test_strips_have_every_picture_in_its_place():
    pictures = RNG.integers(0, 255, (2, 3, 4, 5, 1), np.uint8)
    page = strip(pictures, edge=10, gap=1)
    assert page.shape == (2 * 8 + 1, 3 * 10 + 2, 1)
    np.testing.assert_array_equal(page[9::2, 11:21:2], pictures[1, 1])


@pytest.mark.parametrize(("call", "message"), [
    (lambda: PixelSequences(colours=1), "colours must be 2 to 4096, got 1"),
    (lambda: PixelSequences(flip=2.0), "flip must be"),
    (lambda: Completions(temperature=0.0), "temperature above 0, got 8, 3, 0.0"),
    (lambda: LayerProbe(train=2), "train and test must be at least 5 images, got 2, 10000"),
])  # fmt: skip
def test_bad_options_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def recipe(root, **options):
    return Recipe(
        model=imagegpt(8, 2, 2, dropout=0.0),
        family="imagegpt",
        data=ImageData(root=str(root)),
        examples=PixelSequences(rows=2, size=4, colours=3, flip=0.5),
        objective=TokenLoss(),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-2, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=2, log_every=1, eval_every=2, checkpoint_every=2),
        **options,
    )


@pytest.mark.slow
@pytest.mark.proves("imagegpt", "train", "[`image_gpt`](../experiments/image_gpt.py)")
def test_a_run_measures_probes_and_completes(tmp_path, capsys):
    root = class_folders(tmp_path / "data", count=12)
    evaluators = (PixelBits(), LayerProbe(), Completions(count=2, draws_each=2))
    train(recipe(root, evaluators=evaluators), tmp_path / "run")
    test = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert test["bits_per_pixel"] == pytest.approx(np.log2(test["perplexity"]))
    assert {
        f"probe_accuracy_{name}" for name in ("pixels", "embedding", "layer_1", "layer_2", "all_layers")
    } <= test.keys()
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 2
    assert (tmp_path / "run" / samples[0]["picture"]).is_file()
    with PIL.Image.open(tmp_path / "run" / "completions.png") as page:
        assert page.size == (2 * 66 - 2, 4 * 66 - 2)
    exported = hub.load(tmp_path / "run" / "export")
    assert exported.config["architectures"] == ["ImageGPTForCausalImageModeling"]
    assert exported.processor.config["clusters"]
    assert "completed" in capsys.readouterr().out
