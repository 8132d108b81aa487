"""Attention is drawn for any checkpoint, whatever it is made of: its own weights, under the tokens it reads."""

import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text import train_word_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.registry import find_family
from flax_transformer.nn import with_fields
from flax_transformer.ops.attention.blockwise import BlockwiseAttention
from flax_transformer.task.attention import spell
from flax_transformer.task.text_attention import draw, draw_text

pytestmark = pytest.mark.proves("report", "attention images of any checkpoint")

GOLDEN = Path(__file__).parent.parent / "hub/golden"
KINDS = ("bert", "gpt2", "t5")
"""An encoder, a decoder, and both."""
FAMILIES = [
    pytest.param(folder.name, marks=() if folder.name in KINDS else pytest.mark.slow)
    for folder in sorted(GOLDEN.iterdir())
    if "model_type" in (config := json.loads((folder / "config.json").read_text()))  # not a folder of diffusers
    and "text" in find_family(config)[1].inputs.reads
]
TOKENIZER = HubTokenizer.of(train_word_bpe(["a small dog runs"] * 3, merges=3), single="<s> $A </s>")
TEXT = "a small dog"


def load(name):
    return replace(hub.load(GOLDEN / name), tokenizer=TOKENIZER)


@pytest.mark.rotates
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_drawn(name):
    pretrained = load(name)
    if pretrained.architecture.inputs.reads != ("text",):
        pytest.skip("it reads no text")
    picture = draw(pretrained, TEXT, written=[5, 6, 7])
    uses = pretrained.architecture.uses
    both = "text2text-generation" in uses
    assert [maps.name for maps in picture.maps] == (["encoder self", "decoder self", "cross"] if both else ["self"])
    for maps in picture.maps:
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
        unseen = np.triu(maps.weights, 1)
        causal = maps.name == "decoder self" or "text-generation" in uses or name == "clip"
        assert (unseen == 0).all() == causal
    assert picture.maps[0].rows == ("<s>", "a", "·s", "mal", "l", "·do", "g", "</s>")
    if both:
        assert [len(maps.rows) for maps in picture.maps[1:]] == [3, 3]
        assert picture.maps[2].columns == picture.maps[0].rows


@pytest.mark.rotates
def test_what_an_encoder_decoder_writes_is_drawn():
    pretrained = load("bart")
    tokens = np.asarray(pretrained.generate(**TOKENIZER([TEXT]), max_new_tokens=32))[0, 1:].tolist()
    assert draw(pretrained, TEXT).maps[2].rows == spell(TOKENIZER, tokens)


def blockwise(q, k, v, mask=None, bias=None, *, scale=None, dropout=None):
    return BlockwiseAttention()(q, k, v, mask, bias, dropout=dropout)


def test_what_cannot_be_drawn_is_said():
    pretrained = load("gpt2")
    for text, rule in (("  ", "the sentence must not be empty"), ("a " * 200, "1 to 128 tokens to be drawn, got 202")):
        with pytest.raises(ValueError, match=rule):
            draw(pretrained, text)
    with pytest.raises(ValueError, match="needs a tokenizer"):
        draw(replace(pretrained, tokenizer=None), TEXT)
    model = pretrained.model
    other = type(model)(with_fields(model.cfg, attend=blockwise), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"which marks its weights; this model has none"):
        draw(replace(pretrained, model=other), TEXT)


@pytest.mark.rotates
def test_a_folder_of_any_kind_is_drawn(tmp_path):
    hub.save(load("bert"), tmp_path)
    picture, sample = draw_text(tmp_path, TEXT)
    expected = hub.load(tmp_path)(**TOKENIZER([TEXT]), output_attentions=True).attentions
    np.testing.assert_allclose(picture.maps[0].weights, jnp.concatenate(expected), atol=1e-6)
    assert sample == {"source": TEXT}


@pytest.mark.rotates
def test_what_generates_nothing_has_an_empty_output_and_what_cannot_has_none(tmp_path, monkeypatch):
    hub.save(load("bart"), tmp_path)
    monkeypatch.setattr("flax_transformer.task.text_attention._answer", lambda *_: [TOKENIZER.eos])
    assert draw_text(tmp_path, TEXT)[1] == {"source": TEXT, "hypothesis": ""}
