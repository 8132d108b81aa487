import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.question_answering import (
    AnswerConfig,
    Conversation,
    exact_match,
    f1,
    find_answers,
    normalize,
    squad_scores,
)

pytestmark = pytest.mark.proves(
    "answers", "n-best spans over windows, no-answer threshold, SQuAD scores, against exhaustive search"
)

READER = HubTokenizer.of(train_byte_bpe(["“wört”\n" * 9], vocab_size=268))
CONTEXT = "ab cd ef gh ij kl mn op"
WORDS = [(i, i + 2) for i in range(0, len(CONTEXT), 3)]


def _windows(rows, width=9, question=2):
    """Lay windows of the passage's words out beside a question: CLS, the question, the words, padding."""
    offsets, inside = np.zeros((len(rows), width, 2), int), np.zeros((len(rows), width), bool)
    for i, (first, last) in enumerate(rows):
        place = slice(1 + question, 1 + question + last - first)
        offsets[i, place], inside[i, place] = WORDS[first:last], True
    return offsets, inside


OFFSETS, INSIDE = _windows([(0, 5), (3, 8)])


def _logits(seed, shape=(2, 9)):
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype(np.float32) * 3


def _all_spans(start, end, longest):
    """Every allowed span of every window, by the best score, found slowly."""
    found = {}
    for row, a, b in itertools.product(range(len(start)), range(start.shape[1]), range(start.shape[1])):
        if INSIDE[row, a] and INSIDE[row, b] and a <= b <= a + longest - 1:
            place = (OFFSETS[row, a, 0], OFFSETS[row, b, 1])
            found[place] = max(found.get(place, -np.inf), float(start[row, a]) + float(end[row, b]))
    return sorted(((score, *place) for place, score in found.items()), reverse=True)


@pytest.mark.rotates
@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 40))
def test_answers_are_the_best_of_all_spans(seed, longest, count):
    start, end = _logits(seed)
    expected = _all_spans(start, end, longest)
    answers = find_answers(CONTEXT, start, end, OFFSETS, INSIDE, AnswerConfig(n_best=40, max_answer_length=longest))
    assert [(a.score, a.start, a.end) for a in answers] == expected[:40]
    assert [a.text for a in answers] == [CONTEXT[a:b] for _, a, b in expected[:40]]
    few = find_answers(CONTEXT, start, end, OFFSETS, INSIDE, AnswerConfig(n_best=count, max_answer_length=longest))
    assert len(few) <= count
    best = {(start, end): score for score, start, end in expected}
    assert all(a.score <= best[a.start, a.end] for a in few)
    scores = np.array([score for score, _, _ in expected[:40]])
    np.testing.assert_allclose([a.probability for a in answers], np.exp(scores) / np.exp(scores).sum(), rtol=1e-9)


def test_the_likeliest_tokens_make_the_spans():
    start, end = np.full((2, 1, 9), -9.0)
    start[0, [3, 5]], end[0, [4, 7]] = (4, 3), (2, 1)
    start[0, 0] = end[0, 1] = start[0, 8] = 99  # outside the passage
    offsets, inside = OFFSETS[:1], INSIDE[:1]
    answers = find_answers(CONTEXT, start, end, offsets, inside, AnswerConfig(n_best=2))
    assert [(a.text, a.score) for a in answers] == [("ab cd", 6), ("ab cd ef gh ij", 5)]
    (answer,) = find_answers(CONTEXT, start, end, offsets, inside, AnswerConfig(n_best=1, max_answer_length=2))
    assert (answer.text, answer.probability) == ("ab cd", 1.0)
    only = AnswerConfig(n_best=2, max_answer_length=4)
    assert [a.text for a in find_answers(CONTEXT, start, end, offsets, inside, only)] == ["ab cd", "ef gh ij"]


def test_the_same_words_in_two_windows_count_once():
    start, end = np.full((2, 2, 9), -9.0)
    start[0, 6] = end[0, 6] = 1  # "gh" is word 3: fourth in the first window, first in the second
    start[1, 3] = end[1, 3] = 2
    answers = find_answers(CONTEXT, start, end, OFFSETS, INSIDE)
    assert [(a.text, a.score) for a in answers if a.text == "gh"] == [("gh", 4.0)]
    swapped = find_answers(CONTEXT, start[::-1], end[::-1], OFFSETS[::-1], INSIDE[::-1])
    assert swapped == answers


@pytest.mark.parametrize(("threshold", "first"), [(-0.5, ""), (0.9, ""), (1.0, "ab"), (5.0, "ab")])
def test_no_answer_must_win_by_the_threshold(threshold, first):
    start, end = np.full((2, 2, 9), -9.0)
    start[0, 3] = end[0, 3] = 2
    start[:, 0], end[:, 0] = (3, 4), (2, 3)  # no answer scores 5 and 7: the lesser counts
    answers = find_answers(CONTEXT, start, end, OFFSETS, INSIDE, AnswerConfig(threshold=threshold))
    assert answers[0].text == first
    assert sum(a.text == "" for a in answers) == 1
    assert next(a.score for a in answers if a.text == "") == 5
    assert sum(a.probability for a in answers) == pytest.approx(1)
    spans = [a.score for a in answers if a.text]
    assert spans == sorted(spans, reverse=True)


