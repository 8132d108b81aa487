"""Fine-tuning against the same done by hand: masked gradients, one optimizer a layer, one mean a task."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import Block, EmbeddingConfig, TrunkConfig, apply_stack, init_stack, transformer_block
from flax_transformer.objective import TokenLoss
from flax_transformer.order import Stack
from flax_transformer.parallel import MeshConfig, make_mesh, path_name
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.config import from_json, to_json
from flax_transformer.train.finetune import (
    adopt_state,
    decay_by_layer,
    freeze,
    multi_task,
    path_mask,
    train_only,
    unfreeze_gradually,
)
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import TrainState
from flax_transformer.train.step import jit_train_step, make_train_step
from tests.batch import taught

pytestmark = [
    pytest.mark.slow,
    pytest.mark.proves("fine-tuning", "freezing, layer-wise rates, gradual unfreezing, several tasks"),
]

CONSTANT = ScheduleConfig(name="constant")


@functools.cache
def translator():
    block = {"embed": 16, "heads": 2, "inner": 32}
    config = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=24, embed=16),
        encoder=TrunkConfig(block=transformer_block(**block), depth=2),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=3),
        tied_output=False,
    )
    return Seq2Seq(config, rngs=nnx.Rngs(0))


def sentences():
    random = np.random.default_rng(0)
    tokens = lambda width: random.integers(3, 24, (4, width), np.int32)  # noqa: E731
    length = np.array([6, 3, 5, 6], np.int32)
    return taught(tokens(6), length, tokens(7), length)


def tagger():
    """A small encoder whose every position is classified."""
    keys = jax.random.split(jax.random.key(0), 3)
    block = transformer_block(embed=16, heads=2, inner=32)
    return {
        "embedding": {"token": jax.random.normal(keys[0], (24, 16))},
        "encoder": init_stack(lambda rngs: Block(block, rngs=rngs), 2, key=keys[1]),
        "head": {"kernel": 0.3 * jax.random.normal(keys[2], (16, 5))},
    }


def tag(model, batch, *, key=None, unroll=1):
    hidden = apply_stack(model["encoder"], model["embedding"]["token"][batch["inputs"]["source"]], unroll=unroll)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        hidden @ model["head"]["kernel"], batch["inputs"]["source"] % 5
    )
    return jnp.sum(losses), {"count": jnp.float32(losses.size)}


def noise(tree, seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), leaf.dtype), tree)


def named(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def optimizer(**options):
    return make_optimizer(OptimizerConfig(**{"schedule": CONSTANT, "learning_rate": 0.1, **options}), 100)


def run(transformation, params, steps=3):
    """Take steps with the same random gradients; give the parameters after each."""
    update, state, seen = jax.jit(transformation.update), transformation.init(params), []
    for step in range(steps):
        updates, state = update(noise(params, step), state, params)
        params = optax.apply_updates(params, updates)
        seen.append(params)
    return seen


@functools.cache
def gradient():
    """Of the mean loss, with respect to everything."""
    return jax.jit(jax.grad(lambda model: tag(model, sentences())[0] / sentences()["inputs"]["source"].size))


def masked_adam(model, mask, steps):
    """Adam in NumPy on gradients masked by hand."""
    params = {name: np.asarray(leaf, np.float64) for name, leaf in named(model).items()}
    mean, square = ({name: np.zeros_like(leaf) for name, leaf in params.items()} for _ in range(2))
    treedef = jax.tree.structure(model)
    for step in range(1, steps + 1):
        now = treedef.unflatten([jnp.asarray(params[name], jnp.float32) for name in named(model)])
        grads = {n: np.asarray(g, np.float64) * mask[n] for n, g in named(gradient()(now)).items()}
        for name, g in grads.items():
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.98 * square[name] + 0.02 * g**2
            root = np.sqrt(square[name] / (1 - 0.98**step)) + 1e-2
            params[name] = params[name] - 0.1 * mean[name] / (1 - 0.9**step) / root
    return params, np.sqrt(sum((g**2).sum() for g in grads.values()))


def test_training_a_part_equals_masking_gradients_by_hand():
    """And what is frozen has no optimizer state, not even one of zeros."""
    pattern = r"encoder\.(blocks\.)?(attention|feedforward_residual\.norm)\.|^head"
    model, mask = tagger(), named(path_mask(pattern)(tagger()))
    part = optimizer(trainable=pattern, eps=1e-2)
    state = adopt_state(model, part, jax.random.key(0))
    trained = sum(leaf.size for name, leaf in named(model).items() if mask[name])
    assert 2 * trained <= sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) <= 2 * trained + 2
    step = jax.jit(make_train_step(freeze(tag, pattern), part))
    for _ in range(2):
        state, metrics = step(state, sentences())
    expected, norm = masked_adam(model, mask, 2)
    assert float(metrics["gradient_norm"]) == pytest.approx(norm, rel=1e-4)
    before, found = named(model), named(state.model)
    for name, keep in mask.items():
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5)
        assert bool(jnp.array_equal(found[name], before[name])) != keep


@pytest.mark.parametrize("name", ["adamw", "sgd", "rmsprop", "adafactor", "lion", "muon"])
def test_every_optimizer_trains_a_part_as_if_it_were_all_there_is(name):
    part = noise({"encoder": {"query": {"kernel": jnp.zeros((2, 4, 2, 2)), "bias": jnp.zeros((2, 2, 2))}}}, 1)
    rest = noise({"head": {"kernel": jnp.zeros((4, 3))}}, 2)
    options = {"name": name, "weight_decay": 0.1, "clip_norm": 0.5}
    found = run(optimizer(trainable="^encoder", **options), {**part, **rest})[-1]
    expected = run(optimizer(**options), part)[-1]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, {**expected, **rest})


def test_what_is_frozen_costs_no_gradient():
    """Nor a backward pass through what lies below. Loops count once in the estimate, so the stack is unrolled."""

    def flops(pattern):
        objective = freeze(functools.partial(tag, unroll=True), pattern)
        backward = jax.grad(lambda model: objective(model, sentences())[0])
        return jax.jit(backward).lower(tagger()).cost_analysis()["flops"]

    whole, biases, head = flops(""), flops("bias$|^head"), flops("^head")
    assert biases < 0.8 * whole
    assert head < 0.5 * whole


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(
        ValueError, match=r"trainable must match a parameter, got 'haed'; paths are decoder\.blocks\.attention"
    ):
        optimizer(trainable="haed").init(translator())
    with pytest.raises(ValueError, match="trainable must match a parameter, got 'haed'"):
        freeze(TokenLoss(), "haed")(translator(), sentences(), key=None)


def test_layer_decay_equals_one_optimizer_a_layer():
    """Each slice of a stack is stepped by its own optimizer at its own rate."""
    decay = 0.7
    options = {"name": "adamw", "weight_decay": 0.1}
    order = ("embedding", Stack("encoder"), "head")
    rate = lambda distance: optimizer(learning_rate=0.1 * decay**distance, **options)  # noqa: E731
    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    stack = {"attention": {"query": {"kernel": draw(3, 4, 2, 2)}, "out": {"bias": draw(3, 4)}}}
    rest = {"embedding": {"token": {"embedding": draw(6, 4)}}, "head": {"kernel": draw(4, 2)}}
    chained = optax.chain(optimizer(learning_rate=0.1, **options), decay_by_layer(decay, order))
    found = run(chained, {"encoder": stack, **rest})[-1]

    def alone(transformation, part, pick):
        state, params = transformation.init(part), part
        for step in range(3):
            updates, state = transformation.update(pick(noise({"encoder": stack, **rest}, step)), state, params)
            params = optax.apply_updates(params, updates)
        return params

    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    for i in range(3):
        slice_ = lambda tree, i=i: jax.tree.map(lambda leaf: leaf[i], tree["encoder"])  # noqa: E731
        expected = alone(rate(3 - i), slice_({"encoder": stack}), slice_)
        jax.tree.map(close, slice_(found), expected)
    for part, distance in (("embedding", 4), ("head", 0)):
        pick = lambda tree, part=part: {part: tree[part]}  # noqa: E731
        jax.tree.map(close, pick(found), alone(rate(distance), pick(rest), pick))


def test_layers_are_unfrozen_from_the_top_down_in_one_program():
    model = translator()
    gradual = optax.chain(optax.sgd(1.0), unfreeze_gradually(2))
    state, update, params = gradual.init(model), jax.jit(gradual.update), model
    for step in range(14):
        updates, state = update(jax.tree.map(jnp.ones_like, params), state, params)
        moved = {name: np.asarray(leaf != 0) for name, leaf in named(updates).items()}
        reached = step // 2
        assert moved["head.token.embedding"].all()
        for i, depth in ((0, 3), (1, 2), (2, 1)):
            assert moved["decoder.blocks.cross.out.bias"][i].all() == moved["decoder.blocks.cross.out.bias"][i].any()
            assert moved["decoder.blocks.cross.out.bias"][i].all() == (reached >= depth)
        for i, depth in ((0, 5), (1, 4)):
            assert moved["encoder.blocks.feedforward.up.kernel"][i].any() == (reached >= depth)
        assert moved["embedding.token.embedding"].any() == (reached >= 6)
    assert update._cache_size() == 1


def test_unfreezing_combines_with_decay_and_a_pattern():
    """Once all is unfrozen the rates are those of the decay; what the pattern leaves out never moves."""
    options = {"name": "sgd", "momentum": 0.0, "layer_decay": 0.5, "trainable": "encoder|head"}
    model = translator()
    both, decayed = (run(optimizer(**options, unfreeze_every=n), model, steps=4) for n in (1, 0))
    steps = lambda seen: named(optax.tree.sub(seen[3], seen[2]))  # noqa: E731
    found, expected = steps(both), steps(decayed)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)  # a difference of sums
    np.testing.assert_allclose(
        expected["encoder.blocks.feedforward.up.bias"],
        -0.1 * np.array([[0.25], [0.5]]) * named(noise(model, 3))["encoder.blocks.feedforward.up.bias"],
        rtol=1e-3, atol=1e-6,
    )  # fmt: skip
    assert not found["decoder.blocks.feedforward.up.bias"].any()


@pytest.mark.parametrize(
    "options",
    [
        {"layer_decay": 0.0},
        {"layer_decay": 1.5},
        {"unfreeze_every": -1},
        {"trainable": "("},
        {"decay_pattern": "("},
    ],
)
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="got "):
        OptimizerConfig(**options)


def test_the_settings_survive_as_json():
    config = OptimizerConfig(trainable="head", layer_decay=0.8, unfreeze_every=3)
    assert from_json(to_json(config)) == config


@pytest.mark.parametrize(("mesh", "ema"), [(None, True), (MeshConfig(data=1), False)])
def test_a_state_of_a_model_there_is_trains_and_comes_back(tmp_path, mesh, ema):
    shapes = {"encoder": {"up": {"kernel": (2, 3, 3), "bias": (2, 3)}}, "token": {"embedding": (5, 3)}}
    model = jax.tree.map(jnp.ones, shapes, is_leaf=lambda shape: isinstance(shape, tuple))
    total = lambda m, batch, *, key: (sum(map(jnp.sum, jax.tree.leaves(m))) * batch.sum(), {"count": batch.sum()})  # noqa: E731
    order = ("token", Stack("encoder"))
    slower = optax.chain(optimizer(), decay_by_layer(0.5, order), unfreeze_gradually(2, order))
    transformation = train_only("^encoder", slower)
    mesh, rows = None if mesh is None else make_mesh(mesh), np.ones(4, np.float32)
    state = adopt_state(model, transformation, jax.random.key(1), ema=ema, mesh=mesh)
    train_step = make_train_step(freeze(total, "^encoder"), transformation, ema=0.5 if ema else 0.0)
    step = jit_train_step(train_step, state, mesh)
    with Checkpoints(tmp_path) as checkpoints:
        for at in range(1, 6):
            if at == 5:
                checkpoints.save(4, state, {})
                checkpoints.wait()
            state, _ = step(state, rows)
        again, _ = step(checkpoints.restore(jax.eval_shape(lambda s: s, state))[0], rows)
    jax.tree.map(np.testing.assert_array_equal, again.model, state.model)
    # The upper layer moves from the third step on, at half the rate; the lower one on the fifth, at a quarter.
    np.testing.assert_allclose(state.model["encoder"]["up"]["bias"][:, 0], [1 - 0.1 / 4, 1 - 3 * 0.1 / 2], rtol=1e-6)
    np.testing.assert_array_equal(state.model["token"]["embedding"], 1.0)
    assert (state.ema is None) != ema


# Two tasks on one body: a regression that counts rows and a classification that counts words.


def regress(model, batch, *, key):
    error = jnp.sum((jnp.tanh(batch["x"] @ model["body"]) @ model["regress"] - batch["y"]) ** 2)
    return error, {"count": jnp.float32(batch["x"].shape[0]), "error": error}


def classify(model, batch, *, key):
    logits = jnp.tanh(batch["x"] @ model["body"]) @ model["classify"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return jnp.sum(losses * batch["weight"]), {"count": jnp.sum(batch["weight"])}


def two_heads():
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"body": (3, 4), "regress": (4, 2), "classify": (4, 5)}
    return {name: jax.random.normal(k, shape) for (name, shape), k in zip(shapes.items(), keys, strict=True)}


def two_batches(weight=(1.0, 1.0, 0.0, 1.0, 1.0, 0.0)):
    random = np.random.default_rng(0)
    draw = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    labels = np.array([0, 4, 1, 2, 2, 3], np.int32)
    second = {"x": draw(6, 3), "label": labels, "weight": np.array(weight, np.float32)}
    return {"first": {"x": draw(8, 3), "y": draw(8, 2)}, "second": second}


def after_a_step(objective, batch, **options):
    state = TrainState(two_heads(), optax.sgd(1.0).init(two_heads()), jnp.zeros((), jnp.int32), jax.random.key(0))
    return jax.jit(make_train_step(objective, optax.sgd(1.0), **options))(state, batch)


def test_tasks_weigh_by_their_means_not_their_sizes():
    batch, weights = two_batches(), {"first": 0.5, "second": 2.0}

    def by_hand(model):
        first, _ = regress(model, batch["first"], key=None)
        second, _ = classify(model, batch["second"], key=None)
        return 0.5 * first / 8 + 2.0 * second / 4, (first / 8, second / 4)

    (loss, (first, second)), grads = jax.value_and_grad(by_hand, has_aux=True)(two_heads())
    new, metrics = after_a_step(multi_task({"first": regress, "second": classify}, weights), batch)
    expected = optax.tree.sub(two_heads(), grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), new.model, expected)
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-6)
    assert float(metrics["first_loss"]) == float(metrics["first_error"]) == pytest.approx(float(first), rel=1e-6)
    assert float(metrics["second_loss"]) == pytest.approx(float(second), rel=1e-6)
    assert float(metrics["count"]) == 12


@pytest.mark.parametrize("weight", [(1.0, 1.0, 0.0, 1.0, 1.0, 0.0), (1.0, 0.0, 1.0, 0.0, 1.0, 1.0), (0.0,) * 6])
def test_tasks_accumulate_whatever_each_part_has_of_them(weight):
    batch = two_batches(weight=weight)
    objective = multi_task({"first": regress, "second": classify}, {"second": 2.0})
    (whole, one), (parts, two) = (after_a_step(objective, batch, accumulate=n) for n in (1, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), parts.model, whole.model)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), two, one)


def test_a_task_without_words_adds_nothing():
    both = multi_task({"first": regress, "second": classify})
    new, metrics = after_a_step(both, two_batches(weight=(0.0,) * 6))
    alone, _ = after_a_step(regress, two_batches()["first"])
    np.testing.assert_allclose(new.model["body"], alone.model["body"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(new.model["classify"], two_heads()["classify"])
    assert float(metrics["second_loss"]) == 0


def test_tasks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="weights must name tasks, got third; there are first"):
        multi_task({"first": regress}, {"third": 1.0})
    with pytest.raises(ValueError, match="must not be negative"):
        multi_task({"first": regress}, {"first": -1.0})
    objective = multi_task({"first": regress, "second": classify})
    with pytest.raises(ValueError, match=r"one part a task \(first, second\), got first"):
        objective(two_heads(), {"first": two_batches()["first"]}, key=jax.random.key(0))


def test_decay_alone_is_stateless():
    assert not jax.tree.leaves(decay_by_layer(0.5).init(translator()))
