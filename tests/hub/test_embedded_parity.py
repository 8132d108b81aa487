"""Embeddings in the place of tokens, in calls and in generation, are what they are in transformers."""

import numpy as np
import pytest

from flax_transformer import hub
from tests.hub.decoder_case import SMALL, V, make
from tests.hub.oracle import compare, padded

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("generation", "prompts and sources of embeddings, as `generate` with `inputs_embeds`"),
]

TOKENS = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIDES = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 18, "max_position_embeddings": 32,
    "scale_embedding": True, "decoder_start_token_id": 2, "init_std": 0.3,
}  # fmt: skip
FAMILIES = {
    "gpt2": ("GPT2", "LMHeadModel", {
        **TOKENS, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32, "initializer_range": 0.3,
    }),
    "llama": ("Llama", "ForCausalLM", {**SMALL, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3", "ForCausalLM", {**SMALL, "num_key_value_heads": 1, "head_dim": 10}),
    "gemma2": ("Gemma2", "ForCausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}),
    "opt": ("OPT", "ForCausalLM", {
        **TOKENS, "hidden_size": 24, "word_embed_proj_dim": 24, "ffn_dim": 36, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 32, "init_std": 0.3,
    }),
    "t5": ("T5", "ForConditionalGeneration", {
        "d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0, **TOKENS,
    }),
    "bart": ("Bart", "ForConditionalGeneration", {**SIDES, **TOKENS}),
    "marian": ("Marian", "MTModel", {**SIDES, **TOKENS}),
}  # fmt: skip
WAYS = {"greedy": {}, "beams": {"num_beams": 3, "num_return_sequences": 2}}


@pytest.fixture(scope="module", params=[name if name == "gpt2" else pytest.param(name, marks=pytest.mark.rotates)
                                        for name in FAMILIES])  # fmt: skip
def case(request, tmp_path_factory):
    start, end, sizes = FAMILIES[request.param]
    model = make(f"{start}{end}", getattr(transformers, f"{start}Config")(**sizes))
    embeddings = np.random.default_rng(2).normal(0, 1, (3, 7, 24)).astype(np.float32)
    sides = model.config.is_encoder_decoder
    return model, tmp_path_factory.mktemp(request.param), embeddings, padded([7, 5, 2], 7, "right" if sides else "left")


def test_calls(case):
    model, folder, embeddings, mask = case
    sides = {"decoder_input_ids": np.array([[2, 5, 6]] * 3)} if model.config.is_encoder_decoder else {}
    compare(model, folder, inputs_embeds=embeddings, attention_mask=mask, **sides)


@pytest.mark.parametrize("way", WAYS)
def test_generation(case, way):
    model, folder, embeddings, mask = case
    model.save_pretrained(folder / "theirs")
    options = {"max_new_tokens": 9, **WAYS[way]}
    given = {"inputs_embeds": torch.as_tensor(embeddings), "attention_mask": torch.as_tensor(mask)}
    expected = model.generate(**given, **options, do_sample=False).numpy()
    got = np.asarray(hub.load(folder / "theirs").generate(inputs_embeds=embeddings, attention_mask=mask, **options))
    np.testing.assert_array_equal(got[:, : expected.shape[1]], expected)


def test_rules_see_what_is_generated_alone(case):
    model, folder, embeddings, _ = case
    model.save_pretrained(folder / "theirs")
    options = {"max_length": 18, "min_length": 12, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2}
    expected = model.generate(inputs_embeds=torch.as_tensor(embeddings), **options, do_sample=False).numpy()
    got = np.asarray(hub.load(folder / "theirs").generate(inputs_embeds=embeddings, **options))
    np.testing.assert_array_equal(got[:, : expected.shape[1]], expected)


def test_embeddings_of_tokens_are_those_of_the_table(case):
    model, folder, _, _ = case
    model.save_pretrained(folder / "theirs")
    ours, ids = hub.load(folder / "theirs"), np.arange(3, 13).reshape(2, 5)
    found = ours.model.embedding.embed(np.asarray(ids))
    scale = getattr(model.get_encoder(), "embed_scale", 1.0) if "Marian" in type(model).__name__ else 1.0
    expected = model.get_input_embeddings()(torch.as_tensor(ids)).detach().numpy() * scale
    np.testing.assert_allclose(found, expected, atol=1e-6)
