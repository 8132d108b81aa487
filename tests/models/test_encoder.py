"""Encoders and their heads: what is hidden stays hidden, batches are their rows, dropout is where it is asked for."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.encoder import Encoder, MaskedLM, MaskedLMConfig
from flax_transformer.models.head import Classifier, Head, HeadConfig, with_head
from flax_transformer.models.text.bert import bert_base_uncased
from flax_transformer.nn import Precision, with_fields
from flax_transformer.ops import Mask

pytestmark = pytest.mark.slow

V, D = 31, 12


def small(**changes):
    preset = bert_base_uncased(V, dropout=0.0)
    encoder = with_fields(preset.encoder, embed=D, heads=3, inner=20, max_length=16, init_std=0.5, depth=2)
    return replace(preset, encoder=encoder, **changes)


def dropped(after_attention, after_feedforward):
    config = small().encoder
    first, last = (replace(config.block.residual, dropout=rate) for rate in (after_attention, after_feedforward))
    return replace(config, block=replace(config.block, residual=first, feedforward_residual=last))


@pytest.fixture(scope="module")
def model():
    return MaskedLM(small(), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def tokens():
    return jax.random.randint(jax.random.key(1), (3, 9), 0, V)


def test_padding_changes_nothing(model, tokens):
    hidden = jnp.arange(9) < jnp.array([[9], [4], [1]])
    encode = lambda ids: model(ids, mask=Mask(dense=hidden[:, None, None]))  # noqa: E731
    expected, other = encode(tokens), encode(jnp.where(hidden, tokens, 7))
    np.testing.assert_allclose(other[hidden], expected[hidden], rtol=1e-5, atol=1e-5)
    alone = model(tokens[1:2, :4])
    np.testing.assert_allclose(alone, expected[1:2, :4], rtol=1e-4, atol=1e-5)


def test_every_token_sees_every_other(model, tokens):
    changed = model(tokens.at[:, 8].add(1) % V)
    assert bool((jnp.abs(changed - model(tokens)).max(-1) > 1e-3).all())


def test_types_and_positions_say_something(model, tokens):
    plain = model(tokens)
    np.testing.assert_array_equal(model(tokens, types=jnp.zeros_like(tokens)), plain)
    np.testing.assert_allclose(model(tokens, positions=jnp.arange(9)), plain, rtol=1e-6)
    assert not jnp.allclose(model(tokens, types=jnp.ones_like(tokens)), plain)
    assert not jnp.allclose(model(tokens, positions=jnp.arange(9)[::-1]), plain)


def test_a_batch_is_its_rows(model, tokens):
    rows = jax.vmap(model)(tokens)
    np.testing.assert_allclose(rows, model(tokens), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda m, t: m(t))(model, tokens), rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_gets_a_gradient(tokens, tied):
    model = MaskedLM(small(tied_output=tied), rngs=nnx.Rngs(0))

    def loss(m):
        hidden = m.encoder(tokens, types=tokens % 2)
        return (
            jax.nn.log_softmax(m.output(hidden).logits())[..., 5].sum() + jax.nn.log_softmax(m.sentence(hidden))[0, 0]
        )

    leaves = jax.tree_util.tree_leaves_with_path(jax.grad(loss)(model))
    silent = [jax.tree_util.keystr(path) for path, leaf in leaves if not jnp.any(jnp.abs(leaf) > 0)]
    # A key's bias adds the same to every product of a query, which softmax ignores.
    assert [name for name in silent if "key.bias" not in name.replace("'].", ".")] == []


def test_an_untied_output_layer_has_a_table_of_its_own(tokens):
    tied, untied = (MaskedLM(small(tied_output=tied), rngs=nnx.Rngs(0)) for tied in (True, False))
    count = lambda m: sum(leaf.size for leaf in jax.tree.leaves(m))  # noqa: E731
    assert count(untied) == count(tied) + V * D
    assert untied(tokens).shape == (3, 9, V)
    untied.head.output_bias[...] = jnp.arange(V)
    assert int(untied(tokens).argmax()) % V == V - 1


def test_the_activation_before_the_output_layer_may_be_another(tokens):
    config = small()
    assert config.resolved_activation == "gelu"
    plain, other = (MaskedLM(replace(config, activation=name), rngs=nnx.Rngs(0)) for name in (None, "tanh"))
    assert not jnp.allclose(plain(tokens), other(tokens))
    with pytest.raises(ValueError, match="unknown activation 'gleu'; nearest: gelu"):
        small(activation="gleu")


@pytest.mark.parametrize("rates", [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5)])
def test_dropout_after_attention_has_its_own_rate(tokens, rates):
    model = Encoder(replace(dropped(*rates), depth=1), rngs=nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(0), 2)
    assert not jnp.allclose(model(tokens, key=keys[0]), model(tokens, key=keys[1]))
    np.testing.assert_array_equal(model(tokens), model(tokens))
    still = jax.tree.map(jnp.zeros_like, model.trunk.blocks.feedforward)
    model.trunk.blocks.feedforward = still
    quiet = jnp.allclose(model(tokens, key=keys[0]), model(tokens))
    assert bool(quiet) == (rates[0] == 0.0)


def test_a_head_has_the_encoders_width_start_and_precision():
    precision = Precision(params="bfloat16", compute="bfloat16")
    config = bert_base_uncased(V, precision=precision)
    head = with_head(config.encoder, outputs=3, pool="first", dense="tanh").head
    assert (head.embed, head.init_std, head.precision) == (768, 0.02, precision)
    abstract = nnx.eval_shape(lambda: MaskedLM(config, rngs=nnx.Rngs(0)))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(abstract)} == {"bfloat16"}


def test_a_pooler_is_the_tanh_of_a_dense_layer_on_the_first_token(tokens):
    model = Classifier(with_head(small().encoder, outputs=0, pool="first", dense="tanh"), rngs=nnx.Rngs(0))
    hidden = model.backbone(tokens)
    expected = jnp.tanh(hidden[:, 0] @ model.head.dense.kernel[...] + model.head.dense.bias[...])
    np.testing.assert_allclose(model.head(hidden), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [False, True])
def test_a_heads_dropout_is_before_its_output_layer_and_perhaps_its_dense_one(first):
    config = HeadConfig(embed=8, outputs=8, pool="first", dense="identity", dropout=0.5, dropout_first=first)
    head = Head(config, rngs=nnx.Rngs(0))
    head.dense.kernel[...] = head.output.kernel[...] = jnp.eye(8)
    kept = head(jnp.ones((2000, 1, 8)), key=jax.random.key(0))
    np.testing.assert_allclose((kept > 0).mean(), 0.25 if first else 0.5, atol=0.02)
    np.testing.assert_allclose(kept.max(), 4 if first else 2)


def test_configs_that_cannot_work_say_why():
    encoder = small().encoder
    with pytest.raises(ValueError, match="all parts must have one model width, got embedding=12, block=6"):
        replace(encoder, block=with_fields(encoder.block, embed=6))
    with pytest.raises(ValueError, match="encoder must be the config of an encoder of tokens, got HeadConfig, which"):
        MaskedLMConfig(encoder=with_head(encoder, outputs=2).head)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        replace(encoder, depth=0)
    with pytest.raises(ValueError, match="a head needs outputs, a dense layer or a position"):
        with_head(encoder, outputs=0)
