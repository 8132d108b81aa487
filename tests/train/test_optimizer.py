import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer, path_mask
from flax_transformer.train.schedule import ScheduleConfig

pytestmark = pytest.mark.proves("training", "7 optimizers, as Optax")

NAMES = ("adam", "adamw", "sgd", "rmsprop", "adafactor", "lion", "muon")
CONSTANT = ScheduleConfig(name="constant")


def config(name, **options):
    return OptimizerConfig(**{"name": name, "schedule": CONSTANT, "learning_rate": 1e-2, **options})


def parameters():
    """Parameters by the names of a model: kernels that are split into heads, a stacked one, an embedding, a norm."""
    random = np.random.default_rng(0)
    shapes = {
        "query": {"kernel": (16, 4, 4), "bias": (4, 4)},
        "out": {"kernel": (4, 4, 16), "bias": (16,)},
        "up": {"kernel": (2, 16, 32), "bias": (2, 32)},
        "token": {"embedding": (24, 16)},
        "norm": {"scale": (16,)},
    }
    draw = lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    return jax.tree.map(draw, shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))


def gradients(step):
    random = np.random.default_rng(100 + step)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), parameters())


def run(optimizer, steps=5):
    params = parameters()
    state = optimizer.init(params)
    for step in range(steps):
        updates, state = optimizer.update(gradients(step), state, params)
        params = optax.apply_updates(params, updates)
    return params


def assert_equal(found, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


@pytest.mark.rotates
@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_lowers_a_quadratic(name):
    target = parameters()
    loss = lambda params: optax.tree.norm(optax.tree.sub(params, target), squared=True)  # noqa: E731
    optimizer = make_optimizer(config(name, learning_rate=2e-2), 60)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    params = optax.tree.add_scale(target, 0.1, gradients(0))
    state, before = optimizer.init(params), loss(params)
    for _ in range(60):
        params, state = step(params, state)
    assert loss(params) < before / 3


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "options", "make"),
    [
        ("sgd", {"momentum": 0.9}, lambda t, p: t.SGD(p, lr=1e-2, momentum=0.9)),
        ("sgd", {"momentum": 0.0}, lambda t, p: t.SGD(p, lr=1e-2)),
        ("adam", {}, lambda t, p: t.Adam(p, lr=1e-2, betas=(0.9, 0.98), eps=1e-9)),
        ("adam", {"eps": 1e-2}, lambda t, p: t.Adam(p, lr=1e-2, betas=(0.9, 0.98), eps=1e-2)),
        (
            "adamw",
            {"weight_decay": 0.1, "decay_pattern": "."},
            lambda t, p: t.AdamW(p, lr=1e-2, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1),
        ),
        (
            "rmsprop",
            {"b2": 0.9, "eps": 1e-2},
            lambda t, p: t.RMSprop(p, lr=1e-2, alpha=0.9, eps=1e-2, momentum=0.9),
        ),
    ],
)
def test_steps_equal_torch(name, options, make):
    torch = pytest.importorskip("torch")
    leaves, treedef = jax.tree.flatten(parameters())
    theirs = [torch.tensor(np.array(leaf), requires_grad=True) for leaf in leaves]
    optimizer = make(torch.optim, theirs)
    for step in range(5):
        for parameter, gradient in zip(theirs, jax.tree.leaves(gradients(step)), strict=True):
            parameter.grad = torch.tensor(np.array(gradient))
        optimizer.step()
    expected = treedef.unflatten([parameter.detach().numpy() for parameter in theirs])
    assert_equal(run(make_optimizer(config(name, **options), 5)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "options", "alias"),
    [
        ("lion", {"b2": 0.99}, optax.lion(1e-2, b1=0.9, b2=0.99, weight_decay=0.0)),
        (
            "adamw",
            {"weight_decay": 0.1},
            optax.adamw(1e-2, 0.9, 0.98, 1e-9, weight_decay=0.1, mask=path_mask("kernel$")),
        ),
    ],
)
def test_steps_equal_the_alias_of_optax(name, options, alias):
    assert_equal(run(make_optimizer(config(name, **options), 5)), run(alias), rtol=1e-6, atol=1e-7)


