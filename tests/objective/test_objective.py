"""Objectives against Optax on whole logits, and what must not change them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.encoder import EncoderConfig, MaskedLM, MaskedLMConfig
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.nn import EmbeddingConfig, transformer_block
from flax_transformer.objective import LabelLoss, MaskedLoss
from flax_transformer.ops import Mask

pytestmark = pytest.mark.slow

V, D = 31, 8
ENCODER = EncoderConfig(
    embedding=EmbeddingConfig(vocab=V, embed=D, position="learned", max_length=9, types=2, norm=1e-5, dropout=0.1),
    block=transformer_block(embed=D, heads=2, inner=16, dropout=0.1, init_std=0.3),
    depth=1,
)
GUESSER = MaskedLM(MaskedLMConfig(encoder=ENCODER, next_sentence=True), rngs=nnx.Rngs(0))
CLASSIFIER = Classifier(with_head(ENCODER, outputs=3, pool="first", dense="tanh"), rngs=nnx.Rngs(0))
LENGTHS = jnp.array([9, 4, 6])


def hidden_batch():
    draw = np.random.default_rng(0)
    types = (np.arange(9) > 3).astype(np.int32)[None].repeat(3, 0)
    batch = {
        "inputs": {"tokens": draw.integers(4, V, (3, 9)).astype(np.int32), "lengths": LENGTHS, "types": types},
        "positions": np.array([[1, 5], [2, 0], [3, 4]], np.int32),
        "labels": draw.integers(4, V, (3, 2)).astype(np.int32),
        "weights": np.array([[1, 1], [1, 0], [1, 1]], np.float32),
        "next_sentence": np.array([0, 1, 1], np.int32),
    }
    return jax.tree.map(jnp.asarray, batch)


def labelled_batch():
    inputs = without(hidden_batch()["inputs"], "types")
    return {"inputs": inputs, "labels": jnp.array([0, 2, 1]), "weights": jnp.ones(3)}


def with_empty_rows(batch):
    return jax.tree.map(lambda array: jnp.concatenate([array, jnp.zeros_like(array[:2])]), batch)


def without(batch, name):
    return {other: value for other, value in batch.items() if other != name}


def test_the_loss_of_masked_tokens_is_optax_on_whole_logits():
    batch = hidden_batch()
    total, metrics = MaskedLoss()(GUESSER, batch)
    hidden = GUESSER.encoder(batch["inputs"]["tokens"], mask=Mask(lengths=LENGTHS), types=batch["inputs"]["types"])
    chosen = batch["weights"] > 0
    logits = GUESSER.output(hidden).logits()[np.nonzero(chosen)[0], batch["positions"][chosen]]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"][chosen])
    sentence = GUESSER.sentence(hidden)
    others = optax.softmax_cross_entropy_with_integer_labels(sentence, batch["next_sentence"])
    assert metrics["count"] == len(losses) == 5
    np.testing.assert_allclose(metrics["masked_loss"], losses.sum(), rtol=1e-5)
    np.testing.assert_allclose(total / 5, losses.mean() + others.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["sentence_loss"].value(), others.mean(), rtol=1e-5)
    assert metrics["masked_accuracy"] == np.sum(logits.argmax(-1) == batch["labels"][chosen])
    right = np.mean(np.asarray(sentence).argmax(-1) == batch["next_sentence"])
    np.testing.assert_allclose(metrics["sentence_accuracy"].value(), right, rtol=1e-5)


def test_the_loss_of_labels_is_optax_and_counts_the_right_ones():
    batch = labelled_batch()
    total, metrics = LabelLoss()(CLASSIFIER, batch)
    logits = CLASSIFIER.head(CLASSIFIER.backbone(batch["inputs"]["tokens"], mask=Mask(lengths=LENGTHS)))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    np.testing.assert_allclose(total, losses.sum(), rtol=1e-5)
    assert metrics["count"] == 3
    assert metrics["accuracy"] == np.sum(logits.argmax(-1) == batch["labels"])


CASES = [(MaskedLoss(), GUESSER, hidden_batch()), (LabelLoss(), CLASSIFIER, labelled_batch())]


@pytest.mark.parametrize(("objective", "model", "batch"), CASES, ids=["masked", "classification"])
def test_empty_rows_and_what_is_behind_the_end_change_nothing(objective, model, batch):
    total, metrics = objective(model, batch)
    again, more = objective(model, with_empty_rows(batch))
    np.testing.assert_allclose(again, total, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), more, metrics)
    beyond = jnp.arange(9) >= LENGTHS[:, None]
    inputs = batch["inputs"]
    other = {**batch, "inputs": {**inputs, "tokens": jnp.where(beyond, 5, inputs["tokens"])}}
    np.testing.assert_allclose(objective(model, other)[0], total, rtol=1e-6)
    inside = {**batch, "inputs": {**inputs, "tokens": jnp.where(jnp.arange(9) == 1, 5, inputs["tokens"])}}
    assert abs(objective(model, inside)[0] - total) > 1e-3


@pytest.mark.parametrize(("objective", "model", "batch"), CASES, ids=["masked", "classification"])
def test_only_a_key_brings_dropout(objective, model, batch):
    plain, first, second = (objective(model, batch, key=key)[0] for key in (None, jax.random.key(0), jax.random.key(1)))
    assert plain == objective(model, batch)[0]
    assert len({float(plain), float(first), float(second)}) == 3


def test_the_gradient_is_that_of_both_means():
    batch = hidden_batch()
    alone = without(batch, "next_sentence")
    mean = lambda loss, count: jax.grad(lambda model: loss(model) / count)(GUESSER)  # noqa: E731
    both = mean(lambda model: MaskedLoss()(model, batch)[0], 5)
    masked = mean(lambda model: MaskedLoss()(model, alone)[0], 5)
    assert jnp.abs(masked.sentence.output.kernel[...]).max() == 0
    assert jnp.abs(both.sentence.output.kernel[...]).max() > 0

    def sentence(model):
        hidden = model.encoder(batch["inputs"]["tokens"], mask=Mask(lengths=LENGTHS), types=batch["inputs"]["types"])
        logits = model.sentence(hidden)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next_sentence"]).sum()

    rest = mean(sentence, 3)
    jax.tree.map(lambda a, b, c: np.testing.assert_allclose(a, b + c, atol=1e-5), both, masked, rest)


def test_tokens_that_are_not_hidden_have_no_part():
    batch = without(hidden_batch(), "next_sentence")
    other = {**batch, "labels": jnp.where(batch["weights"] > 0, batch["labels"], 7)}
    assert MaskedLoss()(GUESSER, other)[0] == MaskedLoss()(GUESSER, batch)[0]
    nothing = {**batch, "weights": jnp.zeros_like(batch["weights"])}
    assert MaskedLoss()(GUESSER, nothing)[0] == MaskedLoss()(GUESSER, nothing)[1]["count"] == 0
