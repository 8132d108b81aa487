import json

import numpy as np
import pytest

from flax_transformer.data.text.passage import Document, PassageConfig
from flax_transformer.task.embedding import embed
from flax_transformer.task.lexical import Lexical
from flax_transformer.task.text_index import (
    TextIndexConfig,
    fuse,
    index_documents,
    load_index,
    passages_of,
    search_index,
    words_index,
)
from tests.task.reading import WORDS, checkpoint

pytest.importorskip("bm25s")
pytestmark = pytest.mark.proves("retrieval of texts", "an index by vectors, words and both, kept whole or not at all")

CUT = PassageConfig(tokens=6, overlap=2)


@pytest.fixture(scope="module")
def embedder():
    return checkpoint("BertModel")


@pytest.fixture(scope="module")
def documents():
    draw = np.random.default_rng(0)
    return [Document(f"d{n}", " ".join(draw.choice(WORDS[:14], 12 + n))) for n in range(7)]


@pytest.fixture(scope="module")
def index(embedder, documents):
    return index_documents(embedder, documents, TextIndexConfig(passages=CUT), name="mine")


@pytest.mark.rotates
def test_passages_are_found_by_the_cosine_of_their_vectors(index, embedder, documents):
    texts = {each.name: each.text for each in documents}
    assert all(texts[each.document][each.start : each.end] == each.text for each in index.passages)
    queries = ["alpha beta", "what gamma"]
    vectors = embed(embedder, [each.text for each in index.passages], normalise=True)
    cosines = embed(embedder, queries, normalise=True) @ vectors.T
    found = search_index(index, embedder, queries, 4, "vectors")
    for row, each in zip(cosines, found, strict=True):
        np.testing.assert_allclose([one.score for one in each], np.sort(row)[::-1][:4], atol=1e-5)
        np.testing.assert_allclose([row[one.number] for one in each], np.sort(row)[::-1][:4], atol=1e-5)


@pytest.mark.rotates
def test_words_and_both(index, embedder):
    query = "alpha alpha nu"
    (words,) = search_index(index, None, [query], 200, "words")
    scores = Lexical([each.text for each in index.passages]).scores(query)
    assert [each.number for each in words] == [n for n in np.argsort(-scores, kind="stable") if scores[n] > 0]
    (vectors,) = search_index(index, embedder, [query], 100, "vectors")
    expected: dict[int, float] = {}
    for each, low in ((vectors, -1), (words, 0)):
        for one in each:
            share = (one.score - low) / (each[0].score - low)
            expected[one.number] = expected.get(one.number, 0) + share / 2
    (both,) = search_index(index, embedder, [query], 5, "both")
    assert [each.score for each in both] == pytest.approx(sorted(expected.values(), reverse=True)[:5])
    assert all(each.score == pytest.approx(expected[each.number]) for each in both)
    for weight, alone in ((1.0, vectors), (0.0, words)):
        (both,) = search_index(index, embedder, [query], 5, "both", weight)
        assert [each.number for each in both] == [each.number for each in alone[:5]]
    with pytest.raises(ValueError, match="weight must be between 0 and 1"):
        search_index(index, embedder, [query], weight=1.5)


def test_scores_count_by_their_weights():
    rankings = [[(1, 9.0), (2, 8.0)], [(2, 0.1)], []]
    assert fuse(rankings, (-1, 0, 0), (1.0, 2.0, 3.0)) == [(2, pytest.approx(0.9 + 2)), (1, 1.0)]
    assert fuse(rankings, (-1, 0, 0), (1.0, 0.0, 1.0))[0] == (1, 1.0)
    assert fuse([[(1, 0.0)]], (0.0,), (1.0,)) == [(1, 0.0)]


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_an_index_is_kept(kind, embedder, documents, tmp_path):
    made = index_documents(embedder, documents, TextIndexConfig(passages=CUT, kind=kind), name="mine")
    made.save(tmp_path / "index")
    made.save(tmp_path / "index")
    again = load_index(tmp_path / "index")
    assert (again.passages, again.config, again.model, again.name) == (made.passages, made.config, made.model, "mine")
    for by in ("vectors", "both"):
        found = [search_index(each, embedder, ["beta xi"], 3, by)[0] for each in (made, again)]
        assert found[0] == found[1]
    assert str(len(made.passages)) in repr(again)


def test_an_index_written_half_is_not_read(index, tmp_path, monkeypatch):
    from flax_transformer.task import text_index

    folder = tmp_path / "index"
    index.save(folder)
    write, written = text_index.write_file, []

    def fail(path, content):
        written.append(path.name)
        if len(written) == 2:
            raise OSError("no space left on device")
        return write(path, content)

    monkeypatch.setattr(text_index, "write_file", fail)
    with pytest.raises(OSError, match="no space"):
        index.save(folder)
    with pytest.raises(ValueError, match=r"was not written to its end: it has no index\.json"):
        load_index(folder)


def test_an_index_whose_files_do_not_match_is_not_read(index, tmp_path):
    index.save(tmp_path)
    rows = (tmp_path / "passages.jsonl").read_text().splitlines()
    (tmp_path / "passages.jsonl").write_text("\n".join(rows[:-1]))
    with pytest.raises(ValueError, match="must have a vector for each passage"):
        load_index(tmp_path)
    (tmp_path / "passages.jsonl").write_text(json.dumps({"no": 1}))
    with pytest.raises(ValueError, match="must be an index that was written to its end"):
        load_index(tmp_path)


def test_bad_input_is_refused_in_a_sentence(index, embedder, documents, tmp_path):
    with pytest.raises(ValueError, match="the index has the vectors of mine, it is searched by another"):
        search_index(index, checkpoint("BertModel", seed=1), ["alpha"])
    with pytest.raises(ValueError, match="a query must not be empty"):
        search_index(index, embedder, [" "])
    with pytest.raises(ValueError, match="must have a token that the checkpoint's tokenizer knows, got 'zebra'"):
        search_index(index, embedder, ["alpha", "zebra"], 3, "vectors")
    with pytest.raises(ValueError, match="top must be at least 1, got 0"):
        search_index(index, embedder, ["alpha"], 0)
    with pytest.raises(ValueError, match="must have documents, got none"):
        index_documents(embedder, [], TextIndexConfig(passages=CUT))
    with pytest.raises(ValueError, match="got tokens=47, it reads 46 beside special ones"):
        index_documents(embedder, documents, TextIndexConfig(passages=PassageConfig(tokens=47)))
    words = words_index(passages_of(embedder, documents, CUT), CUT)
    assert search_index(words, None, ["alpha"], 3, "words")[0]
    with pytest.raises(ValueError, match="the index has no vectors, it is searched by words, got by=both"):
        search_index(words, embedder, ["alpha"])
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="a folder that is new, empty or an index"):
        index.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no index"):
        load_index(tmp_path / "none")


@pytest.mark.rotates
def test_a_text_may_be_as_long_as_the_positions():
    # The next width of batches would be 48, for which there are no positions.
    short = checkpoint("BertModel", length=40)
    texts = ["alpha beta " * 17, "nu"]
    vectors = embed(short, texts)
    for text, vector in zip(texts, vectors, strict=True):
        states = short(**short.tokenizer([text], max_length=40)).last_hidden_state[0]
        np.testing.assert_allclose(vector, states.mean(0), atol=1e-5)
