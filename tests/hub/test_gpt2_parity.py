"""GPT-2 against transformers: every class, odd sizes, padding on either side, and the round trip."""

import pytest

from tests.hub.oracle import compare, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

V = 61
CONFIGS = {
    "plain": {"n_embd": 24, "n_layer": 3, "n_head": 4},
    "odd": {"n_embd": 15, "n_layer": 1, "n_head": 3, "n_inner": 22, "activation_function": "relu"},
    "eps": {"n_embd": 16, "n_layer": 2, "n_head": 1, "layer_norm_epsilon": 0.1, "activation_function": "gelu"},
}


def make(kind, **options):
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=V, n_positions=20, initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options
    )
    return getattr(transformers, kind)(config)


@pytest.mark.parametrize("side", ["left", "right", None])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_language_model_equals_transformers(tmp_path, options, side):
    mask = {} if side is None else {"attention_mask": padded([9, 4, 1], 9, side)}
    compare(make("GPT2LMHeadModel", **options), tmp_path, input_ids=random_ids(V, 3, 9), **mask)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("GPT2Model", 2),
        ("GPT2ForSequenceClassification", 5),
        ("GPT2ForTokenClassification", 3),
        ("GPT2ForQuestionAnswering", 2),
    ],
)
def test_every_class_equals_transformers(tmp_path, kind, labels):
    ids, mask = random_ids(V, 3, 9), padded([9, 4, 1], 9)
    model = make(kind, **CONFIGS["plain"], num_labels=labels)
    compare(model, tmp_path, input_ids=ids * mask, attention_mask=mask)
