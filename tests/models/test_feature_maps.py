"""Networks of feature maps, and detectors on them: rows are rows, statistics move while training, sizes are checked."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.head import with_head
from flax_transformer.models.vision.convnext import ConvNextConfig
from flax_transformer.models.vision.detr import DetrConfig
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.models.vision.mixer import mixer
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.nn import TrunkConfig, with_precision
from flax_transformer.objective import BatchStatistics, DetectionLoss, LabelLoss
from flax_transformer.task.evaluator import evaluate
from flax_transformer.train.carry import carry_of, statistics_of, with_statistics, without_statistics
from flax_transformer.train.config import from_json, to_json
from flax_transformer.train.state import evaluated_model, init_state
from flax_transformer.train.step import make_train_step
from tests.shares import only, share

RESNET = ResNetConfig(channels=1, stem=4, widths=(8, 12), depths=(1, 2))


def trunk(depth, *, cross):
    block = detr_block(embed=8, heads=2, inner=12, dropout=0.1, cross=cross)
    return TrunkConfig(block=block, depth=depth)


DETR = DetrConfig(
    backbone=replace(RESNET, frozen=True), encoder=trunk(1, cross=False), decoder=trunk(2, cross=True), queries=5,
    classes=3, dropout=0.1,
)  # fmt: skip
BACKBONES = {
    "resnet": RESNET,
    "convnext": ConvNextConfig(channels=1, widths=(4, 8), depths=(1, 2), layer_scale=0.5, drop_path=0.5),
    "mixer": with_head(mixer(embed=8, depth=2, tokens=6, inner=12, image=32, patch=8), outputs=3).backbone,
    "detr": DETR,
}


def build(config):
    return jax.jit(lambda: config.build(nnx.Rngs(0)))()


def pictures(*shape, channels=1):
    return jnp.asarray(np.random.default_rng(0).normal(size=(*shape, 32, 32, channels)), jnp.float32)


def of(name, *shape):
    return pictures(*shape, channels=3 if name == "mixer" else 1)


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(BACKBONES, 0, of=2))
def test_any_lead_axes_are_rows(name):
    model, images = build(BACKBONES[name]), of(name, 2, 3)
    run = jax.jit(lambda model, images: model.hidden_states(images))
    whole = run(model, images)
    np.testing.assert_allclose(run(model, images[1, 2]), whole[1, 2], rtol=1e-5, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", only(BACKBONES, "resnet"))
def test_bfloat16_is_near_and_stays_so(name):
    config = BACKBONES[name]
    wide = build(config)
    narrow = build(with_precision(config, compute="bfloat16"))
    a, b = (jax.jit(lambda m, x: m.hidden_states(x))(model, of(name, 2)) for model in (wide, narrow))
    assert b.dtype == jnp.bfloat16
    assert jnp.abs(a - b).max() < 0.1 * jnp.abs(a).max()


@pytest.mark.rotates
def test_training_moves_statistics_and_evaluation_uses_them():
    config = with_head(RESNET, outputs=2, pool="mean")
    objective = BatchStatistics(of=LabelLoss())
    labels = jnp.arange(16) % 2
    bright = pictures(16) + 3 * labels[:, None, None, None]
    batch = {"inputs": {"images": bright}, "labels": labels, "weights": jnp.ones(16)}
    optimizer, carry = optax.adam(1e-2), carry_of(objective)
    state = init_state(lambda key: config.build(nnx.Rngs(key)), optimizer, jax.random.key(0), carry=carry)
    before = evaluated_model(state, carry)
    assert not statistics_of(state.model)
    step = jax.jit(make_train_step(objective, optimizer))
    losses = []
    for _ in range(25):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    after = evaluated_model(state, carry)
    pairs = zip(statistics_of(after).values(), statistics_of(before).values(), strict=True)
    assert min(np.abs(new - old).max() for new, old in pairs) > 1e-3
    assert losses[-1] < 0.1 < losses[0]
    found = evaluate(objective, after, [batch])
    assert found["accuracy"] == 1
    stale = with_statistics(without_statistics(after), statistics_of(before))
    assert abs(evaluate(objective, stale, [batch])["loss"] - found["loss"]) > 1e-2
    alone = evaluate(objective, after, [jax.tree.map(lambda x: x[i : i + 1], batch) for i in range(16)])  # noqa: B023
    np.testing.assert_allclose(alone["loss"], found["loss"], rtol=1e-4)


@pytest.mark.slow
def test_a_detector_learns_and_its_frozen_norms_stay():
    objective = BatchStatistics(of=DetectionLoss())
    draw = np.random.default_rng(0)
    labels = {
        "boxes": jnp.asarray(draw.uniform(0.3, 0.6, (4, 2, 4)), jnp.float32),
        "classes": jnp.asarray(draw.integers(0, 3, (4, 2)), jnp.int32), "weights": jnp.ones((4, 2)).at[0, 1].set(0),
    }  # fmt: skip
    mask = jnp.ones((4, 32, 32), bool).at[1, 20:].set(False)
    batch = {"inputs": {"images": pictures(4), "mask": mask}, "labels": labels, "weights": jnp.ones(4)}
    optimizer, carry = optax.adam(1e-2), carry_of(objective)
    state = init_state(lambda key: DETR.build(nnx.Rngs(key)), optimizer, jax.random.key(0), carry=carry)
    before, first = state.carried, evaluate(objective, evaluated_model(state, carry), [batch])
    step = jax.jit(make_train_step(objective, optimizer))
    for _ in range(30):
        state, _ = step(state, batch)
    jax.tree.map(np.testing.assert_array_equal, before, state.carried)
    assert evaluate(objective, evaluated_model(state, carry), [batch])["loss"] < 0.8 * first["loss"]


@pytest.mark.slow
def test_what_padding_shows_is_not_seen():
    """By attention: what a convolution's window takes in beyond the edge is zero in either."""
    model, images = build(DETR), pictures(2)
    mask = jnp.ones((2, 32, 32), bool).at[:, :, 16:].set(False)
    features = model.backbone.feature_map(images)
    found = [
        model.decode(*model.encode(jnp.where(jnp.arange(4)[:, None] < 2, features, value), (32, 32), mask))
        for value in (0.0, 5.0)
    ]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    whole = model.decode(*model.encode(features, (32, 32)))
    assert jnp.abs(whole - found[0]).max() > 1e-3


