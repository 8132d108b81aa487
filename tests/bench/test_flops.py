"""Formulas against hand counts and against XLA."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.bench import matmul_parameters, stack_flops
from flax_transformer.bench.family import FAMILIES
from flax_transformer.models.preset import find_preset, module_of, presets
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.models.text.transformer import transformer_base, transformer_tiny
from flax_transformer.nn import Block, EmbeddingConfig, TrunkConfig, init_stack, transformer_block

FAMILY = FAMILIES[Seq2SeqConfig]


def abstract(config):
    return nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))


def count(config, rows, length):
    return FAMILY.count(abstract(config), FAMILY.batch(config, rows, length))


def by_hand(D, F, L, V, B, T):
    """The 2017 Transformer with equal lengths on both sides, written out layer by layer."""
    projections, scores, feed = 4 * 2 * T * D * D, 2 * 2 * T * T * D, 2 * 2 * T * D * F
    encoder = L * (projections + scores + feed)
    decoder = L * (2 * projections + 2 * scores + feed)
    return B * (encoder + decoder + 2 * T * D * V)


@pytest.mark.parametrize(
    ("make", "sizes"), [(transformer_tiny, (128, 256, 4)), (transformer_base, (512, 2048, 6))], ids=["tiny", "base"]
)
def test_forward_and_training_equal_a_count_by_hand(make, sizes):
    counted = count(make(8_000), 3, 32)
    expected = by_hand(*sizes, V=8_000, B=3, T=32)
    assert counted["forward"].flops == expected
    assert counted["train"].flops == 3 * expected
    assert counted["train"].tokens == 3 * 32


@pytest.mark.parametrize("variant", [{}, {"kv_heads": 2}, {"gated": True}, {"head_width": 48}, {"bias": False}])
def test_forward_equals_what_xla_counts_without_loops(variant):
    block = transformer_block(embed=256, heads=8, hidden=1024, **variant)
    config = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=2_000, embed=256),
        encoder=TrunkConfig(block=block, depth=2, unroll=True),
        decoder=TrunkConfig(block=replace(block, cross=block.attention), depth=3, unroll=True),
    )
    batch = FAMILY.batch(config, 2, 64)
    shapes = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in batch.items()}
    compiled = jax.jit(FAMILY.forward).lower(abstract(config), shapes).compile()
    assert count(config, 2, 64)["forward"].flops == pytest.approx(compiled.cost_analysis()["flops"], rel=0.02)


def test_decoding_one_by_one_costs_a_forward_pass_less_the_future():
    config = transformer_tiny(1_000)
    counted = count(config, 2, 32)
    future = 4 * 128 * 32 * 31 // 2 * 4 * 2  # products of width D with each key ahead, in 4 layers and 2 rows
    assert counted["forward"].flops - counted["decode"].flops == future


def test_tables_that_are_looked_up_cost_nothing():
    small, large = (count(replace(transformer_tiny(1_000), source_embedding=e), 1, 8)["forward"].flops for e in (
        None, EmbeddingConfig(vocab=50_000, embed=128)
    ))  # fmt: skip
    assert small == large


def test_a_block_of_four_numbers():
    cfg = transformer_block(embed=2, heads=1, hidden=3)
    blocks = init_stack(lambda r: Block(cfg, rngs=r), 1, key=jax.random.key(0))
    assert matmul_parameters(blocks) == 4 * 4 + 2 * 6
    # One token: 28 multiply-adds in the linear layers, and 2 for the score, 2 for the value.
    assert stack_flops(blocks, cfg, rows=1, queries=1) == 2 * (28 + 2 + 2)


@pytest.mark.parametrize("name", presets())
def test_every_preset_has_a_family_that_can_feed_it(name):
    config = find_preset(name)()
    family = FAMILIES[type(config)]
    batch = family.batch(config, 2, 8)
    model = nnx.eval_shape(lambda: module_of(config)(config, rngs=nnx.Rngs(0)))
    logits = jax.eval_shape(family.forward, model, batch)
    assert logits.shape[0] == family.shape(config, batch)["rows"] == 2
    loss, metrics = jax.eval_shape(family.objective, model, batch, key=jax.random.key(0))
    assert loss.shape == metrics["count"].shape == ()
    programs = {"forward", "train"} if family.decode is None else {"forward", "train", "decode"}
    assert programs == family.count(model, batch).keys()
    if family.decode is not None:
        assert np.all([leaf.size > 0 for leaf in jax.tree.leaves(jax.eval_shape(family.decode, model, batch))])
    assert jnp.issubdtype(logits.dtype, jnp.floating)


@pytest.mark.parametrize("name", ["gpt2_tiny", "bert_base_uncased"])
def test_token_models_cost_what_the_compiler_counts(name):
    config = find_preset(name)(500)
    stack = config if name == "gpt2_tiny" else config.encoder
    small = replace(stack, depth=1, unroll=True)  # the compiler counts a loop's body once
    config = small if name == "gpt2_tiny" else replace(config, encoder=small)
    family = FAMILIES[type(config)]
    model = nnx.eval_shape(lambda: module_of(config)(config, rngs=nnx.Rngs(0)))
    batch = family.batch(config, 2, 64)
    shapes = {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in batch.items()}
    compiled = jax.jit(family.forward).lower(model, shapes).compile()
    assert family.count(model, batch)["forward"].flops == pytest.approx(compiled.cost_analysis()["flops"], rel=0.04)
