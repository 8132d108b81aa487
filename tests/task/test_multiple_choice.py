import json

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text.choice import ChoiceData, Choices, made_up_choices, read_choices
from flax_transformer.task.measure import measure
from flax_transformer.task.multiple_choice import AnswerChoices, ChoiceRows, choice_example, choose_answer, fit_choices
from tests.task.reading import checkpoint

pytestmark = pytest.mark.proves("multiple choice", "forms of RACE and DREAM, rows, the best answer")

EXPECTED = [
    Choices("M: alpha\nW: beta", "what", ("nu", "xi"), 1),
    Choices("M: alpha\nW: beta", "who", ("mu", "xi", "nu"), 0),
]


def _forms():
    dream = [[["M: alpha", "W: beta"], [
        {"question": "what", "choice": ["nu", "xi"], "answer": "xi"},
        {"question": "who", "choice": ["mu", "xi", "nu"], "answer": "mu"},
    ], "1-2"]]  # fmt: skip
    race = {
        "article": "M: alpha\nW: beta", "questions": ["what", "who"], "options": [["nu", "xi"], ["mu", "xi", "nu"]],
        "answers": ["B", "A"],
    }  # fmt: skip
    lines = [
        {"context": each.context, "question": each.question, "answers": list(each.answers), "label": each.label}
        for each in EXPECTED
    ]
    return {"dream": json.dumps(dream), "race": json.dumps(race), "lines": "\n".join(map(json.dumps, lines))}


@pytest.mark.parametrize("form", ["dream", "race", "lines"])
def test_forms_say_the_same(form, tmp_path):
    suffix = "jsonl" if form == "lines" else "json"
    (tmp_path / f"train.{suffix}").write_text(_forms()[form])
    assert ChoiceData(root=str(tmp_path)).read("train") == EXPECTED
    (tmp_path / "many").mkdir()
    for number in range(2):
        (tmp_path / "many" / f"{number}.{suffix}").write_text(_forms()[form])
    assert read_choices(tmp_path / "many") == EXPECTED * 2


RACE = {"article": "a", "questions": ["q"], "options": [["x", "y"]], "answers": ["B"]}
LINE = {"context": "a", "question": "q", "answers": ["x", "y"], "label": 0}


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("{", "must be JSON, or lines of it"),
        ({**RACE, "answers": ["C"]}, "number 1 must .*: the label must be the number of an answer, .* 0 to 1, got 2"),
        ({**RACE, "answers": [""]}, "answers must be letters from A on, got ''"),
        ({**RACE, "answers": ["A", "B"]}, "questions, options and answers must be as many, got 1, 1, 2"),
        ([[["M: a"], [{"question": "q", "choice": ["x", "y"], "answer": "z"}], "1"]],
         "the right answer must be among the choices, got 'z'"),
        ([[[], [{"question": "q", "choice": ["x", "y"], "answer": "x"}], "1"]], "text and answers must not be empty"),
        ([["M: a", [{"question": "q", "choice": ["x", "y"], "answer": "x"}], "1"]], "the dialogue must be a list"),
        ([[["M: a"], [{"question": "q", "choice": "xy", "answer": "x"}], "1"]], "choice must be a list, got 'xy'"),
        ({**LINE, "answers": ["x"]}, "there must be two answers at least, got 1"),
        ({**LINE, "answers": ["x", "x"]}, "there must be two answers at least, got 1"),
        ({**LINE, "label": 0.5}, "the label must be the number of an answer, from 0 to 1, got 0.5"),
        ({**LINE, "question": None}, "text, question and answers must be texts, got None"),
        ({**LINE, "context": " "}, "text and answers must not be empty"),
        ({"context": "a", "question": "q", "label": 0}, "it has no answers"),
        ([], "train must have questions, it has none"),
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(data, rule, tmp_path):
    (tmp_path / "train.json").write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(ValueError, match=rule):
        ChoiceData(root=str(tmp_path)).read("train")


def test_an_answer_that_stands_twice_is_one(tmp_path):
    asked = [{"question": "q", "choice": ["x", "x", "y", "z"], "answer": "y"}]
    (tmp_path / "train.json").write_text(json.dumps([[["M: a"], asked, "1"]]))
    (tmp_path / "dev.json").write_text(json.dumps({**RACE, "options": [["y", "x", "x"]], "answers": ["C"]}))
    data = ChoiceData(root=str(tmp_path))
    assert data.read("train") == [Choices("M: a", "q", ("x", "y", "z"), 1)]
    assert data.read("validation") == [Choices("a", "q", ("y", "x"), 1)]


def test_lines_may_have_any_letters(tmp_path):
    """U+2028 and U+0085 end lines for Python, and not for JSON."""
    expected = [Choices("M: \u00fc\u2028W: \u56f3\u0085\U0001f600", "q", ("x", "y"), 0)] * 2
    line = json.dumps(expected[0]._asdict(), ensure_ascii=False)
    (tmp_path / "train.jsonl").write_text(f"{line}\n{line}\n", encoding="utf-8")
    assert ChoiceData(root=str(tmp_path)).read("train") == expected


