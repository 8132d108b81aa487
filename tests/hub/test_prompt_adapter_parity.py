"""Trained prompts beside `peft`: logits and tokens of its folders here, and of ours there."""

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("checkpoints", "prompt and prefix tuning equal to peft"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

V = 37
GPT2 = {"vocab_size": V, "n_embd": 12, "n_layer": 3, "n_head": 2, "n_positions": 48, "initializer_range": 0.4}
LLAMA = {
    "vocab_size": V, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.4,
}  # fmt: skip
OPT = {
    "vocab_size": V, "hidden_size": 16, "ffn_dim": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 40, "word_embed_proj_dim": 16, "init_std": 0.4, "do_layer_norm_before": False,
}  # fmt: skip
MODELS = {
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, LLAMA),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, LLAMA | {"head_dim": 6}),
    "gemma2": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config,
        LLAMA | {"head_dim": 6, "sliding_window": 5, "query_pre_attn_scalar": 6},
    ),
    "opt": (transformers.OPTForCausalLM, transformers.OPTConfig, OPT),
}
KINDS = {
    "prompt": lambda c: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5, **c),
    "p-tuning": lambda c: peft.PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=7, **c
    ),
    "prefix": lambda c: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4, **c),
    "projected prefix": lambda c: peft.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4, prefix_projection=True, encoder_hidden_size=9, **c
    ),
}
IDS = np.random.default_rng(0).integers(4, V, (3, 6))


@pytest.fixture(params=[(name, kind) for name in MODELS for kind in KINDS], ids="-".join)
def both(request, tmp_path):
    name, kind = request.param
    make, config, fields = MODELS[name]
    torch.manual_seed(0)
    base = make(config(**fields, bos_token_id=0, eos_token_id=2, pad_token_id=3)).eval()
    base.save_pretrained(tmp_path / "base")
    prefix = "prefix" in kind
    heads = fields.get("num_key_value_heads", fields.get("n_head", fields.get("num_attention_heads")))
    width = fields.get(
        "head_dim",
        fields.get("n_embd", fields.get("hidden_size")) // fields.get("n_head", fields.get("num_attention_heads")),
    )
    own = {"num_attention_heads": heads, "token_dim": heads * width} if prefix else {}
    theirs = peft.get_peft_model(base, KINDS[kind](own)).eval()
    for parameter in theirs.prompt_encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    theirs.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(make.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    ours = hub.load(tmp_path / "base")
    return loaded, ours, hub.read_prompt_adapter(ours, tmp_path / "adapter"), tmp_path


def logits(ours, past, ids):
    decoder = ours.decoder
    states, _ = decoder.read_on(past.cache, jnp.asarray(ids), jnp.zeros(ids.shape, bool))
    return np.asarray(decoder.output(states).logits())


def test_logits_and_tokens_are_those_of_peft(both):
    theirs, ours, past, _ = both
    found, rows = logits(ours, past, IDS), torch.as_tensor(IDS)
    for step in range(7):  # `theirs.generate` keeps other positions than a forward pass has
        with torch.no_grad():
            want = theirs(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[:, -rows.shape[1] :]
        if not step:
            assert np.abs(found - want.numpy()).max() <= 1e-5 * np.abs(want.numpy()).max()
        rows = torch.cat([rows, want[:, -1:].argmax(-1)], 1)
    np.testing.assert_array_equal(ours.generate(IDS, past=past, max_new_tokens=7, eos_token_id=None), rows.numpy())


def test_peft_opens_what_is_written(both):
    theirs, ours, _, folder = both
    values = theirs.prompt_encoder["default"].embedding.weight.detach().numpy()
    config, attention = theirs.active_peft_config, ours.model.cfg.block.attention
    if config.peft_type == "PREFIX_TUNING":
        values = values.reshape(len(values), -1, 2, attention.resolved_kv_heads, attention.width)
    hub.save_prompt_adapter(values, ours, folder / "written", base=str(folder / "base"))
    base = type(theirs.get_base_model()).from_pretrained(folder / "base")
    again = peft.PeftModel.from_pretrained(base, folder / "written").eval()
    with torch.no_grad():
        want, found = (model(input_ids=torch.as_tensor(IDS)).logits for model in (theirs, again))
    assert torch.equal(want, found)
