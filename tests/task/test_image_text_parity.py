"""Prompts of images and text, and what is written in answer, against the processor and the model of transformers."""

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.hub.processor.interleave import interleaved_inputs, prompt_about
from flax_transformer.task.image_text import respond
from tests.task.interleaved import interleaved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("texts about images", "prompts and answers, against `transformers`"),
]
DRAW = np.random.default_rng(3)
IMAGES = [
    PIL.Image.fromarray(DRAW.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in ((20, 26), (9, 31), (40, 8))
]
ASKED = [(IMAGES[:2], "which one is red"), (IMAGES[2:], "what"), ([], "how many")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return interleaved(tmp_path_factory.mktemp("images") / "model")


@pytest.fixture(scope="module")
def processor(folder):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class Processor(transformers.Qwen2VLProcessor):
        """Without a processor of videos, which needs torchvision."""

        def check_argument_for_proper_class(self, name, argument):
            return None

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    images = Qwen2VLImageProcessorPil.from_pretrained(folder)
    return Processor(images, tokenizer, None, chat_template=tokenizer.chat_template)


def conversation(images, text):
    content = [*({"type": "image"} for _ in images), {"type": "text", "text": text}]
    return [{"role": "user", "content": content}]


def theirs(processor, asked):
    said = [processor.apply_chat_template(conversation(*each), add_generation_prompt=True) for each in asked]
    images = [list(each) for each, _ in asked]
    flat = [image for row in images for image in row]
    return processor(text=said, images=flat or None, padding=True, padding_side="left", return_tensors="pt")


def test_inputs_are_transformers(folder, processor):
    ours = hub.load(folder)
    texts = [prompt_about(ours.tokenizer, text, len(images)) for images, text in ASKED]
    found = interleaved_inputs(ours.tokenizer, ours.processor, texts, IMAGES)
    expected = theirs(processor, ASKED)
    for name in ("input_ids", "attention_mask", "pixel_values", "image_grid_thw"):
        np.testing.assert_array_equal(found[name], expected[name].numpy(), err_msg=name)


def test_answers_are_transformers(folder, processor):
    model = transformers.Qwen2VLForConditionalGeneration.from_pretrained(folder).eval()
    found = respond(hub.load(folder), ASKED, max_new_tokens=9)
    for asked, answer in zip(ASKED, found, strict=True):
        given = theirs(processor, [asked])
        ids = model.generate(**given, max_new_tokens=9, do_sample=False)[:, given["input_ids"].shape[1] :]
        assert answer == processor.tokenizer.batch_decode(ids, skip_special_tokens=True)[0].strip()
    assert len(set(found)) > 1
