"""Generated tokens equal those of transformers, on every family: search, penalties, constraints, padding, lengths."""

import numpy as np
import pytest

from flax_transformer import hub
from tests.hub.oracle import padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves(
        ("gpt2", "llama", "t5", "bart", "marian", "led", "pegasus", "mbart", "m2m_100"),
        "decode",
        "greedy, beams, constraints, as `generate`",
    ),
]

V, PAD = 23, 3  # in beam search transformers pads with the end token where the padding token is 0
TOKENS = {"vocab_size": V, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
DECODER = {"decoder_start_token_id": PAD}
SIDES = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 20, "decoder_ffn_dim": 18,
}  # fmt: skip
FAMILIES = {
    "gpt2": ("GPT2", "LMHeadModel", {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 40}),
    "llama": ("Llama", "ForCausalLM", {
        "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 40,
    }),
    "t5": ("T5", "ForConditionalGeneration", {
        "d_model": 16, "d_kv": 5, "d_ff": 20, "num_layers": 2, "num_heads": 3, "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, **DECODER,
    }),
    "bart": ("Bart", "ForConditionalGeneration", {
        **SIDES, "max_position_embeddings": 40, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
    }),
    "marian": ("Marian", "MTModel", {**SIDES, "max_position_embeddings": 40, **DECODER}),
    "two vocabularies": ("Marian", "MTModel", {
        **SIDES, "max_position_embeddings": 40, **DECODER, "share_encoder_decoder_embeddings": False,
        "vocab_size": V + 4, "decoder_vocab_size": V,
    }),
    "led": ("LED", "ForConditionalGeneration", {
        **SIDES, "max_encoder_position_embeddings": 40, "max_decoder_position_embeddings": 40, "attention_window": 4,
        "decoder_start_token_id": 2,
    }),
    "pegasus": ("Pegasus", "ForConditionalGeneration", {**SIDES, "max_position_embeddings": 40, **DECODER}),
    "mbart": ("MBart", "ForConditionalGeneration", {
        **SIDES, "max_position_embeddings": 40, "decoder_start_token_id": 2, "scale_embedding": True,
    }),
    "m2m_100": ("M2M100", "ForConditionalGeneration", {**SIDES, "decoder_start_token_id": 2}),
}  # fmt: skip
CAUSAL = ("gpt2", "llama")
BEAM, ENDS = {"max_new_tokens": 12, "num_beams": 4}, [2, 5, 9]
RULES = {
    "max_new_tokens": 14, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 5,
    "suppress_tokens": [7, 8], "bad_words_ids": [[6], [4, 10]], "forced_eos_token_id": 2,
}  # fmt: skip
CASES = {
    "greedy": {"max_length": 15, "min_length": 11},
    "several ends": {"eos_token_id": ENDS},
    "beam": {"max_length": 17, "num_beams": 4, "num_return_sequences": 3},
    "long": {**BEAM, "length_penalty": 2.5, "eos_token_id": ENDS, "num_return_sequences": 4},
    "short": {**BEAM, "length_penalty": -1.0, "eos_token_id": ENDS},
    "early": {**BEAM, "early_stopping": True, "eos_token_id": ENDS},
    "never": {**BEAM, "early_stopping": "never", "length_penalty": 1.5, "eos_token_id": ENDS},
    "rules": RULES,
    "beam with rules": {**RULES, "num_beams": 3, "forced_bos_token_id": 11},
    "first tokens": {"max_new_tokens": 6, "begin_suppress_tokens": list(range(4, 15))},
    "renormalized": {**RULES, "num_beams": 3, "renormalize_logits": True, "begin_suppress_tokens": [9, 10, 11]},
    "more rules": {
        "max_new_tokens": 12,
        "encoder_repetition_penalty": 1.5,
        "encoder_no_repeat_ngram_size": 2,
        "sequence_bias": [[[6], 1.5], [[7, 8], -2.0]],
        "exponential_decay_length_penalty": (3, 1.2),
    },
    "filled up with the end token": {**BEAM, "eos_token_id": ENDS, "pad_token_id": 0, "num_return_sequences": 3},
}


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def both(request, tmp_path_factory):
    """Return a family's name, a random model of it in transformers, and the same one here."""
    prefix, kind, options = FAMILIES[request.param]
    torch.manual_seed(4)
    theirs = getattr(transformers, prefix + kind)(
        getattr(transformers, f"{prefix}Config")(**{**TOKENS, **options})
    ).eval()
    with torch.no_grad():  # far from the flat distribution that transformers starts from, where ties decide
        for name, parameter in theirs.named_parameters():
            fixed = "norm" in name or (prefix in ("Marian", "Pegasus") and "embed_positions" in name)
            parameter.add_(0.4 * torch.randn(parameter.shape) * (not fixed))
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return request.param, theirs, hub.load(folder)


