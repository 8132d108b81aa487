"""The report of any run draws the attention of some samples: of texts, and of images."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.data.image import ImageData
from flax_transformer.data.text import train_word_bpe
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.objective import LabelLoss
from flax_transformer.report.sample import save_image
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.report import draw_samples, remake_report
from flax_transformer.task.text_attention import draw
from flax_transformer.train.config import to_json

pytestmark = pytest.mark.proves("report", "attention of BERT, GPT and ViT runs")

GOLDEN = Path(__file__).parent.parent / "hub/golden"
TOKENIZER = HubTokenizer.of(train_word_bpe(["a small dog runs"] * 3, merges=3), single="<s> $A </s>")
TEXTS = ["a small dog", "dog", " ", "a dog runs " * 60, "a", "dog a"]
HALF = {"size": {"height": 12, "width": 12}, "image_mean": [0.5], "image_std": [0.5]}
PROCESSOR = ImageProcessor.of({"image_processor_type": "ViTImageProcessor", **HALF})


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_some_texts_that_fit_are_drawn_together_as_each_alone(name):
    pretrained = replace(hub.load(GOLDEN / name), tokenizer=TOKENIZER)
    texts, images, notes = draw_samples(pretrained, [{"source": text} for text in TEXTS] + [{}, {"source": 3}])
    assert ([picture.source for picture in texts], images, notes) == (["a small dog", "a"], None, [])
    for picture in texts:
        (maps,), (alone,) = picture.maps, draw(pretrained, picture.source).maps
        assert maps.rows == maps.columns == alone.rows
        np.testing.assert_allclose(maps.weights, alone.weights, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["t5", "resnet", "detr", "imagegpt"])
def test_nothing_is_drawn_of_other_models(name):
    samples = [{"source": "a dog", "picture": "data:image/png;base64,"}]
    assert draw_samples(hub.load(GOLDEN / name), samples) == (None, None, [])


def test_a_text_that_is_not_read_is_said_to_be_none():
    pretrained = replace(hub.load(GOLDEN / "bert"), tokenizer=TOKENIZER)
    assert draw_samples(pretrained, [{"source": " "}]) == (None, None, [])
    said = draw_samples(
        replace(hub.load(GOLDEN / "vit"), processor=PROCESSOR), [{"picture": "data:image/png;base64,eA=="}]
    )
    assert said[2][0].startswith("No attention is shown: ")


def test_a_picture_that_was_resized_and_cropped_is_not_so_again():
    """Of a sheet of several images the whole one is drawn."""
    options = {"size": {"shortest_edge": 16}, "do_center_crop": True, "crop_size": {"height": 12, "width": 12}}
    processor = ImageProcessor.of({"image_processor_type": "ViTImageProcessor", **HALF, **options})
    pretrained = replace(hub.load(GOLDEN / "vit"), processor=processor)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 12, 12), np.uint8)
    sheet, whole = (data_url(each) for each in (np.concatenate(pixels, axis=1), pixels[0]))
    for sample in ({"picture": whole}, {"picture": sheet, "whole": whole}):
        _, (drawn,), _ = draw_samples(pretrained, [sample])
        np.testing.assert_array_equal(drawn.pixels[..., 0], pixels[0])


def data_url(pixels):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_a_run_of_pictures_shows_what_it_looks_at(tmp_path):
    recipe = Recipe(
        family="vit", init="x", data=ImageData(root="."), examples=LabelledImages(), objective=LabelLoss(),
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(to_json(recipe)))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "test", "accuracy": 0.5}\n')
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20), np.uint8)
    sample = {"picture": save_image(tmp_path, "0", pixels), "source": "noise", "target": "a", "hypothesis": "b"}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    hub.save(replace(hub.load(GOLDEN / "vit"), processor=PROCESSOR), tmp_path / "export")
    page = remake_report(tmp_path).read_text()
    (seen,) = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["seen"]
    keys = seen["maps"][0]["keys"]
    assert (seen["source"], keys["rows"], keys["columns"]) == ("noise", 3, 3)
    shown = PIL.Image.open(io.BytesIO(base64.b64decode(seen["picture"].partition(",")[2])))
    expected = PIL.Image.fromarray(pixels).resize((12, 12), PIL.Image.Resampling.BILINEAR).convert("RGB")
    np.testing.assert_array_equal(np.asarray(shown), np.asarray(expected))
