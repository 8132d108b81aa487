"""Low-rank adaptation against NumPy, and through a training run: steps, checkpoints, meshes, files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import AttentionConfig, EmbeddingConfig, TrunkConfig, transformer_block
from flax_transformer.nn.attention import Attention
from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import AXES, path_name, tree_shardings
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.finetune import adopt_state, freeze
from flax_transformer.train.lora import (
    Adapted,
    LoraConfig,
    LowRank,
    adapt,
    init_lora,
    merge_lora,
)
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import state_shardings
from flax_transformer.train.step import make_train_step
from tests.batch import taught

pytestmark = [pytest.mark.slow, pytest.mark.proves("fine-tuning", "LoRA")]

EVERYTHING = LoraConfig(rank=3, alpha=6.0, pattern="(kernel|embedding)$")
LORA = r"^lora\."


@functools.cache
def translator(unroll=1, dropout=0.0):
    block = {"embed": 16, "heads": 2, "inner": 32, "dropout": dropout}
    config = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=24, embed=16),
        encoder=TrunkConfig(block=transformer_block(**block), depth=2, unroll=unroll),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=2, unroll=unroll),
    )
    return Seq2Seq(config, rngs=nnx.Rngs(0))


def sentences():
    random = np.random.default_rng(0)
    tokens = lambda width: jnp.asarray(random.integers(3, 24, (4, width)), jnp.int32)  # noqa: E731
    length = jnp.array([6, 3, 5, 6], jnp.int32)
    return taught(tokens(6), length, tokens(7), length)


def named(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def trained(model, config=EVERYTHING):
    """Factors that are no longer zero, of a size that changes what the model says."""
    lora = jax.jit(init_lora, static_argnums=1)(model, config, jax.random.key(1))
    random = np.random.default_rng(0)
    draw = lambda leaf: jnp.asarray(0.1 * random.normal(size=leaf.shape), jnp.float32)  # noqa: E731
    return {name: LowRank(pair.a, draw(pair.b), pair.scale) for name, pair in lora.items()}


def lora_optimizer(**options):
    config = {"schedule": ScheduleConfig(name="constant"), "learning_rate": 1e-2, "trainable": LORA, **options}
    return make_optimizer(OptimizerConfig(**config), 100)


def test_at_first_nothing_changes():
    model = translator()
    merged = jax.jit(lambda m, key: merge_lora(m, init_lora(m, EVERYTHING, key)))(model, jax.random.key(0))
    assert jax.tree.structure(merged) == jax.tree.structure(model)
    jax.tree.map(np.testing.assert_array_equal, merged, model)


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("encoder.blocks.attention.query.kernel", "ldr,lrnh->ldnh"),
        ("decoder.blocks.cross.value.kernel", "ldr,lrnh->ldnh"),
        ("decoder.blocks.attention.out.kernel", "lnhr,lrd->lnhd"),
        ("encoder.blocks.feedforward.up.kernel", "ldr,lrf->ldf"),
        ("decoder.blocks.feedforward.down.kernel", "lfr,lrd->lfd"),
        ("embedding.token.embedding", "vr,rd->vd"),
    ],
)
def test_merging_equals_numpy(name, product):
    model = translator()
    lora = trained(model)
    a, b = (np.asarray(factor, np.float64) for factor in (lora[name].a, lora[name].b))
    expected = np.asarray(named(model)[name], np.float64) + 6.0 / 3 * np.einsum(product, a, b)
    found = named(jax.jit(merge_lora)(model, lora))[name]
    assert np.abs(found - named(model)[name]).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_what_the_pattern_leaves_out_stays():
    model = translator()
    lora = trained(model, LoraConfig())
    assert set(lora) == {
        f"{part}.{which}.kernel"
        for part in ("encoder.blocks.attention", "decoder.blocks.attention", "decoder.blocks.cross")
        for which in ("query", "value")
    }
    before, after = named(model), named(merge_lora(model, lora))
    assert {name for name in before if not np.array_equal(before[name], after[name])} == set(lora)


def test_merging_equals_the_low_rank_path_beside_the_layer():
    """Of one layer that is not stacked: x W + scale · (x A) B."""
    layer = Attention(AttentionConfig(embed=12, heads=3), rngs=nnx.Rngs(0))
    lora = trained(layer, EVERYTHING)
    x = jax.random.normal(jax.random.key(2), (2, 5, 12))
    query = lora["query.kernel"]
    assert (query.a.shape, query.b.shape) == ((12, 3), (3, 3, 4))
    beside = layer.query(x) + query.scale * jnp.einsum("btr,rnh->btnh", x @ query.a, query.b)
    np.testing.assert_allclose(merge_lora(layer, lora).query(x), beside, rtol=0, atol=1e-6 * jnp.abs(beside).max())
    heads, out = jax.random.normal(jax.random.key(3), (2, 5, 3, 4)), lora["out.kernel"]
    beside = layer.out(heads) + out.scale * jnp.einsum("btnh,nhr->btr", heads, out.a) @ out.b
    np.testing.assert_allclose(merge_lora(layer, lora).out(heads), beside, rtol=0, atol=1e-6 * jnp.abs(beside).max())


def test_scan_equals_loop():
    lora, batch = trained(translator()), sentences()
    forward = jax.jit(lambda model, lora: merge_lora(model, lora)(batch["inputs"]["source"], batch["inputs"]["target"]))
    scanned, looped, plain = (forward(translator(u), pair) for u, pair in ((1, lora), (True, lora), (1, {})))
    np.testing.assert_allclose(scanned, looped, rtol=0, atol=1e-5 * float(jnp.abs(looped).max()))
    assert float(jnp.abs(scanned - plain).max()) > 0.1


def test_bfloat16_kernels_stay_so():
    kernel = {"up": {"kernel": jnp.ones((4, 6), jnp.bfloat16)}}
    lora = trained(kernel)
    assert lora["up.kernel"].a.dtype == jnp.float32
    assert merge_lora(kernel, lora)["up"]["kernel"].dtype == jnp.bfloat16


def test_training_moves_the_factors_alone_and_goes_on_after_a_restart(tmp_path):
    base, batch = translator(dropout=0.1), sentences()
    lora = init_lora(base, LoraConfig(rank=4, pattern="kernel$"), jax.random.key(0))
    optimizer = lora_optimizer(learning_rate=2e-2)
    state = adopt_state(Adapted(base, lora), optimizer, jax.random.key(1))
    count = sum(leaf.size for leaf in jax.tree.leaves(lora))
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) <= 2 * count + 2
    step, losses = jax.jit(make_train_step(adapt(TokenLoss()), optimizer)), []
    for i in range(12):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
        if i == 5:
            with Checkpoints(tmp_path) as checkpoints:
                checkpoints.save(6, state, {})
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    jax.tree.map(np.testing.assert_array_equal, state.model.base, base)
    for pair in state.model.lora.values():
        assert np.abs(pair.b).max(axis=tuple(range(1, pair.b.ndim))).all()  # every layer's
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        again, _ = checkpoints.restore(jax.eval_shape(lambda: state))
    for _ in range(6):
        again, _ = step(again, batch)
    jax.tree.map(np.testing.assert_array_equal, again.model, state.model)
    assert step._cache_size() == 1


def test_gradients_equal_those_of_the_chain_rule():
    """With W + s A B, the loss falls along s · G Bᵀ and s · Aᵀ G where G is the kernel's own gradient."""
    model, batch = translator(), sentences()
    config = LoraConfig(rank=2, pattern=r"encoder.blocks.feedforward.up.kernel$")
    lora = trained(model, config)
    loss = lambda m: adapt(TokenLoss())(m, batch)[0]  # noqa: E731
    plain = lambda m: TokenLoss()(m, batch)[0]  # noqa: E731
    grads = jax.jit(jax.grad(loss))(Adapted(model, lora))
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads.base))
    (name, pair), g = next(iter(lora.items())), jax.jit(jax.grad(plain))(merge_lora(model, lora))
    g = np.asarray(named(g)[name], np.float64)
    a, b = (np.asarray(factor, np.float64) for factor in (pair.a, pair.b))
    expected = (pair.scale * np.einsum("ldf,lrf->ldr", g, b), pair.scale * np.einsum("ldr,ldf->lrf", a, g))
    for found, wanted in zip((grads.lora[name].a, grads.lora[name].b), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_the_base_is_not_differentiated():
    """The same by a pattern: no gradient of the base is computed either way, and no memory kept for it."""
    model, batch = translator(unroll=True), sentences()
    lora = trained(model, LoraConfig(rank=2))

    def flops(objective):
        backward = jax.grad(lambda m: objective(m, batch)[0])
        return jax.jit(backward).lower(Adapted(model, lora)).cost_analysis()["flops"]

    plain = lambda m, rows, *, key=None: TokenLoss()(merge_lora(m.base, m.lora), rows, key=key)  # noqa: E731
    assert flops(adapt(TokenLoss())) < 0.85 * flops(plain)
    assert flops(freeze(plain, LORA)) < 0.85 * flops(plain)


def test_every_factor_has_a_layout():
    mesh = AbstractMesh((2, 1, 2, 1, 2, 1), AXES, axis_types=(AxisType.Auto,) * 6)
    base = translator()  # kept from test to test, so it must not be made inside a transform
    model = jax.eval_shape(lambda: Adapted(base, trained(base)))
    places = named(tree_shardings(model, mesh))
    assert places["base.encoder.blocks.attention.query.kernel"].spec == PartitionSpec(None, "fsdp", "tensor", None)
    for name, pair in model.lora.items():
        for which, factor in (("a", pair.a), ("b", pair.b)):
            assert places[f"lora.{name}.{which}"].spec == PartitionSpec(*(None,) * factor.ndim)
    state = jax.eval_shape(lambda m: adopt_state(m, lora_optimizer(), jax.random.key(0)), model)
    laid = jax.tree.leaves(state_shardings(state, mesh))
    assert len(laid) == len(jax.tree.leaves(state))


def test_factors_that_do_not_fit_are_all_listed():
    model = translator()
    lora = trained(model, LoraConfig(rank=2, pattern="encoder.*(query|out).kernel$"))
    query = lora["encoder.blocks.attention.query.kernel"]
    lora["encoder.blocks.attention.query.kernel"] = LowRank(query.a[:1], query.b, 1.0)
    lora["tower.up.kernel"] = query
    with pytest.raises(
        ValueError, match=r"query.kernel with factors \(1, 16, 2\) and .* not \(2, 16, 2\).*; tower.up.kernel, which"
    ):
        merge_lora(model, lora)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"alpha": 0.0}, "alpha must be positive, got 0"),
        ({"pattern": "("}, "regular expression"),
        ({"target_modules": "q_proj"}, "target_modules must be a tuple of names, got 'q_proj'"),
        ({"target_modules": ("q_proj",)}, r"target_modules are of a checkpoint: .* got \('q_proj',\)"),
        ({"pattern": "nothing"}, "must match a kernel, got 'nothing'"),
        ({"pattern": "up.bias"}, r"only kernels and embeddings .*up.bias of shape \(2, 32\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        init_lora(translator(), LoraConfig(**options), jax.random.key(0))
