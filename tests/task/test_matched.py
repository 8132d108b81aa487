"""Recipes of pairs: what a run measures, that it resumes as if uninterrupted, and what its export says."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.data.image import ImagePairData
from flax_transformer.data.synthetic import CaptionedShapes, DrawnShapes, LabelledImageData, ShapeCaptions
from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.siamese import SiameseConfig
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.vision.cct import cct
from flax_transformer.task import embedding
from flax_transformer.task.captioning import CaptionedImages
from flax_transformer.task.embedding import INDEX, choose, search
from flax_transformer.task.experiment import train
from flax_transformer.task.image_input import Augment
from flax_transformer.task.opened import Context
from flax_transformer.task.retrieval import ImagePairs, best_ranks, embedded, strip
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.data.image.image_files import pixels, write_image
from tests.task.test_classify_images import ROOT, experiments
from tests.task.test_classify_images import short as shortened

pytestmark = pytest.mark.rotates

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
        changes = {"model": tower, "data": ImagePairData(root=str(folder))}
    length = {"length": 16} if name == "captions" else {"size": None}
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
@pytest.mark.proves("towers", "train", "[`contrast`](../experiments/contrast.py)")
@pytest.mark.proves("siamese", "train", "[`contrast`](../experiments/contrast.py)")
def test_a_run_measures_how_often_the_right_one_is_found(name, finished):
    folder, _ = finished
    test = records(folder)[-1]
    assert test["split"] == "test"
    sides = ("images", "others") if name == "twins" else ("texts", "images")
    assert ("matched" in test) == (name == "twins")  # a caption belongs to several images
    assert 0 <= test.get("matched", 0) <= 1
    for side in sides:
        shares = [test[f"{side}_r{count}"] for count in (1, 5, 10)]
        assert 0 <= shares[0] <= shares[1] <= shares[2] <= 1
    assert test["recall"] == sum(test[f"{side}_r1"] for side in sides) / 2
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert all((folder / each["picture"]).is_file() for each in samples)
    assert all("the right one has rank" in each["caption"] for each in samples)
    assert (folder / "export").is_dir() == (name == "captions")


@pytest.mark.parametrize("name", ["captions", pytest.param("twins", marks=pytest.mark.slow)], indirect=True)
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


@pytest.mark.parametrize("make", [CaptionedImages, ImagePairs])
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["captions", "lora"])
@pytest.mark.parametrize("name", ["captions"], indirect=True)
def test_training_goes_on_from_a_checkpoint(finished, tmp_path, kind):
    folder, _ = finished
    recipe = replace(short("captions", tmp_path, 2), init=str(folder / "export"))
    if kind == "lora":
        lora = experiments("contrast")["lora"]
        optimizer = replace(lora.optimizer, schedule=ScheduleConfig(name="constant"))
        recipe = replace(recipe, lora=lora.lora, optimizer=optimizer)
    train(recipe, tmp_path / "run")
    before, after = (load_file(each / "export/model.safetensors") for each in (folder, tmp_path / "run"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert any("q_proj" in name for name in moved)
    assert ("text_model.embeddings.token_embedding.weight" in moved) == (kind == "captions")
    assert hub.load(tmp_path / "run/export").tokenizer.vocab_size == hub.load(folder / "export").tokenizer.vocab_size


@pytest.mark.parametrize("name", ["captions"], indirect=True)
def test_a_linear_classifier_on_the_tower_of_pictures(finished, tmp_path):
    folder, _ = finished
    recipe = shortened(experiments("finetune_image")["probe"], init=str(folder / "export"))
    recipe = replace(recipe, data=LabelledImageData(shapes=DrawnShapes(train=40, held_out=12, size=9)))
    train(replace(recipe, examples=replace(recipe.examples, size=8)), tmp_path)
    tuned = hub.load(tmp_path / "export")
    assert tuned.config["architectures"] == ["CLIPForImageClassification"]
    before, after = (load_file(each / "export/model.safetensors") for each in (folder, tmp_path))
    shared = before.keys() & after.keys()
    assert any("q_proj" in name for name in shared)
    assert all(np.array_equal(before[name], after[name]) for name in shared)
    assert after["classifier.weight"].shape == (4, 8)


@pytest.fixture
def searched(finished):
    folder, _ = finished
    return hub.load(folder / "export"), folder


@pytest.fixture
def album(tmp_path):
    for number in range(5):
        write_image(tmp_path / "album" / ("in" if number % 2 else ".") / f"{number}.png", pixels(number, 8, 8))
    write_image(tmp_path / "album" / ".hidden" / "9.png", pixels(9, 8, 8))
    return tmp_path / "album"


@pytest.mark.parametrize("name", ["captions"], indirect=True)
class TestSearch:
    def test_the_nearest_pictures_come_first(self, searched, album):
        pretrained, _ = searched
        hits = search(pretrained, "a red cross", album, top=3)
        files = sorted(path for path in album.rglob("*.png") if ".hidden" not in path.parts)
        inputs = pretrained.tokenizer(["a red cross"])
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        both = pretrained(**given, **pretrained.processor(files))
        cosines = np.asarray(both.text_embeds @ both.image_embeds.T)[0]
        order = np.argsort(-cosines)[:3]
        assert [hit.file for hit in hits] == [files[i] for i in order]
        np.testing.assert_allclose([hit.score for hit in hits], cosines[order], rtol=1e-5)

    def test_a_picture_is_most_like_itself(self, searched, album):
        scores = {hit.file: hit.score for hit in search(searched[0], str(album / "2.png"), album)}
        assert scores[album / "2.png"] == pytest.approx(1, abs=1e-5)
        assert scores[album / "2.png"] == pytest.approx(max(scores.values()), abs=1e-6)

    def test_parameters_of_any_type_are_told_apart(self, searched, album, tmp_path):
        half = hub.load(searched[1] / "export", dtype="bfloat16")
        search(half, "a red cross", album, index=tmp_path / "half.npz")
        with pytest.raises(ValueError, match="has the vectors of another checkpoint"):
            search(searched[0], "a red cross", album, index=tmp_path / "half.npz")

    def test_vectors_are_kept_and_those_of_changed_pictures_made_anew(self, searched, album, monkeypatch):
        made = []
        inner = embedding.embed_images
        monkeypatch.setattr(embedding, "embed_images", lambda p, files: made.extend(files) or inner(p, files))
        first = search(searched[0], "a red cross", album)
        assert len(made) == 5
        assert search(searched[0], "a red cross", album) == first
        assert len(made) == 5
        write_image(album / "2.png", pixels(77, 8, 8), optimize=True)
        (album / "0.png").unlink()
        again = search(searched[0], "a red cross", album)
        assert [np.asarray(image).tolist() for image in made[5:]] == [pixels(77, 8, 8).tolist()]
        (album / INDEX).unlink()
        anew = search(searched[0], "a red cross", album)
        assert [hit.file for hit in anew] == [hit.file for hit in again]
        np.testing.assert_allclose([hit.score for hit in anew], [hit.score for hit in again], atol=1e-6)

    def test_what_cannot_be_searched_is_refused(self, searched, album, tmp_path):
        pretrained, _ = searched
        search(pretrained, "a red cross", album)
        other = replace(pretrained, model=jax.tree.map(lambda x: x + 1, pretrained.model))
        with pytest.raises(ValueError, match=r"embeddings\.npz has the vectors of another checkpoint; delete it"):
            search(other, "a red cross", album)
        (tmp_path / "index").write_bytes(b"nothing")
        for query, options, rule in (
            ("a cross", {"index": tmp_path / "index"}, "must be a file of vectors that a search wrote"),
            (" ", {}, "texts to match must be there and not empty"),
            ("a cross", {"top": 0}, "top must be at least 1, got 0"),
        ):
            with pytest.raises(ValueError, match=rule):
                search(pretrained, query, album, **options)
        with pytest.raises(FileNotFoundError, match="must be a folder of images, there is none"):
            search(pretrained, "a cross", tmp_path / "none")
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match="must have images, got none"):
            search(pretrained, "a cross", tmp_path / "empty")
        with pytest.raises(ValueError, match="to match images and texts takes a checkpoint that can, got a ViTFor"):
            search(hub.load(ROOT / "tests/hub/golden/vit"), "a cross", album)

    def test_texts_are_chosen_among_by_the_scale_of_the_model(self, searched, album, run):
        pretrained, folder = searched
        texts, file = ["a red cross", "a blue ellipse", "one green triangle on plain ground"], album / "2.png"
        inputs = pretrained.tokenizer(texts)
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        logits = pretrained(**given, **pretrained.processor([file])).logits_per_image[0]
        chances = dict(zip(texts, np.asarray(jax.nn.softmax(logits)).tolist(), strict=True))
        (told,) = choose(pretrained, [file], texts)
        assert [each.name for each in told] == sorted(texts, key=chances.get, reverse=True)
        np.testing.assert_allclose(
            [each.probability for each in told], sorted(chances.values(), reverse=True), rtol=1e-4
        )
        code, out, _ = run("classify", folder, file, "--among", *texts)
        assert code == 0
        assert [line.split("\t")[1] for line in out.splitlines()] == [each.name for each in told]
        code, out, _ = run("search", folder, "a red cross", album, "--top", "2")
        assert (code, len(out.splitlines())) == (0, 2)
        with pytest.raises(ValueError, match="to choose takes at least two texts, got 'a cat'"):
            choose(pretrained, [file], ["a cat"])


def test_ranks_of_what_is_not_finite_are_refused_and_ties_count_against():
    right = np.eye(4, dtype=bool)
    assert best_ranks(np.zeros((4, 4)), right).tolist() == [3] * 4
    with pytest.raises(ValueError, match="must be finite, got 16 of 16 scores that are not"):
        best_ranks(np.full((4, 4), np.nan), right)
