"""What a checkpoint is measured by is what its model says of the same rows."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from flax_transformer import hub
from flax_transformer.data.image.open import image_splits
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.task.embedding import choose, embed, embed_images, unit
from flax_transformer.task.image_classification import classify_images
from flax_transformer.task.measure import measure
from flax_transformer.task.question_answering import answer
from flax_transformer.task.visual_question_answering import ask
from tests.data.image.image_files import idx_bytes
from tests.record_forms import write_form
from tests.task.checkpoints import WORDS, checkpoint, save, tokenizer_files


def classifier(folder, **config):
    return hub.load(checkpoint("bert", folder, architectures=["BertForSequenceClassification"], **config))


@pytest.fixture
def fresh(monkeypatch):
    """Load checkpoints of encoders with a new head."""
    load = hub.load
    lenient = hub.Lenient(initialise=("^classifier", "pooler", "^qa_outputs"), ignore=("^cls", "pooler"))
    monkeypatch.setattr(hub, "load", lambda folder: load(folder, lenient=lenient))


@pytest.mark.rotates
def test_the_loss_of_classes_is_that_of_the_logits(fresh, tmp_path):
    model = classifier(tmp_path / "bert", id2label={"0": "for", "1": "against"})
    rows = [("one", "for"), ("two", "1"), ("three", "Against")]
    (tmp_path / "test.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in [*rows, *rows]))
    logits = model(**model.tokenizer([text for text, _ in rows])).logits
    loss = -jax.nn.log_softmax(logits)[np.arange(3), np.array([0, 1, 1])]
    found = measure(model, tmp_path)
    np.testing.assert_allclose(found["loss"], loss.mean(), rtol=1e-5)
    assert found["rows"] == 6
    assert found["accuracy"] == pytest.approx(100 * (logits.argmax(-1) == np.array([0, 1, 1])).mean())


@pytest.mark.parametrize(
    "config", [{"num_labels": 1, "id2label": {"0": "LABEL_0"}}, {"problem_type": "multi_label_classification"}]
)
def test_what_is_not_one_of_several_classes_is_not_measured_as_one(fresh, tmp_path, config):
    model = classifier(tmp_path / "bert", **config)
    (tmp_path / "test.tsv").write_text("one\t0\ntwo\t0\n")
    with pytest.raises(ValueError, match="one class of each row is measured, the checkpoint's problem_type is"):
        measure(model, tmp_path)


@pytest.mark.rotates
def test_the_perplexity_counts_every_token_but_the_first_once(tmp_path):
    config = with_fields(gpt2_tiny(dropout=0.0), embed=8, heads=2, inner=12, depth=1, vocab=40, max_length=8)
    save(config, "GPT2LMHeadModel", tmp_path / "gpt2")
    for name, content in tokenizer_files("$A").items():
        (tmp_path / "gpt2" / name).write_text(content)
    model = hub.load(tmp_path / "gpt2")
    (tmp_path / "a.txt").write_text("one two three four five")
    ids = np.array(model.tokenizer.encode(["one two three four five"])[0])
    losses = []
    for start in range(0, len(ids) - 1, 7):  # windows of eight share a token
        part = ids[start : start + 8]
        losses += [*-jax.nn.log_softmax(model(part[None]).logits[0])[np.arange(len(part) - 1), part[1:]]]
    found = measure(model, tmp_path / "a.txt")
    assert (len(losses), found["tokens"]) == (len(ids) - 1, len(ids))
    np.testing.assert_allclose(found["perplexity"], np.exp(np.mean(losses)), rtol=1e-5)


@pytest.mark.rotates
def test_captions_of_damaged_images_alone_are_refused(tmp_path):
    model = hub.load(checkpoint("vision-encoder-decoder", tmp_path / "captioner"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.png").write_bytes(b"none")
    (tmp_path / "data" / "metadata.jsonl").write_text(json.dumps({"image": "0.png", "captions": ["a b"]}))
    refused = []
    with pytest.raises(ValueError, match="must have an image that can be read, got none"):
        measure(model, tmp_path / "data", refuse=lambda file, error: refused.append(file.name))
    assert refused == ["0.png"]


def encoder(folder, architecture, **config):
    return hub.load(checkpoint("bert", folder, architectures=[architecture], **config))


TAGS = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC"}


@pytest.mark.rotates
def test_words_have_the_label_of_their_first_piece(fresh, tmp_path):
    model = encoder(tmp_path / "bert", "BertForTokenClassification", id2label=TAGS)
    sentences = [["one", "two"], ["three"], ["four", "five", "six"]]
    predicted = []
    for words in sentences:
        text = " ".join(words)
        begins = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
        logits = model(**model.tokenizer([text])).logits[0]
        offsets = [begin for begin, _ in model.tokenizer.engine.encode(text).offsets]
        predicted.append([TAGS[str(int(logits[offsets.index(begin, 1)].argmax()))] for begin in begins])
    (tmp_path / "test.conll").write_text(
        "-DOCSTART- O\n\n" + "\n\n".join("\n".join(f"{w} X {t}" for w, t in zip(*each, strict=True))
                                         for each in zip(sentences, predicted, strict=True))
    )  # fmt: skip
    found = measure(model, tmp_path)
    assert found["accuracy"] == 100
    assert (found["words"], found["sentences"]) == (6, 3)
    assert found["f1"] in (0, 100)  # 0 where no entity is predicted
    (tmp_path / "dev.conll").write_text("one B-PER\ntwo O\n")
    assert measure(model, tmp_path / "dev.conll")["accuracy"] == 50 * (
        (predicted[0][0] == "B-PER") + (predicted[0][1] == "O")
    )
    (tmp_path / "dev.conll").write_text("one\n")
    with pytest.raises(ValueError, match=r"dev\.conll, line 1: a line must be a word and its label, got 'one'"):
        measure(model, tmp_path / "dev.conll")


@pytest.mark.rotates
def test_texts_of_every_form_measure_the_same(fresh, monkeypatch, tmp_path, run):
    model = encoder(tmp_path / "bert", "BertForSequenceClassification", id2label={"0": "bad", "1": "good"})
    rows = [{"words": text, "mark": n % 2} for n, text in enumerate(["one two", "three", "four five six", "seven"])]
    expected = None
    for form in ("csv", "jsonl", "saved", "hub"):
        write_form(tmp_path / form, form, "test", rows, {"mark": ("bad", "good")})
        found = measure(model, tmp_path / form, columns=("words", "mark"))
        expected = expected or found
        assert found == expected
    (tmp_path / "test.tsv").write_text("".join(f"{row['words']}\t{('bad', 'good')[row['mark']]}\n" for row in rows))
    assert measure(model, tmp_path / "test.tsv") == expected
    with pytest.raises(
        ValueError, match=r"test\.csv must have the columns of one of: .*; it has words, mark, and columns"
    ):
        measure(model, tmp_path / "csv")
    hub.save(model, tmp_path / "saved_model")
    monkeypatch.undo()
    code, out, err = run("evaluate", tmp_path / "saved_model", tmp_path / "hub", "--columns", "words", "mark")
    assert (code, err) == (0, "")
    assert json.loads(out) == expected


@pytest.mark.rotates
def test_answers_are_scored_as_squad_does(fresh, tmp_path):
    model = encoder(tmp_path / "bert", "BertForQuestionAnswering")
    context, questions = "one two three four five six", ["seven", "eight nine"]
    best = [answer(model, question, context)[0].text for question in questions]
    asked = [{"question": question, "answers": [{"text": text, "answer_start": 0}]}
             for question, text in zip(questions, (best[0], "nothing of it"), strict=True)]  # fmt: skip
    content = {"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}
    (tmp_path / "test.json").write_text(json.dumps(content))
    found = measure(model, tmp_path)
    assert (found["exact_match"], found["questions"]) == (50, 2)
    assert found["f1"] >= 50
    (tmp_path / "test.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "", "qas": []}]}]}))
    with pytest.raises(ValueError, match=r"test\.json must be in SQuAD's form, with a text 'context'"):
        measure(model, tmp_path)


@pytest.mark.rotates
def test_masked_tokens_are_measured_where_they_are_masked(tmp_path):
    model = hub.load(checkpoint("bert", tmp_path / "bert"))
    (tmp_path / "a.txt").write_text("one two three four five six seven eight nine " * 4)
    found = measure(model, tmp_path / "a.txt")
    count = len(model.tokenizer.encode([(tmp_path / "a.txt").read_text()])[0])
    assert 0.05 * count < found["tokens"] < 0.3 * count
    np.testing.assert_allclose(found["perplexity"], np.exp(found["loss"]), rtol=1e-6)
    # Random weights know nothing: the loss is about that of a guess among all tokens.
    assert abs(found["loss"] - np.log(model.model.cfg.encoder.embedding.vocab)) < 1.5
    assert found == measure(model, tmp_path / "a.txt")


@pytest.mark.rotates
def test_a_model_of_images_and_texts_is_measured_by_classes_and_by_captions(tmp_path):
    model = hub.load(checkpoint("clip", tmp_path / "clip"))
    draw, names = np.random.default_rng(0), ["one", "two_three"]
    for name in names:
        (tmp_path / "classes" / name).mkdir(parents=True)
    (tmp_path / "captions").mkdir()
    images, lines = [], []
    for number in range(4):
        image = Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        image.save(tmp_path / "classes" / names[number % 2] / f"{number}.png")
        image.save(tmp_path / "captions" / f"{number}.png")
        lines.append({"image": f"{number}.png", "captions": [WORDS[number], WORDS[number + 4]]})
        images.append(image)
    best = [each[0].name for each in choose(model, images, ["a photo of a one.", "a photo of a two three."])]
    right = np.mean([name == f"a photo of a {names[i % 2].replace('_', ' ')}." for i, name in enumerate(best)])
    assert measure(model, tmp_path / "classes") == {"accuracy": 100 * right, "rows": 4, "split": "all"}
    (tmp_path / "captions" / "metadata.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    found = measure(model, tmp_path / "captions")
    scores = embed(model, [text for each in lines for text in each["captions"]]) @ unit(embed_images(model, images)).T
    first = np.mean(scores.argmax(1) == np.repeat(np.arange(4), 2))
    assert found["texts_r1"] == pytest.approx(100 * first)
    assert (found["texts_r5"], found["images_r10"], found["texts"]) == (100, 100, 8)


@pytest.mark.rotates
def test_images_are_measured_in_any_form_that_training_reads(tmp_path):
    model = hub.load(checkpoint("vit", tmp_path / "vit", id2label={"0": "0", "1": "1", "2": "2"}))
    data, draw = tmp_path / "data", np.random.default_rng(0)
    data.mkdir()
    for name, size in (("train", 6), ("t10k", 5)):
        (data / f"{name}-images-idx4-ubyte").write_bytes(idx_bytes(draw.integers(0, 256, (size, 12, 12, 3))))
        (data / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(size) % 3))
    test = image_splits(data).splits["test"]
    best = [each[0].name for each in classify_images(model, [test["image"][i] for i in range(len(test))])]
    right = np.mean([name == str(label) for name, label in zip(best, test["label"], strict=True)])
    found = measure(model, data)
    assert (found["accuracy"], found["rows"], found["split"]) == (pytest.approx(100 * right), len(test), "test")


@pytest.mark.rotates
def test_questions_about_images_are_right_by_any_right_answer(tmp_path):
    model = hub.load(checkpoint("vilt", tmp_path / "vilt"))
    (tmp_path / "data").mkdir()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    image.save(tmp_path / "data" / "0.png")
    said = ask(model, image, ["one two", "three"])
    rows = [("one two", ["no such answer", said[0][0].name]), ("three", ["no such answer"])]
    (tmp_path / "data" / "metadata.jsonl").write_text(
        "".join(json.dumps({"image": "0.png", "question": q, "answers": a}) + "\n" for q, a in rows)
    )
    assert measure(model, tmp_path / "data") == {"accuracy": 50, "questions": 2, "split": "all"}


@pytest.mark.rotates
def test_a_folder_of_a_test_alone_is_measured(tmp_path):
    model = hub.load(checkpoint("vit", tmp_path / "vit", id2label={"0": "a", "1": "b", "2": "c"}))
    captioner = hub.load(checkpoint("vision-encoder-decoder", tmp_path / "captioner"))
    for name in ("a", "b"):
        (tmp_path / "data" / "test" / name).mkdir(parents=True)
        Image.new("RGB", (12, 12)).save(tmp_path / "data" / "test" / name / "0.png")
    assert measure(model, tmp_path / "data")["split"] == "test"
    (tmp_path / "said").mkdir()
    Image.new("RGB", (12, 12)).save(tmp_path / "said" / "0.png")
    (tmp_path / "said" / "test.jsonl").write_text(json.dumps({"image": "0.png", "captions": ["a b"]}))
    assert measure(captioner, tmp_path / "said")["split"] == "test"
    with pytest.raises(ValueError, match=r"data must have a split train, it has test"):
        measure(model, tmp_path / "data", split="train")
