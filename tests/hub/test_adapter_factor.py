"""Low-rank factors in PEFT's folders and back, of golden checkpoints: all comes back, and what cannot is said."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.adapter import ADAPTER, WEIGHTS
from flax_transformer.hub.adapter_factor import RANKS
from flax_transformer.hub.adapter_target import shortest, targets_of
from flax_transformer.train import LoraConfig, init_lora, merge_lora
from flax_transformer.train.lora import LowRank

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = sorted(folder.name for folder in GOLDEN.iterdir())


def trained(model, pattern, rank=2, **options):
    lora = init_lora(model, LoraConfig(rank=rank, pattern=pattern, **options), jax.random.key(0))
    random = np.random.default_rng(0)
    return {
        name: LowRank(pair.a, jnp.asarray(random.normal(size=pair.b.shape), jnp.float32), pair.scale)
        for name, pair in lora.items()
    }


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.rotates
@pytest.mark.parametrize("family", FAMILIES)
def test_factors_of_every_family_come_back(family, tmp_path):
    plain = hub.load(GOLDEN / family)
    paths = "|".join(map(path_pattern, targets_of(plain)))
    lora = trained(plain.model, f"^({paths})$", alpha=7.0)
    hub.save_adapter(lora, plain, tmp_path, base=GOLDEN / family)
    assert_same(hub.load_adapter(tmp_path, plain), lora)
    merged, ours = hub.load(tmp_path).model, jax.jit(merge_lora)(plain.model, lora)
    for one, other in zip(jax.tree.leaves(merged), jax.tree.leaves(ours), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def path_pattern(path):
    return path.replace(".", r"\.")


def test_bare_factors_are_wholly_zero_and_come_back_too(tmp_path):
    """With a B of zeros nothing but the header says which ranks are whose."""
    plain = hub.load(GOLDEN / "gpt2")
    lora = init_lora(plain.model, LoraConfig(rank=2), jax.random.key(0))
    hub.save_adapter(lora, plain, tmp_path)
    assert_same(hub.load_adapter(tmp_path, plain), lora)
    assert json.loads((tmp_path / ADAPTER).read_text())["base_model_name_or_path"] is None


def test_a_layer_that_is_left_out_has_factors_of_zeros_and_scales_are_one(tmp_path):
    plain = hub.load(GOLDEN / "llama")
    lora = trained(plain.model, r"query\.kernel$", rank=3)
    hub.save_adapter(lora, plain, tmp_path)
    tensors, config = load_file(tmp_path / WEIGHTS), json.loads((tmp_path / ADAPTER).read_text())
    first = {name: value for name, value in tensors.items() if ".layers.0." in name}
    second = {name: value[:2] if "lora_A" in name else value[:, :2].copy() for name, value in tensors.items()}
    save_file(first, tmp_path / WEIGHTS)
    (pair,), (whole,) = hub.load_adapter(tmp_path, plain).values(), lora.values()
    np.testing.assert_array_equal(pair.a[0], whole.a[0])
    assert pair.a.shape == whole.a.shape
    assert not pair.b[1:].any()
    save_file({**second, **first}, tmp_path / WEIGHTS)
    (tmp_path / ADAPTER).write_text(json.dumps({**config, "alpha_pattern": {"layers.1.self_attn.q_proj": 8}}))
    (pair,) = hub.load_adapter(tmp_path, plain).values()
    np.testing.assert_allclose(
        pair.scale * np.tensordot(pair.a[1], pair.b[1], 1),
        4 * np.tensordot(whole.a[1][..., :2], whole.b[1][:2], 1),
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip


def test_modules_are_named_by_their_last_parts_where_these_say_which():
    every = [f"h.{i}.{part}" for i in range(2) for part in ("attn.proj", "attn.in", "mlp.proj")]
    assert shortest(["h.0.attn.in", "h.1.attn.in"], every) == ["in"]
    assert shortest(["h.0.mlp.proj"], every) == ["0.mlp.proj"]
    assert shortest(every, every) == ["in", "proj"]
    assert shortest(["attn"], ["attn", "x.attn.in"]) == ["attn"]


@pytest.mark.parametrize(
    ("family", "pattern", "message"),
    [
        ("bert", r"position\.embedding$", r"each a module of transformers; encoder\.embedding\.position\.embedding is"),
        ("mixtral", r"experts\.up\.kernel$", r"linear layers, convolutions and tables .*experts\.up\.kernel is none"),
        ("convnext", r"blocks\.convolution\.kernel$", r"stage1\.blocks\.convolution\.kernel, .* is none"),
        ("gpt2", r"token\.embedding$", r"embedding\.token\.embedding is none"),
    ],
)
def test_what_peft_has_no_factors_of_is_refused(family, pattern, message, tmp_path):
    plain = hub.load(GOLDEN / family)
    with pytest.raises(ValueError, match=message):
        hub.save_adapter(trained(plain.model, pattern), plain, tmp_path)
    assert not list(tmp_path.iterdir())


def test_factors_that_do_not_fit_are_refused(tmp_path):
    plain = hub.load(GOLDEN / "gpt2")
    lora = trained(plain.model, r"(query|value)\.kernel$")
    (query, pair), *_ = lora.items()
    with pytest.raises(ValueError, match="the low-rank factors must fit the model"):
        hub.save_adapter({query: replace(pair, a=pair.a[:1])}, plain, tmp_path)
    with pytest.raises(ValueError, match="are one tensor of theirs and must have one scale"):
        hub.save_adapter({**lora, query: replace(pair, scale=0.5)}, plain, tmp_path)
    with pytest.raises(ValueError, match="the checkpoint has no tensor nothing"):
        hub.save_adapter(lora, plain, tmp_path, whole=("nothing",))
    hub.save_adapter(lora, plain, tmp_path)
    with pytest.raises(ValueError, match="is an adapter of another model: the checkpoint has no"):
        hub.load_adapter(tmp_path, hub.load(GOLDEN / "bert"))


def test_folders_that_do_not_fit_are_refused(tmp_path):
    plain = hub.load(GOLDEN / "llama")
    hub.save_adapter(trained(plain.model, r"query\.kernel$"), plain, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    wide = {name: np.concatenate([value] * 2, axis=1) if "lora_A" in name else value for name, value in tensors.items()}
    for changed, message in (
        (wide, "q_proj is of another shape than the checkpoint's: factors must have"),
        ({name: value[:1] if "lora_A" in name else value for name, value in tensors.items()}, "must have one rank"),
        ({name: value[0] for name, value in tensors.items()}, "factors are matrices"),
        ({**tensors, "base_model.model.lm_head.weight": np.zeros((2, 2))}, "has more than low-rank factors, lm_head"),
    ):
        save_file(changed, tmp_path / WEIGHTS)
        with pytest.raises(ValueError, match=message):
            hub.load_adapter(tmp_path, plain)
    for said, message in (("[1]", "say nothing"), ('{"trunk.x": [0, 2]}', r"says of what ranks trunk\.x are")):
        save_file(tensors, tmp_path / WEIGHTS, {RANKS: said})
        with pytest.raises(ValueError, match=message):
            hub.load_adapter(tmp_path, plain)


@pytest.mark.parametrize(
    ("family", "names", "paths"),
    [
        ("llama", ("q_proj", "mlp.up_proj"), {"attention.query", "feedforward.up"}),
        ("gpt2", ("attn.c_attn",), {"attention.query", "attention.key", "attention.value"}),
        ("vit", ("o_proj",), {"attention.out"}),
    ],
)
def test_kernels_are_found_by_the_names_of_modules(family, names, paths):
    plain = hub.load(GOLDEN / family)
    config = hub.find_targets(LoraConfig(rank=2, target_modules=names), plain)
    lora = init_lora(plain.model, config, jax.random.key(0))
    assert {path.rpartition("blocks.")[2] for path in lora} == {f"{path}.kernel" for path in paths}
    assert hub.find_targets(LoraConfig(), plain) == LoraConfig()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("q_projs", "must name modules of the checkpoint, got 'q_projs', there are q_proj"),
        ("0.self_attn.q_proj", r"layers of a stack are adapted together, 0\.self_attn\.q_proj is not model\.layers\.1"),
        ("input_layernorm", r"input_layernorm is model\.layers\.0\.input_layernorm"),
    ],
)
def test_names_of_no_such_modules_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        hub.find_targets(LoraConfig(target_modules=(name,)), hub.load(GOLDEN / "llama"))
