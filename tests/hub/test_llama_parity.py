"""Llama, Mistral and Qwen against transformers: every class, odd sizes, scalings, windows, and the way back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.family.llama import FAMILIES
from flax_transformer.hub.fields import Fields
from flax_transformer.models.causal import Causal
from tests.hub.oracle import close, compare, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("llama", "parity", "every class and layer")]

V = 61
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
CASES = {
    "llama": ("Llama", {**SMALL, "num_key_value_heads": 2, "rms_norm_eps": 0.1}),
    "llama3": ("Llama", {**SMALL, "head_dim": 10, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "biases": ("Llama", {**SMALL, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "deep 1": (
        "Llama",
        {
            "hidden_size": 30, "num_hidden_layers": 1, "num_attention_heads": 5, "num_key_value_heads": 1,
            "intermediate_size": 17, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0},
        },
    ),
    "mistral": ("Mistral", {**SMALL, "num_key_value_heads": 2, "sliding_window": 3}),
    "mistral, no window": ("Mistral", {**SMALL, "num_key_value_heads": 1, "sliding_window": None, "head_dim": 14}),
    "qwen2": ("Qwen2", {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2, window": (
        "Qwen2",
        {**SMALL, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    ),
    "qwen2, windows above": (
        "Qwen2",
        {
            **SMALL, "num_hidden_layers": 3, "num_key_value_heads": 2, "use_sliding_window": True,
            "sliding_window": 3, "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3", {**SMALL, "num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True}),
    "qwen3, biases": (
        "Qwen3",
        {
            **SMALL, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "use_sliding_window": True,
            "sliding_window": 2, "max_window_layers": 0,
        },
    ),
}  # fmt: skip


def make(kind, family, **options):
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(
        **{"vocab_size": V, "max_position_embeddings": 32, "initializer_range": 0.3, "bos_token_id": 1,
           "eos_token_id": 2, "pad_token_id": 0, **options},
    )  # fmt: skip
    model = getattr(transformers, family + kind)(config)
    with torch.no_grad():  # transformers starts scales at 1 and biases at 0, where mistakes do not show
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


@pytest.mark.parametrize("case", CASES)
def test_language_model_equals_transformers(tmp_path, case):
    family, options = CASES[case]
    mask = np.concatenate([padded([4, 1], 9, "left"), padded([4, 9], 9, "right")])
    compare(make("ForCausalLM", family, **options), tmp_path, input_ids=random_ids(V, 4, 9), attention_mask=mask)


def test_positions_are_counted_alike_without_a_mask(tmp_path):
    family, options = CASES["llama3"]
    compare(make("ForCausalLM", family, **options), tmp_path, input_ids=random_ids(V, 2, 7))


def test_positions_of_their_own(tmp_path):
    family, options = CASES["deep 1"]
    positions = np.array([[0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 20, 21, 22, 30]])
    whole = np.ones((2, 7), np.int64)  # without a mask transformers takes a jump for the start of another text
    model = make("ForCausalLM", family, **options)
    compare(model, tmp_path, input_ids=random_ids(V, 2, 7), position_ids=positions, attention_mask=whole)


LONG = {"rope_type": "longrope", "rope_theta": 300.0, "original_max_position_embeddings": 12}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5, "rope_theta": 100.0},
    "yarn": {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 300.0, "original_max_position_embeddings": 12,
        "beta_fast": 3.0, "beta_slow": 0.5,
    },
    "yarn, said otherwise": {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 300.0, "original_max_position_embeddings": 12,
        "mscale": 0.7, "mscale_all_dim": 1.2, "truncate": False, "beta_fast": 4.0, "beta_slow": 1.0,
    },
    "longrope": {
        **LONG, "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0, 9.5], "factor": 4.0,
    },
    "longrope, its own factor": {
        **LONG, "short_factor": [1.0] * 5, "long_factor": [2.0] * 5, "attention_factor": 1.3, "factor": 2.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("length", [9, 20])
@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_scalings_equal_transformers(tmp_path, kind, length):
    """Within the original length, 12 tokens, and beyond."""
    family = "Qwen3" if kind == "yarn" else "Llama"
    scaled = {"rope_parameters": SCALINGS[kind], "head_dim": 10, "max_position_embeddings": 12}
    scaled["num_key_value_heads"] = 2
    compare(make("ForCausalLM", family, **{**SMALL, **scaled}), tmp_path, input_ids=random_ids(V, 2, length))


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotary_scalings_are_written_as_they_are_read(kind):
    read = FAMILIES["llama"].architectures["LlamaForCausalLM"].config
    fields = {**SMALL, "head_dim": 10, "max_position_embeddings": 12, "rope_parameters": SCALINGS[kind]}
    once = read(Fields.of(fields))
    assert read(Fields.of(json.loads(json.dumps(FAMILIES["llama"].write(once))))) == once


@pytest.mark.parametrize(
    ("kind", "changes", "match"),
    [
        ("longrope", {"short_factor": 2.0}, "short_factor as a list of numbers, it is 2.0"),
        ("longrope", {"short_factor": [1.0]}, "as many and above 0, got 1 and 5"),
        ("yarn", {"beta_slow": 5.0}, r"slow between 0 and fast, got .*slow=5\.0, fast=3\.0"),
        ("dynamic", {"factor": 0.0}, "must be above 0, got 0.0, 12"),
    ],
)
def test_scalings_that_make_no_sense_are_refused(kind, changes, match):
    read = FAMILIES["llama"].architectures["LlamaForCausalLM"].config
    parameters = {**SCALINGS[kind], **changes}
    with pytest.raises(ValueError, match=match):
        read(Fields.of({**SMALL, "max_position_embeddings": 12, "rope_parameters": parameters}))


def test_texts_that_grow_out_of_longrope_are_not_generated(tmp_path):
    """The divisors of all positions change there, also of those in the cache, which transformers computes again."""
    scaled = {"rope_parameters": SCALINGS["longrope"], "head_dim": 10, "max_position_embeddings": 12}
    model = make("ForCausalLM", "Llama", **{**SMALL, **scaled}).eval()
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    with pytest.raises(ValueError, match="12 tokens, the original length of longrope, must not be passed"):
        ours.generate(random_ids(V, 2, 9), max_new_tokens=5)
    for length in (5, 14):
        ids = random_ids(V, 2, length)
        expected = model.generate(torch.as_tensor(ids), max_new_tokens=7, do_sample=False).numpy()
        got = np.asarray(ours.generate(ids, max_new_tokens=7))
        np.testing.assert_array_equal(got[:, : expected.shape[1]], expected)


def test_a_dynamic_base_in_generation_equals_transformers(tmp_path):
    scaled = {"rope_parameters": SCALINGS["dynamic"], "head_dim": 10, "max_position_embeddings": 12}
    model = make("ForCausalLM", "Llama", **{**SMALL, **scaled}).eval()
    model.save_pretrained(tmp_path)
    ids = random_ids(V, 2, 9)
    expected = model.generate(torch.as_tensor(ids), max_new_tokens=9, do_sample=False).numpy()
    got = np.asarray(hub.load(tmp_path).generate(ids, max_new_tokens=9))
    np.testing.assert_array_equal(got[:, : expected.shape[1]], expected)


@pytest.mark.parametrize("case", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("kind", "labels"),
    [("Model", 2), ("ForSequenceClassification", 5), ("ForTokenClassification", 3), ("ForQuestionAnswering", 2)],
)
def test_every_class_equals_transformers(tmp_path, case, kind, labels):
    family, options = CASES[case]
    ids, mask = random_ids(V, 3, 9), padded([9, 4, 1], 9)
    model = make(kind, family, **options, num_labels=labels)
    compare(model, tmp_path, input_ids=ids * mask, attention_mask=mask)


OLD = {
    "llama": ("Llama", {"rope_theta": 700.0, "rope_scaling": None, "pretraining_tp": 2}),
    "linear": ("Llama", {"rope_theta": 700, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    "llama3": (
        "Llama",
        {
            "rope_theta": 700.0,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 6,
            },
        },
    ),
    "bare": ("Llama", {"num_key_value_heads": ..., "head_dim": ..., "rms_norm_eps": ..., "hidden_act": ...}),
    "mistral": ("Mistral", {"rope_theta": 700.0, "head_dim": ..., "sliding_window": 2}),
    "qwen2": ("Qwen2", {"rope_theta": 700.0, "sliding_window": 2, "use_sliding_window": False, "layer_types": ...}),
    "qwen2, upper layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 2, "layer_types": ...},
    ),
    "qwen2, windows": (
        "Qwen2", {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0, "layer_types": ...},
    ),
    "qwen3": ("Qwen3", {"rope_theta": 700.0, "rope_scaling": None, "head_dim": ..., "attention_bias": ...}),
}  # fmt: skip


@pytest.mark.parametrize("case", OLD)
def test_config_files_of_older_versions(tmp_path, case):
    """Fields that a file lacks, or spells as before transformers 5, mean what they mean there."""
    family, fields = OLD[case]
    kv_heads = {} if fields.get("num_key_value_heads") is ... else {"num_key_value_heads": 2}
    wide = {"head_dim": 128} if family == "Qwen3" else {}
    make("ForCausalLM", family, **SMALL, **kv_heads, **wide).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config = {name: value for name, value in (config | fields).items() if value is not ...}
    path.write_text(json.dumps(config))
    theirs = getattr(transformers, f"{family}ForCausalLM").from_pretrained(tmp_path).eval()
    ids = random_ids(V, 2, 9)
    close("logits", forward(theirs, {"input_ids": ids})["logits"], hub.load(tmp_path)(input_ids=ids).logits, {})


def test_old_checkpoints_hold_what_is_computed_and_tied_copies(tmp_path):
    family, options = CASES["llama3"]
    model = make("ForCausalLM", family, **options)
    model.save_pretrained(tmp_path)
    before = hub.load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(5, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    after = hub.load(tmp_path)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "case", ["llama3", "biases", "deep 1", "mistral", "qwen2, window", "qwen2, windows above", "qwen3, biases"]
)
def test_a_model_made_here_opens_in_transformers(tmp_path, case):
    family, options = CASES[case]
    kind = f"{family}ForCausalLM"
    fields = make("ForCausalLM", family, **options).config.to_dict()
    config = FAMILIES[family.lower()].architectures[kind].config(Fields.of(fields))
    model, random = nnx.eval_shape(lambda: Causal(config, rngs=nnx.Rngs(0))), np.random.default_rng(3)
    model = jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.3, leaf.shape), leaf.dtype), model)
    ours = hub.wrap(model, kind, pad_token_id=0)
    hub.save(ours, tmp_path)
    theirs, loading = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values()), loading
    ids = random_ids(V, 2, 9)
    close("logits", forward(theirs.eval(), {"input_ids": ids})["logits"], ours(input_ids=ids).logits, {})


def test_bfloat16_is_as_near_to_float32_as_transformers_is(tmp_path):
    """Flax's RMSNorm scales before it rounds to bfloat16 and theirs after, so neither can equal the other."""
    family, options = CASES["llama"]
    model = make("ForCausalLM", family, **{**options, "rms_norm_eps": 1e-5}).to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path)
    ids = random_ids(V, 16, 20)
    ours, exact = hub.load(tmp_path), hub.load(tmp_path, dtype="float32")(input_ids=ids).logits
    got = np.asarray(ours(input_ids=ids).logits, np.float32)
    with torch.no_grad():
        theirs = model(torch.as_tensor(ids)).logits.float().numpy()
    output = ours(input_ids=ids)
    assert (output.last_hidden_state.dtype, output.logits.dtype) == ("bfloat16", "float32")  # scores are not rounded
    spread = np.sqrt(np.mean(np.square(exact)))
    mine, their, apart = (
        np.sqrt(np.mean(np.square(a - b))) / spread for a, b in ((got, exact), (theirs, exact), (got, theirs))
    )
    assert mine < 1.1 * their
    assert apart < 8 * 2**-8, (mine, their, apart)


@pytest.mark.parametrize(
    ("family", "options", "match"),
    [
        ("Qwen3", {"layer_types": ["full_attention", "chunked"]}, "layer_types as 2 of full_attention and sliding_"),
        ("Qwen2", {"layer_types": ["full_attention"]}, r"layer_types as 2 of .*, it is \['full_attention'\]"),
        ("Qwen2", {"layer_types": ["sliding_attention"] * 2}, "sliding_window where layers are sliding_attention"),
        ("Mistral", {"layer_types": ["full_attention"] * 2}, "layer_types=.* of which only None is supported"),
    ],
)
def test_other_kinds_of_layers_are_refused(family, options, match):
    base = {"model_type": family.lower(), "architectures": [f"{family}ForCausalLM"], **SMALL, "num_key_value_heads": 2}
    read = FAMILIES[family.lower()].architectures[f"{family}ForCausalLM"].config
    with pytest.raises(ValueError, match=match):
        read(Fields.of({**base, **options}))
