"""Translators that write all tokens at once: trained, resumed, reported, searched, distilled into and rescored."""

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer.data import Table
from flax_transformer.data.synthetic import Numbers
from flax_transformer.data.text import ParallelText, tokenize, train_byte_bpe
from flax_transformer.models.text.conditional_masked import mask_predict_tiny
from flax_transformer.models.text.ctc_translator import ctc_translator_tiny
from flax_transformer.nn import with_fields
from flax_transformer.objective import CTCLoss, MaskPredictLoss
from flax_transformer.task import sequence_distillation as distilling
from flax_transformer.task.attention import SEES_ALL, draw
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_translator
from flax_transformer.task.sentence_pair import BPE, AlignedBatching, SentencePairs
from flax_transformer.task.sequence_distillation import ABOUT, distil
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import ParallelSearch, Rescored, Search, score_pairs
from flax_transformer.train.config import from_json, to_json
from flax_transformer.train.folder import FolderError
from tests.recipe import tiny_translation

pytestmark = [
    pytest.mark.proves(
        ("conditional_masked", "ctc_translator"), "train", "[`translate_text`](../experiments/translate_text.py)"
    ),
    pytest.mark.rotates,
]

SIZES = {"embed": 16, "heads": 2, "inner": 16, "depth": 1}
MASKED = ParallelSearch(iterations=3, beams=3, ratio=0.0, extra=12, batch=8)
SENTENCES = ["seven", "three hundred five", "", "two thousand one hundred twelve"]


