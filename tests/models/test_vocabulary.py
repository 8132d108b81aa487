"""Rows that fill up a table are no tokens: not in losses or smoothing, not in logits, never generated."""

import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.decode import Beam, Greedy, Sampling, sample
from flax_transformer.models.causal import Causal, CausalCache
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.objective import TokenLoss
from flax_transformer.ops import chunked_scores, cross_entropy
from flax_transformer.task.spec import Spec, sized
from flax_transformer.task.translator import decode_batch
from tests.models import families
from tests.shares import only, share

V, ROWS = 37, 64


def filled(config, **changes):
    """Return models of one config, its table with and without rows beyond the vocabulary, which shout."""
    models = []
    for multiple in (1, ROWS):
        table = replace(config.embedding, vocab=V, multiple=multiple)
        model = families.build(replace(config, embedding=table, **changes))
        models.append(model)
    plain, padded = models
    assert padded.embedding.token.embedding.shape[0] == ROWS
    shout = 50 * jnp.ones((ROWS - V, families.D))
    copy = jax.tree.map(lambda leaf: leaf, plain)
    copy.cfg = padded.cfg
    for part, other in (
        (copy.embedding, padded.embedding),
        (getattr(copy, "head", None), getattr(padded, "head", None)),
    ):
        if part is not None:
            part.cfg = other.cfg
            part.token.embedding = nnx.Param(jnp.concatenate([part.token.embedding[...], shout]))
    return plain, copy


@pytest.fixture(scope="module", params=only([True, False], True), ids=["tied", "own output"])
def models(request):
    return filled(families.family("transformer_base"), tied_output=request.param, output_bias=True)


@pytest.mark.slow
def test_losses_smoothed_too_are_those_of_a_table_without_them(models):
    batch = families.batch(models[0].cfg, 3, 9)
    batch = jax.tree.map(lambda array: jnp.minimum(array, V - 1), batch)
    found = [
        jax.value_and_grad(lambda model: TokenLoss(label_smoothing=0.3, chunk=5)(model, batch)[0])(model)
        for model in models
    ]
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-6)
    plain, padded = (each[1].embedding.token.embedding[...] for each in found)
    np.testing.assert_allclose(padded[:V], plain, rtol=1e-4, atol=1e-5)
    assert not padded[V:].any()


@pytest.mark.rotates
def test_logits_have_the_size_of_the_vocabulary(models):
    inputs = families.batch(models[0].cfg, 2, 5)["inputs"]
    plain, padded = (model(inputs["source"] % V, inputs["target"] % V) for model in models)
    assert padded.shape[-1] == V
    np.testing.assert_allclose(padded, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize(
    "config", share([Greedy(max_length=7, eos=2), Beam(max_length=7, eos=2, beams=3, n_best=3)], 1, of=2)
)
def test_translations_are_those_of_a_table_without_them(models, config):
    inputs = families.batch(models[0].cfg, 3, 6)["inputs"]
    plain, padded, laid_out = (
        decode_batch(model, inputs["source"] % V, inputs["lengths"], config=config, bos=1)
        for model in (*models, models[1].for_decoding())
    )
    for found in (padded, laid_out):
        np.testing.assert_array_equal(found.tokens, plain.tokens)
        np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)


@pytest.mark.rotates
def test_they_are_never_drawn():
    plain, padded = filled(families.family("gpt2"))
    config, prompt = Sampling(max_length=6, eos=(), temperature=3.0), jnp.arange(8)
    draws = []
    for model in (plain, padded):
        step = lambda cache, token, model=model: Causal.step(model, cache, token)  # noqa: E731
        cache = model.init_cache(8, config.stages[0])
        draws.append(sample(step, cache, prompt, jax.random.key(0), config, grow=CausalCache.grow).tokens)
    assert int(draws[1].max()) < V
    np.testing.assert_array_equal(*draws)


@pytest.mark.rotates
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_op_knows_how_many_classes_there_are(smoothing):
    key = jax.random.split(jax.random.key(0), 3)
    hidden, table = jax.random.normal(key[0], (2, 5, 4)), jax.random.normal(key[1], (9, 4))
    bias, labels = jax.random.normal(key[2], (6,)), jnp.arange(10).reshape(2, 5) % 6
    expected = cross_entropy(hidden @ table[:6].T + bias, labels, label_smoothing=smoothing)
    found = chunked_scores(hidden, table, labels, bias=bias, vocab=6, chunk=3, label_smoothing=smoothing)
    np.testing.assert_allclose(found[:2], expected, rtol=1e-6)
    assert jnp.isnan(chunked_scores(hidden, table, labels + 1, bias=bias, vocab=6)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 2}, r"label_smoothing must be in \[0, 1\], got 2"),
        ({"label_smoothing": -0.1}, r"label_smoothing must be in \[0, 1\], got -0.1"),
        ({"label_smoothing": float("nan")}, "got nan"),
        ({"z_loss": -1.0}, "z_loss must not be negative, got -1.0"),
        ({"vocab": 10}, "vocab must be between 1 and the rows of the table, got 10 of 9"),
        ({"vocab": 0}, "got 0 of 9"),
        ({"chunk": 0}, "a chunk holds at least one token, got 0"),
    ],
)
def test_options_that_make_no_loss_are_refused(options, message):
    hidden, table, labels = jnp.ones((3, 4)), jnp.ones((9, 4)), jnp.zeros(3, int)
    with pytest.raises(ValueError, match=message):
        chunked_scores(hidden, table, labels, **options)
    if "chunk" not in options:
        with pytest.raises(ValueError, match=message):
            cross_entropy(hidden @ table.T, labels, **options)


def test_translation_tells_the_tokenizers_size():
    config = sized(families.family("transformer_base"), Spec(uses=("text2text-generation",), vocab=129, multiple=128))
    model = nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))
    assert config.embedding.vocab == 129
    assert model.embedding.token.embedding.shape[0] == 256


@pytest.mark.rotates
@pytest.mark.parametrize(("chunk", "there"), [(4, False), (64, True)])
@pytest.mark.parametrize("name", only(["bert_base_uncased", "gpt2", "transformer_base"], "transformer_base"))
def test_logits_of_a_whole_batch_never_exist_at_once(name, chunk, there):
    """Of masked tokens, of a text and of a translation: not in training, unless a chunk has room for all of them."""
    config = families.family(name)
    batch = families.batch(config, 4, 16)
    tokens = batch["positions" if "positions" in batch else "labels" if "labels" in batch else "source"].size
    step = jax.value_and_grad(lambda model: families.objective(config, chunk=chunk)(model, batch)[0])
    program = jax.jit(step).lower(jax.eval_shape(lambda: families.build(config))).as_text()
    sizes = {
        math.prod(int(number) for number in shape)
        for shape in (found.rstrip("x").split("x") for found in re.findall(r"tensor<((?:\d+x)+)f32>", program))
        if int(shape[-1]) == families.V
    }
    assert (tokens * families.V in sizes) == there
    assert there or max(sizes) <= chunk * families.V
