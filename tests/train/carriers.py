"""Four small things that carry state from step to step, and a run of each; as a script, on eight devices beside one."""

import json
import sys
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from flax_transformer.nn.batch_norm import BatchNorm
from flax_transformer.parallel import MeshConfig, constrain, make_mesh, path_name
from flax_transformer.train.carry import Carry, Carrying, batch_statistics, carry_of, momentum_teacher
from flax_transformer.train.state import init_state
from flax_transformer.train.step import OwnStep, jit_train_step, make_own_step, make_train_step

ROWS, CLASSES = 16, 4
WHOLE = {"kernel_init": nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, None), eager_sharding=False)}
PARTED = nnx.with_partitioning(
    nnx.initializers.lecun_normal(), (None, None, None, "inner"), eager_sharding=False
)  # fmt: skip


def images():
    """Rows of images whose class is where they are bright, in batches that change."""
    random = np.random.default_rng(0)
    while True:
        label = random.integers(0, CLASSES, ROWS)
        image = random.normal(size=(ROWS, 4, 4, 3)).astype(np.float32)
        image[np.arange(ROWS), label] += 1.5
        yield {"image": image, "label": label.astype(np.int32)}


# 1. A convolutional network with running statistics.


class Network(nnx.Module):
    """Convolution, batch normalisation, mean, classes."""

    def __init__(self, *, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), use_bias=False, kernel_init=PARTED, rngs=rngs)
        self.norm = BatchNorm(8)
        self.inner = nnx.Linear(32, 32, use_bias=False, rngs=rngs, **WHOLE)
        self.inner_norm = BatchNorm(32)
        self.head = nnx.Linear(32, CLASSES, rngs=rngs, **WHOLE)

    def __call__(self, image):
        return self._end(self.inner_norm(self.inner(self._flat(self.norm(self.conv(image))))))

    def observe(self, image):
        h, norm = self.norm.observe(self.conv(image))
        h, inner_norm = self.inner_norm.observe(self.inner(self._flat(h)))
        return self._end(h), {"norm": norm, "inner_norm": inner_norm}

    def _flat(self, h):
        return jax.nn.relu(h).mean(2).reshape(len(h), -1)

    def _end(self, h):
        return self.head(jax.nn.relu(h))