def test_no_answer_stands_where_cls_stands():
    start, end = np.full((2, 2, 9), -9.0)
    start[[0, 1], [8, 0]] = 50
    config = AnswerConfig(threshold=0.0)
    best = find_answers(CONTEXT, start, end, OFFSETS, INSIDE, config, cls=np.array([8, 0]))[0]
    assert (best.text, best.score) == ("", 41)
    assert find_answers(CONTEXT, start, end, OFFSETS, INSIDE, config)[0].text != ""


@pytest.mark.parametrize("word", range(12))
def test_windows_of_a_checkpoints_tokenizer_lead_back_to_the_text(word):
    words = [f"“wört{i}”" for i in range(12)]
    context = "\n".join(words)
    windows = READER.encode_windows("which?", context, 24, 11)
    assert len(windows.inside) > 3
    begin = context.index(words[word])
    first = windows.offsets[..., 0] == begin
    last = windows.offsets[..., 1] == begin + len(words[word])
    best = find_answers(context, first * 5.0, last * 5.0, windows.offsets, windows.inside)[0]
    assert (best.text, best.score) == (words[word], 10)


def test_nothing_to_find():
    start, end = _logits(0)
    none = np.zeros_like(INSIDE)
    assert find_answers(CONTEXT, start, end, OFFSETS, none) == []
    (answer,) = find_answers(CONTEXT, start, end, OFFSETS, none, AnswerConfig(threshold=0.0))
    assert (answer.text, answer.probability) == ("", 1.0)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0, 30"):
        AnswerConfig(n_best=0)
    with pytest.raises(ValueError, match="keep must not be negative, got -1"):
        Conversation(keep=-1)
    with pytest.raises(ValueError, match="got nan"):
        find_answers(CONTEXT, np.full((2, 9), np.nan), np.zeros((2, 9)), OFFSETS, INSIDE)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The U.S.A.", "usa"), ("a", ""), ("  An\tapple\n", "apple"), ("twenty-three", "twentythree"), ("a-b", "ab"),
        ("then another", "then another"), ("“quoted”", "“quoted”"), ("$5,000_00", "500000"), ("THE THE end", "end"),
        ("", ""), ("...", ""), ("école à a", "école à"),
    ],
)  # fmt: skip
def test_normalisation_is_squads(text, normal):
    assert normalize(text) == normal


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "overlap"),
    [
        ("The Eiffel Tower", ["Eiffel tower!"], 1, 1),
        ("Eiffel", ["Eiffel tower", "tower of Eiffel"], 0, 2 / 3),
        ("big big dog", ["big dog dog"], 0, 2 / 3),
        ("cat", ["dog"], 0, 0),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["dog"], 0, 0),
        ("the", ["a", "dog"], 0, 0),
        ("the", ["a", "..."], 1, 1),
    ],
)
def test_scores_by_hand(prediction, references, exact, overlap):
    assert exact_match(prediction, references) == exact
    assert f1(prediction, references) == pytest.approx(overlap)


@pytest.mark.rotates
@given(st.lists(st.sampled_from(["x", "y", "z"])), st.lists(st.sampled_from(["x", "y", "z"]), min_size=1))
def test_f1_is_the_mean_of_precision_and_recall(said, expected):
    left = list(expected)
    same = sum(left.remove(word) is None for word in said if word in left)
    precision, recall = same / max(len(said), 1), same / len(expected)
    mean = 2 * precision * recall / (precision + recall) if same else 0
    assert f1(" ".join(said), [" ".join(expected)]) == pytest.approx(mean)
    assert f1(" ".join(said), ["w", " ".join(expected)]) == pytest.approx(mean)


def test_corpus_scores_are_means_in_percent():
    scores = squad_scores(["Eiffel", "", "x y"], [["the eiffel"], ["dog"], ["x", "x z"]])
    assert scores == {"exact_match": pytest.approx(100 / 3), "f1": pytest.approx(100 * (1 + 0 + 2 / 3) / 3)}
    with pytest.raises(ValueError, match="1 predictions, 0 references"):
        squad_scores(["x"], [])


def test_a_question_carries_what_was_said():
    talk = Conversation().add("Who?", "Ada.").add("Where?", "").add("When?", "In 1843.")
    assert talk.question("Why?") == "Who? Ada. Where? When? In 1843. Why?"
    short = Conversation(talk.turns, keep=1)
    assert short.question("Why?") == "When? In 1843. Why?"
    assert Conversation(talk.turns, keep=0).question("Why?") == "Why?"
    assert Conversation(talk.turns, keep=9).carried == talk.turns == short.turns
    assert Conversation().question("Why?") == "Why?"


def test_causal_models_read_turns_ended_by_eos():
    encode = lambda texts: [[ord(letter) for letter in text] for text in texts]  # noqa: E731
    tokenizer = SimpleNamespace(encode=encode, eos=46, chat_templates={})
    talk = Conversation().add("ab", "c").add("d", "e")
    assert bytes(talk.ids("f", tokenizer)) == b"ab.c.d.e.f."
    assert bytes(talk.ids("f", tokenizer, max_length=10)) == b"d.e.f."
    assert bytes(talk.ids("f", tokenizer, max_length=5)) == b"f."
    with pytest.raises(ValueError, match="at most 1 tokens, end mark included, got 2"):
        talk.ids("f", tokenizer, max_length=1)
