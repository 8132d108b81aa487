import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text.passage import Document, Passage, PassageConfig
from flax_transformer.task.document_answer import (
    DocumentAnswerConfig,
    DocumentReader,
    fuse_passages,
    read_passages,
)
from flax_transformer.task.hops import find_facts, search_hops
from flax_transformer.task.question_answering import AnswerConfig, Conversation, answer
from flax_transformer.task.question_rewriting import rewrite_question
from flax_transformer.task.reranking import relevance, rerank
from flax_transformer.task.text_generation import TextGenerator, WriterConfig
from flax_transformer.task.text_index import passages_of, search_index, words_index
from tests.task.reading import WORDS, checkpoint, writer

pytest.importorskip("bm25s")
pytestmark = pytest.mark.proves("answers over documents", "spans of many passages, fusion in the decoder, reranking")


@pytest.fixture(scope="module")
def reader():
    return checkpoint("BertForQuestionAnswering", outputs=2)


@pytest.fixture(scope="module")
def documents():
    draw = np.random.default_rng(1)
    return [Document(f"d{n}", " ".join(draw.choice(WORDS[:14], 24))) for n in range(5)]


@pytest.fixture(scope="module")
def index(reader, documents):
    return words_index(passages_of(reader, documents, PassageConfig(tokens=10, overlap=5)))


@pytest.mark.rotates
def test_spans_of_all_passages_are_ranked_together(reader, index, documents):
    texts = {each.name: each.text for each in documents}
    passages = index.passages[:6]
    config = AnswerConfig(n_best=30, max_answer_length=4)
    found = read_passages(reader, "what alpha", passages, config)
    scores: dict[tuple, float] = {}
    for passage in passages:
        for each in answer(reader, "what alpha", passage.text, config, multiple=32):
            place = (passage.document, passage.start + each.start, passage.start + each.end)
            scores[place] = max(each.score, scores.get(place, -np.inf))
    best = sorted(scores.values(), reverse=True)[:30]
    assert [scores[each.passage.document, each.start, each.end] for each in found] == pytest.approx(best)
    exponents = np.exp(np.array(best) - best[0])
    assert [each.probability for each in found] == pytest.approx(list(exponents / exponents.sum()), rel=1e-4)
    for each in found:
        assert texts[each.passage.document][each.start : each.end] == each.text
        assert f"**{each.text}**" in each.marked
        assert each.marked.replace("**", "") == each.passage.text


def test_a_threshold_lets_nothing_be_the_answer(reader, index):
    ever = read_passages(reader, "what", index.passages[:3], AnswerConfig(threshold=1e6))
    assert ever[0].text
    never = AnswerConfig(threshold=-1e6)
    (none,) = read_passages(reader, "what", index.passages[:3], never)
    scores, nothing = {}, []
    for passage in index.passages[:3]:
        for each in answer(reader, "what", passage.text, never, multiple=32):
            place = (passage.document, passage.start + each.start, passage.start + each.end)
            if each.text:
                scores[place] = max(each.score, scores.get(place, -np.inf))
            else:
                nothing.append(each.score)
    exponents = np.exp([min(nothing), *sorted(scores.values(), reverse=True)[: never.n_best]])
    assert none.text == ""
    assert none.probability == pytest.approx(exponents[0] / exponents.sum(), rel=1e-4)


def test_a_question_reads_the_history(index, reader):
    answers_of = DocumentReader(index, reader, config=DocumentAnswerConfig(by="words", passages=2))
    talk = Conversation().add("what kappa", "xi")
    found = [each.passage for each in answers_of.find(talk.question("where"))]
    expected = [each.passage for each in search_index(index, None, ["what kappa xi where"], 2, "words")[0]]
    assert found == expected
    assert answers_of("where", talk)[0].passage in expected
    nothing = answers_of("zebra")
    assert [(each.text, each.passage) for each in nothing] == [("", None)]


def test_what_is_found_leads_to_the_next():
    facts = ["alpha beta", "beta gamma", "gamma delta", "nu xi", "delta eta"]
    index = words_index(tuple(Passage(f"d{n}", 0, len(text), text) for n, text in enumerate(facts)))

    def search(query, top):
        return search_index(index, None, [query], top, "words")[0]

    def found(hops, top):
        return [each.number for each in search_hops(search, "alpha", hops, top)]

    assert (found(1, 3), found(2, 1), found(4, 1)) == ([0], [0, 1], [0, 1, 2, 4])
    config = DocumentAnswerConfig(by="words", passages=3, hops=3)
    reader = DocumentReader(index, writer(), config=config)
    assert [each.number for each in reader.find("alpha")] == [0, 1, 2]
    assert find_facts(facts, "alpha", 3, 1) == facts[:3]
    assert find_facts(["beta one", "beta two"], "beta", 1, 1) == ["beta two"]
    with pytest.raises(ValueError, match="hops and top must be at least 1, got 0 and 2"):
        search_hops(search, "alpha", 0, 2)


@pytest.mark.rotates
def test_a_model_rewrites_questions(index):
    model, talk = writer(), Conversation().add("what kappa", "xi")
    prompt = "what kappa ||| xi ||| where"
    ((expected,),) = TextGenerator(model, WriterConfig(settings=(("max_new_tokens", 5),), stop=("\n",)))([prompt])
    assert rewrite_question(model, "where", talk, 5) == (" ".join(expected.split()) or "what kappa xi where")
    assert rewrite_question(model, "where") == "where"
    answers_of = DocumentReader(index, model, rewriter=model, config=DocumentAnswerConfig(by="words", new_tokens=3))
    alone = rewrite_question(model, "where", talk)
    assert answers_of.asked("where", talk) == alone
    assert answers_of("where", talk) == answers_of(alone)
    with pytest.raises(ValueError, match="new_tokens must be at least 1, got 0"):
        rewrite_question(model, "where", talk, 0)


