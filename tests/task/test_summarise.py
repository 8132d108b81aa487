"""Summaries: short runs of both recipes, resumed exactly, used by `summarise` and `evaluate`, and what is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from flax_transformer.data.text.document import Documents
from flax_transformer.data.text.extract import query_similarity
from flax_transformer.models.text.pointer import pointer_generator
from flax_transformer.nn import with_fields
from flax_transformer.objective import PointerLoss
from flax_transformer.task.experiment import train
from flax_transformer.task.extraction import Extracts, MarkedSentences
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.summarisation import Rouge, Summaries, SummarySearch, score_summaries
from flax_transformer.task.summariser import open_summariser, summarises
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.checkpoints import checkpoint
from tests.task.test_classify_images import experiments
from tests.task.test_story_run import records

WORDS = ["the", "fox", "whale", "rain", "moon", "river", "stone", "cloud", "garden", "winter"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Write documents whose summary is two words of their second sentence."""
    folder, draw = tmp_path_factory.mktemp("documents"), np.random.default_rng(0)
    for split, count in (("train", 24), ("dev", 8), ("test", 6)):
        lines = []
        for _ in range(count):
            texts = [" ".join(draw.choice(WORDS, 5)).capitalize() + "." for _ in range(4)]
            summary = " ".join(texts[1].split()[:2])
            lines.append({"document": " ".join(texts), "summary": summary, "title": "Rain", "q": "What of the moon?"})
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def short(name, root, steps=4, **data):
    recipe = experiments("summarise")[name]
    sizes = {"embed": 16, "heads": 2, "dropout": 0.0}
    given = {
        "abstract": {
            "model": pointer_generator(inner=16, depth=1, **sizes),
            "examples": Summaries(
                vocabulary=VocabularyConfig(size=300), lowercase=True, source_length=48, target_length=12, tokens=384,
                buckets=1,
            ),
            "objective": PointerLoss(coverage=0.5),
            "evaluators": (Rouge(search=SummarySearch(beams=2, longest=8, batch=8)),),
        },
        "extract": {
            "model": with_fields(recipe.model, **sizes, inner=16, depth=1, max_length=64),
            "examples": MarkedSentences(vocabulary=VocabularyConfig(size=300), rows=8, length=64, buckets=1, chosen=1),
            "evaluators": (Extracts(sentences=1),),
        },
    }[name]  # fmt: skip
    return replace(
        recipe, **given,
        data=Documents(root=str(root), **data),
        optimizer=replace(recipe.optimizer, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2),
    )  # fmt: skip


