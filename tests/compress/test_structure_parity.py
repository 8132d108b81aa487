"""Folders with fewer layers and heads: transformers opens them, and its own gradients say the importance of heads."""

import json

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.task.compression import fewer_heads_checkpoint, shallow_checkpoint, weigh_heads

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(
        "kernels with zeros", "layers and heads less: transformers' logits; torch's importance of heads"
    ),
]

TOKENS = np.random.default_rng(0).integers(4, 60, (3, 10))
SMALL = {"vocab_size": 60, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 24}
DECODER = {
    **SMALL,
    "hidden_size": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**DECODER)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DECODER, head_dim=8)),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=60, d_model=32, d_kv=8, d_ff=24, num_layers=4, num_heads=4, initializer_factor=1.5,
            decoder_start_token_id=0,
        )
    ),
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**SMALL, hidden_size=32, max_position_embeddings=32, initializer_range=0.3)
    ),
    "bart": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=60, d_model=32, encoder_layers=4, decoder_layers=4, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32, init_std=0.3,
        )
    ),
}  # fmt: skip


def made(name, folder):
    torch.manual_seed(0)
    theirs = MODELS[name]().eval()
    theirs.save_pretrained(folder)
    return theirs, hub.load(folder)


def given(name):
    return {"input_ids": TOKENS} | ({"decoder_input_ids": TOKENS[:, ::-1].copy()} if name in ("t5", "bart") else {})


def their_logits(folder, name):
    kind = type(MODELS[name]())
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        return model.eval()(**{key: torch.tensor(value) for key, value in given(name).items()}).logits.numpy()


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_those_of_a_shorter_list_of_theirs(name, tmp_path):
    theirs, ours = made(name, tmp_path / "whole")
    small = shallow_checkpoint(ours, [0, 2, 3])
    hub.save(small, tmp_path / "small")
    logits = np.asarray(small(**given(name)).logits)
    np.testing.assert_allclose(their_logits(tmp_path / "small", name), logits, atol=2e-4)
    stacks = [part for part in theirs.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == 4]
    for stack in stacks:
        del stack[1]
    with torch.no_grad():
        cut = theirs(**{key: torch.tensor(value) for key, value in given(name).items()}, use_cache=False).logits
    np.testing.assert_allclose(cut, logits, atol=2e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "t5"])
def test_they_open_what_has_fewer_heads(name, tmp_path):
    _, ours = made(name, tmp_path / "whole")
    small = fewer_heads_checkpoint(ours, 0.5, weigh_heads(ours, [given(name)]))
    hub.save(small, tmp_path / "small")
    logits = np.asarray(small(**given(name)).logits)
    assert np.abs(logits - np.asarray(ours(**given(name)).logits)).max() > 1e-2
    np.testing.assert_allclose(their_logits(tmp_path / "small", name), logits, atol=2e-4)


def test_what_their_config_has_no_words_for_they_do_not_open(tmp_path):
    _, ours = made("bert", tmp_path / "whole")
    hub.save(fewer_heads_checkpoint(ours, 0.5, weigh_heads(ours, [given("bert")])), tmp_path / "small")
    assert json.loads((tmp_path / "small" / "config.json").read_text())["head_dim"] == 8
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers.BertForMaskedLM.from_pretrained(tmp_path / "small")


def test_importance_is_the_gradient_of_gates_in_torch(tmp_path):
    theirs, ours = made("llama", tmp_path)
    gates = [torch.ones(4, requires_grad=True) for _ in theirs.model.layers]
    for gate, layer in zip(gates, theirs.model.layers, strict=True):
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, args, gate=gate: (args[0] * gate.repeat_interleave(8),)
        )
    sums = np.zeros((4, 4))
    for row in torch.tensor(TOKENS)[:, None]:
        scores = theirs(input_ids=row).logits[:, :-1].reshape(-1, 60)
        loss = torch.nn.functional.cross_entropy(scores, row[:, 1:].reshape(-1), reduction="sum")
        sums += np.abs(np.stack([each.numpy() for each in torch.autograd.grad(loss, gates)]))
    found = weigh_heads(ours, [{"input_ids": TOKENS}])["trunk.blocks.attention"]
    np.testing.assert_allclose(found, sums / np.linalg.norm(sums, axis=1, keepdims=True), rtol=2e-3)
