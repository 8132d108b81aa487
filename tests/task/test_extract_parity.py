"""An exported extractor scores sentences in torch as it does here, of the same marks, segments and padding."""

import numpy as np
import pytest

from flax_transformer.data.text.extract import sentence_rows
from flax_transformer.data.text.padded_batch import Rows
from flax_transformer.task.experiment import train
from flax_transformer.task.extraction import sentence_scores
from flax_transformer.task.summariser import open_summariser
from tests.task.test_summarise import root, short  # noqa: F401

pytestmark = [pytest.mark.parity, pytest.mark.proves("extractive summaries", "scores = BertForTokenClassification's")]


@pytest.mark.rotates
def test_torch_scores_the_same_sentences_alike(root, tmp_path):  # noqa: F811
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    train(short("extract", root, steps=2, query="q"), tmp_path / "run")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "run/export").eval()
    chooser = open_summariser(str(tmp_path / "run"))
    tokenizer = chooser.read.tokenizer
    sentences = ["The moon and the river.", "A stone.", "Rain, rain and wind in the winter garden.", "The fox."] * 4
    before, encoded = tokenizer.encode(["What of the moon?"])[0], tokenizer.encode(sentences)
    rows = sentence_rows(before, encoded, cls=tokenizer.cls, sep=tokenizer.sep, length=64)
    assert len(rows) > 1
    (mine,) = sentence_scores(chooser.run, [rows], Rows(length=64, pad=tokenizer.pad), 4)
    for row in rows:
        count, ids, types = len(row.tokens), np.full((1, 64), tokenizer.pad), np.zeros((1, 64), int)
        ids[0, :count], types[0, :count] = row.tokens, row.types
        with torch.no_grad():
            logits = theirs(
                torch.tensor(ids),
                token_type_ids=torch.tensor(types),
                attention_mask=torch.tensor((np.arange(64) < count)[None].astype(int)),
            ).logits[0, row.marks]
        np.testing.assert_allclose(mine[row.sentences], (logits[:, 1] - logits[:, 0]).numpy(), atol=1e-5)
