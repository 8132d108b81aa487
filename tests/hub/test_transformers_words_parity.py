"""Inputs by position are those of transformers' forward, and images of other sizes what it makes of them."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.registry import families

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

GOLDEN = Path(__file__).parent / "golden"
ARCHITECTURES = {name: each for family in families().values() for name, each in family.architectures.items()}


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if hasattr(transformers, name)])
def test_inputs_by_position_are_those_of_forward(name):
    signature = ARCHITECTURES[name].inputs
    order = list(signature.order or signature.names[:2])
    theirs = inspect.signature(getattr(transformers, name).forward).parameters
    assert order == [each for each in theirs if each in signature.names][: len(order)]


@pytest.mark.parametrize("name", ["vit", "deit", "beit", "swin", "clip", "siglip", "dinov2"])
def test_images_of_another_size_are_what_transformers_makes_of_them(name):
    ours = hub.load(GOLDEN / name)
    theirs = getattr(transformers, ours.config["architectures"][0]).from_pretrained(GOLDEN / name).eval()
    with np.load(GOLDEN / name / "expected.npz") as given:
        inputs = {key[3:]: given[key] for key in given if key.startswith("in_") and "masked" not in key}
    size = np.array(inputs["pixel_values"].shape[-2:])
    shape = (*inputs["pixel_values"].shape[:-2], *(2 * size))
    inputs["pixel_values"] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with torch.no_grad():
        known = inspect.signature(theirs.forward).parameters
        more = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in known else {}
        expected = theirs(**{key: torch.tensor(value) for key, value in inputs.items()}, **more)
    found = ours(**inputs, interpolate_pos_encoding=True)
    for key in {*found} & {*expected} - {"text_model_output", "vision_model_output"}:
        np.testing.assert_allclose(found[key], expected[key].numpy(), rtol=0, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", ["git", "blip", "vision-encoder-decoder"])
def test_images_of_another_size_are_written_about_as_transformers_does(name):
    ours = hub.load(GOLDEN / name)
    theirs = getattr(transformers, ours.config["architectures"][0]).from_pretrained(GOLDEN / name).eval()
    with np.load(GOLDEN / name / "expected.npz") as given:
        *rows, height, width = given["in_pixel_values"].shape
    pixels = np.random.default_rng(0).normal(size=(*rows, 2 * height, 3 * width)).astype(np.float32)
    options = {"max_new_tokens": 6, "do_sample": False, "interpolate_pos_encoding": True}
    with torch.no_grad():
        expected = theirs.generate(pixel_values=torch.tensor(pixels), **options)
    np.testing.assert_array_equal(np.asarray(ours.generate(pixel_values=pixels, **options)), expected.numpy())


class Kept:
    def __init__(self):
        self.given = []

    def put(self, tokens):
        self.given.append(np.asarray(tokens).tolist())

    def end(self):
        self.given.append("end")


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
    """Return a small GPT-2 with its tokenizer, ours and theirs."""
    from tests.hub.test_tokenizer_words_parity import gpt2

    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer = gpt2()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "initializer_range": 0.5}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **sizes)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return hub.load(folder), transformers.GPT2LMHeadModel.from_pretrained(folder).eval(), tokenizer


def test_what_ends_and_watches_a_text_is_what_transformers_has(writers):
    ours, theirs, tokenizer = writers
    ids = np.array(tokenizer(["one hundred"])["input_ids"])

    def both(**words):
        expected = theirs.generate(torch.tensor(ids), pad_token_id=0, tokenizer=tokenizer, **words).numpy()
        np.testing.assert_array_equal(ours.generate(ids, **words), expected)
        return expected

    text = "".join(tokenizer.decode([id]) for id in both(max_new_tokens=30)[0])
    whole = [text[i : i + n] for n in (1, 2, 4) for i in range(9, len(text) - 4, 5) if text[i : i + n].isascii()]
    for stop in [*whole[:12], ["none", whole[3]], "hundred", "no such text"]:
        both(max_new_tokens=30, stop_strings=stop)
    both(generation_config=transformers.GenerationConfig(max_new_tokens=7, repetition_penalty=1.5))
    mine, other = Kept(), Kept()
    ours.generate(ids, max_new_tokens=6, streamer=mine)
    theirs.generate(torch.tensor(ids), max_new_tokens=6, streamer=other, pad_token_id=0)
    assert mine.given == other.given