def recipe(name):
    tiny = tiny_translation(steps=4, checkpoint_every=2, eval_every=4)
    if name == "ctc":
        batch = AlignedBatching(tokens=512, buckets=1, max_tokens=64)
        search, objective = replace(MASKED, iterations=1, beams=1), CTCLoss()
        tiny = replace(tiny, examples=SentencePairs(bpe=BPE(merges=20), batch=batch))
    else:
        search, objective = MASKED, MaskPredictLoss(chunk=512)
    preset = {"masked": mask_predict_tiny, "ctc": ctc_translator_tiny}[name]()
    evaluators = (Translations(search=search, headline="exact_match", count=2),)
    return replace(tiny, family="", model=with_fields(preset, **SIZES), objective=objective, evaluators=evaluators)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Where each has been trained, a teacher among them, and its final model."""
    root = tmp_path_factory.mktemp("at_once")
    recipes = {"teacher": tiny_translation(steps=2, eval_every=2, checkpoint_every=2)}
    recipes |= {name: recipe(name) for name in ("masked", "ctc")}
    return {name: (root / name, train(each, root / name)) for name, each in recipes.items()}


BOTH = pytest.mark.parametrize("name", ["masked", pytest.param("ctc", marks=pytest.mark.slow)])


@BOTH
def test_a_run_is_reported_and_translates(runs, name):
    folder, model = runs[name]
    assert (folder / "report.html").stat().st_size > 10_000
    assert not (folder / "export").exists()
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]).keys() >= {"chrf", "exact_match"}
    translator, search = open_translator(folder)
    assert isinstance(search, ParallelSearch)
    jax.tree.map(np.testing.assert_array_equal, translator.model, model)
    together = translator(SENTENCES, search)
    assert together[2][0].text == ""
    for sentence, found in zip(SENTENCES, together, strict=True):
        (alone,) = translator([sentence], search)
        assert [each.text for each in alone] == [each.text for each in found]


@BOTH
def test_a_run_goes_on_bit_for_bit(runs, name, tmp_path, capsys):
    """From its second step, masks and all, as if it had been stopped there."""
    folder, model = runs[name]
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/4")
    again = train(recipe(name), tmp_path / "run")
    assert "resuming from step 2" in capsys.readouterr().out
    jax.tree.map(np.testing.assert_array_equal, again, model)


def test_what_it_looks_at_is_drawn_where_it_reads_a_target(runs):
    translator, search = open_translator(runs["masked"][0])
    best = translator(["three hundred five"], search)[0][0]
    encoder, decoder, cross = draw(translator, "three hundred five", best.tokens).maps
    T = len(best.tokens)
    assert encoder.weights.shape[-1] == encoder.weights.shape[-2] == cross.weights.shape[-1] + 1
    assert encoder.columns[0] == "[LENGTH]"
    assert decoder.weights.shape[-2:] == (T, T)
    assert decoder.caption == SEES_ALL
    for each in (encoder, decoder, cross):
        np.testing.assert_allclose(each.weights.sum(-1), 1, atol=1e-5)
    with pytest.raises(ValueError, match="reads no target"):
        draw(open_translator(runs["ctc"][0])[0], "seven", best.tokens)


def test_a_search_survives_its_config_file_and_refuses_what_cannot_be():
    assert from_json(to_json(MASKED)) == MASKED
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        ParallelSearch(iterations=0)


def test_the_command_line_takes_passes_lengths_and_a_judge(runs, run, tmp_path):
    masked, teacher, ctc = (runs[name][0] for name in ("masked", "teacher", "ctc"))
    stdin = "".join(f"{line}\n" for line in SENTENCES).encode()
    code, out, err = run("translate", masked, "--iterations", 2, "--beam", 2, stdin=stdin)
    assert (code, err, out.count("\n")) == (0, "", 4)
    assert run("translate", masked, "--rescore", teacher, "--n-best", 2, stdin=b"seven\n")[1].count("\n") == 2
    (tmp_path / "seven").write_text("seven\n")
    files = ("--source", tmp_path / "seven", "--reference", tmp_path / "seven")
    code, out, err = run("evaluate", masked, *files, "--rescore", teacher)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["iterations"], found["rescored_by"]) == (3, str(teacher))
    for arguments, rule in (
        ((masked, "--iterations", 0), "iterations must be at least 1, got 0"),
        ((masked, "--beam", 50), "as many lengths as beams, got beams=50, 12 lengths"),
        ((ctc, "--iterations", 2), "writes in one pass, and one hypothesis, got iterations=2"),
        ((teacher, "--iterations", 2), "iterations are of a model that writes all tokens at once"),
        ((masked, "--rescore", ctc), "a rescorer must write one token at a time"),
    ):
        code, out, err = run("translate", *arguments, stdin=b"seven\n")
        assert (code, out) == (1, "")
        assert rule in err


@pytest.mark.proves("rescoring", "hypotheses by another run's log-probability, against its own beam search")
def test_a_judge_scores_a_text_as_it_would_have_written_it(runs):
    """What beam search says of its own hypotheses is what one pass over them says."""
    judge, _ = open_translator(runs["teacher"][0])
    search = Search(beams=3, n_best=3, ratio=0.0, extra=60, batch=4)
    written = [(text, each) for text in SENTENCES if text for each in judge([text], search)[0]]
    # What was written to its end, in the tokens that its text is encoded by.
    ended = [
        (text, each)
        for text, each in written
        if each.tokens[-1:] == ("</s>",)
        and judge.tokenizer.tokens(judge.tokenizer.encode([each.text])[0]) == list(each.tokens[:-1])
    ]
    scores = score_pairs(judge, [(text, each.text) for text, each in ended], search)
    np.testing.assert_allclose(scores, [each.score if each.text else 0.0 for _, each in ended], rtol=1e-4)
    assert score_pairs(judge, [("", "sieben"), ("seven", "")], search) == [0.0, 0.0]


def test_the_best_by_a_judge_is_the_best_of_all_hypotheses(runs):
    translator, search = open_translator(runs["masked"][0])
    judge, _ = open_translator(runs["teacher"][0])
    texts = [text for text in SENTENCES if text]
    judged = Rescored(translator, judge)(texts, search)
    hypotheses = translator(texts, replace(search, n_best=search.beams))
    for text, several, (best,) in zip(texts, hypotheses, judged, strict=True):
        scores = [score_pairs(judge, [(text, each.text)], search)[0] for each in several]
        assert best.text == several[int(np.argmax(scores))].text
        np.testing.assert_allclose(best.score, max(scores), rtol=1e-5)


@pytest.mark.proves("distillation of sequences", "resumed where it stopped, read by the recipes of parallel text")
def test_a_corpus_is_distilled_and_what_was_interrupted_goes_on(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(distilling, "CHUNK", 32)
    folder, said = runs["teacher"][0], []
    whole = distil(folder, tmp_path / "whole", said.append)
    translator, search = open_translator(folder)
    pairs = Numbers(train=100, validation=10, test=6).read("train")
    assert (whole / "train.en").read_text().splitlines() == [pairs[at]["source"] for at in range(100)]
    lines = (whole / "train.de").read_text().split("\n")[:-1]
    first = translator([pairs[at]["source"] for at in range(32)], search)
    assert lines[:32] == [best[0].text for best in first]

    def stopped(line):
        if line.startswith("64"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil(folder, tmp_path / "half", stopped)
    assert not (tmp_path / "half/train.de").exists()
    with (tmp_path / "half/train.de.part").open("a") as file:
        file.write("half a line")
    said.clear()
    half = distil(folder, tmp_path / "half", said.append)
    assert said[0] == "going on after 64 of 100 sentences"
    names = {path.name for path in whole.iterdir()}
    assert names == {ABOUT, *(f"{split}.{side}" for split in ("train", "validation", "test") for side in ("en", "de"))}
    assert {path.name: path.read_bytes() for path in half.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
    read = ParallelText(root=str(whole), train="train", validation="validation", test="test")
    assert read.read("test")[0] == Numbers(train=100, validation=10, test=6).read("test")[0]
    distil(folder, whole, said.append)
    assert said[-1].endswith("train.de is there already")
    with pytest.raises(FolderError, match=r"was written otherwise: search\.beams: 1 → 2"):
        distil(folder, whole, said.append, beams=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.txt").touch()
    with pytest.raises(FolderError, match=r"must be new, empty, or what distil has begun, it holds mine\.txt"):
        distil(folder, tmp_path / "other", said.append)


def test_distil_prints_the_options_that_take_its_corpus(runs, run, tmp_path):
    code, out, _ = run("distil", runs["teacher"][0], tmp_path / "out")
    assert code == 0
    assert out == f"--data.root {tmp_path / 'out'} --data.train train --data.validation validation --data.test test\n"
    assert run("distil", tmp_path, tmp_path / "new")[0] == 1
    assert not (tmp_path / "new").exists()


def test_targets_that_cannot_be_written_are_left_out_or_refused(tmp_path, capsys):
    texts = ["a a", "bb a a a a a a a a a", "b"]
    pairs = Table({"source": ["b", "b", "a b a"], "target": texts})
    tokenizer = train_byte_bpe(texts, vocab_size=260)
    tokens = tokenize(pairs, tokenizer)
    # "a a" takes 4 positions with its end and has 2 · 2; the second has 20 letters; "b" and its end fit 2 · 6.
    assert len(tokens.aligned(2)) == 2
    assert AlignedBatching(spread=2, tokens=64, max_tokens=32).fitting(tokens, "train").target.lengths.tolist() == [
        3,
        1,
    ]
    assert "train: 1 pairs whose targets do not fit spread=2 left out" in capsys.readouterr().out
    with pytest.raises(ValueError, match="spread must be at least 1"):
        AlignedBatching(spread=0)
    short = with_fields(mask_predict_tiny(longest=40), **SIZES)
    with pytest.raises(ValueError, match=r"lengths that the model predicts \(--model.longest\), got up to 63 tokens"):
        replace(recipe("masked"), model=short)
