"""Recipes of questions about images: what a run measures, that it resumes, what its export answers, and the blind."""

import base64
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import ShapeQuestions, ShapeVQA
from flax_transformer.models.answer_head import answering
from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.lxmert import lxmert_encoder
from flax_transformer.models.multimodal.vilt import vilt_encoder
from flax_transformer.models.text.bert import bert_base_uncased
from flax_transformer.nn import StemConfig, with_fields
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.experiment import train
from flax_transformer.task.image_attention import draw_image
from flax_transformer.task.image_input import Augment
from flax_transformer.task.opened import Context, VocabularyConfig
from flax_transformer.task.report import draw_samples
from flax_transformer.task.visual_question_answering import AskedImages, ask
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.data.image.image_files import pixels, write_image
from tests.data.image.test_pairs import lines
from tests.task.test_classify_images import experiments
from tests.task.test_matched import records

pytestmark = pytest.mark.rotates

SMALL = {"embed": 8, "heads": 2, "depth": 1, "inner": 8}
SHAPES = ShapeQuestions(shapes=ShapeVQA(train=10, held_out=4, size=40))
PATCHES = vilt_encoder(image=40, patch=20, length=24, **SMALL)
MODELS = {
    "seeing": answering(
        replace(PATCHES, patches=StemConfig(embed=8, image=(40, 40), inner=(4, 4, 4), pool=False), table_std=0.2), 2
    ),
    "patches": answering(PATCHES, 2),
    "blind": with_head(
        with_fields(bert_base_uncased(dropout=0.0).encoder, **SMALL), outputs=2, pool="first", dense="tanh"
    ),
}


