"""Objectives as values: one for every family that has tokens, options, and what may not be cut."""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flax_transformer.objective import LabelLoss, MaskedLoss, Objective, TokenLoss, check_parts
from flax_transformer.task.evaluator import evaluate
from flax_transformer.train.config import from_json, to_json
from tests.models import families
from tests.shares import share


@dataclass(frozen=True, kw_only=True)
class Contrastive(Objective):
    """Rows that must tell themselves from the others, as two towers are trained."""

    separable: ClassVar[bool] = False

    def __call__(self, model, batch, *, key=None):
        scores = batch["inputs"]["x"] @ batch["inputs"]["x"].T * model
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(scores)))
        return jnp.sum(losses), {"count": jnp.float32(len(scores))}


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "options"),
    share(
        product(
            ["gpt2", "llama3_2_1b", "transformer_base", "t5_small", "bert_base_uncased"],
            [{}, {"label_smoothing": 0.2}, {"z_loss": 0.01}],
        ),
        0,
        of=8,
    ),
)
def test_one_loss_of_tokens_is_optax_on_whole_logits_for_every_family(name, options):
    config = families.family(name)
    model, batch = families.build(config), families.batch(config, 3, 8)
    batch.pop("next_sentence", None)
    total, metrics = jax.jit(TokenLoss(chunk=5, **options))(model, batch)
    hidden = model.hidden_states(**batch["inputs"])
    if "positions" in batch:
        hidden = jnp.take_along_axis(hidden, batch["positions"][..., None], axis=1)
    logits = model.output(hidden).logits()
    smoothed = optax.smooth_labels(jax.nn.one_hot(batch["labels"], families.V), options.get("label_smoothing", 0.0))
    losses = optax.softmax_cross_entropy(logits, smoothed)
    losses = losses + options.get("z_loss", 0.0) * jax.nn.logsumexp(logits, -1) ** 2
    np.testing.assert_allclose(total, (losses * batch["weights"]).sum(), rtol=1e-5)
    assert metrics["count"] == batch["weights"].sum()


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["gpt2", "transformer_base", "bert_base_uncased"])
def test_inputs_by_name_are_what_a_call_makes_of_them(name):
    config = families.family(name)
    model, batch = families.build(config), families.batch(config, 3, 8)
    inputs = batch["inputs"]
    hidden = model.output(model.hidden_states(**inputs)).logits()
    if name == "transformer_base":
        called = model(inputs["source"], inputs["target"], inputs["lengths"])
        real = jnp.ones(inputs["target"].shape, bool)
    else:
        called = model(inputs["tokens"][2:, :6], **({"types": inputs["types"][2:, :6]} if "types" in inputs else {}))
        hidden, real = hidden[2:, :6], jnp.ones((1, 6), bool)  # the last row has 6 tokens, the rest is padding
    np.testing.assert_allclose(hidden[real], called[real], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert_base_uncased"])
def test_packed_documents_do_not_see_each_other(name):
    model = families.build(families.family(name))
    tokens = jnp.arange(4, 10)[None]
    segments, positions = jnp.array([[1, 1, 1, 1, 2, 2]]), jnp.array([[0, 1, 2, 3, 0, 1]])
    packed = model.hidden_states(tokens, segments=segments, positions=positions)
    alone = model.hidden_states(tokens[:, 4:])
    np.testing.assert_allclose(packed[:, 4:], alone, rtol=1e-4, atol=1e-5)
    assert jnp.abs(model.hidden_states(tokens, positions=positions)[:, 4:] - alone).max() > 1e-3


@pytest.mark.rotates
def test_perplexity_is_that_of_the_loss_without_smoothing():
    config = families.family("gpt2")
    model, batches = families.build(config), [families.batch(config, rows, 8) for rows in (2, 3)]
    plain = evaluate(TokenLoss(), model, batches)
    smooth = evaluate(TokenLoss(label_smoothing=0.3), model, batches)
    assert plain.keys() == smooth.keys() == {"loss", "perplexity"}
    np.testing.assert_allclose(plain["perplexity"], np.exp(plain["loss"]), rtol=1e-6)
    np.testing.assert_allclose(smooth["perplexity"], plain["perplexity"], rtol=1e-6)
    assert abs(smooth["loss"] - plain["loss"]) > 1e-4


@pytest.mark.parametrize("objective", [TokenLoss(z_loss=0.1), MaskedLoss(chunk=7), LabelLoss(label_smoothing=0.1)])
def test_equal_options_make_equal_objectives_that_survive_a_file(objective):
    again = from_json(to_json(objective))
    assert again == objective
    assert hash(again) == hash(objective)
    assert objective.better.keys() >= {"loss"}
    assert set(objective.better.values()) <= {"lower", "higher"}


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: TokenLoss(label_smoothing=1.0), r"label_smoothing must be in \[0, 1\), got 1.0"),
        (lambda: TokenLoss(z_loss=-1.0), "z_loss must not be negative, got -1.0"),
        (lambda: TokenLoss(chunk=0), "chunk must be at least 1 token, got 0"),
        (lambda: LabelLoss(label_smoothing=-0.1), r"label_smoothing must be in \[0, 1\), got -0.1"),
    ],
)
def test_options_that_cannot_work_are_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_a_loss_that_compares_rows_is_not_cut():
    check_parts(Contrastive(), 1, "train.accumulate")
    check_parts(TokenLoss(), 4, "train.accumulate")
    check_parts(lambda model, batch, *, key=None: None, 4, "train.accumulate")
    with pytest.raises(ValueError, match=r"Contrastive compares the rows .* must stay whole, got train.accumulate=4"):
        check_parts(Contrastive(), 4, "train.accumulate")


def test_a_loss_that_compares_rows_is_evaluated_on_whole_batches():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    found = evaluate(Contrastive(), jnp.float32(1), [{"inputs": {"x": rows}}])
    losses = optax.softmax_cross_entropy_with_integer_labels(rows @ rows.T, jnp.arange(6))
    np.testing.assert_allclose(found["loss"], losses.mean(), rtol=1e-6)
