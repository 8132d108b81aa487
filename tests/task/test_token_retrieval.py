import json
import runpy
from dataclasses import replace

import numpy as np
import pytest

from flax_transformer.models.head import with_head
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.experiment import train
from flax_transformer.task.late_interaction import token_relevance
from flax_transformer.task.reranking import relevance
from flax_transformer.task.token_retrieval import MarkedRows

pytestmark = pytest.mark.proves("late interaction", "train, experiments/embed_texts.py tokens, from pairs to a ranker")

WORDS = ["alpha", "beta", "gamma", "delta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi"]
TEXTS = [(f"where is {word}?", f"{word}, it seems, is here.", "nothing is there.") for word in WORDS]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokens")
    for split in ("train", "dev", "test"):
        lines = [json.dumps(dict(zip(("anchor", "positive", "negative"), row, strict=True))) for row in TEXTS]
        (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = runpy.run_path("experiments/embed_texts.py")["TOKENS"]
    encoder = recipe.model.backbone
    vocabulary = replace(recipe.examples.vocabulary, size=300)
    small = replace(encoder, depth=1, embedding=replace(encoder.embedding, max_length=32))
    train(
        replace(
            recipe,
            model=with_head(small, outputs=8, bias=False),
            data=replace(recipe.data, root=str(root)),
            examples=replace(recipe.examples, rows=4, length=32, vocabulary=vocabulary),
            train=replace(recipe.train, steps=40, eval_every=40, checkpoint_every=40),
            optimizer=replace(recipe.optimizer, schedule=replace(recipe.optimizer.schedule, warmup=4)),
        ),
        root / "run",
    )
    return root / "run"


@pytest.mark.rotates
def test_a_run_ranks_passages(run):
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    exported = open_checkpoint(str(run))
    assert exported.architecture.uses == ("late-interaction",)
    assert exported.config["architectures"] == ["HF_ColBERT"]
    assert exported.config["dim"] == 8
    passages = [passage for _, passage, _ in TEXTS]
    scores = np.stack([token_relevance(exported, query, passages) for query, _, _ in TEXTS])
    np.testing.assert_array_equal(relevance(exported, TEXTS[0][0], passages), scores[0])
    own = np.diagonal(scores)[:, None]
    first = ((scores >= own).sum(axis=1) == 1).mean()
    assert last["queries_r1"] == pytest.approx(first)
    assert first > 0.5  # chance is 1 of 12


@pytest.mark.rotates
def test_rows_are_marked(run):
    tokenizer = open_checkpoint(str(run)).tokenizer
    examples = MarkedRows(rows=2, length=32)
    items = examples.items({"texts": TEXTS[:1]}, tokenizer)
    batch = examples.collated(_columns(tokenizer), tokenizer)([*items, None])
    tokens, lengths, compared = batch["inputs"]["tokens"], batch["inputs"]["lengths"], batch["labels"]
    assert tokens.shape == compared.shape == (2, 3, 32)
    named = [tokenizer.engine.id_to_token(int(each)) for each in tokens[0, :, 1]]
    assert named == ["[unused0]", "[unused1]", "[unused1]"]
    assert (tokens[0, 0, lengths[0, 0] :] == tokenizer.mask).all()
    assert compared[0, 0].all()
    ((comma,),) = tokenizer.encode([","])
    assert (tokens[0, 1] == comma).any()
    assert not compared[0, 1][tokens[0, 1] == comma].any()
    assert not compared[1].any()
    assert lengths[1].tolist() == [0, 0, 0]


def _columns(tokenizer):
    from flax_transformer.data.text.text_column import TextColumns

    return TextColumns(lengths=(32,), columns=3, pad=tokenizer.pad)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="queries have 32 tokens, and no scores, got length=16"):
        MarkedRows(length=16)
