"""Universal Transformers: translators that decode as they learn, encoders, and what thinking costs."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx

from flax_transformer.models.encoder import Encoder
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.preset import abstract, module_of
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_base
from flax_transformer.models.text.universal import (
    UniversalEncoderConfig,
    universal_adaptive,
    universal_base,
    universal_tiny,
)
from flax_transformer.models.text.universal_trunk import HaltingConfig
from flax_transformer.nn import with_fields
from flax_transformer.objective import LabelLoss, PonderLoss, TokenLoss
from tests.models.decoding import V, neither_future_nor_padding_is_seen, steps_equal_the_whole
from tests.shares import only

pytestmark = pytest.mark.proves("universal", "decode", "cache = all at once, also where positions halt")

SMALL = with_fields(universal_tiny(V), embed=16, inner=32, heads=2, dropout=0.0, depth=4)
KINDS = {"fixed": SMALL, "adaptive": with_fields(SMALL, halting=HaltingConfig(bias=-1.0))}


def model(kind):
    made = Seq2Seq(KINDS[kind], rngs=nnx.Rngs(0))
    for side in (made.encoder, made.decoder):
        if hasattr(side, "halt"):
            side.halt.kernel[...] *= 4  # so that positions differ in when they halt
    return made


def taught(rows=4, S=6, T=5):
    """Make a batch whose rows differ in length."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(3, V, (3, rows, max(S, T))).astype(np.int32)
    lengths = np.arange(rows) % S + 1
    batch = {
        "inputs": {"source": tokens[0, :, :S], "target": tokens[1, :, :T], "lengths": lengths.astype(np.int32)},
        "labels": tokens[2, :, :T], "weights": (np.arange(T) < lengths[:, None]).astype(np.float32),
    }  # fmt: skip
    return jax.tree.map(jnp.asarray, batch)


@pytest.mark.rotates
@pytest.mark.parametrize("beams", only([1, 3], 3))
@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_step_by_step_is_all_at_once_and_hypotheses_change_places(kind, beams):
    one = model(kind)
    steps_equal_the_whole(one, beams)
    if beams == 3:
        steps_equal_the_whole(one.for_decoding(), beams)


@pytest.mark.rotates
def test_neither_the_future_nor_padding_is_seen():
    neither_future_nor_padding_is_seen(model("adaptive"))


@pytest.mark.rotates
def test_thinking_costs_and_is_a_sum_of_rows():
    one, batch = model("adaptive"), taught()
    loss = jax.jit(lambda objective, batch: objective(one, batch), static_argnums=0)
    objective = PonderLoss(of=TokenLoss(), weight=0.3)
    total, metrics = loss(objective, batch)
    plain, _ = loss(TokenLoss(), batch)
    np.testing.assert_allclose(total, plain + 0.3 * metrics["ponder"].total, rtol=1e-5)
    assert 1 < metrics["steps"].value() < 4
    rows = [loss(objective, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], batch))[0] for i in range(4)]
    np.testing.assert_allclose(sum(rows), total, rtol=1e-5)
    held = objective.held_out(one, batch)
    np.testing.assert_allclose(held["loss"], plain, rtol=1e-5)
    np.testing.assert_allclose(held["steps"].total, metrics["steps"].total, rtol=1e-5)


@pytest.mark.rotates
def test_what_padding_says_costs_nothing():
    one, batch = model("adaptive"), taught()
    inputs = dict(batch["inputs"])
    told = one.observe(**inputs)[1]["encoder"]["ponder"]
    inputs["source"] = jnp.pad(inputs["source"], ((0, 0), (0, 3)), constant_values=7)
    np.testing.assert_allclose(one.observe(**inputs)[1]["encoder"]["ponder"], told, rtol=1e-5)


