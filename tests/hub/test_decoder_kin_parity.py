"""BERT, RoBERTa and BigBird as decoders, and Whisper's alone, against transformers: calls, texts, and the way back."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, compare, compare_made, forward, padded, random_ids  # noqa: E402
from tests.hub.pictures import strengthen  # noqa: E402

pytestmark = pytest.mark.parity

BERT = {"vocab_size": 41, "initializer_range": 0.3, "is_decoder": True, "max_position_embeddings": 37}
ODD = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 19}
ONE = {"hidden_size": 10, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 7}
DEEP = {"hidden_size": 14, "num_hidden_layers": 5, "num_attention_heads": 7, "intermediate_size": 31}
SPARSE = {"block_size": 2, "num_random_blocks": 1, "hidden_act": "gelu_new"}
CASES = {
    "BERT": ("BertLMHeadModel", "BertConfig", ODD),
    "BERT, one layer": ("BertLMHeadModel", "BertConfig", {**ONE, "hidden_act": "relu", "type_vocab_size": 3}),
    "BERT, deep": ("BertLMHeadModel", "BertConfig", {**DEEP, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new"}),
    "RoBERTa": ("RobertaForCausalLM", "RobertaConfig", {**ODD, "pad_token_id": 1, "type_vocab_size": 1}),
    "RoBERTa, deep": ("RobertaForCausalLM", "RobertaConfig", {**DEEP, "pad_token_id": 2, "hidden_act": "relu"}),
    "XLM-RoBERTa": ("XLMRobertaForCausalLM", "XLMRobertaConfig", {**ONE, "pad_token_id": 1}),
    "CamemBERT": ("CamembertForCausalLM", "CamembertConfig", {**ODD, "pad_token_id": 0}),
    "BigBird": ("BigBirdForCausalLM", "BigBirdConfig", {**ODD, **SPARSE, "attention_type": "original_full"}),
    "BigBird, in blocks": (
        "BigBirdForCausalLM", "BigBirdConfig", {**DEEP, **SPARSE, "block_size": 4, "use_bias": False},
    ),
    "BigBird, rescaled": (
        "BigBirdForCausalLM", "BigBirdConfig", {**ONE, **SPARSE, "block_size": 7, "rescale_embeddings": True},
    ),
}  # fmt: skip


def made(case):
    kind, config, options = CASES[case]
    torch.manual_seed(1)
    return strengthen(getattr(transformers, kind)(getattr(transformers, config)(**{**BERT, **options})))


def texts(model, side="right"):
    """Return rows of tokens with padding on a side."""
    mask = padded([11, 7, 3], 11, side)
    pad = model.config.pad_token_id
    return {"input_ids": np.where(mask, random_ids(41, 3, 11), pad), "attention_mask": mask}


@pytest.mark.proves(["bert", "roberta", "big_bird"], "parity", "decoders without cross-attention, and what they write")
@pytest.mark.parametrize("case", CASES)
def test_a_decoder_equals_transformers(tmp_path, case):
    model = made(case)
    compare(model, tmp_path, **texts(model))


@pytest.mark.rotates
@pytest.mark.parametrize("case", ["BERT", "BERT, deep", "BigBird", "BigBird, in blocks"])
def test_texts_are_those_of_transformers(tmp_path, case):
    model = made(case).eval()
    model.save_pretrained(tmp_path)
    given = texts(model, "left")
    ours = hub.load(tmp_path)
    for options in ({}, {"num_beams": 3, "length_penalty": 0.7}):
        options |= {"max_new_tokens": 8}
        tensors = {name: torch.tensor(value) for name, value in given.items()}
        expected = model.generate(**tensors, **options, do_sample=False)
        np.testing.assert_array_equal(ours.generate(**given, **options), expected.numpy())


@pytest.mark.parametrize("case", ["RoBERTa", "RoBERTa, deep"])
def test_texts_of_a_roberta_are_those_of_its_calls(tmp_path, case):
    """Which those of transformers are only where positions are given: it counts them from 0, not from the padding's."""
    model = made(case).eval()
    model.save_pretrained(tmp_path)
    given = texts(model, "left")
    positions = np.maximum(np.cumsum(given["attention_mask"], 1), 1) + model.config.pad_token_id
    tensors = {name: torch.tensor(value) for name, value in {**given, "position_ids": positions}.items()}
    expected = model.generate(**tensors, max_new_tokens=8, do_sample=False)
    np.testing.assert_array_equal(hub.load(tmp_path).generate(**given, max_new_tokens=8), expected.numpy())