def short(name, steps, **data):
    recipe = experiments("answer_about_images")[name]
    changed = {} if name == "blind" else {"augment": Augment(shift=1, jitter=0.2)}
    examples = replace(recipe.examples, rows=8, length=24, vocabulary=VocabularyConfig(size=300), **changed)
    return replace(
        recipe, model=MODELS[name], examples=examples, data=replace(SHAPES, **data),
        optimizer=replace(recipe.optimizer, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "seeing"
    return folder, train(short("seeing", 4), folder)


@pytest.mark.proves("vilt", "train", "[`answer_about_images`](../experiments/answer_about_images.py)")
def test_a_run_measures_how_many_questions_are_answered(seeing):
    folder, _ = seeing
    test = records(folder)[-1]
    assert test["split"] == "test"
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 15  # and one whose answer no training question has
    right = [each["hypothesis"] in each["target"].split(", ") for each in samples]
    assert test["accuracy"] == sum(right) / 16
    assert all((folder / each["picture"]).is_file() and each["source"].endswith("?") for each in samples)
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_with_everything_drawn_at_random(seeing, tmp_path):
    train(short("seeing", 2), tmp_path)
    train(short("seeing", 4), tmp_path)
    again = [each for each in records(tmp_path) if each["split"] == "train" and each["step"] > 2]
    whole = [each for each in records(seeing[0]) if each["split"] == "train" and each["step"] > 2]
    assert again == whole
    assert len(again) == 2


def test_the_export_answers_as_the_run_did(seeing):
    folder, _ = seeing
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    pretrained = open_checkpoint(str(folder))
    for each in samples[:5]:
        (answers,) = ask(pretrained, folder / each["picture"], [each["source"]])
        assert answers[0].name == each["hypothesis"]
        np.testing.assert_allclose(answers[0].probability, each["score"], rtol=1e-4)
        assert sum(answer.probability for answer in answers) == pytest.approx(1)
    together = ask(pretrained, folder / samples[0]["picture"], [each["source"] for each in samples[:3]])
    assert together[0][0].name == samples[0]["hypothesis"]


@pytest.mark.slow
def test_a_model_of_patches_and_one_that_sees_nothing_are_exported(tmp_path):
    for name, kind in (("patches", "ViltForQuestionAnswering"), ("blind", "BertForSequenceClassification")):
        train(short(name, 2), tmp_path / name)
        pretrained = hub.load(tmp_path / name / "export")
        assert pretrained.config["architectures"] == [kind]
        assert set(pretrained.config["id2label"].values()) >= {"yes", "no"}
    samples = [json.loads(line) for line in (tmp_path / "blind/samples.jsonl").read_text().splitlines()]
    assert not any("picture" in each for each in samples)
    same = {}
    for each in samples:  # who does not see answers alike what is asked alike
        assert same.setdefault(each["source"], each["hypothesis"]) == each["hypothesis"]


def opened(folder, asked, tmp_path, **options):
    for split, (answers, name) in asked.items():
        said = []
        for number, each in enumerate(answers):
            write_image(folder / f"{name}{number}.png", pixels(number, 8, 8))
            said.append({"image": f"{name}{number}.png", "question": f"what {number}?", "answers": each})
        lines(folder / f"{split}.jsonl", *said)
    (tmp_path / "run").mkdir(exist_ok=True)
    examples = AskedImages(rows=4, length=16, vocabulary=VocabularyConfig(size=270), **options)
    return examples.open(ShapeQuestions(root=str(folder)), Context(folder=RunFolder(tmp_path / "run")))


def test_answers_that_training_lacks_are_told_and_count_as_wrong(tmp_path, capsys):
    asked = {
        "train": ([["a"], ["a"], ["b"], ["b", "a"], ["c"], ["a"]], "t"), "dev": ([["a"], ["b"]], "d"),
        "test": ([["a"], ["z"], ["z", "b"], ["c"]], "e"),
    }  # fmt: skip
    found = opened(tmp_path, asked, tmp_path, answers=2)
    said = capsys.readouterr().out
    assert "5 train and 1 of other answers, left out" in said
    assert "2 test and 2 of other answers, wrong whatever is said; 2 answers" in said
    assert found.spec.classes == ("a", "b")
    assert found.held.others == 2
    assert found.held.right.tolist() == [[True, False], [False, True]]
    batch = next(iter(found.test()))
    assert batch["labels"][batch["weights"] > 0].tolist() == [0, 1]


def test_what_makes_no_sense_is_refused(tmp_path):
    known = {"train": ([["a"], ["b"]], "t"), "dev": ([["a"]], "d")}
    with pytest.raises(ValueError, match="questions of test must have answers that training questions have, none has"):
        opened(tmp_path / "one", {**known, "test": ([["z"]], "e")}, tmp_path)
    with pytest.raises(ValueError, match="training questions must have at least two different answers, got a"):
        opened(
            tmp_path / "two", {"train": ([["a"], ["a"]], "t"), "dev": ([["a"]], "d"), "test": ([["a"]], "e")}, tmp_path
        )
    with pytest.raises(ValueError, match="answers must be at least 2, got 1"):
        AskedImages(answers=1)
    with pytest.raises(ValueError, match="images with questions are not mixed"):
        AskedImages(augment=Augment(cutmix=1.0))


def test_only_who_can_answer_about_a_picture_is_asked(seeing, tmp_path):
    folder, _ = seeing
    pretrained = open_checkpoint(str(folder))
    write_image(tmp_path / "a.png", pixels(0, 40, 40))
    for question, rule in ((" ", "must have words, .*got none"), ("what " * 40, "of at most 24 tokens, got ")):
        with pytest.raises(ValueError, match=rule):
            ask(pretrained, tmp_path / "a.png", [question])
    with pytest.raises(ValueError, match="reads images, and there is no file"):
        ask(pretrained, tmp_path / "b.png", ["what?"])
    bert = hub.load("tests/hub/golden/bert")
    with pytest.raises(ValueError, match="to answer questions about images takes a checkpoint that can, got a Bert"):
        ask(bert, tmp_path / "a.png", ["what?"])
    lxmert = hub.load("tests/hub/golden/lxmert")
    with pytest.raises(ValueError, match=r"answers by regions that a detector found .* visual_feats and visual_pos"):
        ask(lxmert, tmp_path / "a.png", ["what?"])
    assert lxmert.model.cfg.backbone.features != lxmert_encoder().features


def test_the_command_prints_answers_the_best_first(seeing, run):
    folder, _ = seeing
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    picture, question = folder / samples[0]["picture"], samples[0]["source"]
    code, out, err = run("ask", folder, picture, question, "--top", 3)
    assert (code, err) == (0, "")
    told = [line.split("\t") for line in out.splitlines()]
    assert len(told) == 3
    assert told[0][1] == samples[0]["hypothesis"]
    assert float(told[0][0]) >= float(told[1][0]) >= float(told[2][0])
    code, out, _ = run("ask", folder, picture, question, "is there a red cross?", "--top", 1)
    assert code == 0
    assert out.splitlines()[::2] == [question, "is there a red cross?"]
    for arguments, rule in (
        ((folder, picture, question, "--top", 0), "top must be at least 1, got 0"),
        ((folder, folder / "none.png", question), "there is no file"),
        (("tests/hub/golden/bert", picture, question), "takes a checkpoint that can"),
    ):
        code, _, err = run("ask", *arguments)
        assert code == 1
        assert rule in err
        assert len(err.strip().splitlines()) == 1


def test_words_are_drawn_over_the_patches_they_look_at(seeing):
    folder, _ = seeing
    pretrained = open_checkpoint(str(folder))
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    question = samples[0]["source"]
    drawn, _ = draw_image(pretrained, folder / samples[0]["picture"], "an image", question)
    ((maps),) = drawn.maps
    words = len(pretrained.tokenizer([question])["input_ids"][0])
    assert maps.queries.tokens[words:] == ("class_token",)
    assert "".join(maps.queries.tokens[1 : words - 1]).replace("·", " ").strip() == question
    assert maps.weights.shape == (1, 2, words + 1 + 9, words + 1 + 9)
    np.testing.assert_allclose(maps.weights.sum(-1), 1, rtol=1e-5)
    assert drawn.output.split(" ")[0] == samples[0]["hypothesis"]
    with pytest.raises(ValueError, match="reads text with an image, it was given none"):
        draw_image(pretrained, folder / samples[0]["picture"])
    data = base64.b64encode((folder / samples[0]["picture"]).read_bytes()).decode()
    shown = {"source": question, "picture": f"data:image/png;base64,{data}"}
    texts, (image,), notes = draw_samples(pretrained, [shown])
    assert (texts, notes) == (None, [])
    np.testing.assert_allclose(image.maps[0].weights, maps.weights, atol=1e-6)


def test_questions_in_memory_are_those_that_are_decoded(tmp_path):
    context = Context(folder=RunFolder(tmp_path), seed=5)
    held, decoded = (
        AskedImages(rows=8, length=24, vocabulary=VocabularyConfig(size=300), memory=memory).open(SHAPES, context)
        for memory in (64, 0)
    )
    seen = []
    for one in (held, decoded):
        batches = [next(one.batches) for _ in range(5)]
        one.batches.close()
        every = [leaf for batch in batches for leaf in zip(*jax.tree.leaves(batch), strict=True)]
        seen.append({b"".join(np.asarray(part).tobytes() for part in row) for row in every})
    assert seen[0] == seen[1]
    assert len(seen[0]) == 40
