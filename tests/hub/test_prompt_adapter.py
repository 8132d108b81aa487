"""Trained prompts and prefixes: as the tokens whose embeddings they are, differentiable, and every way to be wrong."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.models.causal import Causal
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import Rotary, with_fields
from tests.contract.golden import GOLDEN, load
from tests.models.test_causal import CONFIGS

pytestmark = pytest.mark.proves("checkpoints", "prompt and prefix tuning in PEFT's folders")

V = 31
TOKENS = np.array([7, 4, 12])
IDS = np.array([[3, 3, 5, 6], [9, 8, 4, 11]])
MASK = np.array([[0, 0, 1, 1], [1, 1, 1, 1]])


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def ours(request):
    llama = with_fields(CONFIGS["llama"], qk_norm=None, rotary=Rotary(base=50.0))
    name, config = {
        "gpt2": ("GPT2LMHeadModel", gpt2_tiny(vocab=V)), "llama": ("LlamaForCausalLM", llama),
    }[request.param]  # fmt: skip
    model = jax.jit(lambda: Causal(config, rngs=nnx.Rngs(0)))()
    return hub.wrap(jax.tree.map(lambda x: 3 * x, model), name, eos_token_id=2, pad_token_id=3)


def embeddings(ours, tokens):
    return ours.model.embedding.token.embedding[...][tokens]


@pytest.mark.rotates
def test_virtual_tokens_are_those_whose_embeddings_they_are(ours, tmp_path):
    hub.save_prompt_adapter(embeddings(ours, TOKENS), ours, tmp_path / "prompt", base="base")
    past = hub.read_prompt_adapter(ours, tmp_path / "prompt")
    padded = np.stack([[3, 3, *TOKENS, 5, 6], [*TOKENS, *IDS[1]]])
    for options in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        want = ours.generate(padded, np.arange(7) >= np.array([[2], [0]]), max_new_tokens=6, **options)
        found = ours.generate(IDS, MASK, past=past, max_new_tokens=6, **options)
        np.testing.assert_array_equal(found[:, 4:], want[:, 7:])
    config = json.loads((tmp_path / "prompt" / "adapter_config.json").read_text())
    assert (config["num_virtual_tokens"], config["token_dim"]) == (3, ours.model.cfg.embedding.embed)


@pytest.mark.rotates
def test_a_prefix_of_the_keys_and_values_of_tokens_is_what_they_are(ours, tmp_path):
    model = ours.model
    cache = model.read(jnp.asarray(TOKENS)[None])[1].layers
    both = jnp.stack([cache.key.transpose(0, 3, 1, 2), cache.value.transpose(0, 2, 1, 3)], axis=2)  # [L, P, 2, K, H]
    hub.save_prompt_adapter(both.swapaxes(0, 1), ours, tmp_path / "prefix")
    past = hub.read_prompt_adapter(ours, tmp_path / "prefix")
    want = ours.generate(np.concatenate([TOKENS[None], IDS[1:]], axis=1), max_new_tokens=6)
    np.testing.assert_array_equal(ours.generate(IDS[1:], past=past, max_new_tokens=6)[:, 4:], want[:, 7:])


@pytest.mark.rotates
def test_a_prompt_is_trained(ours):
    model, rows = ours.model, jnp.asarray(IDS[1:])

    def loss(prompt):
        states, _ = model.read_on(hub.prompt_cache(model, prompt), rows, jnp.zeros(rows.shape, bool))
        logits = model.output(states[:, :-1]).logits()
        return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()

    optimizer, prompt = optax.adam(0.05), embeddings(ours, TOKENS)
    state, step = optimizer.init(prompt), jax.jit(jax.value_and_grad(loss))
    losses = []
    for _ in range(30):
        value, gradient = step(prompt)
        change, state = optimizer.update(gradient, state)
        prompt = optax.apply_updates(prompt, change)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.rotates
def test_a_prefix_has_a_gradient(ours):
    model, rows = ours.model, jnp.asarray(IDS[1:])
    attention = model.cfg.block.attention
    shape = (2, model.cfg.depth, 2, attention.resolved_kv_heads, attention.width)

    def loss(prefix):
        states, _ = model.read_on(hub.prefix_cache(model, prefix), rows, jnp.zeros(rows.shape, bool))
        return jnp.sum(jnp.sin(states))

    gradient = jax.jit(jax.grad(loss))(jax.random.normal(jax.random.key(0), shape))
    assert bool(jnp.all(jnp.any(gradient != 0, axis=(0, 3, 4))))  # by the keys and values of every layer


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"peft_type": "LORA"}, "a trained prompt is one of PROMPT_TUNING, P_TUNING, PREFIX_TUNING for CAUSAL_LM"),
        ({"task_type": "SEQ_CLS"}, "for 'SEQ_CLS'"),
        ({"peft_type": "PREFIX_TUNING", "num_layers": 0}, "num_layers must be a positive number"),
        ({"peft_type": "PREFIX_TUNING", "num_layers": 3, "num_attention_heads": 7}, "2 × 3 layers × 7 heads"),
    ],
)
def test_what_is_no_prompt_of_the_model_says_so(ours, tmp_path, change, rule):
    folder = tmp_path / "prompt"
    hub.save_prompt_adapter(embeddings(ours, TOKENS), ours, folder)
    config = json.loads((folder / "adapter_config.json").read_text()) | change
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rule):
        hub.read_prompt_adapter(ours, folder)


def test_what_cannot_be_read_or_written_says_so(ours, tmp_path):
    prompt = embeddings(ours, TOKENS)
    with pytest.raises(ValueError, match=r"embeddings of the model's width, \[P, \d+\], got \(3, 5\)"):
        hub.save_prompt_adapter(prompt[:, :5], ours, tmp_path / "narrow")
    with pytest.raises(ValueError, match="a prefix has keys and values of every layer"):
        hub.prefix_cache(ours.model, jnp.zeros((2, 1, 2, 1, 1)))
    assert not (tmp_path / "narrow").exists()
    latents, _, _ = load(next(folder for folder in GOLDEN if folder.name == "deepseek_v3"))
    with pytest.raises(ValueError, match="the model keeps latents in their place"):
        hub.prefix_cache(latents.model, jnp.zeros((2, 1, 2, 1, 1)))
    hub.save_prompt_adapter(prompt, ours, tmp_path / "prompt")
    with pytest.raises(ValueError, match="new or empty folder"):
        hub.save_prompt_adapter(prompt, ours, tmp_path / "prompt")
    hub.save(ours, tmp_path / "whole")
    with pytest.raises(ValueError, match=r"hub\.read_prompt_adapter"):
        hub.load(tmp_path / "whole", adapters=[tmp_path / "prompt"])
    with pytest.raises(FileNotFoundError, match=r"an adapter has adapter_config\.json"):
        hub.read_prompt_adapter(ours, tmp_path)
    sizes = {"embed": 12, "heads": 2, "head_width": 4, "inner": 16, "depth": 1, "output_scale": 12**-0.5}
    t5 = Seq2Seq(with_fields(t5_small(V), **sizes), rngs=nnx.Rngs(0))
    t5 = hub.wrap(t5, "T5ForConditionalGeneration", decoder_start_token_id=3)
    with pytest.raises(ValueError, match="is read by decoder-only models of text, a T5ForConditionalGeneration is"):
        hub.read_prompt_adapter(t5, tmp_path / "prompt")


@pytest.mark.rotates
def test_virtual_tokens_take_positions(tmp_path):
    model = Causal(gpt2_tiny(vocab=V), rngs=nnx.Rngs(0))
    ours, most = hub.wrap(model, "GPT2LMHeadModel"), model.cfg.embedding.max_length
    hub.save_prompt_adapter(embeddings(ours, TOKENS), ours, tmp_path / "prompt")
    past = hub.read_prompt_adapter(ours, tmp_path / "prompt")
    assert ours.generate(IDS[1:], past=past, max_new_tokens=most - 6, eos_token_id=None).shape[1] == most - 2
    with pytest.raises(ValueError, match="must fit into the positions"):
        ours.generate(IDS[1:], past=past, max_new_tokens=most - 5, eos_token_id=None)
