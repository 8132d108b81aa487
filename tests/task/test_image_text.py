"""Texts about images: how a prompt is written, answers of one or several images, the pipeline and the command."""

import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.hub.processor.interleave import expand_images, interleaved_inputs, prompt_about
from flax_transformer.task.captioning import caption
from flax_transformer.task.image_text import DESCRIBE, describe, respond
from flax_transformer.task.model_card import pipeline_tag
from flax_transformer.task.pipeline import pipeline
from tests.task.checkpoints import checkpoint
from tests.task.interleaved import IMAGE, interleaved, load

pytestmark = pytest.mark.proves("texts about images", "prompts, several images of any size, pipeline, `caption`")

DRAW = np.random.default_rng(0)
IMAGES = [PIL.Image.fromarray(DRAW.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in ((20, 26), (9, 31))]
SHORT = {"max_new_tokens": 6, "min_new_tokens": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return interleaved(tmp_path_factory.mktemp("images") / "model")


@pytest.fixture(scope="module")
def pretrained(folder):
    return hub.load(folder)


def test_a_mark_stands_for_as_many_tokens_as_an_image_has_outputs():
    grids = np.array([[1, 2, 4], [1, 4, 4], [1, 2, 2]])
    found = expand_images(["a <|image_pad|>b<|image_pad|>", "c", "<|image_pad|>"], grids)
    assert [text.count("<|image_pad|>") for text in found] == [6, 0, 1]
    assert found[0].replace("<|image_pad|>", "") == "a b"
    with pytest.raises(ValueError, match=r"a text must have <\|image_pad\|> once for each image, got 1 for 3 images"):
        expand_images(["<|image_pad|>"], grids)


def test_prompts_are_written_as_the_template_says(pretrained, tmp_path):
    marks = "<|vision_start|><|image_pad|><|vision_end|>"
    whole = f"<|im_start|>user {2 * marks}what<|im_end|><|im_start|>assistant "
    assert prompt_about(pretrained.tokenizer, "what", 2) == whole
    said = [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}]}]
    written = f"<|im_start|>user see{marks}<|im_end|><|im_start|>assistant "
    assert prompt_about(pretrained.tokenizer, said, 1) == written
    assert prompt_about(pretrained.tokenizer, f"a {marks} b", 1) == f"a {marks} b"
    plain = load(tmp_path / "plain", template=None).tokenizer
    assert prompt_about(plain, "what", 1) == f"{marks}what"
    with pytest.raises(ValueError, match="a conversation needs a chat template"):
        prompt_about(plain, said, 1)


def test_inputs_are_tokens_and_patches(pretrained):
    texts = [prompt_about(pretrained.tokenizer, "what", 2), prompt_about(pretrained.tokenizer, "a b", 0)]
    inputs = interleaved_inputs(pretrained.tokenizer, pretrained.processor, texts, IMAGES)
    grids = inputs["image_grid_thw"]
    assert (inputs["input_ids"] == IMAGE).sum(-1).tolist() == [int(grids.prod(-1).sum()) // 4, 0]
    assert len(inputs["pixel_values"]) == grids.prod(-1).sum()
    assert inputs["attention_mask"][1].tolist() == sorted(inputs["attention_mask"][1].tolist())  # padding is before
    assert pretrained(**inputs).logits.shape == (*inputs["input_ids"].shape, 40)


@pytest.mark.rotates
def test_answers_are_what_is_generated_after_the_prompt(pretrained):
    texts = [([IMAGES[0]], "what"), (IMAGES, "which one"), ([], "how")]
    found = respond(pretrained, texts, **SHORT)
    for (images, text), answer in zip(texts, found, strict=True):
        inputs = interleaved_inputs(
            pretrained.tokenizer, pretrained.processor, [prompt_about(pretrained.tokenizer, text, len(images))], images
        )
        ids = np.asarray(pretrained.generate(**inputs, **SHORT))[:, inputs["input_ids"].shape[1] :]
        assert answer == pretrained.tokenizer.decode(ids)[0].strip()
    assert describe(pretrained, IMAGES, "what", **SHORT)[0] == found[0]


@pytest.mark.rotates
def test_the_pipeline_answers_one_or_several(pretrained):
    pipe = pipeline("image-text-to-text", pretrained, **SHORT)
    one = pipe({"images": IMAGES[0], "text": "what"})
    assert one == [{"generated_text": respond(pretrained, [([IMAGES[0]], "what")], **SHORT)[0]}]
    messages = [{"role": "user", "content": [*[{"type": "image"}] * 2, {"type": "text", "text": "which"}]}]
    several = pipe([{"images": IMAGES, "text": messages}, {"text": "how"}])
    assert [set(each[0]) for each in several] == [{"generated_text"}] * 2
    assert several[0][0]["generated_text"] == respond(pretrained, [(IMAGES, "which")], **SHORT)[0]
    assert pipeline_tag(pretrained) == "image-text-to-text"
    with pytest.raises(ValueError, match="what is asked must be a mapping of text and perhaps images, got 'what'"):
        pipe("what")


@pytest.mark.rotates
def test_the_command_says_what_is_on_images(folder, pretrained, tmp_path, run):
    files = [tmp_path / f"{number}.png" for number in range(2)]
    for file, image in zip(files, IMAGES, strict=True):
        image.save(file)
    options = ("--max-new-tokens", 6, "--num-beams", 1)
    code, out, error = run("caption", folder, *files, *options, "--jsonl")
    assert code == 0, error
    said = [json.loads(line)["caption"] for line in out.splitlines()]
    expected = describe(pretrained, IMAGES, DESCRIBE, max_new_tokens=6, num_beams=1)
    assert said == [" ".join(text.split()) for text in expected]
    asked = run("caption", folder, files[0], *options, "--prompt", "what")[1].strip()
    expected = describe(pretrained, IMAGES[:1], "what", max_new_tokens=6, num_beams=1)
    assert asked == " ".join(expected[0].split())


@pytest.mark.rotates
def test_what_cannot_be_answered_is_refused(pretrained, tmp_path):
    with pytest.raises(ValueError, match="an image is asked about in words, got none"):
        respond(pretrained, [(IMAGES, " ")])
    with pytest.raises(ValueError, match="once for each image, got 1 for 2 images"):
        respond(pretrained, [(IMAGES, "a <|image_pad|>")])
    captioner = hub.load(checkpoint("vision-encoder-decoder", tmp_path / "captioner"))
    with pytest.raises(ValueError, match="a prompt is for checkpoints that read images among words"):
        caption(captioner, IMAGES, prompt="what")
    git = hub.load(Path(__file__).parent.parent / "hub/golden/git")
    with pytest.raises(ValueError, match="a GitForCausalLM reads images before a text, not among its words"):
        respond(git, [(IMAGES, "what")])
