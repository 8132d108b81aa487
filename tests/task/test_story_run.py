"""Questions about stories: a run of each model, resumed exactly, its errors by task, and what is refused."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.data.text.story import StoryTasks
from flax_transformer.models.preset import abstract, module_of
from flax_transformer.models.text.story import StoryConfig, StoryReader
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block, with_fields
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import Context
from flax_transformer.task.spec import Spec, sized
from flax_transformer.task.story import StoryQuestions, task_errors
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.test_bad_input import refused  # noqa: F401
from tests.task.test_classify_images import experiments

NAMES, PLACES = ("John", "Mary", "Sandra"), ("hall", "park", "office")


def written(folder, tasks=(1, 6), stories=60):
    """Write stories of people who go to places, and where they are."""
    draw = np.random.default_rng(0)
    for task in tasks:
        for split, count in (("train", stories), ("test", 12)):
            lines = []
            for _ in range(count):
                place = dict(zip(NAMES, draw.permutation(PLACES), strict=True))
                lines += [f"{i} {name} went to the {place[name]}." for i, name in enumerate(NAMES, start=1)]
                who, where = draw.choice(NAMES), draw.choice(PLACES)
                right = f"Is {who} in the {where}? \t{'yes' if place[who] == where else 'no'}"
                lines.append(f"4 {right if task == 6 else f'Where is {who}? {chr(9)}{place[who]}'}\t1")
            (folder / f"qa{task}_some-thing_{split}.txt").write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return written(tmp_path_factory.mktemp("babi"))


def short(name, root, steps):
    recipe = experiments("answer_stories")[name]
    return replace(
        recipe,
        model=with_fields(recipe.model, embed=16, inner=32, depth=3, dropout=0.0),
        data=StoryTasks(root=root, holdout=0.2),
        examples=StoryQuestions(sentences=64, buckets=1, most=7),
        optimizer=replace(recipe.optimizer, learning_rate=1e-2, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=steps, log_every=5, eval_every=10, checkpoint_every=10),
    )


def records(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


@pytest.mark.rotates
@pytest.mark.proves("story", "train", "[`answer_stories`](../experiments/answer_stories.py), resumed bit for bit")
def test_a_run_goes_on_bit_for_bit_and_tells_errors_by_task(root, tmp_path, capsys):
    train(short("adaptive", root, 20), tmp_path / "whole")
    assert "of 2 tasks" in capsys.readouterr().out
    train(short("adaptive", root, 10), tmp_path / "parts")
    train(short("adaptive", root, 20), tmp_path / "parts")
    whole, parts = records(tmp_path / "whole"), records(tmp_path / "parts")
    assert [each for each in whole if each["step"] > 10] == [each for each in parts if each["step"] > 10]
    (test,) = (each for each in whole if each["split"] == "test")
    np.testing.assert_allclose(test["mean_error"], (test["error_1"] + test["error_6"]) / 2)
    assert test["failed_tasks"] == sum(test[name] > 5 for name in ("error_1", "error_6"))
    assert 1 <= test["steps"] <= 3
    assert {each["split"] for each in whole if "mean_error" in each} == {"validation", "test"}
    samples = [json.loads(line) for line in (tmp_path / "whole/samples.jsonl").read_text().splitlines()]
    assert {each["kind"] for each in samples} == {"1 some thing", "6 some thing"}
    assert samples[0]["source"].endswith("?")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "universal"])
def test_stories_are_learned(name, root, tmp_path):
    recipe = short(name, written(tmp_path, tasks=(1,), stories=600), 300)
    recipe = replace(recipe, examples=replace(recipe.examples, sentences=160))
    train(replace(recipe, optimizer=replace(recipe.optimizer, learning_rate=5e-3)), tmp_path / "run")
    assert records(tmp_path / "run")[-1]["mean_error"] < 20


def test_models_of_the_recipe_have_as_many_parameters_within_a_twentieth():
    spec = Spec(vocab=147, classes=tuple(map(str, range(60))), sizes={"words": 11})
    count = lambda recipe: sum(leaf.size for leaf in jax.tree.leaves(abstract(sized(recipe.model, spec))))  # noqa: E731
    counts = {name: count(each) for name, each in experiments("answer_stories").items()}
    assert all(0.95 < number / counts["transformer"] < 1.05 for number in counts.values()), counts


def reader(**changes):
    block = transformer_block(embed=8, heads=2, inner=16)
    embedding = EmbeddingConfig(vocab=20, embed=8, position="none")
    return StoryConfig(embedding=embedding, trunk=TrunkConfig(block=block, depth=2), words=3, **changes)


@pytest.mark.rotates
def test_a_sentence_is_the_sum_of_its_words_by_their_masks_and_padding_is_unseen():
    one = StoryReader(reader(), rngs=nnx.Rngs(0))
    one.position.embedding[...] = jax.random.normal(jax.random.key(1), (3, 8))
    words = jnp.array([[[4, 5, 6], [7, 8, 0], [0, 0, 0]]])
    table, mask = one.embedding.token.embedding[...] * np.sqrt(8), one.position.embedding[...]
    expected = table[4] * mask[0] + table[5] * mask[1] + table[6] * mask[2]
    alone = replace(reader(), position="none")
    plain = StoryReader(alone, rngs=nnx.Rngs(0))
    plain.position.embedding[...] = mask
    np.testing.assert_allclose(plain._enter(words, None)[0][0, 0], expected, atol=1e-5)
    np.testing.assert_allclose(plain._enter(words, None)[0][0, 2], 0)
    hidden = one.hidden_states(words, lengths=jnp.array([2]))
    changed = one.hidden_states(words.at[0, 2].set(9), lengths=jnp.array([2]))
    np.testing.assert_array_equal(hidden[:, :2], changed[:, :2])
    assert np.abs(one.hidden_states(words[:, ::-1])[:, 1] - one.hidden_states(words)[:, 1]).max() > 1e-4
    batch = StoryReader.example_batch(reader(), 2, 4)
    assert StoryReader.describe_batch(reader(), batch).items == 8
    assert module_of(reader()) is StoryReader
    with pytest.raises(ValueError, match=r"W=3 places for words, got shape \(1, 3, 2\)"):
        one.hidden_states(words[..., :2])
    with pytest.raises(ValueError, match="no positions but their masks, got position='sinusoidal'"):
        with_fields(reader(), embedding=EmbeddingConfig(vocab=20, embed=8))


def test_errors_are_shares_of_each_task():
    task, told, label = np.array([[0, 0, 2, 2], [1, 2, 3, 3], [1, 1, 3, 4]])
    assert task_errors(task, told, label) == {0: 50.0, 2: 50.0}


def test_a_model_reads_what_is_found(root, tmp_path, capsys):
    pytest.importorskip("bm25s")
    context = Context(folder=RunFolder(tmp_path / "run"))
    examples = StoryQuestions(sentences=64, buckets=1, most=7, found=1, hops=1)
    opened = examples.open(StoryTasks(root=root, tasks=(1,), holdout=0.2), context)
    assert "of 36 facts of test questions 12 are found" in capsys.readouterr().out
    for each in opened.held.questions:
        ((fact,), name) = each.facts, each.question.split()[-1].rstrip("?")
        assert fact.startswith(name)
        assert each.answer in fact
    with pytest.raises(ValueError, match="found must be at least 0 and hops at least 1, got -1 and 2"):
        StoryQuestions(found=-1)


def test_answers_that_nobody_could_learn_are_refused(tmp_path):
    written(tmp_path, tasks=(1,))
    (tmp_path / "qa1_some-thing_test.txt").write_text("1 John went to the hall.\n2 Where is John?\tmoon\t1\n")
    said = "test: an answer must be one that a training question has, got 'moon' of 'Where is John?'"
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        StoryQuestions().open(StoryTasks(root=str(tmp_path)), Context(folder=RunFolder(tmp_path / "run")))
    with pytest.raises(ValueError, match="room for 8 questions with most=70 facts, got buckets=4, sentences=100"):
        StoryQuestions(sentences=100)


def test_a_folder_without_stories_is_refused(refused, tmp_path):  # noqa: F811
    assert "give --data.root" in refused("answer_stories")
    assert "must have files of bAbI" in refused("answer_stories", "--data.root", tmp_path)
