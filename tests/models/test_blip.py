"""BLIP has the published sizes; texts are read with an image and without, written beside one, and guessed by one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.encoder import MaskedLM, MaskedLMConfig
from flax_transformer.models.multimodal.blip import blip_text, blip_towers, blip_vision, blip_writer
from flax_transformer.models.multimodal.grounded import GroundedConfig
from flax_transformer.models.multimodal.retrieval import Retrieval, RetrievalConfig
from flax_transformer.models.multimodal.towers import TwoTowers
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.nn import CrossAttentionConfig
from flax_transformer.objective import MaskedLoss, TokenLoss
from flax_transformer.ops import cross_entropy
from flax_transformer.train.state import parameter_count

PUBLISHED = {
    "blip_caption_base": 223_971_644, "blip_caption_large": 446_290_492, "blip_answer_base": 361_230_140,
    "blip_retrieval_base": 223_744_258, "blip_retrieval_large": 446_128_642,
}  # fmt: skip
VISION = blip_vision(image=8, patch=4, embed=8, heads=2, depth=1)
TEXT = blip_text(8, vocab=20, embed=12, heads=2, depth=2, length=16)
READER = GroundedConfig(vision=VISION, text=TEXT)
ASKED = GroundedConfig(vision=VISION, text=blip_text(8, vocab=20, embed=8, heads=2, depth=1, length=16))
"""What a decoder that attends to questions as to images needs: one width."""
T = 6


@pytest.fixture(scope="module")
def given():
    draw = np.random.default_rng(0)
    return jnp.asarray(draw.integers(3, 20, (2, T))), jnp.asarray(draw.standard_normal((2, 8, 8, 3), dtype=np.float32))


@pytest.mark.rotates
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    assert parameter_count(abstract(find_preset(name)())) == PUBLISHED[name]


def test_two_towers_have_the_published_size():
    towers = blip_towers(blip_vision(norm="none"), blip_text(768), 512)
    assert parameter_count(abstract(towers)) == 224_726_017


@pytest.mark.rotates
def test_a_text_is_read_alone_as_by_blocks_without_cross_attention(given):
    tokens, images = given
    reader = READER.build(nnx.Rngs(0))
    alone = reader.text(tokens)
    bare = replace(TEXT, block=replace(TEXT.block, cross=None)).build(nnx.Rngs(0))
    bare.embedding = reader.text.embedding
    for name in ("attention", "attention_residual", "feedforward", "feedforward_residual"):
        setattr(bare.trunk.blocks, name, getattr(reader.text.trunk.blocks, name))
    np.testing.assert_array_equal(alone, bare(tokens))
    assert np.abs(reader.hidden_states(tokens, images=images) - alone).max() > 1e-3
    needed = replace(TEXT, block=replace(TEXT.block, cross=replace(TEXT.block.cross, optional=False)))
    with pytest.raises(ValueError, match="a block with cross-attention needs a memory, got none"):
        needed.build(nnx.Rngs(0))(tokens)


@pytest.mark.rotates
@pytest.mark.proves("blip", "decode", "a token at a time as all at once")
@pytest.mark.parametrize("answers", [False, True])
def test_one_token_at_a_time_is_all_at_once(given, answers):
    tokens, images = given
    text = blip_text(8, vocab=20, embed=8, heads=2, depth=2, length=16) if answers else TEXT
    config = blip_writer(GroundedConfig(vision=VISION, text=text) if answers else VISION, text)
    model = jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, Seq2Seq(config, rngs=nnx.Rngs(0)))
    source = {"tokens": tokens, "images": images} if answers else images
    lengths = jnp.array([T, 4]) if answers else None
    whole = model(source, tokens, lengths)
    cache = model.init_cache(model.encode(source, lengths), lengths, T - 2, begun=tokens[:, :2])
    step = jax.jit(type(model).step)
    for t in range(2, T):
        logits, cache = step(model, cache, tokens[:, t])
        np.testing.assert_allclose(logits, whole[:, t], rtol=1e-4, atol=1e-5)
    if answers:  # what comes after a question says nothing
        other = {**source, "tokens": tokens.at[1, 4:].set(2)}
        np.testing.assert_array_equal(model(other, tokens, lengths), whole)


@pytest.mark.rotates
def test_any_of_them_says_how_it_is_fed(given):
    for config, kind in (
        (blip_writer(VISION, TEXT), Seq2Seq),
        (blip_writer(ASKED, ASKED.text), Seq2Seq),
        (RetrievalConfig(encoder=READER, width=6), Retrieval),
        (blip_towers(replace(VISION, norm="none"), TEXT, 6), TwoTowers),
        (MaskedLMConfig(encoder=READER), MaskedLM),
    ):
        batch = kind.example_batch(config, 3, 5)
        jax.eval_shape(lambda m, x: m.hidden_states(**x), abstract(config), batch["inputs"])
        assert kind.describe_batch(config, batch).sizes["rows"] == 3
    model = Seq2Seq(blip_writer(ASKED, ASKED.text), rngs=nnx.Rngs(0))
    batch = jax.tree.map(jnp.asarray, Seq2Seq.example_batch(model.cfg, 2, 5))
    gradient = jax.grad(lambda model: TokenLoss()(model, batch)[0])(model)
    assert np.abs(gradient.encoder.vision.patches.patch.kernel).max() > 0


@pytest.mark.rotates
@pytest.mark.proves("grounded", "train", "masked tokens, guessed by an image")
def test_masked_tokens_are_guessed_by_a_picture(given):
    """The loss is that of logits at the masked places, and what is learned is of that image."""
    tokens, images = given
    model = MaskedLM(MaskedLMConfig(encoder=READER), rngs=nnx.Rngs(0))
    batch = {
        "inputs": {"tokens": tokens, "images": images, "lengths": jnp.array([T, 4])},
        "positions": jnp.array([[1, 3]] * 2),
        "labels": jnp.array([[5, 6], [7, 8]]), "weights": jnp.array([[1.0, 1.0], [1.0, 0.0]]),
    }  # fmt: skip
    (total, metrics), gradient = jax.value_and_grad(MaskedLoss(), has_aux=True)(model, batch)
    logits = model.output(model.hidden_states(**batch["inputs"])).logits()
    expected, count = cross_entropy(logits[:, jnp.array([1, 3])], batch["labels"], batch["weights"])
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert metrics["count"] == count == 3
    assert np.abs(gradient.encoder.vision.patches.patch.kernel).max() > 0
    for _ in range(30):
        slope = jax.grad(lambda m: MaskedLoss()(m, batch)[0])(model)
        model = jax.tree.map(lambda x, g: x - 0.1 * g, model, slope)
    other = {**batch, "inputs": {**batch["inputs"], "images": images[::-1]}}
    assert MaskedLoss()(model, batch)[0] < total / 2
    assert MaskedLoss()(model, other)[0] != MaskedLoss()(model, batch)[0]


def test_configs_that_cannot_work_say_why():
    with pytest.raises(ValueError, match="texts must have cross-attention to images, whose width is 8, got one to a"):
        GroundedConfig(vision=VISION, text=blip_text(9, vocab=20, embed=12, heads=2, depth=1))
    with pytest.raises(ValueError, match="got none"):
        GroundedConfig(vision=VISION, text=replace(TEXT, block=replace(TEXT.block, cross=None)))
    must = replace(TEXT, block=replace(TEXT.block, cross=replace(TEXT.block.cross, optional=False)))
    with pytest.raises(ValueError, match="texts must be read without images too"):
        RetrievalConfig(encoder=GroundedConfig(vision=VISION, text=must))
    with pytest.raises(ValueError, match="memory must be at least 1, got 0"):
        CrossAttentionConfig(embed=8, heads=2, memory=0)
    with pytest.raises(ValueError, match="attend to as wide a memory as the encoder gives, got 8 and 12"):
        blip_writer(READER, TEXT)
    layer = CrossAttentionConfig(embed=8, heads=2, memory=6).build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="D must be 6, got 8: memory has shape"):
        layer(jnp.zeros((1, 2, 8)), jnp.zeros((1, 3, 8)))
