"""Orbax folders: exact both ways, in every number format, onto devices, and refused where they do not fit."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.hub.convert import describe, is_orbax, load_orbax, save_orbax
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_precision
from flax_transformer.parallel import MeshConfig, make_mesh
from flax_transformer.train.checkpoint import CheckpointError, Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.proves("checkpoints of Hugging Face", "to Orbax and back")]

CONFIG = gpt2_tiny(vocab=31)


def build(dtype="float32"):
    config = with_precision(CONFIG, compute=dtype, params=dtype)
    model = jax.jit(lambda: Causal(config, rngs=nnx.Rngs(0)))()
    return hub.wrap(model, "GPT2LMHeadModel", eos_token_id=2, pad_token_id=0, mine={"kept": [1]})


@pytest.fixture(scope="module")
def orbax(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orbax") / "gpt2"
    save_orbax(build(), folder)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_there_and_back_is_exact(tmp_path, dtype):
    hub.save(build(dtype), tmp_path / "a")
    save_orbax(hub.load(tmp_path / "a"), tmp_path / "orbax")
    back = load_orbax(tmp_path / "orbax")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(back.model)} == {dtype}
    assert back.model.cfg == hub.load(tmp_path / "a").model.cfg
    hub.save(back, tmp_path / "b")
    assert (tmp_path / "a" / "config.json").read_bytes() == (tmp_path / "b" / "config.json").read_bytes()
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert a == b


def test_a_number_format_may_be_asked_for(orbax):
    half = load_orbax(orbax, dtype="bfloat16")
    for narrow, wide in zip(jax.tree.leaves(half.model), jax.tree.leaves(load_orbax(orbax).model), strict=True):
        np.testing.assert_array_equal(narrow, wide.astype("bfloat16"))
    with pytest.raises(ValueError, match=r"dtype must be one of .*, got 'int8'"):
        load_orbax(orbax, dtype="int8")


def test_parameters_go_where_a_mesh_says(orbax):
    mesh = make_mesh(MeshConfig(data=1))
    leaves = jax.tree.leaves(load_orbax(orbax, mesh=mesh).model)
    assert all(isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh for leaf in leaves)


def test_a_training_state_is_read_by_a_description(tmp_path):
    pretrained = build()
    abstract = nnx.eval_shape(lambda: Causal(CONFIG, rngs=nnx.Rngs(0)))
    describe(hub.wrap(abstract, "GPT2LMHeadModel", eos_token_id=2), tmp_path / "export")
    assert not is_orbax(tmp_path / "export")
    shifted = jax.tree.map(lambda x: x + 1, pretrained.model)
    with Checkpoints(tmp_path / "plain") as steps:
        steps.save(3, {"model": pretrained.model, "step": jnp.array(3)}, {})
        steps.save(5, {"model": shifted, "step": jnp.array(5)}, {})
    with Checkpoints(tmp_path / "averaged") as steps:
        steps.save(5, {"model": pretrained.model, "ema": shifted}, {})
    for name, step, expected in (("plain", 3, pretrained.model), ("plain", None, shifted), ("averaged", 5, shifted)):
        found = load_orbax(tmp_path / "export", steps=tmp_path / name, step=step).model
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_what_does_not_fit_is_refused(orbax, tmp_path):
    assert is_orbax(orbax)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 in .*, there are \[0\]"):
        load_orbax(orbax, step=7)
    with pytest.raises(CheckpointError, match="there are no checkpoints: no folder"):
        load_orbax(orbax, steps=tmp_path / "none")
    wrong = shutil.copytree(orbax, tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps(config | {"n_embd": 64}))
    with pytest.raises(CheckpointError, match=r"checkpoint 0 does not fit: embedding|checkpoint 0 does not fit: model"):
        load_orbax(wrong)
    broken = shutil.copytree(orbax, tmp_path / "broken")
    data = max(
        (path for path in (broken / "checkpoints" / "0").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    data.write_bytes(data.read_bytes()[:-1] + b"\1")
    with pytest.raises(CheckpointError, match="checkpoint 0 is damaged"):
        load_orbax(broken)


def test_tensors_are_those_of_the_model(orbax, tmp_path):
    hub.save(load_orbax(orbax), tmp_path)
    expected = build().model.embedding.token.embedding[...]
    np.testing.assert_array_equal(load_file(tmp_path / "model.safetensors")["transformer.wte.weight"], expected)