@pytest.fixture(scope="module", params=["abstract", "extract"])
def finished(request, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / request.param
    train(short(request.param, root, others=("title",), query="q" if request.param == "extract" else ""), folder)
    return request.param, folder


@pytest.mark.rotates
def test_a_run_is_scored_and_reported(finished):
    name, folder = finished
    (test,) = (each for each in records(folder) if each["split"] == "test")
    for kind in ("rouge1", "rouge2", "rougeL"):
        assert 0 <= test[f"{kind}_low"] <= test[kind] <= test[f"{kind}_high"] <= 100
    more = {
        "abstract": ("best_rouge1", "p_gen"),
        "extract": ("lead_rouge1", "textrank_rouge1", "oracle_rouge1"),
    }
    assert all(np.isfinite(test[each]) for each in more[name])
    if name == "extract":
        assert test["oracle_rouge1"] >= max(test["rouge1"], test["lead_rouge1"], test["like_the_query_rouge1"])
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 6
    assert score_summaries([each["hypothesis"] for each in samples], [[each["target"]] for each in samples])[
        "rouge1"
    ] == pytest.approx(test["rouge1"])
    assert (folder / "report.html").stat().st_size > 10_000
    assert summarises(folder)


@pytest.mark.rotates
@pytest.mark.proves("pointer", "train", "[`summarise`](../experiments/summarise.py), resumed bit for bit")
def test_a_run_goes_on_bit_for_bit(finished, root, tmp_path, capsys):
    name, folder = finished
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    train(short(name, root, others=("title",), query="q" if name == "extract" else ""), tmp_path / "run")
    assert "resuming from step 2" in capsys.readouterr().out
    last = [[each for each in records(path) if each["step"] == 4] for path in (folder, tmp_path / "run")]
    assert last[0] == last[1][-len(last[0]) :]


@pytest.mark.rotates
def test_summarise_and_evaluate_use_a_run(finished, root, tmp_path, run):
    name, folder = finished
    first = json.loads((root / "test.jsonl").read_text().splitlines()[0])
    (tmp_path / "one.txt").write_text(first["document"])
    (tmp_path / "two.txt").write_text("The moon and the river. " * 30)
    code, out, err = run("summarise", folder, tmp_path / "one.txt", "--query", first["q"] * (name == "extract"))
    assert code == 0, err
    sample = json.loads((folder / "samples.jsonl").read_text().splitlines()[0])
    assert out.strip() == sample["hypothesis"].strip()
    code, out, err = run("summarise", folder, tmp_path / "one.txt", tmp_path / "two.txt", "--jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["file"] for each in found] == [str(tmp_path / "one.txt"), str(tmp_path / "two.txt")]
    assert [each["cut"] for each in found] == [False, name == "abstract"]
    assert ("two.txt is longer than the model reads" in err) == (name == "abstract")
    code, out, err = run("evaluate", folder, root)
    assert code == 0, err
    (test,) = (each for each in records(folder) if each["split"] == "test")
    measured = json.loads(out)
    assert measured["documents"] == 6
    assert measured["rouge1"] == pytest.approx(test["rouge1"])


@pytest.mark.rotates
def test_what_cannot_be_summarised_is_named(finished, tmp_path, run):
    name, folder = finished
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "one.txt").write_text("The moon. The river. A stone.")
    files = [tmp_path / each for each in ("empty.txt", "image.png", "none.txt", "one.txt")]
    code, out, err = run("summarise", folder, *files, "--jsonl")
    assert code == 1
    assert [json.loads(line)["file"] for line in out.splitlines()] == [str(files[-1])]
    said = err.splitlines()
    assert f"error: {files[0]} must not be empty" in said
    assert any(line.startswith(f"error: {files[1]} must be text in UTF-8") for line in said)
    assert f"error: there is no file {files[2]}" in said
    code, _, err = run("summarise", folder, files[-1], "--sentences", 3)
    assert code == 1
    rule = {
        "abstract": "sentences are chosen by an extractive model",
        "extract": "fewer than its document, got sentences=3",
    }
    assert rule[name] in err
    if name == "extract":
        code, out, _ = run("summarise", folder, files[-1], "--sentences", 2)
        assert (code, len(out.splitlines())) == (0, 2)


def test_sentences_like_the_query_are_preferred():
    sentences = ["we met on monday", "the budget grew", "nobody spoke", "the budget is fine"]
    scores = np.array([0.4, 0.3, 0.2, 0.1])
    query = "what of the budget?"
    like = query_similarity(query, sentences)
    assert Extracts(sentences=2).choose(scores, sentences, query) == [0, 1]
    how = Extracts(sentences=2, similarity=10.0)
    assert how.choose(scores, sentences, query) == sorted(np.argsort(-(scores + 10 * like))[:2].tolist()) == [1, 3]
    assert how.choose(scores, sentences) == [0, 1]
    assert how.choose(scores, sentences, query, 1) == [int(np.argmax(scores + 10 * like))]
    with pytest.raises(ValueError, match="similarity must not be negative, got sentences=3, similarity=-1"):
        Extracts(similarity=-1)


@pytest.mark.rotates
def test_an_exported_extractor_chooses_as_its_run(finished, root):
    name, folder = finished
    if name != "extract":
        return
    text = json.loads((root / "test.jsonl").read_text().splitlines()[0])["document"]
    mine, exported = (open_summariser(str(each))([text], "What?", 2)[0] for each in (folder, folder / "export"))
    assert mine == exported


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="longest must be above shortest"):
        SummarySearch(longest=3, shortest=3)
    with pytest.raises(ValueError, match="room for 8 documents, got tokens=100"):
        Summaries(tokens=100, source_length=64)
    with pytest.raises(ValueError, match="chosen must be at least 1"):
        MarkedSentences(chosen=0)
    with pytest.raises(ValueError, match="got sentences=0"):
        Extracts(sentences=0)
    with pytest.raises(ValueError, match="coverage must not be negative"):
        PointerLoss(coverage=-1.0)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["bart", "t5", "led"])
def test_a_checkpoint_is_tuned_and_used(kind, root, tmp_path, run):
    recipe = experiments("summarise")["finetune"]
    recipe = replace(
        recipe,
        init=str(checkpoint(kind, tmp_path / "checkpoint")),
        data=Documents(root=str(root)),
        examples=replace(
            recipe.examples, prefix="sum " * (kind == "t5"), source_length=24, target_length=16, tokens=192
        ),
        evaluators=(Rouge(search=SummarySearch(beams=2, longest=12, batch=8)),),
        optimizer=replace(recipe.optimizer, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=2, log_every=1, eval_every=2, checkpoint_every=2),
    )
    train(recipe, tmp_path / "run")
    (tmp_path / "one.txt").write_text("the moon and the river " * 30)
    code, out, err = run("summarise", tmp_path / "run", tmp_path / "one.txt", "--jsonl")
    assert (code, json.loads(out)["cut"]) == (0, True), err
    code, out, err = run("summarise", tmp_path / "run/export", tmp_path / "one.txt", "--jsonl")
    assert (code, json.loads(out)["cut"]) == (0, True), err  # BART by its positions, T5 by the usual number of tokens
    code, out, err = run("evaluate", tmp_path / "run/export", root)
    assert code == 0, err
    assert json.loads(out)["documents"] == 6
