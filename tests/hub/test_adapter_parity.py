"""Adapters of PEFT, merged: a checkpoint with them computes what `peft` computes, without merging there."""

import json

import numpy as np
import pytest

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64}
BASES = {
    "bert": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, num_labels=3)),
    "bert, without a head": lambda: transformers.BertModel(transformers.BertConfig(**SMALL)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=False)
    ),
}
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
CASES = {
    "LoRA of some modules": ("bert", peft.LoraConfig, {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}),
    "LoRA with a new head": (
        "bert, without a head", peft.LoraConfig, {"target_modules": ["query", "dense"], "task_type": "SEQ_CLS"},
    ),
    "LoRA of all linear modules": ("llama", peft.LoraConfig, {"target_modules": "all-linear", "r": 3}),
    "ranks and alphas of their own": (
        "llama", peft.LoraConfig,
        {"target_modules": LLAMA, "r": 4, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 5}},
    ),
    "rank-stabilised": ("llama", peft.LoraConfig, {"target_modules": LLAMA, "use_rslora": True, "r": 6}),
    "DoRA": ("llama", peft.LoraConfig, {"target_modules": LLAMA, "use_dora": True}),
    "Conv1D": ("gpt2", peft.LoraConfig, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "DoRA of Conv1D": (
        "gpt2", peft.LoraConfig, {"target_modules": ["attn.c_proj"], "fan_in_fan_out": True, "use_dora": True},
    ),
    "tables": ("llama", peft.LoraConfig, {"target_modules": ["embed_tokens", "up_proj"]}),
    "biases": ("bert", peft.LoraConfig, {"target_modules": ["query"], "bias": "all"}),
    "IA3": (
        "llama", peft.IA3Config,
        {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    ),
    "IA3 with biases": (
        "bert", peft.IA3Config, {"target_modules": ["key", "output.dense"], "feedforward_modules": ["output.dense"]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def adapted(request, tmp_path_factory):
    base, kind, options = CASES[request.param]
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("adapter")
    model = BASES[base]().eval()
    model.save_pretrained(folder / "base")
    if base == "bert, without a head":
        again = transformers.BertForSequenceClassification.from_pretrained(folder / "base", num_labels=4)
    else:
        again = type(model).from_pretrained(folder / "base")
    wrapped = peft.get_peft_model(again, kind(**options)).eval()
    with torch.no_grad():
        for name, value in wrapped.named_parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value) * (0.5 if "classifier" in name or "ia3" in name else 0.05))
    wrapped.save_pretrained(folder / "adapter")
    return folder, wrapped


def logits_of(model):
    tokens = np.random.default_rng(0).integers(0, 99, (2, 7))
    with torch.no_grad():
        theirs = model(input_ids=torch.as_tensor(tokens)).logits.numpy()
    return tokens, theirs


@pytest.mark.proves("checkpoints", "LoRA, rsLoRA, DoRA and IA3 of PEFT's folders equal to peft")
def test_logits_are_peft_s(adapted):
    folder, wrapped = adapted
    tokens, theirs = logits_of(wrapped)
    ours = hub.load(folder / "base", adapters=[folder / "adapter"])
    np.testing.assert_allclose(ours(input_ids=tokens).logits, theirs, rtol=1e-5, atol=1e-5)
    plain = hub.load(folder / "base")(input_ids=tokens)
    assert plain.logits is None or plain.logits.shape != theirs.shape or np.abs(plain.logits - theirs).max() > 1e-4


def test_an_adapter_s_folder_names_its_checkpoint(adapted):
    folder, wrapped = adapted
    tokens, theirs = logits_of(wrapped)
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(folder / "base")
    np.testing.assert_allclose(hub.load(folder / "adapter")(input_ids=tokens).logits, theirs, rtol=1e-5, atol=1e-5)


def test_a_table_that_is_the_output_layer_too_is_refused(tmp_path):
    BASES["gpt2"]().save_pretrained(tmp_path / "base")
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["wte"])).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="is the output layer too"):
        hub.load(tmp_path / "adapter")
