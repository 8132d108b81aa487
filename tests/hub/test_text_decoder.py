"""Decoders that look at images, of every family there is one of: written, named as files name them, read again."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.text_decoder import WORDS, kind_of
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields

BERT = {
    "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 5,
    "max_position_embeddings": 9, "pad_token_id": 0,
}  # fmt: skip
TROCR = {
    "vocab_size": 11, "d_model": 8, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 5,
    "max_position_embeddings": 9,
}  # fmt: skip
DECODERS = {
    "gpt2": ("gpt2", {"vocab_size": 11, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 9}, "wte.weight"),
    "bert": ("bert", BERT, "bert.encoder.layer.1.crossattention.self.key.weight"),
    "roberta": ("roberta", BERT, "roberta.encoder.layer.0.crossattention.output.LayerNorm.bias"),
    "trocr": ("trocr", {**TROCR, "cross_attention_hidden_size": 12}, "model.decoder.layers.1.encoder_attn.k_proj.bias"),
    "trocr, sinusoids": (
        "trocr",
        {**TROCR, "use_learned_position_embeddings": False, "layernorm_embedding": False, "tie_word_embeddings": False},
        "output_projection.weight",
    ),
}
ENCODER = with_fields(vit_encoder("tiny", 4, image=8), embed=12, heads=2, inner=6, depth=1)


@pytest.mark.rotates
@pytest.mark.proves("vision_encoder_decoder", "weights", "decoders of GPT-2, BERT, RoBERTa, TrOCR")
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_written_and_read_again(tmp_path, name):
    kind, fields, tensor = DECODERS[name]
    config = WORDS[kind].read(ENCODER, Fields.of(fields))
    assert kind_of(config) == kind
    model = Seq2Seq(config, rngs=nnx.Rngs(0))
    hub.save(hub.wrap(model, "VisionEncoderDecoderModel"), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["decoder"]["model_type"] == kind
    assert any(name.endswith(tensor) for name in load_file(tmp_path / "model.safetensors"))
    inputs = Seq2Seq.example_batch(config, 2, 4)["inputs"]
    np.testing.assert_array_equal(hub.load(tmp_path).model(**inputs), model(**inputs))


ALONE = {"gpt2": "GPT2LMHeadModel", "bert": "BertLMHeadModel", "roberta": "RobertaForCausalLM"}


@pytest.mark.rotates
@pytest.mark.proves("encoder_decoder", "weights", "decoders that are given states")
@pytest.mark.parametrize("kind", ALONE)
def test_a_decoder_alone_is_given_the_states_it_looks_at(tmp_path, kind):
    config = WORDS[kind].read(None, Fields.of(DECODERS[kind][1]))
    made = hub.wrap(Seq2Seq(config, rngs=nnx.Rngs(0)), ALONE[kind], pad_token_id=0, eos_token_id=2)
    hub.save(made, tmp_path)
    ours = hub.load(tmp_path)
    assert ours.config["add_cross_attention"] is True
    ids, states = np.array([[1, 4, 5], [1, 6, 7]]), np.ones((2, 4, 8), np.float32)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1]])
    given = {"encoder_hidden_states": states, "encoder_attention_mask": mask}
    np.testing.assert_array_equal(ours(ids, **given).logits, made(ids, **given).logits)
    other = {**given, "encoder_hidden_states": np.where(mask[..., None] == 0, 9, states)}
    np.testing.assert_array_equal(ours(ids, **given).logits, ours(ids, **other).logits)
    tokens = ours.generate(ids, **given, max_new_tokens=3)
    np.testing.assert_array_equal(tokens, made.generate(ids, **other, max_new_tokens=3))
    with pytest.raises(ValueError, match="is given input_ids, encoder_hidden_states"):
        ours(ids)
    with pytest.raises(ValueError, match="D must be 8, got 5: encoder_hidden_states"):
        ours.generate(ids, encoder_hidden_states=states[..., :5])
    with pytest.raises(ValueError, match="a prompt for each row of states, got 2 and 1"):
        ours.generate(ids, encoder_hidden_states=states[:1])
    with pytest.raises(ValueError, match="encoder_attention_mask must have the shape of encoder_hidden_states"):
        ours.generate(ids, encoder_hidden_states=states, encoder_attention_mask=mask[:, :3])
    with pytest.raises(ValueError, match="looks at encoder_hidden_states, got none"):
        ours.generate(ids)


def test_other_classes_look_at_nothing(tmp_path):
    with pytest.raises(ValueError, match="supported of gpt2 are GPT2LMHeadModel"):
        hub.registry.find_family({"model_type": "gpt2", "architectures": ["GPT2Model"], "add_cross_attention": True})


def test_states_of_another_width_than_the_encoder_gives_are_refused():
    with pytest.raises(ValueError, match="cross_attention_hidden_size=7 and 12"):
        WORDS["trocr"].read(ENCODER, Fields.of({**TROCR, "cross_attention_hidden_size": 7}))


def test_a_decoder_of_no_family_is_refused(tmp_path):
    config = WORDS["bert"].read(ENCODER, Fields.of(BERT))
    config = replace(config, embedding=replace(config.embedding, position="sinusoidal"))
    model = Seq2Seq(config, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="the decoder must be one that a family of checkpoints has: gpt2, bert"):
        hub.save(hub.wrap(model, "VisionEncoderDecoderModel"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