def test_a_fixed_number_of_steps_has_nothing_to_ponder():
    with pytest.raises(ValueError, match="needs a model whose positions halt, got one with a fixed number of steps"):
        jax.eval_shape(lambda: PonderLoss(of=TokenLoss())(model("fixed"), taught()))
    with pytest.raises(ValueError, match="weight must be at least 0"):
        PonderLoss(of=TokenLoss(), weight=-1.0)


def encoder(**changes):
    side = replace(KINDS["adaptive"].encoder, **changes)
    fields = {name: getattr(side, name) for name in ("block", "depth", "halting")}
    return UniversalEncoderConfig(embedding=SMALL.embedding, **fields)


@pytest.mark.rotates
def test_an_encoder_is_told_where_at_each_step_and_classifies():
    cfg = with_head(encoder(), outputs=3, pool="first")
    assert module_of(cfg.backbone) is Encoder
    assert isinstance(cfg.backbone.build(nnx.Rngs(0)), Encoder)
    one, tokens = Classifier(cfg, rngs=nnx.Rngs(0)), jnp.array([[5, 6, 7, 8], [6, 5, 9, 9]])
    batch = {
        "inputs": {"tokens": tokens, "lengths": jnp.array([4, 2])},
        "labels": jnp.array([0, 2]),
        "weights": jnp.ones(2),
    }
    loss, metrics = PonderLoss(of=LabelLoss())(one, batch)
    plain, _ = LabelLoss()(one, batch)
    np.testing.assert_allclose(loss, plain + 0.01 * metrics["ponder"].total, rtol=1e-5)
    hidden = one.hidden_states(**batch["inputs"])
    changed = one.hidden_states(tokens.at[1, 2:].set(4), lengths=jnp.array([4, 2]))
    np.testing.assert_array_equal(hidden[1, :2], changed[1, :2])
    swapped = one.backbone(tokens, positions=jnp.array([[1, 0, 2, 3]]))
    assert np.abs(swapped[0] - hidden[0]).max() > 1e-3


@pytest.mark.parametrize("preset", [universal_base, universal_adaptive, universal_tiny])
def test_sizes_are_of_one_block_a_side(preset):
    cfg = preset()
    d, f = cfg.embedding.embed, cfg.encoder.block.feedforward.inner
    attention, feedforward, norm = 4 * (d * d + d), 2 * d * f + d + f, 2 * d
    blocks = 3 * attention + 2 * feedforward + 5 * norm
    halts = 2 * (d + 1) if cfg.encoder.halting else 0
    count = sum(leaf.size for leaf in jax.tree.leaves(abstract(cfg)))
    assert count == cfg.embedding.vocab * d + blocks + halts


def test_the_base_is_as_large_as_the_transformers():
    count = lambda cfg: sum(leaf.size for leaf in jax.tree.leaves(abstract(cfg)))  # noqa: E731
    assert 0.9 < count(universal_base()) / count(transformer_base()) < 1.1


def on_meshes():
    """Print, with eight devices, how far loss and gradients on a mesh are from those on one."""
    from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings

    batch, found = taught(rows=8), {}
    for kind in KINDS:
        one, of = model(kind), TokenLoss()
        objective = PonderLoss(of=of) if kind == "adaptive" else of
        loss = jax.jit(jax.value_and_grad(lambda one, objective=objective: objective(one, batch)[0]))
        expected, mesh = loss(one), make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
        with jax.set_mesh(mesh):
            got = loss(jax.device_put(one, tree_shardings(one, mesh)))
        pairs = zip(jax.tree.leaves(jax.device_get(got)), jax.tree.leaves(jax.device_get(expected)), strict=True)
        found[kind] = max(float(np.abs(mine - its).max()) for mine, its in pairs)
    print(json.dumps(found))


@pytest.mark.slow
@pytest.mark.proves("universal", "shard", "data × fsdp × tensor, gradients too")
def test_eight_devices_are_one():
    found, _ = on_eight("-c", "from tests.models.test_universal_models import on_meshes; on_meshes()")
    assert set(found) == set(KINDS)
    assert max(found.values()) < 1e-4, found
