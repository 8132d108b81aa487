"""Experts in the place of a feed-forward layer, and what blocks tell beside their values."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.nn import (
    EmbeddingConfig,
    Experts,
    ExpertsConfig,
    FeedForward,
    apply_stack,
    init_stack,
    layer,
    observe_stack,
    transformer_block,
    unstack,
    with_fields,
)
from flax_transformer.objective import RouterLoss, TokenLoss
from flax_transformer.parallel import MeshConfig, abstract_mesh, tree_axes
from flax_transformer.train.config import from_json, to_json
from flax_transformer.train.state import init_state
from flax_transformer.train.step import make_train_step

pytestmark = pytest.mark.proves("experts", "routed alike by row, mesh and scan, told to the objective")

CFG = ExpertsConfig(embed=8, inner=12, experts=4, gated=True, activation="silu", init_std=0.5)
BLOCK = transformer_block(
    embed=8, heads=2, inner=12, experts=4, capacity=1.0, norm_position="pre", dropout=0.1, init_std=0.5
)
MODEL = CausalConfig(embedding=EmbeddingConfig(vocab=20, embed=8, max_length=6), block=BLOCK, depth=2)
X = jax.random.normal(jax.random.key(1), (3, 6, 8))


def make(**fields):
    return Experts(with_fields(CFG, **fields), rngs=nnx.Rngs(0))


@jax.jit
def run(experts, x=X, key=None):
    return experts.observe(x, key=key)


def by_hand(experts, x):
    """Do it token by token, without capacity."""
    probabilities = np.asarray(jax.nn.softmax(x @ experts.router.kernel[...]))
    made = np.stack([layer(experts.experts, e)(x) for e in range(experts.cfg.experts)], axis=-2)
    y = np.zeros_like(x)
    for at in np.ndindex(x.shape[:-1]):
        best = np.argsort(-probabilities[at])[: experts.cfg.active]
        weights = probabilities[at][best]
        y[at] = (weights / weights.sum() if experts.cfg.normalized else weights) @ made[at][best]
    return y


@pytest.mark.rotates
@pytest.mark.parametrize(
    "fields",
    [{}, pytest.param({"active": 1, "normalized": False, "bias": False, "gated": False}, marks=pytest.mark.slow)],
)
def test_each_token_is_what_its_experts_make_of_it(fields):
    experts = make(**fields)
    np.testing.assert_allclose(run(experts)[0], by_hand(experts, X), atol=1e-5)


def test_a_capacity_that_suffices_drops_nothing_and_changes_nothing():
    whole, told = run(make())
    placed, placed_told = run(make(capacity=4.0))
    np.testing.assert_allclose(placed, whole, atol=1e-5)
    np.testing.assert_array_equal(placed_told["dropped"], jnp.zeros(3))
    np.testing.assert_allclose(placed_told["balance"], told["balance"], rtol=1e-6)


def test_what_finds_no_place_is_told_and_makes_nothing():
    """With one expert a token and a place for one of them a row, all but the first that come to an expert are 0."""
    experts = make(active=1, capacity=0.1)
    y, told = run(experts)
    first = np.zeros((3, 6), bool)
    for row, chosen in enumerate(np.argmax(X @ experts.router.kernel[...], -1)):
        first[row, np.unique(chosen, return_index=True)[1]] = True
    np.testing.assert_array_equal(np.any(np.asarray(y) != 0, -1), first)
    np.testing.assert_allclose(told["dropped"], 1 - first.mean(-1), rtol=1e-6)


@pytest.mark.parametrize("capacity", [pytest.param(None, marks=pytest.mark.slow), 1.0])
def test_one_expert_is_a_feed_forward_layer(capacity):
    experts = make(experts=1, active=1, capacity=capacity)
    alone = layer(experts.experts, 0)
    assert isinstance(alone, FeedForward)
    np.testing.assert_allclose(run(experts)[0], alone(X), atol=1e-6)


@pytest.mark.parametrize("capacity", [pytest.param(None, marks=pytest.mark.slow), 0.7])
def test_the_order_of_experts_changes_nothing(capacity):
    experts, order = make(capacity=capacity), jnp.array([2, 0, 3, 1])
    other = jax.tree.map(lambda leaf: leaf, experts)
    other.experts = jax.tree.map(lambda leaf: leaf[order], experts.experts)
    other.router.kernel = nnx.Param(experts.router.kernel[...][:, order])
    for ours, theirs in zip(*(jax.tree.leaves(run(each)) for each in (experts, other)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("capacity", [pytest.param(None, marks=pytest.mark.slow), 0.7])
def test_vmap_equals_batch(capacity):
    experts = make(capacity=capacity)
    one_by_one = jax.jit(jax.vmap(lambda x: experts.observe(x)))(X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one_by_one, run(experts))


@pytest.mark.rotates
@pytest.mark.parametrize("capacity", [pytest.param(None, marks=pytest.mark.slow), 1.0])
def test_gradients_reach_the_router_and_are_those_of_the_function(capacity):
    experts = make(capacity=capacity)
    loss = jax.jit(lambda router: (run(nnx.merge(graph, router, rest))[0] ** 2).sum())
    graph, router, rest = nnx.split(experts, lambda path, _: "router" in path, ...)
    gradient = jax.grad(loss)(router)
    kernel = jax.tree.leaves(gradient)[0]
    direction = jax.random.normal(jax.random.key(3), kernel.shape)
    moved = [loss(jax.tree.map(lambda leaf, by=by: leaf + by * direction, router)) for by in (1e-3, -1e-3)]
    assert float(jnp.abs(kernel).max()) > 0.01
    np.testing.assert_allclose(jnp.vdot(kernel, direction), (moved[0] - moved[1]) / 2e-3, rtol=0.02)


def test_jitter_is_of_a_key_alone():
    jittery, plain = make(jitter=0.9), make()
    np.testing.assert_array_equal(run(jittery)[0], run(plain)[0])
    assert not np.allclose(run(jittery, key=jax.random.key(2))[0], run(plain)[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"active": 5}, "at most E=4 experts, got active=5"),
        ({"capacity": 0.0}, "capacity of an expert must be above 0, got 0.0"),
        ({"experts": 0}, "experts must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        with_fields(CFG, **fields)


def test_a_config_goes_through_json():
    assert from_json(to_json(MODEL)) == MODEL


STACK = init_stack(BLOCK.build, 2, key=jax.random.key(0))


@pytest.mark.rotates
def test_a_stack_tells_what_its_blocks_tell_scanned_and_unrolled_alike():
    """And gives what it gives without being asked, and what the blocks give one by one; under remat, too."""
    key = jax.random.key(4)
    y, told = jax.jit(lambda: observe_stack(STACK, X, key=key))()
    np.testing.assert_allclose(y, jax.jit(lambda: apply_stack(STACK, X, key=key))(), rtol=1e-4, atol=1e-5)
    for options in ({"unroll": True}, {"remat": "full"}):
        other = jax.jit(lambda options=options: observe_stack(STACK, X, key=key, **options))()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), (y, told), other)
    h, keys = X, jax.random.split(key, 2)
    for i in range(2):
        h, alone = layer(STACK, i).observe(h, key=keys[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-5), told, alone)
    y, apart = observe_stack(unstack(STACK), X)
    assert isinstance(apart, tuple)
    assert [each["balance"].shape for each in apart] == [(3,), (3,)]


@pytest.mark.slow
def test_what_a_stack_tells_has_the_same_gradient_under_remat():
    def told(stack, remat):
        return sum(leaf.sum() for leaf in jax.tree.leaves(observe_stack(stack, X, remat=remat)[1]))

    plain, again = (jax.jit(jax.grad(told), static_argnums=1)(STACK, remat) for remat in ("none", "full"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), plain, again)
    assert float(jnp.abs(plain.feedforward.router.kernel[...]).min(0).max()) > 0


def test_the_stages_of_a_pipeline_tell_nothing():
    with (
        jax.sharding.use_abstract_mesh(abstract_mesh(MeshConfig(data=1, pipeline=2))),
        pytest.raises(ValueError, match=r"pass on hidden states, and nothing .*: pipeline must be 1, got 2"),
    ):
        observe_stack(STACK, X)


def test_experts_have_an_axis_on_a_mesh():
    axes = tree_axes(STACK)
    assert axes["feedforward.experts.up.kernel"] == ("layers", "experts", "embed", "inner")
    assert axes["feedforward.experts.down.bias"] == ("layers", "experts", None)


def batch(rows=4):
    random = np.random.default_rng(0)
    tokens = random.integers(0, 20, (rows, 7))
    weights = (random.random((rows, 6)) < 0.7).astype(np.float32)
    return jax.tree.map(
        jnp.asarray, {"inputs": {"tokens": tokens[:, :-1]}, "labels": tokens[:, 1:], "weights": weights}
    )


@pytest.mark.slow
def test_routers_reach_the_objective():
    """A batch is the sum of its rows, and the factors weigh what is told."""
    model, given = Causal(MODEL, rngs=nnx.Rngs(0)), batch()
    loss = lambda objective, given: jax.jit(lambda: objective(model, given))()  # noqa: E731
    total, metrics = loss(RouterLoss(of=TokenLoss(), balance=0.3, router_z=0.2), given)
    plain, _ = loss(TokenLoss(), given)
    np.testing.assert_allclose(
        total, plain + 0.3 * metrics["balance"].total + 0.2 * metrics["router_z"].total, rtol=1e-5
    )
    rows = [loss(RouterLoss(of=TokenLoss()), jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], given)) for i in range(4)]
    np.testing.assert_allclose(sum(row[0] for row in rows), loss(RouterLoss(of=TokenLoss()), given)[0], rtol=1e-5)


@pytest.mark.slow
def test_training_with_routers_in_the_objective_evens_the_load():
    found = {}
    for balance in (0.0, 10.0):
        objective, optimizer = RouterLoss(of=TokenLoss(), balance=balance), optax.adam(1e-2)
        state = init_state(lambda key: Causal(MODEL, rngs=nnx.Rngs(key)), optimizer, jax.random.key(0))
        step = jax.jit(make_train_step(objective, optimizer, accumulate=2))
        for _ in range(20):
            state, metrics = step(state, batch())
        found[balance] = float(metrics["balance"])
    assert abs(found[10.0] - 2) < abs(found[0.0] - 2)


def test_a_model_without_experts_has_no_routers_to_train():
    config = with_fields(MODEL, block=transformer_block(embed=8, heads=2, inner=12))
    with pytest.raises(ValueError, match=r"needs blocks with experts, which tell .*, got blocks that tell nothing"):
        jax.eval_shape(lambda: RouterLoss(of=TokenLoss())(Causal(config, rngs=nnx.Rngs(0)), batch()))
