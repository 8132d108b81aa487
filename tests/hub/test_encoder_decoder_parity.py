"""Encoders and decoders of texts of two families, and decoders that are given states, against transformers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from tests.hub.decoder_case import make  # noqa: E402
from tests.hub.oracle import close, compare, forward, padded, random_ids, same_tensors  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("encoder_decoder", "parity", "BERT, DistilBERT, ELECTRA with BERT, GPT-2, RoBERTa; these alone"),
]  # fmt: skip

V, PAD, END = 41, 0, 2
BERT = {"num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 11, "max_position_embeddings": 24}
TOKENS = {"vocab_size": V, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": END, "initializer_range": 0.3}
ENCODERS = {
    "bert": transformers.BertConfig(**BERT, **{**TOKENS, "vocab_size": 53}, hidden_size=12),
    "distilbert": transformers.DistilBertConfig(
        **{**TOKENS, "vocab_size": 47}, dim=12, n_layers=1, n_heads=2, hidden_dim=9, max_position_embeddings=24
    ),
    "electra": transformers.ElectraConfig(**BERT, **TOKENS, hidden_size=18, embedding_size=6),
}
DECODERS = {
    "bert": (transformers.BertConfig, {**BERT, "hidden_size": 12}),
    "bert, narrower": (transformers.BertConfig, {**BERT, "hidden_size": 9, "hidden_act": "relu"}),
    "gpt2": (transformers.GPT2Config, {"n_positions": 24, "n_embd": 12, "n_layer": 1, "n_head": 2}),
    "gpt2, wider": (
        transformers.GPT2Config, {"n_positions": 24, "n_embd": 20, "n_layer": 2, "n_head": 5, "n_inner": 7}
    ),
    "roberta": (transformers.RobertaConfig, {**BERT, "hidden_size": 15}),
}  # fmt: skip
PAIRS = [
    ("bert", "bert"), ("bert", "gpt2"), ("bert", "bert, narrower"), ("distilbert", "gpt2, wider"),
    ("electra", "roberta"),
]  # fmt: skip
ALONE = {
    "bert": "BertLMHeadModel", "bert, narrower": "BertLMHeadModel", "gpt2": "GPT2LMHeadModel",
    "gpt2, wider": "GPT2LMHeadModel", "roberta": "RobertaForCausalLM",
}  # fmt: skip
WAYS = {"greedy": {}, "beams": {"num_beams": 3, "num_return_sequences": 2}, "longer": {"min_new_tokens": 5}}
LOOKS = {"add_cross_attention": True, "is_decoder": True}


def both(encoder, decoder):
    kind, sizes = DECODERS[decoder]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        ENCODERS[encoder], kind(**TOKENS, **sizes, **LOOKS), decoder_start_token_id=1, pad_token_id=PAD,
        eos_token_id=END,
    )  # fmt: skip
    return make("EncoderDecoderModel", config)


@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_both_sides_equal_transformers(tmp_path, encoder, decoder):
    ids, mask = random_ids(V, 3, 7), padded([7, 4, 2], 7, "right")
    target = np.random.default_rng(0).integers(3, V, (3, 5))
    compare(both(encoder, decoder), tmp_path, input_ids=ids, attention_mask=mask, decoder_input_ids=target)


@pytest.mark.rotates
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_answers_are_written_token_for_token(tmp_path, encoder, decoder, way):
    model, (ids, mask) = both(encoder, decoder), (random_ids(V, 3, 7), padded([7, 4, 2], 7, "right"))
    model.save_pretrained(tmp_path)
    given, options = {"input_ids": ids, "attention_mask": mask}, {"max_length": 10, "suppress_tokens": [0], **WAYS[way]}
    expected = model.generate(**{name: torch.as_tensor(x) for name, x in given.items()}, **options, do_sample=False)
    got = np.asarray(hub.load(tmp_path).generate(**given, **options))
    np.testing.assert_array_equal(got[:, : expected.shape[1]], expected.numpy())


def alone(decoder):
    kind, sizes = DECODERS[decoder]
    return make(ALONE[decoder], kind(**TOKENS, **sizes, **LOOKS))


def looked_at(model, rows=3):
    width = getattr(model.config, "n_embd", None) or model.config.hidden_size
    states = np.random.default_rng(3).normal(0, 1, (rows, 6, width)).astype(np.float32)
    return {"encoder_hidden_states": states, "encoder_attention_mask": padded([6, 3, 1][:rows], 6, "right")}


@pytest.mark.parametrize("decoder", ALONE)
def test_decoders_alone_equal_transformers(tmp_path, decoder):
    model = alone(decoder)
    ids, mask = random_ids(V, 3, 5), padded([5, 5, 3], 5, "right")
    ids = np.where(ids == PAD, 4, ids)
    given = {"input_ids": ids, "attention_mask": mask, **looked_at(model)}
    model.save_pretrained(tmp_path / "theirs")
    ours = hub.load(tmp_path / "theirs")
    expected = forward(model, given)
    got = ours(**given, output_hidden_states=True)
    for name in ("logits", "hidden_states"):
        close(name, expected[name], got[name], {"attention_mask": mask})
    hub.save(ours, tmp_path / "ours")
    same_tensors(tmp_path / "theirs", tmp_path / "ours", lambda name: name)
    again, loading = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not {*loading["missing_keys"], *loading["unexpected_keys"]}, loading
    np.testing.assert_array_equal(forward(again.eval(), given)["logits"], expected["logits"])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("decoder", ["bert", "bert, narrower", "gpt2, wider"])
def test_decoders_alone_write_the_same_tokens(tmp_path, decoder, way):
    model = alone(decoder)
    model.save_pretrained(tmp_path)
    ids, options = np.array([[1, 5, 9], [1, 7, 3], [1, 30, 4]]), {"max_new_tokens": 8, **WAYS[way]}
    given = {"input_ids": ids, **looked_at(model)}
    # transformers makes a cache without room for a memory here.
    expected = model.generate(
        **{name: torch.as_tensor(x) for name, x in given.items()}, **options, do_sample=False, use_cache=False
    )
    got = np.asarray(hub.load(tmp_path).generate(**given, **options))
    np.testing.assert_array_equal(got[:, : expected.shape[1]], expected.numpy())
