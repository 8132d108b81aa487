"""What a checkpoint is measured by is what its model says of the same rows."""

import json

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.task.measure import measure
from tests.task.checkpoints import checkpoint, save, tokenizer_files


def classifier(folder, **config):
    return hub.load(checkpoint("bert", folder, architectures=["BertForSequenceClassification"], **config))


@pytest.fixture
def fresh(monkeypatch):
    """Load checkpoints of encoders with a new head."""
    load = hub.load
    lenient = hub.Lenient(initialise=("^classifier", "pooler"), ignore=("^cls",))
    monkeypatch.setattr(hub, "load", lambda folder: load(folder, lenient=lenient))


@pytest.mark.rotates
def test_the_loss_of_classes_is_that_of_the_logits(fresh, tmp_path):
    model = classifier(tmp_path / "bert", id2label={"0": "for", "1": "against"})
    rows = [("one", "for"), ("two", "1"), ("three", "Against")]
    (tmp_path / "test.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in [*rows, *rows]))
    logits = model(**model.tokenizer([text for text, _ in rows])).logits
    loss = -jax.nn.log_softmax(logits)[np.arange(3), np.array([0, 1, 1])]
    found = measure(model, tmp_path)
    np.testing.assert_allclose(found["loss"], loss.mean(), rtol=1e-5)
    assert found["rows"] == 6
    assert found["accuracy"] == pytest.approx(100 * (logits.argmax(-1) == np.array([0, 1, 1])).mean())


@pytest.mark.parametrize(
    "config", [{"num_labels": 1, "id2label": {"0": "LABEL_0"}}, {"problem_type": "multi_label_classification"}]
)
def test_what_is_not_one_of_several_classes_is_not_measured_as_one(fresh, tmp_path, config):
    model = classifier(tmp_path / "bert", **config)
    (tmp_path / "test.tsv").write_text("one\t0\ntwo\t0\n")
    with pytest.raises(ValueError, match="one class of each row is measured, the checkpoint's problem_type is"):
        measure(model, tmp_path)


@pytest.mark.rotates
def test_the_perplexity_counts_every_token_but_the_first_once(tmp_path):
    config = with_fields(gpt2_tiny(dropout=0.0), embed=8, heads=2, inner=12, depth=1, vocab=40, max_length=8)
    save(config, "GPT2LMHeadModel", tmp_path / "gpt2")
    for name, content in tokenizer_files("$A").items():
        (tmp_path / "gpt2" / name).write_text(content)
    model = hub.load(tmp_path / "gpt2")
    (tmp_path / "a.txt").write_text("one two three four five")
    ids = np.array(model.tokenizer.encode(["one two three four five"])[0])
    losses = []
    for start in range(0, len(ids) - 1, 7):  # windows of eight share a token
        part = ids[start : start + 8]
        losses += [*-jax.nn.log_softmax(model(part[None]).logits[0])[np.arange(len(part) - 1), part[1:]]]
    found = measure(model, tmp_path / "a.txt")
    assert (len(losses), found["tokens"]) == (len(ids) - 1, len(ids))
    np.testing.assert_allclose(found["perplexity"], np.exp(np.mean(losses)), rtol=1e-5)


@pytest.mark.rotates
def test_captions_of_damaged_images_alone_are_refused(tmp_path):
    model = hub.load(checkpoint("vision-encoder-decoder", tmp_path / "captioner"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.png").write_bytes(b"none")
    (tmp_path / "data" / "metadata.jsonl").write_text(json.dumps({"image": "0.png", "captions": ["a b"]}))
    refused = []
    with pytest.raises(ValueError, match="must have an image that can be read, got none"):
        measure(model, tmp_path / "data", refuse=lambda file, error: refused.append(file.name))
    assert refused == ["0.png"]