def test_a_folder_without_questions_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is none"):
        ChoiceData(root=str(tmp_path)).read("train")


def test_rows_have_the_end_of_a_long_text():
    reader = checkpoint("BertForMultipleChoice", outputs=1, pool="first", dense="tanh").tokenizer
    asked = Choices("alpha " * 40 + "beta gamma", "what", ("nu", "xi mu"), 1)
    example = choice_example(reader, asked, 12)
    texts = [reader.decode([row.tolist()], skip_special_tokens=False)[0] for row in example["tokens"]]
    assert texts[0].split() == "<s> alpha alpha alpha alpha beta gamma </s> what nu </s>".split()  # noqa: SIM905
    assert texts[1].split() == "<s> alpha alpha alpha alpha beta gamma </s> what xi mu </s>".split()  # noqa: SIM905
    batch = ChoiceRows(choices=3, length=12)([example, None])
    assert batch["inputs"]["lengths"].tolist() == [[11, 12, 0], [0, 0, 0]]
    assert batch["inputs"]["types"][0, 1].tolist() == [0] * 8 + [1] * 4
    assert (batch["labels"].tolist(), batch["weights"].tolist()) == ([1, 0], [1, 0])
    with pytest.raises(ValueError, match="rows must have room for a text, a question and an answer, got 4 tokens"):
        choice_example(reader, asked, 4)


def test_long_questions_lose_their_beginning_and_are_counted():
    reader = checkpoint("BertForMultipleChoice", outputs=1, pool="first", dense="tanh").tokenizer
    asked = Choices("alpha beta gamma", "what " * 20, ("nu", "xi mu"), 1)
    example = choice_example(reader, asked, 11)
    texts = [reader.decode([row.tolist()], skip_special_tokens=False)[0] for row in example["tokens"]]
    assert texts[0].split() == "<s> beta gamma </s> what what what what what nu </s>".split()  # noqa: SIM905
    assert texts[1].split() == "<s> beta gamma </s> what what what what xi mu </s>".split()  # noqa: SIM905
    assert [fit_choices(reader, asked, length)[1] for length in (11, 28, 48, None)] == [True, False, False, False]


@pytest.mark.rotates
def test_answers_are_ranked_by_the_scores_of_their_rows():
    model = checkpoint("BertForMultipleChoice", outputs=1, pool="first", dense="tanh")
    answers = ["nu", "xi mu", "eta"]
    found = choose_answer(model, "alpha beta", "what", answers)
    scores = []
    for answer in answers:
        inputs = model.tokenizer(["alpha beta"], [f"what {answer}"])
        scores.append(float(model(**{name: each[:, None] for name, each in inputs.items()}).logits[0, 0]))
    exponents = np.exp(np.array(scores) - max(scores))
    assert [each.name for each in found] == [answers[i] for i in np.argsort(-exponents)]
    np.testing.assert_allclose([x.probability for x in found], np.sort(exponents / exponents.sum())[::-1], atol=1e-5)
    with pytest.raises(ValueError, match="at least two answers, none empty, got 1"):
        choose_answer(model, "alpha", "what", ["nu"])


def test_made_up_dialogues_say_the_answer():
    for each in made_up_choices("train", 50):
        assert each.answers[each.label] in each.context
        assert len(set(each.answers)) == 4
    assert AnswerChoices(length=64).positions == 64


def test_the_command_prints_answers_the_best_first(tmp_path, run):
    model = checkpoint("BertForMultipleChoice", outputs=1, pool="first", dense="tanh")
    hub.save(model, tmp_path)
    code, out, err = run("choose", tmp_path, "nu", "xi mu", "--question", "what", "--context", "alpha beta")
    assert (code, err) == (0, "")
    found = choose_answer(model, "alpha beta", "what", ["nu", "xi mu"])
    assert out.splitlines() == [f"{each.probability:.4f}\t{each.name}" for each in found]
    code, _, err = run("choose", tmp_path, "nu", "xi mu")
    assert (code, err.strip()) == (1, "error: the passage is given by either --context or --file")


@pytest.mark.rotates
@pytest.mark.parametrize("form", ["dream", "race"])
def test_what_is_measured_is_how_often_the_best_answer_is_right(form, tmp_path):
    model = checkpoint("BertForMultipleChoice", outputs=1, pool="first", dense="tanh")
    folder = tmp_path / ("test" if form == "race" else "")
    for kind in ("middle", "high") if form == "race" else ("",):
        (folder / kind).mkdir(exist_ok=True, parents=True)
        (folder / kind / ("1.txt" if form == "race" else "test.json")).write_text(_forms()[form])
    right = [
        choose_answer(model, each.context, each.question, each.answers)[0].name == each.answers[each.label]
        for each in EXPECTED
    ]
    assert measure(model, tmp_path) == {
        "accuracy": 100 * sum(right) / len(right), "questions": (2 if form == "race" else 1) * len(right),
    }  # fmt: skip
