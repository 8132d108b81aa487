"""Classification end to end on tiny sentences, from nothing and from an exported encoder."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.encoder import MaskedLM, MaskedLMConfig
from flax_transformer.models.head import with_head
from flax_transformer.nn import with_fields
from flax_transformer.objective import LabelLoss
from flax_transformer.task.classification import Labels
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.text_classification import HideWords, LabelledTexts
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.test_pretrain import ENCODER, leaves_equal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.proves("bert", "train", "[`classify_text`](../experiments/classify_text.py)"),
]

NAMES = ("bad", "good")


EXAMPLES = LabelledTexts(vocabulary=VocabularyConfig(size=300), rows=16, length=16)


def classifier(encoder=ENCODER, dropout=0.1):
    return with_head(encoder, outputs=2, pool="first", dense="tanh", dropout=dropout)


def experiment(root, names=NAMES, **changes):
    changes = {"model": classifier(), "examples": EXAMPLES, **changes}
    return Recipe(
        family="bert", data=LabelledText(root=str(root), names=names), objective=LabelLoss(), evaluators=(Labels(),),
        optimizer=OptimizerConfig(learning_rate=5e-3, schedule=ScheduleConfig(name="constant", warmup=1)),
        train=TrainConfig(steps=30, log_every=10, eval_every=15, checkpoint_every=15), **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    words = {0: ("dull", "poor", "awful"), 1: ("fine", "great", "lovely")}
    for name, count in (("train", 96), ("dev", 20), ("test", 20)):
        lines = (f"a {words[i % 2][i % 3]} film , number {i}\t{i % 2}\n" for i in range(count))
        (folder / f"{name}.tsv").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def finished(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return folder, train(experiment(root), folder)


def test_a_run_learns_and_exports_what_it_trained(finished):
    folder, model = finished
    loaded = hub.load(folder / "export")
    assert loaded.config["architectures"] == ["BertForSequenceClassification"]
    assert loaded.config["id2label"] == {"0": "bad", "1": "good"}
    assert leaves_equal(loaded.model, model)
    logits = loaded(**loaded.tokenizer(["a great film , number 3", "a poor film , number 4"])).logits
    assert np.asarray(logits).argmax(-1).tolist() == [1, 0]


def test_a_run_tells_test_accuracy_and_shows_sentences(finished):
    folder, _ = finished
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    test = next(record for record in records if record["split"] == "test")
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 20
    right = np.mean([sample["hypothesis"] == sample["target"] for sample in samples])
    np.testing.assert_allclose(test["accuracy"], right, rtol=1e-6)
    assert right > 0.9
    assert all(0.5 <= sample["score"] <= 1 for sample in samples)
    assert all(sample["scores"].keys() == {"bad", "good"} for sample in samples)
    assert all(sum(sample["scores"].values()) == pytest.approx(1) for sample in samples)
    counts = np.array(json.loads((folder / "confusion.json").read_text())["counts"])
    np.testing.assert_allclose(counts.trace() / counts.sum(), test["accuracy"], rtol=1e-6)
    page = (folder / "report.html").read_text()
    assert len(json.loads(page.partition('id="data">')[2].partition("</script>")[0])["images"]) == 20


def test_a_resumed_run_ends_the_same(finished, root, tmp_path):
    whole = experiment(root)
    train(replace(whole, train=replace(whole.train, steps=15)), tmp_path)
    assert leaves_equal(train(whole, tmp_path), finished[1])


@pytest.fixture(scope="module")
def encoder(finished, tmp_path_factory):
    """A pretrained encoder, as pre-training exports it."""
    from flax import nnx

    tokenizer = hub.load(finished[0] / "export").tokenizer
    table = replace(ENCODER.embedding, vocab=tokenizer.vocab_size)
    model = MaskedLM(MaskedLMConfig(encoder=replace(ENCODER, embedding=table)), rngs=nnx.Rngs(7))
    folder = tmp_path_factory.mktemp("encoder")
    hub.save(hub.wrap(model, "BertForMaskedLM", tokenizer=tokenizer), folder)
    return folder, model


def test_training_begins_from_a_pretrained_encoder_and_its_tokenizer(encoder, root, tmp_path):
    folder, model = encoder
    task = experiment(root, init=str(folder)).task(RunFolder(tmp_path))
    assert leaves_equal(task.model.backbone, model.encoder)
    assert task.model.head.output.kernel.shape == (16, 2)
    assert not (tmp_path / "tokenizer.json").exists()
    trained = train(experiment(root, init=str(folder), examples=replace(EXAMPLES, hide=0.2)), tmp_path / "run")
    assert not leaves_equal(trained.backbone, model.encoder)
    assert leaves_equal(hub.load(tmp_path / "run" / "export").model, trained)


def test_dropout_is_the_experiments_own_also_on_a_pretrained_encoder(encoder, root, tmp_path):
    block = with_fields(ENCODER.block, dropout=0.25, attention_dropout=0.35)
    strong = experiment(root, init=str(encoder[0]), model=classifier(replace(ENCODER, block=block), 0.45))
    model = strong.task(RunFolder(tmp_path)).model
    block = model.backbone.cfg.block
    assert (block.residual.dropout, block.attention.attention_dropout) == (0.25, 0.35)
    assert (model.backbone.cfg.embedding.dropout, model.head.cfg.dropout) == (0.25, 0.45)


def test_an_encoder_whose_tokenizer_has_no_marks_is_refused(encoder, root, tmp_path):
    known = hub.load(encoder[0])
    bare = replace(known, tokenizer=HubTokenizer.of(_plain(tmp_path)))
    hub.save(bare, tmp_path / "bare")
    with pytest.raises(ValueError, match=r"has \[CLS\] and \[SEP\]"):
        experiment(root, init=str(tmp_path / "bare")).task(RunFolder(tmp_path / "run"))


def _plain(folder):
    return VocabularyConfig(size=300).open(RunFolder(folder), ["a film"])


def test_a_folder_of_twenty_classes_needs_no_list_of_them(tmp_path):
    for name, count in (("train", 60), ("dev", 20), ("test", 20)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"text number {i}\tclass {i % 20}\n" for i in range(count)))
    whole = experiment(tmp_path, names=())
    model = train(replace(whole, train=replace(whole.train, steps=2)), tmp_path / "run")
    assert model.head.output.kernel.shape == (16, 20)
    assert hub.load(tmp_path / "run" / "export").config["id2label"]["1"] == "class 1"


def test_hidden_words_are_a_share_and_never_a_mark():
    tokens = np.concatenate([[1], np.full(2_000, 9), [2]]).astype(np.int32)
    hide = HideWords(share=0.3, mask=5, special=(0, 1, 2))
    out = hide({"tokens": tokens, "label": 1}, np.random.default_rng(0))
    assert out["label"] == 1
    assert out["tokens"][[0, -1]].tolist() == [1, 2]
    assert set(out["tokens"][1:-1].tolist()) == {5, 9}
    assert abs(np.mean(out["tokens"] == 5) - 0.3) < 0.04


@pytest.mark.parametrize(
    ("changes", "rule"),
    [({"length": 33}, "length=33, 32 positions"), ({"rows": 0}, "rows must be"), ({"hide": 1.0}, "hide must be")],
)
def test_settings_that_cannot_work_are_refused(changes, rule):
    with pytest.raises(ValueError, match=rule):
        experiment(".", examples=replace(EXAMPLES, **changes))


def test_a_model_of_the_key_is_the_same_every_time(root, tmp_path):
    task = experiment(root).task(RunFolder(tmp_path))
    assert leaves_equal(*(task.init(jax.random.key(3)) for _ in range(2)))


def test_pairs_are_read_one_after_the_other(tmp_path, tmp_path_factory):
    for name, count in (("train", 96), ("dev", 16), ("test", 16)):
        words = [(("red", "blue")[i % 2], ("red", "blue")[i // 2 % 2]) for i in range(count)]
        lines = (f"a {one} film {i}\tit is {two}\t{int(one == two)}\n" for i, (one, two) in enumerate(words))
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    folder = tmp_path / "run"
    model = train(experiment(tmp_path), folder)
    loaded = hub.load(folder / "export")
    inputs = loaded.tokenizer(["a red film 7"], ["it is blue"])
    assert inputs["token_type_ids"].max() == 1
    assert leaves_equal(loaded.model, model)
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert all(" ⏐ it is " in each["source"] for each in samples)
    (tmp_path / "dev.tsv").write_text("a red film\t1\n")
    with pytest.raises(ValueError, match="texts of all splits must be pairs, or those of none"):
        train(experiment(tmp_path), tmp_path_factory.mktemp("other") / "run")