@pytest.mark.rotates
def test_a_ranker_sorts_what_was_found(index, reader):
    judge = checkpoint("BertForSequenceClassification", outputs=1, pool="first", dense="tanh")
    (found,) = search_index(index, None, ["alpha beta"], 8, "words")
    ranked = rerank(judge, "alpha beta", found)
    texts = [each.passage.text for each in found]
    inputs = judge.tokenizer(["alpha beta"] * len(texts), texts)
    logits = np.asarray(judge(**inputs).logits)[:, 0]
    assert [each.number for each in ranked] == [found[n].number for n in np.argsort(-logits, kind="stable")]
    np.testing.assert_allclose([each.score for each in ranked], np.sort(logits)[::-1], atol=1e-5)
    config = DocumentAnswerConfig(by="words", passages=3, candidates=8)
    assert DocumentReader(index, reader, ranker=judge, config=config).find("alpha beta") == ranked[:3]
    two = checkpoint("BertForSequenceClassification", outputs=2, pool="first", dense="tanh")
    odds = np.asarray(two(**two.tokenizer(["nu"] * 3, texts[:3])).logits)
    np.testing.assert_allclose(relevance(two, "nu", texts[:3]), odds[:, 1] - odds[:, 0], atol=1e-5)
    long = relevance(judge, "nu", [" ".join(["alpha"] * 90), " ".join(["alpha"] * 44)])
    np.testing.assert_allclose(long[0], long[1], atol=1e-5)  # both are cut to the 48 positions


@pytest.mark.rotates
def test_a_decoder_attends_to_all_passages_at_once():
    model = writer()
    passages = [Passage("d", 0, 1, "alpha beta gamma"), Passage("e", 0, 1, "xi nu"), Passage("f", 0, 1, "eta")]
    found = fuse_passages(model, "what", passages, 3)
    inputs = model.tokenizer([f"question: what context: {each.text}" for each in passages])
    rows = []
    for ids, seen in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        rows.append(model.model.encode(jnp.asarray(ids[None, : seen.sum()]))[0])
    memory, tokens = jnp.concatenate(rows)[None], [1]

    @jax.jit
    def scores(tokens):
        return model.model.output(model.model.decode(tokens, memory)).logits()[0]

    for number in range(3):
        padded = jnp.array([tokens + [0] * (3 - number)])
        tokens.append(int(jnp.argmax(scores(padded)[number])))
        if tokens[-1] == 3:
            break
    assert found.text == model.tokenizer.decode([tokens[1:]])[0].strip()
    assert 0 < found.probability <= 1
    alone = fuse_passages(model, "what", passages[:1], 3)
    whole = model.generate(**model.tokenizer(["question: what context: alpha beta gamma"]), max_new_tokens=3)
    assert alone.text == model.tokenizer.decode(np.asarray(whole)[:, 1:])[0].strip()


def test_bad_input_is_refused_in_a_sentence(index, reader):
    judge = checkpoint("BertForSequenceClassification", outputs=3, pool="first", dense="tanh")
    with pytest.raises(
        ValueError, match="classifier of one output or two classes, a BertForSequenceClassification has 3"
    ):
        relevance(judge, "alpha", ["beta"])
    with pytest.raises(ValueError, match="a query must leave room for a text, got 63 tokens of 48"):
        relevance(judge, " ".join(["alpha"] * 60), ["beta"])
    with pytest.raises(ValueError, match="takes a checkpoint that answers or writes, got a BertForSequenceClass"):
        DocumentReader(index, judge)
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        DocumentAnswerConfig(passages=0)


@pytest.mark.rotates
def test_the_commands_index_search_and_ask(tmp_path, run, reader):
    embedder = checkpoint("BertModel")
    hub.save(reader, tmp_path / "reader")
    hub.save(embedder, tmp_path / "embedder")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("alpha beta gamma delta " * 5)
    (folder / "b.txt").write_text("xi nu mu lambda kappa " * 5)
    code, out, _ = run(
        "index", tmp_path / "embedder", folder, "--output", tmp_path / "index", "--tokens", 8, "--overlap", 2
    )
    assert code == 0
    assert "7 passages of 2 documents" in out
    code, out, err = run("search", tmp_path / "embedder", "kappa", tmp_path / "index", "--by", "words", "--top", 2)
    assert (code, err) == (0, "")
    assert [line.split("\t")[1].split(":")[0] for line in out.splitlines()] == ["b.txt", "b.txt"]
    for documents in (tmp_path / "index", folder):
        code, out, _ = run("ask", tmp_path / "reader", "what kappa", "--documents", documents, "--jsonl")
        assert code == 0
        (line,) = out.splitlines()
        (found,) = json.loads(line)["answers"]
        text = (folder / found["passage"]["document"]).read_text()
        assert text[found["start"] : found["end"]] == found["text"]
    code, out, _ = run("ask", tmp_path / "reader", "what kappa", "--documents", folder, "--top", 2)
    assert code == 0
    assert len(out.splitlines()) == 4
    (folder / "c.bin").write_bytes(b"\xff\xff")
    code, out, err = run("ask", tmp_path / "reader", "what kappa", "--documents", folder)
    assert code == 1
    assert "must be text in UTF-8" in err
    code, _, err = run("ask", tmp_path / "reader", "what kappa")
    assert code == 1
    assert "questions and --documents" in err
