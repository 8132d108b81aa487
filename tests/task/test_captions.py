"""Recipes that write captions: what a run measures, that it resumes as if uninterrupted, and what its export writes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import CaptionedScenes, SceneCaptions
from flax_transformer.models.multimodal.vision_encoder_decoder import captioner
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.vision.cct import cct
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.task.captioning import Captions, ImageCaptions
from flax_transformer.task.experiment import train
from flax_transformer.task.image_attention import draw_file
from flax_transformer.task.image_input import Augment
from flax_transformer.task.opened import Context
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.test_classify_images import ROOT, experiments
from tests.task.test_matched import records

pytestmark = pytest.mark.rotates

SCENES = SceneCaptions(shapes=CaptionedScenes(train=40, held_out=12, size=16))
EVERYTHING = Augment(shift=1, jitter=0.3, operations=1, erase=0.3)
WORDS = with_fields(gpt2_tiny(dropout=0.1), embed=8, heads=2, inner=12, depth=1)
ENCODERS = {
    "cct": cct(embed=12, heads=2, depth=1, inner=8, image=16, stem=(4,)),
    "vit": with_fields(vit_encoder("tiny", 4, image=16), embed=8, heads=2, inner=12, depth=1),
}


def short(encoder, steps):
    recipe = experiments("caption_images")[encoder]
    return replace(
        recipe, model=captioner(ENCODERS[encoder], WORDS), data=SCENES, evaluators=(Captions(beams=2, count=3),),
        examples=replace(recipe.examples, rows=8, length=20, augment=EVERYTHING),
        optimizer=replace(recipe.optimizer, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2),
    )  # fmt: skip


@pytest.fixture(scope="module", params=["cct", pytest.param("vit", marks=pytest.mark.slow)])
def encoder(request):
    return request.param


@pytest.fixture(scope="module")
def finished(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(short(encoder, 4), folder)


@pytest.mark.proves("vision_encoder_decoder", "train", "[`caption_images`](../experiments/caption_images.py)")
def test_a_run_measures_its_captions_and_those_of_other_pictures(finished):
    folder, _ = finished
    test = records(folder)[-1]
    assert test["split"] == "test"
    assert {"bleu1", "bleu4", "cider", "exact", "shuffled_bleu1", "shuffled_cider"} <= test.keys()
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 3
    assert all((folder / each["picture"]).is_file() for each in samples)
    assert all(each["caption"].startswith("references: a ") for each in samples)


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(encoder, finished, tmp_path):
    train(short(encoder, 2), tmp_path)
    train(short(encoder, 4), tmp_path)
    late = lambda folder: [each for each in records(folder) if each["split"] == "train" and each["step"] > 2]  # noqa: E731
    assert late(tmp_path) == late(finished[0])
    assert len(late(tmp_path)) == 2


def test_the_export_writes_the_captions_of_the_run(finished):
    folder, _ = finished
    pretrained = hub.load(folder / "export")
    held = ImageCaptions(rows=8, length=20).open(SCENES, Context(folder=RunFolder(folder))).held
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for number, sample in zip((0, 5, 11), samples, strict=True):
        pixels = pretrained.processor([held.show(number)])["pixel_values"]
        ids = np.asarray(pretrained.generate(pixel_values=pixels, num_beams=2, length_penalty=1.0, max_new_tokens=20))
        assert pretrained.tokenizer.decode(ids)[0].strip() == sample["hypothesis"]


def test_the_command_says_what_is_on_pictures(finished, run):
    folder, _ = finished
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    files = [folder / each["picture"] for each in samples]
    options = ("--num-beams", 2, "--max-new-tokens", 20)
    code, out, _ = run("caption", folder, *files, *options)
    assert code == 0
    assert [line.split("\t") for line in out.splitlines()] == [
        [str(file), " ".join(each["hypothesis"].split())] for file, each in zip(files, samples, strict=True)
    ]
    assert run("caption", folder, files[0], *options)[1].strip() == " ".join(samples[0]["hypothesis"].split())
    code, _, error = run("caption", ROOT / "tests/hub/golden/vit", files[0])
    assert code == 1
    assert "write in answer to a source takes a checkpoint that can, got a ViTForImageClassification" in error


def test_what_each_word_looks_at_is_drawn(encoder, finished):
    folder, _ = finished
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    drawn, notes = draw_file(folder, folder / samples[0]["picture"])
    assert notes == []
    *_, words = drawn.maps
    assert words.name == "decoder"
    assert words.weights.shape == (1, 2, len(words.queries.tokens), 16 + (encoder == "vit"))
    np.testing.assert_allclose(words.weights.sum(-1), 1, atol=1e-5)
    pretrained = hub.load(folder / "export")
    pixels = pretrained.processor([folder / samples[0]["picture"]])["pixel_values"]
    ids = np.asarray(pretrained.generate(pixel_values=pixels, max_new_tokens=20))[0]
    assert drawn.output == pretrained.tokenizer.decode(ids).strip()
    assert len(words.queries.tokens) == len(ids) - 1
    assert (folder / "report.html").read_text().count('"decoder"') >= 1


def test_a_caption_is_drawn_anew_and_told_word_after_word(tmp_path):
    opened = ImageCaptions(rows=4, length=20).open(SCENES, Context(folder=RunFolder(tmp_path)))
    batch, tokenizer = next(opened.batches), opened.tokenizer
    opened.batches.close()
    inputs, labels, there = batch["inputs"], batch["labels"], batch["weights"] > 0
    assert inputs.keys() == {"source", "target"}
    assert inputs["source"].shape == (4, 16, 16, 3)
    assert (inputs["target"][:, 0] == tokenizer.bos).all()
    assert (inputs["target"][:, 1:][there[:, :-1]] == labels[:, :-1][there[:, :-1]]).all()
    assert all(row[seen][-1] == tokenizer.eos for row, seen in zip(labels, there, strict=True))
    told = [text.strip() for text in tokenizer.decode(np.where(there, labels, tokenizer.pad))]
    train_captions = {caption for (caption,) in SCENES.open().splits["train"]["captions"]}
    assert set(told) <= train_captions
