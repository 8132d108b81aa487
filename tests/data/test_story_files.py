"""Stories of bAbI: what a file says, what a batch holds, and what is refused."""

import io
import tarfile

import numpy as np
import pytest

from flax_transformer.data.bucket import BucketPlan, BucketStream, eval_batches
from flax_transformer.data.text.story import (
    FIRST,
    StoryQuestion,
    StoryTasks,
    number_stories,
    read_stories,
)

TRAIN = """1 Mary went to the hall.
2 John ran home.
3 Where is Mary? \thall\t1
4 Mary moved to the park.
5 Where is Mary? \tpark\t4
1 John got the milk, the ball.
2 What has John? \tmilk,ball\t1
1 Mary left.
2 Is Mary here? \tno\t1
"""
TEST = "1 John ran to the moon.\n2 Where is Mary? \thall\t1\n"
FILES = {
    "qa1_single-fact_train.txt": TRAIN, "qa1_single-fact_test.txt": TEST,
    "qa12_lists_train.txt": TRAIN, "qa12_lists_test.txt": TEST, "README": "no stories",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def words():
    return {word: FIRST + i for i, word in enumerate(["home", "is", "john", "mary", "ran", "to", "went", "where"])}


def stories(**options):
    questions = [each for story in read_stories("x", TRAIN) for each in story]
    answers = {name: i for i, name in enumerate(["hall", "milk,ball", "no", "park"])}
    return number_stories([questions[:2], questions[2:]], words(), answers, **{"width": 4, "most": 9, **options})


def test_a_question_knows_the_facts_before_it_and_a_story_begins_with_its_numbers():
    first, second, third = read_stories("x", TRAIN)
    assert first[1] == StoryQuestion(
        ("Mary went to the hall.", "John ran home.", "Mary moved to the park."), "Where is Mary?", "park"
    )
    assert [len(first), second[0].answer, third[0].facts] == [2, "milk,ball", ("Mary left.",)]


def test_a_folder_and_its_archive_are_read_alike(folder, tmp_path):
    path = tmp_path / "babi.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in FILES.items():
            member = tarfile.TarInfo(f"./en/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    found = StoryTasks(root=str(folder)).read()
    assert list(found) == ["1 single fact", "12 lists"]
    assert found == StoryTasks(root=str(path)).read()
    assert list(StoryTasks(root=str(path), tasks=(12,)).read()) == ["12 lists"]


def test_validation_has_whole_stories_that_training_has_not(folder):
    found = StoryTasks(root=str(folder), holdout=0.3).read()["1 single fact"]
    assert [each.answer for each in found["train"]] == ["hall", "park", "milk,ball"]
    assert [each.answer for each in found["validation"]] == ["no"]
    (folder / "qa1_single-fact_valid.txt").write_text(TEST)
    found = StoryTasks(root=str(folder)).read()["1 single fact"]
    assert (len(found["train"]), found["validation"]) == (4, found["test"])


def test_a_row_is_the_question_and_then_what_was_told_last():
    batch = stories(most=2).lay_out(np.array([1, -1, 0]), 4)
    mary, where, ran = words()["mary"], words()["where"], words()["ran"]
    sentences = batch["inputs"]["sentences"]
    assert sentences[0].tolist() == [
        [where, words()["is"], mary, 0], [mary, 1, words()["to"], 1], [words()["john"], ran, words()["home"], 0],
        [0] * 4,
    ]  # fmt: skip
    assert not sentences[1].any()
    assert sentences[2, 2, :2].tolist() == [mary, words()["went"]]
    assert batch["inputs"]["lengths"].tolist() == [3, 0, 3]
    assert batch["labels"].tolist() == [3, 0, 0]
    assert batch["weights"].tolist() == [1, 0, 1]
    assert batch["index"].tolist() == [1, -1, 0]
    assert stories().lay_out(np.array([3]), 4)["task"].tolist() == [1]


def test_every_question_comes_once_an_epoch_and_a_stream_goes_on_where_it_was():
    made = stories()
    plan = BucketPlan(made.lengths, tokens=8, boundaries=(2, 4), seed=0)
    stream = BucketStream(plan, made)
    epoch = [next(stream) for _ in range(plan.batches_per_epoch)]
    seen = np.concatenate([each["index"][each["weights"] > 0] for each in epoch])
    assert sorted(seen.tolist()) == list(range(4))
    again = BucketStream(plan, made)
    again.set_state({**stream.get_state(), "step": 1})
    np.testing.assert_array_equal(next(again)["index"], epoch[1]["index"])
    again.close()
    stream.close()
    with pytest.raises(ValueError, match="belongs to one pipeline, got another: data"):
        BucketStream(plan, stories(most=1)).set_state(stream.get_state())
    held = [each["index"][each["weights"] > 0] for _, each in eval_batches(made, tokens=8, boundaries=(2, 4))]
    assert sorted(np.concatenate(held).tolist()) == list(range(4))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Mary left.\n", "line 1: a line must be a number and a sentence, got 'Mary left.'"),
        ("1 Mary left.\n2 ?\n", "line 2: a line must be a number and a sentence"),
        ("1 Where is Mary?\t \t1\n", "line 1: a question must have an answer after a tab"),
    ],
)
def test_a_line_that_says_nothing_is_refused(text, said):
    with pytest.raises(ValueError, match=f"qa1_train.txt, {said}".replace("?", r"\?")):
        list(read_stories("qa1_train.txt", text))


def test_what_cannot_be_read_is_said_in_a_sentence(folder, tmp_path):
    with pytest.raises(ValueError, match=r"give --data\.root"):
        StoryTasks().read()
    with pytest.raises(FileNotFoundError, match=r"nowhere must be a folder of bAbI's files, or the \.tar\.gz of one"):
        StoryTasks(root=str(tmp_path / "nowhere")).read()
    with pytest.raises(ValueError, match=r"must have a file qa3_…_train\.txt of each task, it has none"):
        StoryTasks(root=str(folder), tasks=(3,)).read()
    with pytest.raises(ValueError, match=r"holdout must be a share in \(0, 1\), got 1"):
        StoryTasks(holdout=1.0)
    with pytest.raises(
        ValueError, match=r"README must be a folder of texts in UTF-8, or the \.tar\.gz of one; it is neither"
    ):
        StoryTasks(root=str(folder / "README")).read()
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty must have files of bAbI, qa1_…_train\.txt and so on, it has none"):
        StoryTasks(root=str(folder / "empty")).read()
    with pytest.raises(ValueError, match=r"must be one that a training question has, got 'park' of 'Where is Mary\?'"):
        number_stories([[StoryQuestion((), "Where is Mary?", "park")]], {}, {"hall": 0}, width=2, most=2)
