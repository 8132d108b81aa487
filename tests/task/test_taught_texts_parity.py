"""Exports of students, opened by transformers."""

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.objective import CosineEmbedding, DistilLoss, LayerLoss, MaskedDistilLoss
from flax_transformer.task.experiment import train
from flax_transformer.task.fill_mask import TextLines
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.start import StartConfig
from flax_transformer.task.text_distillation import TaughtMaskedTexts, TaughtTexts
from tests.task.test_taught_texts import CONFIG, LINES, NAMES, SGD, TOKENIZER, saved

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("distillation of texts", "exports open in transformers, from BERT and DistilBERT"),
]
DISTILBERT = {"vocab_size": TOKENIZER.vocab_size, "dim": 8, "n_heads": 2, "n_layers": 4, "hidden_dim": 12,
              "max_position_embeddings": 16}  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize("masked", [True, False])
def test_transformers_opens_what_a_student_becomes(tmp_path, kind, masked):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(LINES) + "\n")
    teacher = saved(tmp_path / "teacher", masked=masked)
    if kind == "distilbert":
        config = transformers.DistilBertConfig(**DISTILBERT, id2label=dict(enumerate(NAMES)))
        name = "DistilBertForMaskedLM" if masked else "DistilBertForSequenceClassification"
        getattr(transformers, name)(config).save_pretrained(teacher)
    data, examples = LabelledText(root=str(tmp_path), names=NAMES), TaughtTexts(rows=4, length=12, teacher=teacher)
    objective = DistilLoss(kind="soft")
    if masked:
        data = TextLines(sentences=(str(tmp_path / "train.tsv"),), holdout=0.1)
        examples = TaughtMaskedTexts(rows=4, length=12, teacher=teacher)
        objective = LayerLoss(of=MaskedDistilLoss(), terms=(CosineEmbedding(),))
    recipe = Recipe(
        model=StartConfig(layers=(0, 2)), init=teacher, data=data, examples=examples, objective=objective,
        optimizer=SGD, train=CONFIG,
    )  # fmt: skip
    model = train(recipe, tmp_path / "run")
    opened = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForSequenceClassification
    theirs = opened.from_pretrained(tmp_path / "run" / "export").eval()
    assert type(theirs).__name__.lower().startswith(kind)
    assert theirs.config.num_hidden_layers == 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "export")
    inputs = tokenizer(["a fine film , number 7", "dull"], padding=True, return_tensors="pt")
    expected = theirs(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.detach().numpy()
    ours = hub.load(tmp_path / "run" / "export")
    there = inputs["attention_mask"].numpy()
    found = np.asarray(ours(input_ids=inputs["input_ids"].numpy(), attention_mask=there).logits)
    np.testing.assert_allclose(found[there > 0] if masked else found, expected[there > 0] if masked else expected,
                               rtol=1e-4, atol=1e-5)  # fmt: skip
    for one, other in zip(jax.tree.leaves(ours.model), jax.tree.leaves(model), strict=True):
        np.testing.assert_array_equal(one, other)
