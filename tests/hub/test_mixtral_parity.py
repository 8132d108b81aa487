"""Mixtral against transformers: every class, the losses of routers, and the way back."""

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import balance_loss, route
from tests.hub.oracle import compare, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("mixtral", "parity", "every class and layer, the balance loss")]

V = 61
SMALL = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20, "vocab_size": V, "max_position_embeddings": 32, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_local_experts": 4,
}  # fmt: skip
CASES = {
    "two of four": {},
    "three of five, windows": {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 4},
}


def make(kind, **options):
    torch.manual_seed(1)
    model = getattr(transformers, f"Mixtral{kind}")(transformers.MixtralConfig(**{**SMALL, **options}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


@pytest.mark.parametrize("case", CASES)
def test_language_model_equals_transformers(tmp_path, case):
    mask = np.concatenate([padded([4, 1], 9, "left"), padded([4, 9], 9, "right")])
    compare(make("ForCausalLM", **CASES[case]), tmp_path, input_ids=random_ids(V, 4, 9), attention_mask=mask)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("Model", 2), ("ForSequenceClassification", 5), ("ForTokenClassification", 3), ("ForQuestionAnswering", 2)],
)
def test_every_class_equals_transformers(tmp_path, kind, labels):
    ids, mask = random_ids(V, 3, 9), padded([9, 4, 1], 9)
    compare(make(kind, num_labels=labels), tmp_path, input_ids=ids * mask, attention_mask=mask)


@pytest.mark.rotates
def test_generation_equals_transformers(tmp_path):
    from flax_transformer import hub

    model = make("ForCausalLM").eval()
    model.save_pretrained(tmp_path)
    ids = random_ids(V, 2, 5)
    expected = model.generate(torch.as_tensor(ids), max_new_tokens=8, do_sample=False).numpy()
    got = np.asarray(hub.load(tmp_path).generate(ids, max_new_tokens=8))
    np.testing.assert_array_equal(got[:, : expected.shape[1]], expected)


def test_balance_loss_of_a_row_equals_transformers():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = np.random.default_rng(0).standard_normal((11, 5)).astype(np.float32)
    theirs = load_balancing_loss_func((torch.tensor(logits),), 5, 3)
    ours = balance_loss(jnp.asarray(logits), route(jnp.asarray(logits), 3)[0])
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