@pytest.mark.rotates
def test_muon_equals_the_one_of_optax_on_each_matrix():
    """A kernel that is split into heads, or stacked, moves as its plain matrices would."""

    def optax_muon(matrix):
        alias = contrib.muon(1e-2, beta=0.9, consistent_rms=0.2)
        params, state = {"w": matrix(parameters())}, None
        state = alias.init(params)
        for step in range(2):
            updates, state = alias.update({"w": matrix(gradients(step))}, state, params)
            params = optax.apply_updates(params, updates)
        return params["w"]

    found = run(make_optimizer(config("muon"), 5), steps=2)
    close = {"rtol": 1e-4, "atol": 1e-5}
    query = optax_muon(lambda tree: tree["query"]["kernel"].reshape(16, 16))
    np.testing.assert_allclose(found["query"]["kernel"].reshape(16, 16), query, **close)
    out = optax_muon(lambda tree: tree["out"]["kernel"].reshape(16, 16))
    np.testing.assert_allclose(found["out"]["kernel"].reshape(16, 16), out, **close)
    for layer in range(2):
        up = optax_muon(lambda tree, layer=layer: tree["up"]["kernel"][layer])
        np.testing.assert_allclose(found["up"]["kernel"][layer], up, **close)


@pytest.mark.rotates
def test_muon_moves_kernels_as_far_as_adam_does():
    """One learning rate serves both: a step of a kernel has a root mean square of about 0.2 learning rates."""
    optimizer = make_optimizer(config("muon"), 5)
    params = parameters()
    updates, _ = optimizer.update(gradients(0), optimizer.init(params), params)
    for kernel in (updates["query"]["kernel"], updates["out"]["kernel"], updates["up"]["kernel"]):
        assert float(jnp.sqrt(jnp.mean(kernel**2))) == pytest.approx(0.2e-2, rel=0.2)


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["adamw", "sgd", "rmsprop", "adafactor", "lion", "muon"])
def test_weight_decay_touches_kernels_only(name):
    params = parameters()

    def updates(**options):
        optimizer = make_optimizer(config(name, **options), 5)
        return optimizer.update(gradients(0), optimizer.init(params), params)[0]

    difference = optax.tree.sub(updates(weight_decay=0.1), updates())
    decayed = path_mask("kernel$")(params)
    assert sum(jax.tree.leaves(decayed)) == 3
    expected = jax.tree.map(lambda leaf, is_kernel: -1e-2 * 0.1 * leaf * is_kernel, params, decayed)
    assert_equal(difference, expected, rtol=1e-3, atol=1e-8)


@pytest.mark.parity
@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping_equals_torch(limit):
    torch = pytest.importorskip("torch")
    theirs = [torch.zeros(leaf.shape, requires_grad=True) for leaf in jax.tree.leaves(gradients(0))]
    for parameter, gradient in zip(theirs, jax.tree.leaves(gradients(0)), strict=True):
        parameter.grad = torch.tensor(np.array(gradient))
    torch.nn.utils.clip_grad_norm_(theirs, limit)
    optimizer = make_optimizer(config("sgd", momentum=0.0, learning_rate=1.0, clip_norm=limit), 5)
    params = parameters()
    updates, _ = optimizer.update(gradients(0), optimizer.init(params), params)
    for update, parameter in zip(jax.tree.leaves(updates), theirs, strict=True):
        np.testing.assert_allclose(-update, parameter.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_the_schedule_is_followed():
    schedule = ScheduleConfig(name="linear", warmup=2)
    optimizer = make_optimizer(config("sgd", momentum=0.0, learning_rate=1.0, schedule=schedule), 4)
    params, state = {"kernel": jnp.zeros(1)}, None
    state = optimizer.init(params)
    taken = []
    for _ in range(4):
        updates, state = optimizer.update({"kernel": jnp.ones(1)}, state, params)
        taken.append(-float(updates["kernel"][0]))
    assert taken == pytest.approx([0.5, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.0},
        {"name": "adam", "weight_decay": 0.1},
        {"clip_norm": 0.0},
        {"b1": 1.0},
        {"momentum": -0.1},
    ],
)
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match=r"got "):
        OptimizerConfig(**options)
