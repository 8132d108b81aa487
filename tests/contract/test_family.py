"""What every family promises, whatever it is made of: transforms change nothing, padding and the future are unseen."""

import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight

from flax_transformer.parallel import path_name
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.order import layer_distances
from flax_transformer.train.schedule import ScheduleConfig
from tests.contract.golden import FEW, GOLDEN, error, load, scores
from tests.contract.order import check_axes, check_order

NEAR = 1e-5
FIXED = {
    "deepseek_v3": ("feedforward.correction",),
    "vit_mae": ("positions",), "whisper": ("encoder.positions",), "wav2vec2": ("mask_token",),
    "detr": tuple(f"mask_head.conv{i}.bias" for i in range(1, 5)),  # of channels that are each a group of a norm
    "mask2former": ("pixels.project0.bias", "pixels.project1.bias", "pixels.project2.bias"),  # likewise
}  # fmt: skip
"""Parameters that no gradient comes to."""


def named(folder):
    return folder.name


SEEN = ("nystromformer",)
"""Families whose padding is in the means of landmarks, and in the convolution of values, as published."""


one_of_few = pytest.mark.parametrize("golden", FEW, ids=named, indirect=True, scope="module")


@pytest.fixture(params=GOLDEN, ids=named, scope="module")
def golden(request):
    return load(request.param)


@pytest.fixture(scope="module")
def expected(golden):
    return jax.device_get(scores(golden.pretrained, golden.inputs))


@pytest.fixture
def text(golden):
    if "input_ids" not in golden.inputs:
        pytest.skip("of texts, which have padding and an order")
    if golden.pretrained.architecture.inputs.padded or golden.pretrained.config["model_type"] in SEEN:
        pytest.skip("of models that do not read padding")
    return golden


@pytest.mark.rotates
@one_of_few
def test_compiled_is_eager(golden, expected):
    pretrained, inputs, _ = golden
    with jax.disable_jit():
        eager = pretrained(**inputs)
    assert error({name: eager[name] for name in expected}, expected) <= NEAR


@pytest.mark.rotates
@one_of_few
def test_vmap_is_the_batch(golden, expected):
    """But what compares its rows with each other."""
    pretrained, inputs, _ = golden
    rows = jax.vmap(lambda row: scores(pretrained, jax.tree.map(lambda x: x[None], row)))(inputs)
    apart = {name: value for name, value in expected.items() if name != "logits_per_text"}
    assert error({name: rows[name][:, 0] for name in apart}, apart) <= NEAR


@pytest.mark.rotates
def test_what_padding_holds_says_nothing(text, expected):
    pretrained, inputs, _ = text
    hidden = inputs["attention_mask"] == 0
    assert hidden.any()
    other = {**inputs, "input_ids": np.where(hidden, (inputs["input_ids"] + 7) % 30 + 4, inputs["input_ids"])}
    assert error(real(text, scores(pretrained, other)), real(text, expected)) <= NEAR


@pytest.mark.rotates
def test_more_padding_changes_nothing(text, expected):
    pretrained, inputs, _ = text
    shape = inputs["input_ids"].shape
    wide = {
        name: np.pad(x, ((0, 0), (0, 3))) for name, x in inputs.items() if x.shape == shape and "decoder" not in name
    }
    found = scores(pretrained, {**inputs, **wide})
    cut = {name: x[:, : expected[name].shape[1]] if x.ndim > 1 else x for name, x in found.items()}
    assert error(real(text, cut), real(text, expected)) <= NEAR


@pytest.mark.rotates
def test_the_future_is_unseen_and_the_past_is_not(text, expected):
    """Or, for an encoder, that all see all."""
    pretrained, inputs, _ = text
    if {"pixel_values", "visual_feats"} & set(inputs):
        pytest.skip("of models that say something of every position")
    ids = inputs[text.reads].copy()
    ids[:, -1] = ids[:, -1] % 30 + 5
    changed = scores(pretrained, {**inputs, text.reads: ids})
    (name, before), *_ = expected.items()
    if before.shape[:2] != ids.shape:
        pytest.skip("of a model whose vectors are of whole texts")
    moved = np.abs(np.asarray(changed[name]) - before).reshape(*before.shape[:2], -1).max(-1) > 1e-6
    assert moved[:, -1].all()
    assert moved[:, :-1].any() != text.generates


@pytest.mark.rotates
@one_of_few
def test_every_parameter_learns(golden):
    """But what a key's bias adds to all products of a query alike, and what nothing of these inputs comes to."""
    pretrained, inputs, _ = golden

    def loss(pretrained):
        return sum(jnp.sum(x[..., :3] ** 2) + jnp.sum(x * jnp.sin(x)) for x in scores(pretrained, inputs).values())

    leaves = jax.tree_util.tree_leaves_with_path(jax.grad(loss)(pretrained))
    silent = {path_name(path) for path, leaf in leaves if not np.abs(leaf).max() > 1e-9}
    fixed = ("key.bias", *FIXED.get(pretrained.config["model_type"], ()))
    assert {name for name in silent if not name.endswith(fixed)} == set()


