"""The command line on checkpoints, as one types it; and every way to be wrong, in one sentence."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.train.checkpoint import Checkpoints
from tests.task.test_use import CAUSAL, ENCODER, PLAIN, HubTokenizer, make

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    plain, marked = HubTokenizer.of(PLAIN), HubTokenizer.of_encoder(PLAIN.with_mask())
    names = {"id2label": {"0": "bad", "1": "good"}}
    made = {
        "causal": make("GPT2LMHeadModel", plain, **CAUSAL),
        "masked": make("BertForMaskedLM", marked, **ENCODER),
        "classes": make("BertForSequenceClassification", marked, **names, **ENCODER),
        "words": make("BertForTokenClassification", marked, **names, **ENCODER),
        "answers": make("BertForQuestionAnswering", marked, **ENCODER),
    }
    for name, pretrained in made.items():
        hub.save(pretrained, root / name)
    return root


def test_generate_prints_prompt_and_continuation(run, folders):
    code, out, err = run("generate", folders / "causal", "the dog", "--max-new-tokens", 8)
    assert (code, err) == (0, "")
    assert out.startswith("the dog")
    assert len(out) > len("the dog\n")
    # One prompt a line, and the same texts.
    code, lines, _ = run("generate", folders / "causal", "--max-new-tokens", 8, stdin=b"the dog\nthe cat\n")
    assert code == 0
    assert len(lines.splitlines()) == 2
    assert lines.splitlines()[0] == (out[:-1].replace("\n", "\\n"))


def test_generate_streams_on_a_terminal(run, folders, monkeypatch):
    plain = run("generate", folders / "causal", "the dog", "--max-new-tokens", 8)[1]
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    assert run("generate", folders / "causal", "the dog", "--max-new-tokens", 8)[1] == plain


def test_samples_follow_the_seed(run, folders):
    sample = ("generate", folders / "causal", "the dog", "--max-new-tokens", 8, "--temperature", 1.5)
    assert run(*sample, "--seed", 1)[1] == run(*sample, "--seed", 1)[1] != run(*sample, "--seed", 2)[1]


def test_chat_answers_every_line(run, folders):
    code, out, _ = run("generate", folders / "causal", "--chat", "--max-new-tokens", 4, stdin=b"the dog\n\nbarks\n")
    assert code == 0
    assert out.count("\n") >= 2


def test_fill_mask(run, folders):
    code, out, _ = run("fill-mask", folders / "masked", "the <mask> barks", "--top", 3)
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines()]
    shares = [float(row[0]) for row in rows]
    assert len(rows) == 3
    assert shares == sorted(shares, reverse=True)


def test_classify(run, folders):
    code, out, _ = run("classify", folders / "classes", "the dog")
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert {row[1] for row in rows} == {"good", "bad"}
    assert sum(float(row[0]) for row in rows) == pytest.approx(1, abs=1e-3)
    several = run("classify", folders / "classes", stdin=b"the dog\nbarks\n")[1].splitlines()
    assert [line.split("\t")[2] for line in several] == ["the dog", "barks"]
    assert several[0].split("\t")[:2] == rows[0]
    pair = run("classify", folders / "classes", "--pair", "the dog", "barks")[1]
    assert pair == run("classify", folders / "classes", "--pair", stdin=b"the dog\tbarks\n")[1]
    words = run("classify", folders / "words", "the dog barks")[1].splitlines()
    assert [line.split("\t")[2] for line in words] == ["the", "dog", "barks"]


def test_answer(run, folders, tmp_path):
    (tmp_path / "passage").write_text("the dog barks and the cat sleeps " * 5)
    ask = ("answer", folders / "answers", "--file", tmp_path / "passage")
    code, out, _ = run(*ask, "--question", "what barks?", "--n-best", 3)
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert len(rows) == 3
    assert all(row[2] in (tmp_path / "passage").read_text() for row in rows)
    assert run(*ask, "--question", "what barks?")[1].strip() == rows[0][2]
    assert run(*ask, stdin=b"what barks?\nwho?\n")[1].splitlines()[0] == rows[0][2]
    assert run(*ask, "--question", "what?", "--no-answer-threshold", -1e9)[1] == "(no answer)\n"


def test_convert_there_and_back(run, folders, tmp_path):
    source = folders / "causal"
    assert run("convert", source, tmp_path / "orbax")[:2] == (0, f"{tmp_path / 'orbax'}: Orbax folder\n")
    assert run("convert", tmp_path / "orbax", tmp_path / "back")[:2] == (
        0,
        f"{tmp_path / 'back'}: Hugging Face folder\n",
    )
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (source / file).read_bytes() == (tmp_path / "back" / file).read_bytes(), file
    prompt = ("the dog", "--max-new-tokens", 5)
    assert run("generate", tmp_path / "orbax", *prompt)[1] == run("generate", source, *prompt)[1]


def test_convert_takes_any_step_of_a_run(run, folders, tmp_path):
    shutil.copytree(folders / "causal", tmp_path / "run" / "export")
    model = hub.load(folders / "causal").model
    with Checkpoints(tmp_path / "run" / "checkpoints") as steps:
        steps.save(4, {"model": jax.tree.map(lambda x: x + 1, model)}, {})
    assert run("convert", tmp_path / "run", tmp_path / "step", "--step", 4)[0] == 0
    assert run("convert", tmp_path / "run", tmp_path / "final")[0] == 0
    assert run("convert", tmp_path / "run", tmp_path / "half", "--dtype", "bfloat16")[0] == 0
    step, final = (load_file(tmp_path / name / "model.safetensors") for name in ("step", "final"))
    for name in final:
        np.testing.assert_array_equal(step[name], final[name] + 1)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    (tmp_path / "run" / "export" / "model.safetensors").unlink()  # a run that has not finished
    assert run("convert", tmp_path / "run", tmp_path / "newest")[0] == 0
    assert (tmp_path / "newest" / "model.safetensors").read_bytes() == (
        tmp_path / "step" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "causal", ""), "a prompt must not be empty"),
        (("generate", "causal", "q w " * 20), "a prompt must fit into the 48 positions, got 80 tokens"),
        (("generate", "causal", "the", "--max-new-tokens", 50), "more fit into the 48 positions, got 50 to generate"),
        (("generate", "masked", "the"), "a BertForMaskedLM generates no text: it is no language model"),
        (("generate", "causal", "the", "--stop", ""), "stop texts must not be empty"),
        (("generate", "causal", "the", "--num-beams", 2, "--top-k", 3), "sampling has no beams"),
        (("generate", "causal", "--chat", "--assistant", "x"), "line by line, got --assistant too"),
        (("generate", "causal", "the", "--chat"), "a chat is for people, line by line, got a prompt too"),
        (("fill-mask", "masked", "the dog"), "the text must have the mask token <mask>, got 'the dog'"),
        (("fill-mask", "causal", "the <mask>"), "got a GPT2LMHeadModel"),
        (("fill-mask", "masked", "<mask>" * 50), "longer than the positions"),
        (("classify", "masked", "the"), "to classify takes a checkpoint"),
        (("classify", "classes", "the", ""), "a text to classify must not be empty"),
        (("classify", "classes", "--pair", "the"), "a pair must be two texts, got 1: 'the'"),
        (("answer", "answers", "--question", "who?"), "given by either --context or --file"),
        (("answer", "answers", "--question", " ", "--context", "the"), "must not be empty"),
        (("answer", "causal", "--question", "who?", "--context", "the"), "got a GPT2LMHeadModel"),
        (("convert", "causal", "causal"), "the destination must be a new or empty folder"),
        (("convert", "causal", "x", "--step", 3), "only a run has steps"),
        (("generate", "none/at/all", "the"), "no folder"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(run, folders, monkeypatch, arguments, message):
    monkeypatch.chdir(folders)
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_the_run_of_another_kind_is_named(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"type": "flax_transformer.task.recipe:Recipe"}))
    code, _, err = run("generate", tmp_path, "the")
    assert code == 1
    assert "is the run of a Recipe and does not say which checkpoint it trains" in err


@pytest.mark.parametrize("options", [(), ("--temperature", 1.3, "--top-k", 1)])
def test_an_assistant_and_a_lookup_change_no_text(run, folders, options):
    """Of one token that may be drawn the distribution has one text."""
    told = ("generate", folders / "causal", "the dog", "--max-new-tokens", 12, *options)
    plain = run(*told)[1]
    assert run(*told, "--assistant", folders / "causal", "--num-assistant-tokens", 3)[1] == plain
    assert run(*told, "--prompt-lookup-num-tokens", 3)[1] == plain
    code, _, err = run(*told, "--assistant", folders / "masked")
    assert code == 1
    assert "the same tokenizer" in err or "must read what" in err
