import json

import numpy as np
import pytest

from flax_transformer.data.text import train_byte_bpe
from flax_transformer.data.text.annotated import Question, read_squad
from flax_transformer.data.text.squad import SquadData, made_up_questions
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.question_answering import f1
from flax_transformer.task.span import AnswerSpans, SpanRows

pytestmark = pytest.mark.proves("answers", "windows of passages and where the answer is in them")

TOKENIZER = HubTokenizer.of_encoder(
    train_byte_bpe(["wo who is in the kitchen? Ada put it there. " * 9], vocab_size=280)
)


def _text(example, context_offset=None):
    first, last = example["labels"]
    return TOKENIZER.decode([example["tokens"][first : last + 1].tolist()])[0].strip()


@pytest.mark.parametrize("length", [32, 200])
def test_labels_are_the_tokens_of_the_answer(length):
    spans = AnswerSpans(length=length, stride=4, question=12)
    for asked in made_up_questions("train", 40):
        examples = spans._of(asked, TOKENIZER)
        texts = {_text(each) for each in examples if each["labels"].any()}
        assert texts == set(asked.answers) or (length == 32 and texts <= set(asked.answers))
        for each in examples:
            first, last = each["labels"]
            assert first <= last
            assert each["allowed"][0]
            assert each["allowed"][first]
            assert each["allowed"][last]
            assert len(each["tokens"]) == len(each["allowed"]) <= length
    assert len(examples) > 1 or length == 200


def test_a_window_that_lacks_the_answer_has_none():
    context = " ".join(["nothing here"] * 30) + " Ada was in the kitchen."
    asked = Question("who?", context, ("Ada",), (context.index("Ada"),))
    examples = AnswerSpans(length=40, stride=4, question=12)._of(asked, TOKENIZER)
    assert not examples[0]["labels"].any()
    assert {_text(each) for each in examples if each["labels"].any()} == {"Ada"}


def test_rows_are_laid_out():
    example = {"tokens": np.arange(5), "allowed": np.array([1, 0, 0, 1, 1], bool), "labels": np.array([3, 4])}
    batch = SpanRows(length=7)([example, None])
    assert batch["labels"].tolist() == [[3, 4], [0, 0]]
    assert batch["allowed"].tolist() == [[1, 0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0]]
    assert batch["weights"].tolist() == [1, 0]
    assert batch["inputs"]["lengths"].tolist() == [5, 0]


def _squad(path, passages):
    data = [{"paragraphs": [{"context": context, "qas": asked} for context, asked in passages]}]
    path.write_text(json.dumps({"data": data}))


def test_files_are_read_and_held_out_by_passage(tmp_path):
    passages = [
        (f"passage {n} is here", [{"question": f"q{n}{k}", "answers": [{"text": "here", "answer_start": 14 + k}]}
                                  for k in range(2)]) for n in range(10)
    ]  # fmt: skip
    _squad(tmp_path / "train.json", passages)
    _squad(tmp_path / "dev.json", [("no one", [{"question": "who", "answers": [], "is_impossible": True}])])
    data = SquadData(root=str(tmp_path), holdout=0.2)
    assert [len(data.read(split)) for split in ("train", "validation", "test")] == [16, 4, 1]
    assert not {each.context for each in data.read("train")} & {each.context for each in data.read("validation")}
    assert data.read("train")[1].starts == (13,)  # the file is off by two: the nearest place that has it
    assert data.read("test")[0].answers == ()
    _squad(tmp_path / "odd.json", [("a", [{"question": "q", "answers": [{"text": "a", "answer_start": "0"}]}])])
    with pytest.raises(ValueError, match="whole numbers as answer_start, got '0'"):
        read_squad(tmp_path / "odd.json")


def test_what_makes_no_window_is_refused():
    with pytest.raises(ValueError, match="length=40, question=20, stride=17"):
        AnswerSpans(length=40, question=20, stride=17)
    with pytest.raises(ValueError, match=r"holdout must be in \[0, 1\), got 1\.0"):
        SquadData(holdout=1.0)


def test_scripts_without_spaces_are_scored_by_characters():
    assert f1("約15メートル", ["15メートル"]) == pytest.approx(2 * 1 * (5 / 6) / (1 + 5 / 6))
    assert f1("東京", ["京都"]) == pytest.approx(0.5)
    assert f1("the red house", ["red house"]) == 1.0
