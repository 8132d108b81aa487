"""Attention maps of a translation are the model's own weights, under readable tokens."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.data.text import train_byte_bpe, train_word_bpe
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, Precision, TrunkConfig, transformer_block, with_fields
from flax_transformer.ops import Mask, attention_weights, explain_attention
from flax_transformer.ops.attention import cudnn
from flax_transformer.ops.attention.blockwise import BlockwiseAttention
from flax_transformer.ops.platform import platform
from flax_transformer.task.attention import attention_maps, draw, draw_sentence, spell
from flax_transformer.task.translator import Search, Translator

pytestmark = pytest.mark.proves("report", "attention images")

TEXTS = ["ein kleiner Hund läuft über die Straße", "a small dog runs across the street"] * 3
TOKENIZER = train_byte_bpe(TEXTS, vocab_size=330)
BLOCK = transformer_block(embed=16, heads=2, inner=16)


def translator(vocab=384, tokenizer=TOKENIZER, **options):
    cfg = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=vocab, embed=16, precision=options.get("precision", Precision())),
        encoder=TrunkConfig(block=with_fields(BLOCK, **options), depth=3),
        decoder=TrunkConfig(block=with_fields(replace(BLOCK, cross=BLOCK.attention), **options), depth=2),
    )
    return Translator(jax.jit(lambda: Seq2Seq(cfg, rngs=nnx.Rngs(0)))(), tokenizer)


@pytest.fixture(scope="module")
def made():
    return translator()


def ids(text):
    return [*TOKENIZER.encode([text])[0], TOKENIZER.eos]


@pytest.mark.rotates
def test_maps_are_distributions_over_tokens_that_may_be_seen(made):
    source, target = ids("a small dog"), ids("ein kleiner Hund über")
    encoder, decoder, cross = attention_maps(made, source, target)
    S, T = len(source), len(target)
    assert S % 8
    assert T % 8  # padding is cut off again
    assert [m.weights.shape for m in (encoder, decoder, cross)] == [(3, 2, S, S), (2, 2, T, T), (2, 2, T, S)]
    for maps in (encoder, decoder, cross):
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
    assert (np.triu(decoder.weights, 1) == 0).all()
    assert (encoder.weights > 0).all()


@pytest.mark.rotates
def test_tokens_stand_where_they_are_read_and_written(made):
    source, target = ids("a small dog"), ids("ein Hund")
    encoder, decoder, cross = attention_maps(made, source, target)
    assert encoder.rows == encoder.columns == cross.columns == spell(TOKENIZER, source)
    assert decoder.rows == cross.rows == spell(TOKENIZER, target)
    assert decoder.columns == ("<s>", *spell(TOKENIZER, target)[:-1])


@pytest.mark.rotates
def test_the_first_layer_equals_the_weights_by_hand(made):
    source, target = ids("a small dog runs"), ids("ein Hund")
    encoder, decoder, _ = attention_maps(made, source, target)
    model = made.model
    for maps, stack, row, mask in (
        (encoder, model.encoder.blocks, source, None),
        (decoder, model.decoder.blocks, [TOKENIZER.bos, *target[:-1]], Mask(causal=True)),
    ):
        block = jax.tree.map(lambda leaf: leaf[0], stack)
        x = model.embedding(jnp.array([row]))
        expected = attention_weights(block.attention.query(x), block.attention.key(x), mask)
        np.testing.assert_allclose(maps.weights[0], expected[0], atol=1e-5)


@pytest.mark.rotates
def test_a_translation_is_drawn_as_it_was_found(made):
    picture, sample = draw_sentence(made, "a small dog", Search(beams=2, ratio=1.0, extra=4))
    best = made(["a small dog"], Search(beams=2, ratio=1.0, extra=4))[0][0]
    assert picture.maps[2].rows == sample["tokens"]
    assert len(sample["logprobs"]) == len(sample["tokens"]) == len(best.tokens)
    assert sample["hypothesis"] == best.text


@pytest.mark.rotates
def test_blocks_taken_apart_show_the_same(made):
    source, target = ids("a small dog"), ids("ein Hund")
    apart = Translator(made.model.for_decoding(), TOKENIZER)
    for a, b in zip(attention_maps(made, source, target), attention_maps(apart, source, target), strict=True):
        np.testing.assert_allclose(a.weights, b.weights, atol=1e-6)


@pytest.mark.rotates
def test_a_mesh_in_context_changes_nothing(made):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    source, target = ids("a dog"), ids("Hund")
    plain = attention_maps(made, source, target)
    with jax.set_mesh(mesh):
        inside = attention_maps(made, source, target)
    for a, b in zip(plain, inside, strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)


@pytest.mark.rotates
def test_an_accelerator_does_not_take_the_weights_away(monkeypatch):
    inside = lambda: jax.sharding.get_abstract_mesh().abstract_device is not None  # noqa: E731
    monkeypatch.setattr(cudnn, "platform", lambda: platform() if inside() else "gpu")
    half = translator(precision=Precision(compute="bfloat16"))
    q = jax.ShapeDtypeStruct((1, 8, 2, 8), jnp.bfloat16)
    assert re.search("cudnn +chosen", explain_attention(q, q, q))  # what training there would use
    for maps in attention_maps(half, ids("a dog"), ids("Hund")):
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)


def blockwise(q, k, v, mask=None, bias=None, *, scale=None, dropout=None):
    return BlockwiseAttention()(q, k, v, mask, bias, dropout=dropout)


@pytest.mark.rotates
def test_a_model_that_does_not_show_its_weights_is_refused():
    with pytest.raises(ValueError, match=r"which marks its weights; this model has none"):
        attention_maps(translator(attend=blockwise), ids("a dog"), ids("Hund"))


@pytest.mark.rotates
@pytest.mark.parametrize(("source", "target"), [([], [2]), ([2], []), ([2] * 129, [2]), ([2], [2] * 129)])
def test_what_cannot_be_drawn_is_refused(made, source, target):
    with pytest.raises(ValueError, match=r"a (source|translation) must have 1 to 128 tokens to be drawn, got (0|129)"):
        attention_maps(made, source, target)


@pytest.mark.rotates
@pytest.mark.parametrize("sentence", ["", "  "])
def test_an_empty_sentence_is_refused(made, sentence):
    with pytest.raises(ValueError, match=r"the sentence must not be empty, got '"):
        draw_sentence(made, sentence, Search())


def test_a_sentence_far_too_long_is_refused(made):
    with pytest.raises(ValueError, match="a sentence must have fewer than 128 tokens to be drawn, got "):
        draw_sentence(made, "dog " * 200, Search())


def test_a_token_of_another_vocabulary_is_refused(made):
    with pytest.raises(ValueError, match="the vocabulary must hold every token of a translation, got 'Katze'"):
        draw(made, "a dog", ("Katze",))


def test_tokens_are_spelt_for_people():
    words = train_word_bpe(["der hund und der Hund"] * 3, merges=9)
    row = words.encode(["der hund ü"])[0]
    spelt = spell(words, [*row, words.eos])
    assert "".join(spelt).replace("·", " ") == "der hund <unk></s>"
    assert spelt[0] == "der"
    row = TOKENIZER.encode(["über ☃"])[0]
    assert spell(TOKENIZER, row)[0] == "über"
    assert all("\ufffd" not in token and token for token in spell(TOKENIZER, row))


@pytest.mark.parity
def test_maps_equal_marian():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = Path(__file__).parent.parent / "models" / "test_seq2seq_parity.py"
    spec = importlib.util.spec_from_file_location("marian", path)
    marian = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(marian)
    reference = marian.theirs(0, "relu")
    reference.set_attn_implementation("eager")
    source, target = [5, 9, 30, 7, 41, 2], [8, 44, 6, 2]
    tokenizer = replace(TOKENIZER, pad=marian.PAD, bos=marian.PAD)
    with torch.no_grad():
        theirs = reference(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([[marian.PAD, *target[:-1]]]),
            output_attentions=True,
        )
    ours = attention_maps(Translator(marian.ours(reference), tokenizer), source, target)
    expected = (theirs.encoder_attentions, theirs.decoder_attentions, theirs.cross_attentions)
    for maps, layers in zip(ours, expected, strict=True):
        np.testing.assert_allclose(maps.weights, torch.cat(layers).numpy(), atol=2e-5)
