"""Two encoders, of questions and of passages: both begin with one checkpoint, each side is embedded by its own."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text.passage import Document, PassageConfig
from flax_transformer.hub.processor.tokenizer import from_files
from flax_transformer.hub.registry import families
from flax_transformer.models.text.passage_reader import passage_reader
from flax_transformer.models.text.sentence import sentence_encoder
from flax_transformer.models.text.two_encoders import two_encoders
from flax_transformer.objective.sentence import embed_columns
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.embedding import embed
from flax_transformer.task.passage_retrieval import encoder_side, load_pair
from flax_transformer.task.spec import Spec
from flax_transformer.task.text_index import TextIndexConfig, index_documents, load_index, search_index
from tests.contract.order import check_axes, check_order
from tests.task.reading import WORDS, checkpoint, encoder

pytestmark = pytest.mark.proves("retrieval of texts", "two encoders, trained, exported, searched by")
SPEC = Spec(uses=("passage-retrieval",))
CUT = TextIndexConfig(passages=PassageConfig(tokens=6, overlap=2))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    hub.save(checkpoint("BertModel"), folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(bert, tmp_path_factory):
    """Train a few steps of the recipe, from one checkpoint."""
    from flax_transformer.task.experiment import train

    root, draw = tmp_path_factory.mktemp("towers"), np.random.default_rng(0)
    recipe = runpy.run_path("experiments/embed_texts.py")["EXPERIMENTS"]["towers"]
    for name, count in (("train", 24), ("dev", 8), ("test", 8)):
        rows = [[" ".join(draw.choice(WORDS[:14], 4)) for _ in range(3)] for _ in range(count)]
        (root / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    short = replace(recipe.train, steps=3, log_every=1, eval_every=3, checkpoint_every=3)
    optimizer = replace(recipe.optimizer, schedule=replace(recipe.optimizer.schedule, warmup=1))
    recipe = replace(
        recipe, data=replace(recipe.data, root=str(root)), examples=replace(recipe.examples, rows=8, length=8),
        train=short, optimizer=optimizer, init=str(bert),
    )  # fmt: skip
    train(recipe, root / "run")
    return root / "run"


@pytest.mark.rotates
def test_both_begin_with_one_checkpoint(bert, tmp_path):
    pair, one = load_pair(str(bert), SPEC, None, seed=0), hub.load(bert)
    assert same(pair.model.question, pair.model.passage)
    assert same(pair.model.question.backbone, one.model.backbone.backbone if hasattr(one.model.backbone, "backbone")
                else one.model.backbone)  # fmt: skip
    ids = np.array([[2, 5, 6, 3]])
    state = one(input_ids=ids).last_hidden_state[:, 0]
    for side in ("question", "passage"):
        np.testing.assert_allclose(encoder_side(pair, side)(input_ids=ids).pooler_output, state, atol=1e-6)
    hub.save(encoder_side(pair, "passage"), tmp_path / "passage")
    again = load_pair(str(tmp_path / "passage"), SPEC, None, seed=0)
    assert same(again.model, pair.model)
    hub.save(pair, tmp_path / "pair")
    assert same(load_pair(str(tmp_path / "pair"), SPEC, None, seed=0).model, pair.model)
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5/config.json").write_text('{"model_type": "t5", "architectures": ["T5Model"]}')
    with pytest.raises(ValueError, match=r"two encoders begin with a BERT or with encoders of DPR, .* is a T5Model"):
        load_pair(str(tmp_path / "t5"), SPEC, None, seed=0)


@pytest.mark.rotates
def test_a_question_is_the_first_text_of_a_row(bert):
    model = load_pair(str(bert), SPEC, None, seed=0).model
    model.passage = jax.tree.map(lambda x: 1.1 * x, model.passage)
    tokens = np.random.default_rng(0).integers(4, 20, (2, 3, 5))
    lengths = np.array([[5, 3, 2], [1, 4, 5]])
    vectors = embed_columns(model, {"inputs": {"tokens": tokens, "lengths": lengths}}, None)
    for column, side in enumerate((model.question, model.passage, model.passage)):
        expected = side.output(side.hidden_states(tokens[:, column], lengths=lengths[:, column]))
        np.testing.assert_allclose(vectors[:, column], expected, atol=1e-5)


def test_both_encoders_lie_beside_each_other(bert):
    model = load_pair(str(bert), SPEC, None, seed=0).model
    check_order(model, towers=True)
    check_axes(model)


def test_a_reader_scores_spans_and_passages():
    model = passage_reader(encoder(20)).build(nnx.Rngs(0))
    hidden = model.hidden_states(np.array([[2, 5, 6, 3], [2, 7, 3, 1]]), lengths=np.array([4, 3]))
    assert (model.output(hidden).shape, model.relevance(hidden).shape) == ((2, 4, 2), (2,))
    check_order(model)


@pytest.mark.parametrize("kind", ["QuestionEncoder", "ContextEncoder", "Reader"])
def test_published_vocabularies_are_read(kind):
    said = json.dumps({"tokenizer_class": f"DPR{kind}Tokenizer", "do_lower_case": True}).encode()
    words = "\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "when", "rent")).encode()
    read = from_files({"vocab.txt": words, "tokenizer_config.json": said}, Path("."), {"model_type": "dpr"})
    rows = read(["When rent"], ["rent"])
    assert rows["input_ids"].tolist() == [[2, 5, 6, 3, 6, 3]]
    assert ("token_type_ids" in rows) == (kind != "Reader")


def test_encoders_of_different_widths_are_refused():
    one = sentence_encoder(encoder(20), pools=("first",))
    with pytest.raises(ValueError, match="both encoders must give vectors of one width, got 16 and 32"):
        two_encoders(one, sentence_encoder(encoder(20), pools=("first", "mean")))


@pytest.mark.rotates
def test_a_run_has_both_and_a_folder_of_each(run_folder, bert):
    last = json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"queries_r1", "passages_r1", "accuracy"} <= {*last}
    pair = open_checkpoint(str(run_folder))
    assert not same(pair.model.question, pair.model.passage)
    for side, folder in (("question", "question_encoder"), ("passage", "ctx_encoder")):
        alone = hub.load(run_folder / "export" / folder)
        assert alone.config["architectures"] == [families()["dpr"].architectures["DPREncoders"].sides[side]]
        assert same(alone.model, encoder_side(pair, side).model)
        assert alone.tokenizer is not None


@pytest.mark.rotates
def test_passages_are_searched_by_inner_products_with_questions(run_folder, tmp_path):
    pair, draw = open_checkpoint(str(run_folder)), np.random.default_rng(1)
    documents = [Document(f"d{n}", " ".join(draw.choice(WORDS[:14], 12))) for n in range(4)]
    index = index_documents(pair, documents, CUT, name="pair")
    texts, queries = [each.text for each in index.passages], ["alpha beta", "what gamma"]
    scores = embed(encoder_side(pair, "question"), queries) @ embed(encoder_side(pair, "passage"), texts).T
    for row, found in zip(scores, search_index(index, pair, queries, 3, "vectors"), strict=True):
        np.testing.assert_allclose([each.score for each in found], np.sort(row)[::-1][:3], rtol=1e-5)
    index.save(tmp_path / "index")
    apart = index_documents(hub.load(run_folder / "export/ctx_encoder"), documents, CUT)
    apart.save(tmp_path / "apart")
    question = hub.load(run_folder / "export/question_encoder")
    for folder, asks in (("index", pair), ("apart", question)):
        found = search_index(load_index(tmp_path / folder), asks, queries, 3, "vectors")
        expected = search_index(index, pair, queries, 3, "vectors")
        assert [[each.number for each in row] for row in found] == [[each.number for each in row] for row in expected]
    with pytest.raises(ValueError, match="it is searched by another"):
        search_index(apart, hub.load(run_folder / "export/ctx_encoder"), queries, 3, "vectors")
    with pytest.raises(ValueError, match="embeds texts as questions or as passages"):
        embed(pair, queries)


@pytest.mark.rotates
@pytest.mark.parity
def test_both_folders_open_in_transformers(run_folder):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pair, ids = open_checkpoint(str(run_folder)), np.array([[2, 5, 6, 3], [2, 7, 3, 1]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
    for side, folder in (("question", "question_encoder"), ("passage", "ctx_encoder")):
        ours = encoder_side(pair, side)
        kind = getattr(transformers, ours.config["architectures"][0])
        theirs, loading = kind.from_pretrained(run_folder / "export" / folder, output_loading_info=True)
        assert not {*loading["missing_keys"], *loading["unexpected_keys"]}, loading
        with torch.no_grad():
            expected = theirs.eval()(torch.as_tensor(ids), torch.as_tensor(mask)).pooler_output.numpy()
        np.testing.assert_allclose(ours(input_ids=ids, attention_mask=mask).pooler_output, expected, atol=1e-5)