@pytest.mark.rotates
def test_the_order_of_layers_is_said(golden):
    model = golden.pretrained.model
    check_order(model, towers=golden.pretrained.config["model_type"] in ("clip", "siglip", "siglip2"))
    check_axes(model)


@pytest.mark.slow
def test_data_goes_through_the_layers_in_the_order_that_is_said(golden):
    """What more of the hidden states depend on lies lower, by the gradient of each state."""
    pretrained, inputs, _ = golden
    assert_in_order(pretrained, inputs)


def assert_in_order(pretrained, inputs):
    def states(pretrained):
        output = pretrained(**inputs, output_hidden_states=True)
        names = [name for name in output.keys() if name.endswith("hidden_states") and "last" not in name]  # noqa: SIM118
        found = jax.tree.leaves([output[name] for name in names])
        if not found:
            pytest.skip("of models that give their hidden states")
        return jnp.stack([jnp.sum(jnp.sin(jnp.arange(x.size) + 1.0).reshape(x.shape) * x) for x in found])

    slopes = jax.jit(jax.jacrev(states))(pretrained)
    reached = []
    leaves = jax.tree_util.tree_leaves_with_path(slopes)
    for (path, slope), distance in zip(leaves, jax.tree.leaves(layer_distances(pretrained)), strict=True):
        if path_name(path).endswith("key.bias"):  # of which nothing comes but rounding
            continue
        layers = np.abs(np.asarray(slope)).reshape(len(slope), max(distance.size, 1), -1).max(-1) > 1e-7
        reached += [(frozenset(np.flatnonzero(seen)), d) for seen, d in zip(layers.T, distance.ravel(), strict=True)]
    bottom = max(distance for _, distance in reached)  # of embeddings, also those that only a decoder reads
    layers = {(seen, distance) for seen, distance in reached if seen and distance < bottom}
    assert len(layers) > 1
    for (low, below), (high, above) in itertools.product(layers, repeat=2):
        assert not low > high or below >= above, (
            f"{sorted(low)} depend on what is at {below}, {sorted(high)} on {above}"
        )


@pytest.mark.rotates
@one_of_few
def test_each_layer_learns_at_the_rate_of_where_it_lies(golden):
    model = golden.pretrained.model
    options = {"name": "sgd", "momentum": 0.0, "learning_rate": 1.0, "schedule": ScheduleConfig(name="constant")}
    ones = jax.tree.map(jnp.ones_like, model)

    def steps(**more):
        optimizer = make_optimizer(OptimizerConfig(**options, **more), 100)
        state = optimizer.init(ones)
        while True:
            updates, state = optimizer.update(ones, state, ones)
            yield updates

    slower = next(steps(layer_decay=0.5))
    for update, distance in zip(jax.tree.leaves(slower), jax.tree.leaves(layer_distances(model)), strict=True):
        np.testing.assert_allclose(update, np.broadcast_to(-(0.5**distance), update.shape), rtol=1e-6)
    for step, updates in zip(range(3), steps(unfreeze_every=1), strict=False):
        for update, distance in zip(jax.tree.leaves(updates), jax.tree.leaves(layer_distances(model)), strict=True):
            np.testing.assert_array_equal(update, np.broadcast_to(-1.0 * (distance <= step), update.shape))


def real(golden, found):
    """Put zero where an output is of padding; before texts' positions there may be images'."""
    keep = np.ones_like(golden.inputs[golden.reads]) if golden.reads != "input_ids" else golden.inputs["attention_mask"]
    if "pixel_values" in golden.inputs and "logits" in found and found["logits"].ndim == 3:
        more = found["logits"].shape[1] - keep.shape[1]
        keep = np.pad(keep, ((0, 0), (max(more, 0), 0)), constant_values=1)
    return {
        name: np.asarray(x) * keep.reshape(keep.shape + (1,) * (x.ndim - 2)) if x.shape[:2] == keep.shape else x
        for name, x in found.items()
    }


@functools.cache
def on_meshes(quick):
    names = (folder.name for folder in GOLDEN if (folder in FEW) == quick)
    return on_eight(Path(__file__).parent / "family_meshes.py", *names)[0]


@pytest.mark.rotates
@pytest.mark.proves("every family", "shard", "data × fsdp × tensor, gradients too")
@pytest.mark.parametrize("folder", FEW, ids=named)
def test_a_mesh_is_one_device(folder):
    found = on_meshes(folder in FEW)[folder.name]
    assert found["error"] <= 1e-11
    assert found["split"] > found["kernels"] / 2
    if "few_bits" in found:
        assert found["few_bits"] <= 1e-11
        assert found["scales"] > 0
