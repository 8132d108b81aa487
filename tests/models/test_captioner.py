"""Captioners: the published size, what a decoder sees of an image, and one token at a time as all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.head import ClassifierConfig
from flax_transformer.models.multimodal.vision_encoder_decoder import captioner, trocr_base, vit_gpt2, words_of
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.vision.cct import cct
from flax_transformer.models.vision.swin import swin_tiny
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.train.state import parameter_count

WORDS = with_fields(gpt2_tiny(20), embed=8, heads=2, inner=12, depth=2, init_std=0.3)
SMALL = {"heads": 2, "inner": 12, "depth": 1}
ENCODERS = {
    "as wide": with_fields(vit_encoder("tiny", 4, image=8), embed=8, **SMALL),
    "wider": with_fields(vit_encoder("tiny", 4, image=8), embed=12, **SMALL),
    "convolutions": cct(embed=8, image=8, stem=(4,), **SMALL),
}


@pytest.fixture(params=ENCODERS)
def model(request):
    return Seq2Seq(captioner(ENCODERS[request.param], WORDS), rngs=nnx.Rngs(0))


@pytest.fixture
def inputs(model):
    return jax.tree.map(jnp.asarray, Seq2Seq.example_batch(model.cfg, 3, 5)["inputs"])


def test_the_preset_has_the_published_size():
    """Without the pooler, 590,592 parameters that nothing reads."""
    model = nnx.eval_shape(lambda: Seq2Seq(vit_gpt2(), rngs=nnx.Rngs(0)))
    assert parameter_count(model) == 239_195_904 - 590_592


def test_trocr_has_the_published_size():
    """Likewise; 334 M are published."""
    model = nnx.eval_shape(lambda: Seq2Seq(trocr_base(), rngs=nnx.Rngs(0)))
    assert parameter_count(model) == 333_921_792 - 590_592


def test_pictures_of_another_width_are_projected(model):
    wide = getattr(model.cfg.encoder, "backbone", model.cfg.encoder).block.embed != WORDS.block.embed
    assert isinstance(model.cfg.encoder, ClassifierConfig) == wide


def test_the_words_alone_are_the_language_model(model):
    assert words_of(model.cfg) == WORDS


@pytest.mark.rotates
def test_one_token_at_a_time_is_all_at_once(model, inputs):
    whole = model(**inputs)
    memory = model.encode(inputs["source"])
    cache, found = model.init_cache(memory, None, 5), []
    for token in inputs["target"].T:
        logits, cache = model.step(cache, token)
        found.append(logits)
    np.testing.assert_allclose(np.stack(found, 1), whole, atol=1e-5)


@pytest.mark.rotates
def test_every_word_sees_the_picture_and_no_later_word(model, inputs):
    source, target = inputs["source"], inputs["target"]
    moved = lambda other: np.abs(np.asarray(model(**{**inputs, **other}) - model(**inputs))).max((0, 2)) > 1e-6  # noqa: E731
    assert moved({"source": source + 0.5}).all()
    later = target.at[:, 3].add(1) % 20
    assert moved({"target": later}).tolist() == [False, False, False, True, True]


@pytest.mark.rotates
def test_any_encoder_of_pictures_will_do():
    encoder = with_fields(swin_tiny().backbone, image=(32, 32))
    config = captioner(encoder, WORDS)
    model = nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))
    assert model.encoder.head.output.kernel.shape == (768, 8)
