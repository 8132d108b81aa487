"""Decoders of random weights by their configs, here and in transformers: what the tests of their families share."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registry import find_architecture
from tests.hub.oracle import close, compare, forward, padded, random_ids

V = 61
SMALL = {
    "vocab_size": V, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36,
    "max_position_embeddings": 32, "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def make(name, config, seed=1):
    """Make a model of transformers; scales that begin at 1 and biases that begin at 0 move, so that mistakes show."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or parameter_name.endswith("bias"):
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.eval()


def language_model_is_the_same(model, folder, length=9):
    """Compare logits and every layer of rows with padding on either side, and the way back."""
    few = max(length - 5, 1)
    mask = np.concatenate([padded([few, 1], length, "left"), padded([few, length], length, "right")])
    compare(model, folder, input_ids=random_ids(model.config.vocab_size, 4, length), attention_mask=mask)


def class_is_the_same(model, folder):
    """Compare a model with another head, of rows with padding behind."""
    ids, mask = random_ids(model.config.vocab_size, 3, 9), padded([9, 4, 1], 9)
    compare(model, folder, input_ids=ids * mask, attention_mask=mask)


def generates_the_same(model, folder, **options):
    """Compare greedy tokens: here by a cache that was filled at once and goes on a token at a time."""
    import torch

    model.save_pretrained(folder)
    ids = random_ids(model.config.vocab_size, 2, 5)
    expected = model.generate(torch.as_tensor(ids), max_new_tokens=8, do_sample=False, **options).numpy()
    got = np.asarray(hub.load(folder).generate(ids, max_new_tokens=8))
    np.testing.assert_array_equal(got[:, : expected.shape[1]], expected)


def opens_in_transformers(name, config, folder):
    """Make a model here by transformers' config, of random weights, save it as one of our own, and open it there."""
    import transformers

    made = find_architecture(name)[1].config(Fields.of(config.to_dict()))
    model, random = nnx.eval_shape(lambda: made.build(nnx.Rngs(0))), np.random.default_rng(3)
    model = jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.3, leaf.shape), leaf.dtype), model)
    ours = hub.wrap(model, name, pad_token_id=0)
    hub.save(ours, folder)
    theirs, loading = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    ids = random_ids(config.vocab_size, 2, 9)
    close("logits", forward(theirs.eval(), {"input_ids": ids})["logits"], ours(input_ids=ids).logits, {})


def steps_equal_one_pass(config, length=8, prompt=3):
    """Compare the logits of a model of random weights at once with those by a cache, a token at a time."""
    model = config.build(nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(1), (2, length), 0, config.embedding.vocab)
    whole = jax.jit(lambda model, tokens: model(tokens))(model, tokens)
    found, cache = jax.jit(lambda model, tokens: model.prefill(tokens))(model, tokens[:, :prompt])
    found, cache, step = [found], cache.grow(length), jax.jit(lambda model, cache, token: model.step(cache, token))
    for t in range(prompt, length):
        logits, cache = step(model, cache, tokens[:, t])
        found.append(logits)
    np.testing.assert_allclose(jnp.stack(found, 1), whole[:, prompt - 1 :], atol=2e-5 * float(jnp.abs(whole).max()))
