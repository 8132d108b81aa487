"""What every family promises, whatever it is made of: transforms change nothing, padding and the future are unseen."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight

from flax_transformer.parallel import path_name
from tests.contract.golden import FEW, GOLDEN, error, load, scores

NEAR = 1e-5
FIXED = {"vit_mae": ("positions",), "whisper": ("encoder.positions",), "wav2vec2": ("mask_token",)}
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


@one_of_few
def test_compiled_is_eager(golden, expected):
    pretrained, inputs, _ = golden
    with jax.disable_jit():
        eager = pretrained(**inputs)
    assert error({name: eager[name] for name in expected}, expected) <= NEAR


@one_of_few
def test_vmap_is_the_batch(golden, expected):
    """But what compares its rows with each other."""
    pretrained, inputs, _ = golden
    rows = jax.vmap(lambda row: scores(pretrained, jax.tree.map(lambda x: x[None], row)))(inputs)
    apart = {name: value for name, value in expected.items() if name != "logits_per_text"}
    assert error({name: rows[name][:, 0] for name in apart}, apart) <= NEAR


def test_what_padding_holds_says_nothing(text, expected):
    pretrained, inputs, _ = text
    hidden = inputs["attention_mask"] == 0
    assert hidden.any()
    other = {**inputs, "input_ids": np.where(hidden, (inputs["input_ids"] + 7) % 30 + 4, inputs["input_ids"])}
    assert error(real(text, scores(pretrained, other)), real(text, expected)) <= NEAR


def test_more_padding_changes_nothing(text, expected):
    pretrained, inputs, _ = text
    shape = inputs["input_ids"].shape
    wide = {
        name: np.pad(x, ((0, 0), (0, 3))) for name, x in inputs.items() if x.shape == shape and "decoder" not in name
    }
    found = scores(pretrained, {**inputs, **wide})
    cut = {name: x[:, : expected[name].shape[1]] if x.ndim > 1 else x for name, x in found.items()}
    assert error(real(text, cut), real(text, expected)) <= NEAR


def test_the_future_is_unseen_and_the_past_is_not(text, expected):
    """Or, for an encoder, that all see all."""
    pretrained, inputs, _ = text
    if {"pixel_values", "visual_feats"} & set(inputs):
        pytest.skip("of models that say something of every position")
    ids = inputs[text.reads].copy()
    ids[:, -1] = ids[:, -1] % 30 + 5
    changed = scores(pretrained, {**inputs, text.reads: ids})
    (name, before), *_ = expected.items()
    moved = np.abs(np.asarray(changed[name]) - before).reshape(*before.shape[:2], -1).max(-1) > 1e-6
    assert moved[:, -1].all()
    assert moved[:, :-1].any() != text.generates


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


def real(golden, found):
    """Put zero where an output is of padding; before texts' positions there may be pictures'."""
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


@pytest.mark.proves("every family", "shard", "data × fsdp × tensor, gradients too")
@pytest.mark.parametrize("folder", FEW, ids=named)
def test_a_mesh_is_one_device(folder):
    found = on_meshes(folder in FEW)[folder.name]
    assert found["error"] <= 1e-11
    assert found["split"] > found["kernels"] / 2