def test_objectives_of_objectives_survive_a_file():
    for objective in (BatchStatistics(of=LabelLoss(label_smoothing=0.1)), DetectionLoss(auxiliary=False)):
        again = from_json(to_json(objective))
        assert again == objective
        assert objective.better["loss"] == "lower"
    assert carry_of(from_json(to_json(BatchStatistics(of=LabelLoss())))) is BatchStatistics.carry


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: ResNetConfig(widths=(8, 16), depths=(1,)), r"every stage needs a width and a depth, got \(8, 16\)"),
        (lambda: ResNetConfig(widths=(6,), depths=(1,)), r"bottlenecks must be multiples of 4, got \(6,\)"),
        (lambda: ConvNextConfig(depths=()), "every stage needs a width and a depth"),
        (lambda: replace(DETR, encoder=DETR.decoder), "and the encoder to no memory"),
        (lambda: replace(DETR, queries=0), "queries must be at least 1, got 0"),
        (lambda: build(RESNET).hidden_states(pictures(1)[..., 0]), r"C=1 channels, got shape \(1, 32, 32\)"),
        (lambda: build(BACKBONES["mixer"])(jnp.ones((40, 32, 3))), "images must have 4×4 patches"),
        (
            lambda: build(DETR).encode(jnp.ones((1, 4, 4, 12)), (32, 32), jnp.ones((1, 32, 31), bool)),
            r"mask must be \(1, 32, 32\), as the images are, got \(1, 32, 31\)",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


@pytest.mark.parametrize(
    "options", [{}, {"small": True}, {"halve_first": True}, {"widths": (16, 32), "depths": (1, 1)}]
)
def test_every_place_stands_for_as_many_rows_as_the_stride_says(options):
    cfg = ResNetConfig(**{"depths": (1, 1, 1, 1), **options})
    images = jax.ShapeDtypeStruct((70, 100, 3), jnp.float32)
    found = jax.eval_shape(lambda images: cfg.build(nnx.Rngs(0)).feature_map(images), images)
    assert found.shape[:2] == (-(-70 // cfg.stride), -(-100 // cfg.stride))
