"""Texts with a teacher: what it says of them, teachers that do not fit, students' runs and exports."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.models.head import with_head
from flax_transformer.nn import EmbeddingConfig, transformer_block, with_fields
from flax_transformer.objective import (
    AttentionRelations,
    AttentionScoreError,
    CosineEmbedding,
    DistilLoss,
    HiddenStateError,
    LabelLoss,
    LayerLoss,
    MaskedDistilLoss,
)
from flax_transformer.task.experiment import train
from flax_transformer.task.fill_mask import TextLines
from flax_transformer.task.opened import Context
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.start import StartConfig
from flax_transformer.task.text_distillation import TaughtMaskedTexts, TaughtTexts
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

pytestmark = pytest.mark.proves(
    "distillation of texts", "a student that begins with some layers of the teacher, its run resumed bit for bit"
)

NAMES = ("bad", "good")
WORDS = {0: ("dull", "poor", "awful"), 1: ("fine", "great", "lovely")}
LINES = [f"a {WORDS[i % 2][i % 3]} film , number {i}\t{i % 2}" for i in range(64)]
ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=1, embed=8, position="learned", max_length=16, types=2, norm=1e-12, scaled=False, dropout=0.1
    ),
    block=transformer_block(embed=8, heads=2, inner=12, norm_eps=1e-12, activation="gelu", dropout=0.1),
    depth=3,
)
LAYERS = LayerLoss(
    of=DistilLoss(kind="soft"),
    terms=(HiddenStateError(layers=((0, 0), (-1, 3))), AttentionScoreError(layers=((0, 1),)),
           AttentionRelations(layers=((-1, -1),))),
)  # fmt: skip
CONFIG = TrainConfig(steps=4, log_every=1, eval_every=4, checkpoint_every=2)
SGD = OptimizerConfig(name="sgd", learning_rate=0.05, schedule=ScheduleConfig(name="constant"))


def tokenizer_of(texts=LINES, size=290):
    return HubTokenizer.of_encoder(train_byte_bpe([*texts, *texts], vocab_size=size).with_mask())


TOKENIZER = tokenizer_of()


def saved(folder, config=ENCODER, names=NAMES, tokenizer=TOKENIZER, masked=False, seed=3):
    config = with_fields(config, vocab=tokenizer.vocab_size)
    pooled = with_head(config, outputs=len(names), pool="first", dense="tanh")
    made = MaskedLMConfig(encoder=config) if masked else pooled
    model = jax.tree.map(lambda leaf: 1.5 * leaf, jax.jit(lambda: made.build(nnx.Rngs(seed)))())
    said = {} if masked else {"id2label": {str(i): name for i, name in enumerate(names)}}
    name = "BertForMaskedLM" if masked else "BertForSequenceClassification"
    hub.save(hub.wrap(model, name, tokenizer=tokenizer, pad_token_id=tokenizer.pad, **said), folder)
    return str(folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name in ("train", "dev", "test"):
        (folder / f"{name}.tsv").write_text("\n".join(LINES) + "\n")
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("teacher"))


def opened(root, tmp_path, teacher, objective=LAYERS, init="", **options):
    context = Context(folder=RunFolder(tmp_path / "run"), seed=1, init=init, objective=objective)
    examples = TaughtTexts(rows=4, length=12, teacher=teacher, **options)
    return examples.open(LabelledText(root=str(root), names=NAMES), context)


def mask_of(batch):
    return np.arange(batch["inputs"]["tokens"].shape[1]) < batch["inputs"]["lengths"][:, None]


@pytest.mark.rotates
def test_the_teacher_says_what_transformers_would_be_given(root, tmp_path, teacher):
    found = opened(root, tmp_path, teacher, hide=0.2)
    batch = found.batches.make(3)
    said, real = batch["teacher"], mask_of(batch)
    output = hub.load(teacher)(
        input_ids=batch["inputs"]["tokens"], attention_mask=real.astype(np.int32), output_hidden_states=True,
        output_attentions=True,
    )  # fmt: skip
    assert {name: sorted(each) for name, each in said.items() if name != "logits"} == {
        "hidden_states": ["0", "3"], "query": ["-1", "1"], "key": ["-1", "1"], "value": ["-1"]
    }  # fmt: skip
    np.testing.assert_allclose(said["logits"], output.logits, rtol=1e-5, atol=1e-5)
    for layer in (0, 3):
        expected = np.where(real[..., None], output.hidden_states[layer], 0)
        np.testing.assert_allclose(np.where(real[..., None], said["hidden_states"][str(layer)], 0), expected, atol=1e-5)
    scores = np.einsum("btnh,bsnh->bnts", said["query"]["1"], said["key"]["1"]) / 2
    weights = jax.nn.softmax(jnp.where(real[:, None, None], scores, -jnp.inf))
    np.testing.assert_allclose(weights, output.attentions[1], atol=1e-5)
    assert found.objective == {"width": 8}
    assert "teacher" not in next(iter(found.validation()))
    found.batches.share((1,), 2)
    np.testing.assert_allclose(found.batches.make(3)["teacher"]["key"]["-1"], said["key"]["-1"][2:], atol=1e-6)


@pytest.mark.rotates
def test_the_teacher_scores_the_masked_tokens(tmp_path):
    (tmp_path / "lines.tsv").write_text("\n".join(LINES) + "\n")
    teacher = saved(tmp_path / "teacher", masked=True)
    objective = LayerLoss(of=MaskedDistilLoss(), terms=(CosineEmbedding(),))
    context = Context(folder=RunFolder(tmp_path / "run"), objective=objective)
    examples = TaughtMaskedTexts(rows=4, length=12, teacher=teacher)
    found = examples.open(TextLines(sentences=(str(tmp_path / "lines.tsv"),), holdout=0.1), context)
    batch = found.batches.make(2)
    assert found.tokenizer.engine.get_vocab() == TOKENIZER.engine.get_vocab()
    output = hub.load(teacher)(input_ids=batch["inputs"]["tokens"], attention_mask=mask_of(batch).astype(np.int32))
    expected = np.take_along_axis(np.asarray(output.logits), batch["positions"][..., None], axis=1)
    there = batch["weights"] > 0
    np.testing.assert_allclose(batch["teacher"]["logits"][there], expected[there], atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize(("made", "objective", "message"), [
    ({"names": ("good", "bad")}, LAYERS, r"must tell 2 classes \(bad, good\), .*teacher tells 2 classes \(good, bad\)"),
    ({"masked": True}, LAYERS, "to classify takes a checkpoint that can, got a BertForMaskedLM"),
    ({"tokenizer": tokenizer_of(size=280)}, LAYERS,
     "one tokenizer, .*teacher has 281 tokens, the student 291; the first that differs is"),
    ({"config": with_fields(ENCODER, max_length=8)}, LAYERS, "the positions of a row, 12, .*teacher has 8"),
    ({"config": with_fields(ENCODER, depth=2)}, LAYERS,
     r"teacher .*teacher: hidden_states must be of the layers -3 … 2, got 3"),
    ({}, LabelLoss(), "the objective must ask something of it, got LabelLoss"),
])  # fmt: skip
def test_teachers_that_do_not_fit_are_refused(root, tmp_path, teacher, made, objective, message):
    folder = saved(tmp_path / "teacher", **made) if made else teacher
    with pytest.raises(ValueError, match=message):
        opened(root, tmp_path, folder, objective, init=teacher)


def recipe(root, teacher, objective=LAYERS, layers=(0, 2), **changes):
    said = {
        "model": StartConfig(layers=layers), "init": teacher, "data": LabelledText(root=str(root), names=NAMES),
        "examples": TaughtTexts(rows=4, length=12, teacher=teacher), "objective": objective, "optimizer": SGD,
        "train": CONFIG,
    }  # fmt: skip
    return Recipe(**{**said, **changes})


def leaves(model):
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model)}


@pytest.mark.rotates
def test_a_student_begins_with_layers_of_its_teacher(root, tmp_path, teacher):
    task = recipe(root, teacher).task(RunFolder(tmp_path))
    ours, theirs = leaves(task.model), leaves(hub.load(teacher).model)
    assert ours.keys() == theirs.keys()
    for name, leaf in ours.items():
        expected = theirs[name][np.array([0, 2])] if "blocks" in name else theirs[name]
        np.testing.assert_array_equal(leaf, expected, err_msg=name)


def losses(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["split"] == "train"]


@pytest.fixture(scope="module")
def finished(root, teacher, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "whole"
    train(recipe(root, teacher), folder)
    return folder


@pytest.mark.rotates
def test_a_student_goes_on_as_if_it_had_not_stopped(root, teacher, finished, tmp_path):
    train(recipe(root, teacher, train=replace(CONFIG, steps=2)), tmp_path)
    train(recipe(root, teacher), tmp_path)
    assert len(losses(tmp_path)) == 4
    assert losses(tmp_path) == losses(finished)


@pytest.mark.rotates
def test_a_student_is_exported_with_its_own_depth(finished):
    exported = hub.load(finished / "export")
    assert exported.config["num_hidden_layers"] == 2
    assert exported.config["id2label"] == {"0": "bad", "1": "good"}
    metrics = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0].keys() >= {"hidden_loss", "attention_loss", "relation_loss", "accuracy"}


@pytest.mark.rotates
def test_parts_of_a_batch_teach_what_the_batch_does(root, tmp_path, teacher):
    """By plain gradients and without dropout, which parts draw each by itself."""
    still = saved(tmp_path / "still", config=with_fields(ENCODER, dropout=0.0))
    ends = [
        leaves(train(recipe(root, still, train=replace(CONFIG, accumulate=parts)), tmp_path / str(parts)))
        for parts in (1, 2)
    ]
    start = leaves(hub.load(still).model)
    for name, leaf in ends[0].items():
        np.testing.assert_allclose(ends[1][name], leaf, rtol=1e-4, atol=1e-6, err_msg=name)
    assert any(np.abs(leaf - start[name]).max() > 1e-3 for name, leaf in ends[0].items() if "blocks" not in name)


@pytest.mark.rotates
def test_a_new_narrower_student_has_the_teachers_tokens_and_no_matrix_in_its_export(root, tmp_path, teacher):
    narrow = with_head(with_fields(ENCODER, embed=4, depth=1), outputs=1, pool="first", dense="tanh")
    objective = LayerLoss(of=DistilLoss(kind="soft"), terms=(HiddenStateError(), AttentionScoreError()))
    muon = OptimizerConfig(name="muon", learning_rate=1e-2, layer_decay=0.9, schedule=ScheduleConfig(name="constant"))
    changes = {"model": narrow, "family": "bert", "init": "", "optimizer": muon, "train": replace(CONFIG, ema=0.5)}
    train(recipe(root, teacher, objective, **changes), tmp_path)
    exported = hub.load(tmp_path / "export")
    assert exported.config["hidden_size"] == 4
    assert exported.tokenizer.engine.get_vocab() == TOKENIZER.engine.get_vocab()
    first, last = losses(tmp_path)[0], losses(tmp_path)[-1]
    assert np.isfinite(last)
    assert last != first


@pytest.mark.rotates
def test_without_a_teacher_a_student_learns_from_labels(root, tmp_path, teacher, capsys):
    examples = TaughtTexts(rows=4, length=12)
    task = recipe(root, teacher, examples=examples).task(RunFolder(tmp_path))
    assert "no teacher: the labels alone are learned" in capsys.readouterr().out
    assert "teacher" not in next(task.batches)
