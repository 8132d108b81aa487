"""Recipes of pairs: what a run measures, that it resumes as if uninterrupted, and what its export says."""

import json
from dataclasses import replace

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.image import CaptionedShapes, ShapeCaptions, TwinData
from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.siamese import SiameseConfig
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.vision.cct import cct
from flax_transformer.task.evaluator.retrieval import best_ranks, embedded, strip
from flax_transformer.task.example import Augment, CaptionedImages, TwinImages
from flax_transformer.task.example.opened import Context
from flax_transformer.task.experiment import train
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.data.image.image_files import pixels, write_image
from tests.task.test_classify_images import experiments

SMALL = {"embed": 8, "heads": 2, "depth": 1}
SHAPES = ShapeCaptions(shapes=CaptionedShapes(train=40, held_out=12, size=8))
EVERYTHING = Augment(shift=1, flip=0.5, jitter=0.3, operations=1, erase=0.3)


def short(name, folder, steps):
    recipe = experiments("contrast")[name]
    if name == "captions":
        text, vision = clip_text(6, length=16, **SMALL), clip_vision(6, image=8, patch=4, **SMALL)
        changes = {"model": TwoTowersConfig(text=text, vision=vision), "data": SHAPES}
    else:
        stem = cct(inner=8, image=8, stem=(4,), pool=False, **SMALL)
        for side in ("one", "two"):
            for number in range(20):
                write_image(folder / side / f"{number}.png", pixels(number + len(side) * (side == "two"), 8, 8))
        tower = SiameseConfig(tower=with_head(stem, outputs=6, pool="weighted", bias=False))
        changes = {"model": tower, "data": TwinData(root=str(folder))}
    length = {"length": 16} if name == "captions" else {}
    examples = replace(recipe.examples, rows=8, augment=EVERYTHING, **length)
    schedule = ScheduleConfig(name="constant")
    return replace(
        recipe, examples=examples, optimizer=replace(recipe.optimizer, schedule=schedule),
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2), **changes,
    )  # fmt: skip


def records(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


@pytest.fixture(scope="module", params=["captions", "twins"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def finished(name, pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / name
    return folder, train(short(name, pairs, 4), folder)


@pytest.mark.proves("clip", "train", "[`contrast`](../experiments/contrast.py)")
def test_a_run_measures_how_often_the_right_one_is_found(name, finished):
    folder, _ = finished
    test = records(folder)[-1]
    assert test["split"] == "test"
    for way in ("forth", "back"):
        shares = [test[f"{way}_r{count}"] for count in (1, 5, 10)]
        assert 0 <= shares[0] <= shares[1] <= shares[2] <= 1
    assert test["recall"] == (test["forth_r1"] + test["back_r1"]) / 2
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert all((folder / each["picture"]).is_file() for each in samples)
    assert all("the right one has rank" in each["caption"] for each in samples)
    assert (folder / "export").is_dir() == (name == "captions")


def test_a_resumed_run_is_the_uninterrupted_one_with_everything_drawn_at_random(name, pairs, finished, tmp_path):
    train(short(name, pairs, 2), tmp_path)
    train(short(name, pairs, 4), tmp_path)
    again = [each for each in records(tmp_path) if each["split"] == "train" and each["step"] > 2]
    whole = [each for each in records(finished[0]) if each["split"] == "train" and each["step"] > 2]
    assert again == whole
    assert len(again) == 2


@pytest.mark.parametrize("name", ["captions"], indirect=True)
def test_the_export_gives_the_vectors_of_the_run(finished):
    folder, model = finished
    pretrained = hub.load(folder / "export")
    examples = CaptionedImages(rows=8, size=8, length=16)
    held = examples.open(SHAPES, Context(folder=RunFolder(folder))).held
    texts, images = embedded(model, held.first(), 0), embedded(model, held.second(), 1)
    said = [held.show[0](number) for number in range(len(texts))]
    inputs = pretrained.tokenizer(said)
    np.testing.assert_allclose(
        pretrained(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).text_embeds, texts, atol=1e-5
    )
    pictures = pretrained.processor([held.show[1](number) for number in range(len(images))])
    np.testing.assert_allclose(pretrained(**pictures).image_embeds, images, atol=1e-5)
    end = pretrained.config["text_config"]["eos_token_id"]
    assert end == pretrained.tokenizer.vocab_size - 1 == inputs["input_ids"].max()


def test_captions_and_changes_are_drawn_anew(tmp_path):
    examples = CaptionedImages(rows=40, length=16, augment=Augment())
    context = Context(folder=RunFolder(tmp_path), seed=3)
    stream = examples.open(SHAPES, context).batches
    epochs = [next(stream), next(stream)]
    stream.close()
    told = [dict(zip(each["labels"].tolist(), each["inputs"]["lengths"].tolist(), strict=True)) for each in epochs]
    assert told[0].keys() == told[1].keys() == set(range(40))
    assert 5 < sum(told[0][number] != told[1][number] for number in range(40)) < 40


@pytest.mark.parametrize("make", [CaptionedImages, TwinImages])
def test_pairs_are_not_mixed(make):
    with pytest.raises(ValueError, match=r"are not mixed, got augment\.mixup or augment\.cutmix"):
        make(augment=Augment(mixup=0.2))


def test_ranks_count_the_wrong_ones_before_the_best_right_one():
    scores = np.array([[0.5, 0.9, 0.1, 0.9], [0.2, 0.2, 0.2, 0.2]])
    right = np.array([[True, False, False, True], [False, True, False, True]])
    assert best_ranks(scores, right).tolist() == [1, 2]


def test_a_strip_frames_what_is_right():
    import PIL.Image

    picture = PIL.Image.new("RGB", (5, 4), "black")
    row = np.asarray(strip([(picture, None), (picture, True), (picture, False)]))
    assert row.shape == (10, 3 * 11 + 16 + 4, 3)
    assert row[0, 0].tolist() == [255, 255, 255]
    assert row[0, 27].tolist() == [40, 160, 70]
    assert row[0, 42].tolist() == [215, 60, 50]