def classified(logits, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    right = (logits.argmax(-1) == batch["label"]).sum()
    return losses.sum(), {"count": jnp.float32(len(losses)), "accuracy": right.astype(jnp.float32)}


def observed(model, batch, *, key):
    logits, statistics = model.observe(batch["image"])
    return *classified(logits, batch), statistics


def network(key):
    return Network(rngs=nnx.Rngs(key))


# 2. A momentum teacher, whose outputs the model learns.


def vectors(key, *sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return {f"up{i}": {"up": {"kernel": jax.random.normal(k, (a, b)) / a**0.5}} for i, (k, a, b) in enumerate(shapes)}


def forward(model, x):
    for layer in model.values():
        x = constrain(jnp.tanh(x @ layer["up"]["kernel"]), "batch", None)
    return x


def pixels(batch):
    return batch["image"].reshape(len(batch["image"]), -1)


def taught(model, batch, *, key, carried):
    x = pixels(batch)
    error = jnp.sum((forward(model, x + 0.1 * jax.random.normal(key, x.shape)) - forward(carried, x)) ** 2)
    loss, metrics = classified(forward(model, x), batch)
    return loss + error, {**metrics, "error": error}, carried


# 3. A queue of negatives beside a teacher (He et al. 2020).


def contrasted(model, batch, *, key, carried):
    unit = lambda h: h / jnp.linalg.norm(h, axis=-1, keepdims=True)  # noqa: E731
    x = pixels(batch)
    query = unit(forward(model, x + 0.1 * jax.random.normal(key, x.shape)))
    positive = unit(forward(carried["teacher"], x))
    logits = jnp.concatenate([jnp.sum(query * positive, -1, keepdims=True), query @ carried["queue"].T], axis=1)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits / 0.2, jnp.zeros(len(x), jnp.int32))
    queue = jnp.concatenate([positive, carried["queue"]])[: len(carried["queue"])]
    return losses.sum(), {"count": jnp.float32(len(x))}, {**carried, "queue": queue}


TEACHER = momentum_teacher(0.8)
MOMENTUM = Carry(
    begin=lambda model, key: {"teacher": TEACHER.begin(model, key), "queue": jax.random.normal(key, (48, CLASSES))},
    after=lambda model, carried: {**carried, "teacher": TEACHER.after(model, carried["teacher"])},
)

# 4. Two players with an optimizer each; the second sees what the first has just become.


def players(key):
    one, two = jax.random.split(key)
    return {"generator": vectors(one, 8, 16, 48), "discriminator": vectors(two, 48, 16, 2)}


FIRST, SECOND = optax.adam(2e-3), optax.sgd(1e-2, momentum=0.9)


def play(state, batch, *, key):
    x, model, opt_state = pixels(batch), state.model, state.opt_state
    noise = jax.random.normal(key, (len(x), 8))

    def doubt(discriminator):
        fake = forward(discriminator, forward(model["generator"], noise))
        return jnp.mean(jax.nn.softplus(fake) + jax.nn.softplus(-forward(discriminator, x)))

    loss, grads = jax.value_and_grad(doubt)(model["discriminator"])
    updates, second = SECOND.update(grads, opt_state["discriminator"])
    discriminator = optax.apply_updates(model["discriminator"], updates)

    def fool(generator):
        return jnp.mean(jax.nn.softplus(-forward(discriminator, forward(generator, noise))))

    fooled, grads = jax.value_and_grad(fool)(model["generator"])
    updates, first = FIRST.update(grads, opt_state["generator"])
    generator = optax.apply_updates(model["generator"], updates)
    metrics = {"loss": loss, "fooled": fooled, "gradient_norm": optax.global_norm(grads), "count": jnp.float32(len(x))}
    new = {"generator": generator, "discriminator": discriminator}
    return replace(state, model=new, opt_state={"generator": first, "discriminator": second}), metrics


GAME = OwnStep(
    lambda model: {"generator": FIRST.init(model["generator"]), "discriminator": SECOND.init(model["discriminator"])},
    play,
)

KINDS = {
    "statistics": (network, replace(batch_statistics(observed), separable=True)),  # cut, by each part's statistics
    "teacher": (lambda key: vectors(key, 48, 16, CLASSES), Carrying(taught, TEACHER)),
    "queue": (lambda key: vectors(key, 48, 16, CLASSES), Carrying(contrasted, MOMENTUM)),
    "game": (players, GAME),
}


def begin(kind, mesh=None, *, accumulate=1, ema=0.0, optimizer=None):
    """Return the state and the jitted step of a kind."""
    init, method = KINDS[kind]
    if isinstance(method, OwnStep):
        optimizer, carry, step = method, method.carry, make_own_step(method, ema=ema)
    else:
        optimizer, carry = optimizer or optax.adam(3e-3), carry_of(method)
        step = make_train_step(method, optimizer, accumulate=accumulate, ema=ema)
    state = init_state(init, optimizer, jax.random.key(0), ema=ema > 0, carry=carry, mesh=mesh)
    return state, jit_train_step(step, state, mesh)


def run(kind, steps, mesh=None, **options):
    """Train; give the losses and the last state."""
    state, step = begin(kind, mesh, **options)
    losses = []
    for _, batch in zip(range(steps), images(), strict=False):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses, state


def apart(one, two):
    """How far two states are from each other, by their parts."""
    parts = {name: (getattr(one, name), getattr(two, name)) for name in ("model", "carried", "ema", "opt_state")}
    far = lambda a, b: float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max(initial=0))  # noqa: E731
    return {name: max(map(far, jax.tree.leaves(a), jax.tree.leaves(b)), default=0.0) for name, (a, b) in parts.items()}


MESHES = {"data": MeshConfig(data=8), "data×fsdp×tensor": MeshConfig(data=2, fsdp=2, tensor=2)}


def main(*pairs):
    """Try every pair `KIND on MESH`."""
    found, one_device = {}, cache(partial(run, steps=12, ema=0.9))
    for pair in pairs:
        kind, _, name = pair.partition(" on ")
        losses, alone = one_device(kind)
        there, state = run(kind, 12, make_mesh(MESHES[name]), ema=0.9)
        leaves = jax.tree_util.tree_leaves_with_path((state.opt_state, state.carried))
        split = [path_name(p) for p, leaf in leaves if not leaf.sharding.is_fully_replicated]
        found[pair] = {"losses": [losses, there], "apart": apart(alone, state), "split": split}
    if "statistics on data×fsdp×tensor" in pairs:  # as many channels as a part of the batch has rows
        explicit, parts = jax.make_mesh((4, 2), ("data", "fsdp")), {"accumulate": 2}
        states = [run("statistics", 4, mesh, **parts)[1] for mesh in (None, explicit)]
        found["explicit"] = apart(*states)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