@pytest.mark.parametrize("case", ["BERT", "RoBERTa", "CamemBERT"])
def test_a_decoder_made_here_opens_in_transformers(tmp_path, case):
    model = made(case)
    model.save_pretrained(tmp_path / "a")
    compare_made(hub.load(tmp_path / "a").model.cfg, CASES[case][0], tmp_path / "b", **texts(model))


WHISPER = {
    "vocab_size": 41, "init_std": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "max_source_positions": 9, "max_target_positions": 37, "num_mel_bins": 5,
    "begin_suppress_tokens": [7, 9],
}  # fmt: skip
SIDES = {
    "plain": {"d_model": 12, "decoder_layers": 3, "decoder_attention_heads": 3, "decoder_ffn_dim": 19,
              "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 7},
    "one layer": {"d_model": 10, "decoder_layers": 1, "decoder_attention_heads": 5, "decoder_ffn_dim": 8,
                  "encoder_layers": 2, "encoder_attention_heads": 1, "encoder_ffn_dim": 9},
    "deep": {"d_model": 14, "decoder_layers": 5, "decoder_attention_heads": 7, "decoder_ffn_dim": 31,
             "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 7, "activation_function": "relu"},
}  # fmt: skip


def whisper(kind, options):
    torch.manual_seed(1)
    return strengthen(getattr(transformers, kind)(transformers.WhisperConfig(**WHISPER, **options)))


@pytest.mark.proves("whisper", "parity", "the decoder alone, `WhisperForCausalLM`, and what it writes")
@pytest.mark.parametrize("options", SIDES.values(), ids=SIDES)
def test_the_decoder_of_a_whisper_equals_transformers(tmp_path, options):
    model = whisper("WhisperForCausalLM", options)
    compare(model, tmp_path, **texts(model))
    prompt = random_ids(41, 2, 5)
    options = {"max_new_tokens": 8, "do_sample": False, "use_cache": False}  # one of theirs is as deep as the encoder
    expected = model.generate(input_ids=torch.tensor(prompt), **options)
    ours = hub.load(tmp_path / "theirs")
    np.testing.assert_array_equal(ours.generate(input_ids=prompt, max_new_tokens=8), expected.numpy())


def test_a_whisper_is_read_as_its_decoder_alone(tmp_path):
    model = whisper("WhisperForConditionalGeneration", SIDES["plain"])
    model.save_pretrained(tmp_path / "whole")
    theirs = transformers.WhisperForCausalLM.from_pretrained(tmp_path / "whole").eval()
    ours = hub.load(tmp_path / "whole", lenient=hub.Lenient(architecture="WhisperForCausalLM"))
    given = texts(theirs)
    close("logits", forward(theirs, given)["logits"], ours(**given).logits, given)
    hub.save(hub.wrap(ours.model, "WhisperForCausalLM"), tmp_path / "made")
    again = transformers.WhisperForCausalLM.from_pretrained(tmp_path / "made").eval()
    assert not again.config.is_encoder_decoder
    close("logits", forward(again, given)["logits"], ours(**given).logits, given)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"is_decoder": False}, "is_decoder=false, with which a BertLMHeadModel sees what comes after"),
        ({"add_cross_attention": True}, "is not a whole BertLMHeadModel: .*crossattention"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False, of which only True is supported"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path, changes, rule):
    made("BERT").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"(?s){rule}"):
        hub.load(tmp_path, lenient=hub.Lenient(config=changes))


def test_a_masked_model_is_read_as_a_decoder(tmp_path):
    """Which begins to learn so (Rothe et al. 2020)."""
    options = CASES["BERT"][2]
    plain = {**BERT, **options, "is_decoder": False}
    model = strengthen(transformers.BertForPreTraining(transformers.BertConfig(**plain)))
    model.save_pretrained(tmp_path)
    lenient = hub.Lenient(architecture="BertLMHeadModel", config={"is_decoder": True})
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path, is_decoder=True).eval()
    given = texts(theirs)
    close("logits", forward(theirs, given)["logits"], hub.load(tmp_path, lenient=lenient)(**given).logits, given)