def expected(model, ids, mask, **settings):
    mask = torch.ones_like(torch.tensor(ids)) if mask is None else torch.tensor(mask)
    with torch.no_grad():
        return model.generate(torch.tensor(ids), attention_mask=mask, do_sample=False, **settings).numpy()


def check(both, ids, mask, settings):
    _, theirs, ours = both
    np.testing.assert_array_equal(ours.generate(ids, mask, **settings), expected(theirs, ids, mask, **settings))


@pytest.mark.rotates
@pytest.mark.parametrize("case", CASES)
def test_tokens_equal_transformers(both, case):
    # With rules on its source: to transformers padding is tokens of it.
    lengths = [7, 7, 7, 7] if case == "more rules" else [7, 3, 1, 5]
    mask = padded(lengths, 7, "left" if both[0] in CAUSAL else "right")
    check(both, np.where(mask, random_ids(V, 4, 7, seed=len(case), low=4), PAD), mask, CASES[case])


@pytest.mark.rotates
def test_rules_on_a_source_do_not_see_its_padding(both):
    """A row gives what it gives alone."""
    name, _, ours = both
    lengths, side = [7, 3, 5], "left" if name in CAUSAL else "right"
    mask = padded(lengths, 7, side)
    ids = np.where(mask, random_ids(V, 3, 7, seed=1, low=4), PAD)
    together = np.asarray(ours.generate(ids, mask, **CASES["more rules"]))
    for row, length in enumerate(lengths):
        alone = np.asarray(ours.generate(ids[row : row + 1][:, mask[row] == 1], **CASES["more rules"]))[0]
        written, expected = (each[start:] for each, start in (
            (together[row], 7 * (side == "left")), (alone, length * (side == "left"))
        ))  # fmt: skip
        n = min(len(written), len(expected))
        np.testing.assert_array_equal(written[:n], expected[:n])


@pytest.mark.rotates
def test_tokens_equal_without_a_mask(both):
    check(both, random_ids(V, 3, 6, low=4), None, {**BEAM, "length_penalty": 0.0, "eos_token_id": ENDS})


@pytest.mark.rotates
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("eos", [2, PAD])
def test_tokens_equal_where_a_mask_is_inferred(both, num_beams, eos):
    _, theirs, ours = both
    mask = padded([7, 3, 1], 7, "left" if both[0] in CAUSAL else "right")
    ids = np.where(mask, random_ids(V, 3, 7, low=4), PAD)
    settings = {"max_new_tokens": 8, "num_beams": num_beams, "eos_token_id": eos}
    with torch.no_grad():
        want = theirs.generate(torch.tensor(ids), do_sample=False, **settings).numpy()
    np.testing.assert_array_equal(ours.generate(ids, **settings), want)


@pytest.mark.rotates
@pytest.mark.parametrize("length", [1, 32, 35])
def test_tokens_equal_at_lengths_beside_those_that_are_compiled(both, length):
    check(both, random_ids(V, 2, length, low=4, seed=length), None, {"max_new_tokens": 5, "num_beams": 2})


def test_attention_weights_equal_transformers(both):
    name, theirs, ours = both
    theirs.set_attn_implementation("eager")
    mask = padded([7, 3, 5], 7)
    inputs = {"input_ids": random_ids(V, 3, 7, low=4), "attention_mask": mask}
    if name not in CAUSAL:
        inputs["decoder_input_ids"] = random_ids(V, 3, 4, low=4, seed=1)
    with torch.no_grad():
        want = theirs(**{key: torch.tensor(value) for key, value in inputs.items()}, output_attentions=True)
    got = ours(**inputs, output_attentions=True)
    sides = [f"{kind}_attentions" for kind in ("encoder", "decoder", "cross")]
    for key in ["attentions"] if name in CAUSAL else sides[name == "led" :]:  # of windows: test_led_parity.py
        assert len(want[key]) == len(got[key]) == 2
        for a, b in zip(want[key], got[key], strict=True):
            b = np.asarray(b)
            rows = mask.astype(bool) if a.shape[2] == 7 else np.ones((3, 4), bool)  # queries that are no padding
            difference = np.abs(a.numpy() - b).transpose(0, 2, 1, 3)[rows]
            assert difference.max() <= 1e-5 * a.abs().max().item()
