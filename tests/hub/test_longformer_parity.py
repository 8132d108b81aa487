"""Longformer against transformers: every class, windows that differ by layer, global tokens anywhere, padding."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.family.longformer import FAMILIES, read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import close, compare, compare_made, forward, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("longformer", "parity", "every class, every layer, global tokens anywhere"),
]

V, T = 61, 27
# transformers takes no window below 4, and none that does not divide the widest.
CONFIGS = {
    "turns": {
        "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 40,
        "attention_window": [12, 4, 12, 4],
    },
    "odd": {
        "hidden_size": 15, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 22,
        "hidden_act": "relu", "pad_token_id": 0, "attention_window": [4, 20, 10],
    },
    "wider than the text": {
        "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9,
        "layer_norm_eps": 0.1, "pad_token_id": 5, "attention_window": 64, "type_vocab_size": 2,
        "max_position_embeddings": 80,
    },
}  # fmt: skip


def make(kind, **options):
    torch.manual_seed(1)
    defaults = {"vocab_size": V, "max_position_embeddings": 60, "initializer_range": 0.3, "type_vocab_size": 1}
    config = transformers.LongformerConfig(**{**defaults, **options})
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(pad=1, *, lengths=(T, 13, 4), places=((0, 7, 26), (3, 12), ()), side="right"):
    mask = padded(lengths, T, side)
    ids = np.where(mask, random_ids(V, len(lengths), T, low=6), pad)
    chosen = np.zeros_like(mask)
    for row, at in enumerate(places):
        chosen[row, list(at)] = 1
    return {"input_ids": ids, "attention_mask": mask, "global_attention_mask": chosen}


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_masked_lm_equals_transformers(tmp_path, options):
    inputs = batch(options.get("pad_token_id", 1))
    ours, _ = compare(make("LongformerForMaskedLM", **options), tmp_path, **inputs)
    del inputs["global_attention_mask"]
    theirs = transformers.LongformerForMaskedLM.from_pretrained(tmp_path / "theirs").eval()
    close("logits", forward(theirs, inputs)["logits"], ours(**inputs).logits, inputs)


def test_the_model_alone_equals_transformers(tmp_path):
    """With many global tokens, padding on the left, and a global token that is padding, which is none."""
    inputs = batch(0, places=((range(1, 22)), (2, 25), (26,)), side="left")
    compare(make("LongformerModel", **CONFIGS["odd"]), tmp_path, **inputs)


def test_sequences_are_classified_by_a_first_token_that_is_global(tmp_path):
    model, inputs = make("LongformerForSequenceClassification", **CONFIGS["turns"], num_labels=5), batch()
    compare(model, tmp_path / "given", **inputs)
    del inputs["global_attention_mask"]
    compare(model, tmp_path, **inputs)


def test_words_are_labelled_as_transformers_does(tmp_path):
    compare(make("LongformerForTokenClassification", **CONFIGS["odd"], num_labels=3), tmp_path, **batch(0))


def marked(rows=3):
    """Draw questions and texts with three end marks each."""
    inputs = batch(lengths=(T, 19, 15)[:rows], places=())
    for row, marks in enumerate(((4, 5, 26), (9, 10, 18), (1, 2, 14))[:rows]):
        inputs["input_ids"][row, list(marks)] = 2
    del inputs["global_attention_mask"]
    return inputs


def test_questions_are_global(tmp_path):
    model, inputs = make("LongformerForQuestionAnswering", **CONFIGS["turns"]), marked()
    ours, found = compare(model, tmp_path, **inputs)
    plain = ours(**inputs, global_attention_mask=np.zeros_like(inputs["input_ids"]))
    assert np.abs(np.asarray(found.start_logits - plain.start_logits)[:, 0]).min() > 1e-3
    inputs["input_ids"][1, 3] = 2
    with pytest.raises(ValueError, match=r"three end marks, sep_token_id=2, in every row; got \[3, 4\]"):
        ours(**inputs)


def test_choices_are_global(tmp_path):
    inputs = {name: value[None] for name, value in marked().items()}
    compare(make("LongformerForMultipleChoice", **CONFIGS["turns"]), tmp_path, **inputs)


@pytest.mark.parametrize("kind", ["LongformerForMaskedLM", "LongformerForSequenceClassification"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of(make("LongformerModel", **CONFIGS["odd"]).config.to_dict())
    config, inputs = FAMILIES["longformer"].architectures[kind].config(fields), batch(0)
    compare_made(config, kind, tmp_path, **inputs)


def test_missing_fields_are_those_of_transformers():
    theirs = transformers.LongformerConfig()
    config = read(Fields.of({"model_type": "longformer"}))
    assert config == read(Fields.of(theirs.to_dict()))
    assert (config.embedding.vocab, config.windows) == (theirs.vocab_size, (512,))


def test_windows_that_are_refused_are_named():
    for window, rule in (
        (3, r"even numbers of at least 2, half on either side, got \(3,\)"),
        (0, "even numbers"),
        ([4, 4], "one number, or one for each of 12 layers, got 2"),
        (-2, "attention_window as a number of at least 0"),
    ):
        with pytest.raises(ValueError, match=rule):
            read(Fields.of({"attention_window": window}))


def test_a_mask_of_other_tokens_is_refused(tmp_path):
    make("LongformerModel", **CONFIGS["turns"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"global_attention_mask must broadcast to \(3, 27\), got \(3, 5\)"):
        hub.load(tmp_path)(**{**batch(), "global_attention_mask": np.ones((3, 5), int)})


def test_weights_of_windows_are_those_of_transformers(tmp_path):
    """Which gives a window's keys [B, N, T, w + 1], where ours are all keys [B, N, T, T]."""
    model, inputs = make("LongformerModel", **CONFIGS["turns"], attn_implementation="eager"), batch(places=())
    del inputs["global_attention_mask"]
    ours, _ = compare(model, tmp_path, **inputs)
    theirs = forward(model.eval(), {**inputs, "output_attentions": True})["attentions"]
    real, at = inputs["attention_mask"] > 0, np.arange(T)
    found = ours(**inputs, output_attentions=True).attentions
    assert len(found) == len(theirs) == 4
    for weights, window in zip(found, theirs, strict=True):
        reach = (window.shape[-1] - 1) // 2
        expected = np.zeros(weights.shape)
        for ahead in range(-reach, reach + 1):
            rows = at[(at + ahead >= 0) & (at + ahead < T)]
            expected[..., rows, rows + ahead] = np.asarray(window)[..., rows, ahead + reach]
        shown = np.broadcast_to(real[:, None, :, None], expected.shape)
        np.testing.assert_allclose(np.where(shown, weights, 0), np.where(shown, expected, 0), atol=2e-6)
