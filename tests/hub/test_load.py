"""Loading and saving checkpoints: what is refused and how, what `Lenient` allows, shards, number formats."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub import file, weights
from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import EmbeddingConfig, Precision, Rotary, transformer_block, with_fields, with_precision

pytestmark = pytest.mark.proves(
    "checkpoints of Hugging Face", "every difference listed, nothing half loaded, no pickle"
)

LLAMA = CausalConfig(
    embedding=EmbeddingConfig(vocab=40, embed=8, position="none", scaled=False, max_length=32, init_std=0.02),
    block=transformer_block(
        embed=8, heads=4, kv_heads=2, head_width=2, inner=12, norm="rms", norm_position="pre", activation="silu",
        gated=True, bias=False, out_bias=False, rotary=Rotary(), init_std=0.02,
    ),
    depth=3,
    tied_output=False,
)  # fmt: skip
IDS = np.arange(10).reshape(2, 5)


def build(config):
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.3, leaf.shape), leaf.dtype), shape(config))


def shape(config):
    return nnx.eval_shape(lambda: Causal(config, rngs=nnx.Rngs(0)))


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def wrapped():
    return hub.wrap(build(LLAMA), "LlamaForCausalLM", bos_token_id=1, eos_token_id=2, mine={"kept": [1, None]})


@pytest.fixture(scope="module")
def saved(wrapped, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "llama"
    hub.save(wrapped, folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "llama"))


def change(folder, function):
    tensors = load_file(folder / file.WEIGHTS)
    function(tensors)
    save_file(tensors, folder / file.WEIGHTS)


def configure(folder, **fields):
    config = json.loads((folder / file.CONFIG).read_text()) | fields
    (folder / file.CONFIG).write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))


def test_a_saved_model_comes_back(wrapped, saved):
    back = hub.load(saved)
    same(back.model, wrapped.model)
    assert back.config["mine"] == {"kept": [1, None]}
    np.testing.assert_array_equal(back(input_ids=IDS).logits, wrapped(input_ids=IDS).logits)
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    config, weights = sorted(saved.iterdir())
    assert weights.stat().st_mode == config.stat().st_mode, "who may read the one may read the other"


@pytest.mark.rotates
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_number_formats_are_the_checkpoints_own(tmp_path, dtype):
    model = build(with_precision(LLAMA, compute=dtype, params=dtype))
    hub.save(hub.wrap(model, "LlamaForCausalLM"), tmp_path)
    back = hub.load(tmp_path)
    same(back.model, model)
    assert back.model.cfg.block.attention.precision == Precision(compute=dtype, params=dtype)
    assert back.config["dtype"] == dtype
    wide = hub.load(tmp_path, dtype="float32")
    for narrow, exact in zip(jax.tree.leaves(model), jax.tree.leaves(wide.model), strict=True):
        assert exact.dtype == jnp.float32
        np.testing.assert_array_equal(np.asarray(narrow).astype(np.float32), exact)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_large_stacks_go_to_the_device_layer_by_layer(saved, monkeypatch, dtype):
    whole = hub.load(saved, dtype=dtype)
    monkeypatch.setattr(weights, "PIECE", 0)
    monkeypatch.setattr(weights, "_is_host", lambda place: False)
    same(hub.load(saved, dtype=dtype).model, whole.model)


def test_a_precision_may_be_asked_for(saved):
    half = hub.load(saved, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(half.model)} == {jnp.dtype("bfloat16")}
    output = half(input_ids=IDS)
    assert output.last_hidden_state.dtype == jnp.bfloat16
    assert output.logits.dtype == jnp.float32  # scores are not rounded
    with pytest.raises(ValueError, match="dtype must be one of float32, float16, bfloat16, got 'int8'"):
        hub.load(saved, dtype="int8")


def test_loaded_parameters_outlive_the_file(folder, wrapped):
    back = hub.load(folder)
    with open(folder / file.WEIGHTS, "r+b") as opened:
        opened.write(b"\0" * (folder / file.WEIGHTS).stat().st_size)
    same(back.model, wrapped.model)


def test_loaded_parameters_can_be_donated(folder, wrapped):
    step = jax.jit(lambda model: jax.tree.map(lambda leaf: leaf + 1, model), donate_argnums=0)
    after = step(hub.load(folder).model)
    same(after, jax.tree.map(lambda leaf: leaf + 1, wrapped.model))
    same(hub.load(folder).model, wrapped.model)


def test_saving_over_the_folder_loaded_from(folder, wrapped):
    back = hub.load(folder)
    hub.save(back, folder)
    same(hub.load(folder).model, wrapped.model)


def test_shards_with_an_index(tmp_path, wrapped):
    hub.save(wrapped, tmp_path, max_shard_size="2KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 3
    assert shards[0].name == f"model-00001-of-{len(shards):05}.safetensors"
    assert not (tmp_path / file.WEIGHTS).exists()
    index = json.loads((tmp_path / file.INDEX).read_text())
    sizes = sum(leaf.size * 4 for leaf in jax.tree.leaves(wrapped.model))
    assert index["metadata"]["total_size"] == sizes
    assert {name: set(load_file(tmp_path / name)) for name in set(index["weight_map"].values())} == {
        shard.name: {name for name, where in index["weight_map"].items() if where == shard.name} for shard in shards
    }
    assert all(sum(x.nbytes for x in load_file(shard).values()) <= 2000 for shard in shards)
    same(hub.load(tmp_path).model, wrapped.model)
    hub.save(wrapped, tmp_path)
    assert not list(tmp_path.glob("model-*"))
    assert not (tmp_path / file.INDEX).exists()


@pytest.mark.parametrize("size", ["5 apples", "-1", 0, True, "1.5GB"])
def test_a_size_that_is_none_is_refused(tmp_path, wrapped, size):
    with pytest.raises(ValueError, match="a size is a number of bytes, or a text such as '5GB'"):
        hub.save(wrapped, tmp_path / "new", max_shard_size=size)
    assert not (tmp_path / "new").exists()


def test_every_difference_is_listed_at_once(folder):
    def spoil(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((8, 9), np.float32)
        tensors["model.layers.3.input_layernorm.weight"] = np.zeros(8, np.float32)
        tensors["lm_head.bias"] = np.zeros(40, np.float32)
        tensors["model.embed_tokens.weight"] = np.zeros((40, 8), np.int64)

    change(folder, spoil)
    with pytest.raises(ValueError, match="is not a whole LlamaForCausalLM: 6 differences") as caught:
        hub.load(folder)
    assert set(str(caught.value).splitlines()[1:]) == {
        "  missing: model.layers.1.mlp.up_proj.weight [12, 8]",
        "  missing: model.norm.weight [8]",
        "  misshapen: model.layers.0.self_attn.q_proj.weight is [8, 9], must be [8, 8]",
        "  extra: model.layers.3.input_layernorm.weight [8]",
        "  extra: lm_head.bias [40]",
        "  not a float: model.embed_tokens.weight is int64",
    }


def test_a_copy_that_differs_is_named(tmp_path):
    hub.save(hub.wrap(build(gpt2_tiny()), "GPT2LMHeadModel"), tmp_path)
    original = load_file(tmp_path / file.WEIGHTS)
    change(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["transformer.wte.weight"].copy()}))
    same(hub.load(tmp_path).model, hub.load(tmp_path).model)
    change(tmp_path, lambda tensors: tensors.pop("transformer.wte.weight"))
    np.testing.assert_array_equal(
        hub.load(tmp_path).model.embedding.token.embedding, original["transformer.wte.weight"]
    )
    wrong = original["transformer.wte.weight"] + 1
    save_file({**original, "lm_head.weight": wrong}, tmp_path / file.WEIGHTS)
    with pytest.raises(ValueError, match=r"not a copy: lm_head.weight must equal transformer.wte.weight"):
        hub.load(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "tf_model.h5"])
def test_pickles_are_refused_with_a_way_out(folder, name):
    (folder / file.WEIGHTS).rename(folder / name)
    with pytest.raises(ValueError, match=rf"has only {name}; .*can run code.*save_pretrained"):
        hub.load(folder)


def test_an_empty_folder_is_named(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"no config\.json in"):
        hub.load(tmp_path / "llama" / "..")
    (folder / file.WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors or model\.safetensors\.index\.json in"):
        hub.load(folder)
    with pytest.raises(FileNotFoundError, match="no folder"):
        hub.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="only a hub id has revisions"):
        hub.load(folder, revision="main")


def truncate(data):
    return data[:-7]


def cut_header(data):
    return data[:100]


def long_header(data):
    return b"\xff" * 8 + data[8:]


def bad_offset(data):
    return data.replace(b'"data_offsets":[0,', b'"data_offsets":[9,', 1)


@pytest.mark.parametrize("damage", [truncate, cut_header, long_header, bad_offset, lambda data: b""])
def test_broken_files_are_named(folder, damage):
    path = folder / file.WEIGHTS
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file"):
        hub.load(folder)


def test_a_flipped_bit_in_the_header_is_a_named_error_or_none(folder):
    path = folder / file.WEIGHTS
    before = path.read_bytes()
    end = 8 + int.from_bytes(before[:8], "little")
    silent = 0
    for at in np.random.default_rng(0).integers(0, end, 60):
        damaged = bytearray(before)
        damaged[at] ^= 1 << int(at) % 8
        path.write_bytes(damaged)
        try:
            hub.load(folder)
        except ValueError as error:
            if str(folder) not in str(error):
                raise
        else:
            silent += 1  # in the padding, or in the metadata
    assert silent < 10


@pytest.mark.parametrize(
    ("weight_map", "match"),
    [
        ({"a": "../model.safetensors"}, r"shards must lie beside their index, .* names '\.\./model\.safetensors'"),
        ({"a": "/etc/passwd"}, "shards must lie beside their index"),
        ({"a": ".."}, "shards must lie beside their index"),
        ({"a": "model-1.safetensors"}, r"lacks model-1\.safetensors, which its index names"),
        ({"a": 3}, "must have a weight_map from tensor to file name"),
        (["a"], "must have a weight_map from tensor to file name"),
        (None, "must have a weight_map from tensor to file name"),
    ],
)
def test_an_index_stays_inside_its_folder(folder, weight_map, match):
    shutil.copy(folder / file.WEIGHTS, folder.parent / file.WEIGHTS)
    (folder / file.WEIGHTS).unlink()
    (folder / file.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=match):
        hub.load(folder)


def test_a_tensor_in_two_shards_is_refused(folder):
    tensors = load_file(folder / file.WEIGHTS)
    (folder / file.WEIGHTS).unlink()
    save_file(tensors, folder / "a.safetensors")
    save_file({"lm_head.weight": tensors["lm_head.weight"]}, folder / "b.safetensors")
    where = dict.fromkeys(tensors, "a.safetensors") | {"lm_head.weight": "b.safetensors"}
    (folder / file.INDEX).write_text(json.dumps({"weight_map": where}))
    with pytest.raises(ValueError, match=r"a tensor must be in one file, lm_head\.weight is in"):
        hub.load(folder)


@pytest.mark.parametrize("text", ["{", "", "[1]", "null", "[" * 100_000, '{"a": NaN', "\x00"])
def test_a_malformed_config_is_named(folder, text):
    (folder / file.CONFIG).write_text(text)
    with pytest.raises(ValueError, match=r"config\.json (is not JSON|must hold a JSON object)"):
        hub.load(folder)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"model_type": "mamba"}, r"model_type='mamba'; supported are .*bart, beit, .*gpt2.*marian"),
        ({"model_type": ...}, "model_type=None; supported are .*bart"),
        ({"architectures": ["LlamaForVision"]}, r"'LlamaForVision'; supported of llama are LlamaForCausalLM, "),
        ({"architectures": []}, "must name its architecture in a list"),
        ({"architectures": "LlamaModel"}, "must name its architecture in a list"),
        ({"architectures": ...}, r"it has None; give one of LlamaForCausalLM"),
        ({"hidden_act": "snake"}, r"hidden_act='snake'; supported are gelu, "),
        ({"hidden_size": "wide"}, r"hidden_size as a number .*it is 'wide'"),
        ({"hidden_size": 8.5}, r"hidden_size as a whole number, it is 8\.5"),
        ({"num_hidden_layers": -1}, "num_hidden_layers as a number of at least 0, it is -1"),
        ({"num_attention_heads": 3}, "query heads must be a multiple of kv heads, got N=3, K=2"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings as true or false, it is 'no'"),
        (
            {"rope_scaling": {"type": "spiral", "factor": 2}},
            r"rope type 'spiral'; supported are default, linear",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor as a number of at least 0, it is missing"),
        ({"rope_scaling": {"full_attention": {}}}, "one set of rotary parameters for all layers"),
        ({"rope_scaling": [1]}, "one set of rotary parameters for all layers"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5, of which only 1\.0 is supported"),
        ({"quantization_config": {"quant_method": "awq"}}, r"has bits=None, of which 4 are supported"),
    ],
)
def test_what_is_not_supported_is_named_with_what_is(folder, fields, match):
    configure(folder, **fields)
    with pytest.raises(ValueError, match=match):
        hub.load(folder)


def test_an_option_is_refused_before_any_tensor_is_read(folder):
    configure(folder, hidden_act="snake")
    (folder / file.WEIGHTS).unlink()
    with pytest.raises(ValueError, match="hidden_act='snake'"):
        hub.load(folder)


def test_lenient_takes_another_architecture_and_starts_its_head(saved, wrapped):
    lenient = hub.Lenient(
        architecture="LlamaForSequenceClassification", initialise=(r"^score\.",), config={"num_labels": 5}, seed=3
    )
    found = hub.load(saved, lenient=lenient)
    assert found(input_ids=IDS[:1]).logits.shape == (1, 5)
    assert found.config["architectures"] == ["LlamaForSequenceClassification"]
    assert float(jnp.std(found.model.head.output.kernel[...])) > 0
    same(found.model.backbone.trunk.blocks, wrapped.model.trunk.blocks)
    same(found.model, hub.load(saved, lenient=lenient).model)
    with pytest.raises(ValueError, match=r"1 difference\n  missing: score\.weight \[5, 8\]"):
        hub.load(saved, lenient=hub.Lenient(architecture=lenient.architecture, config=lenient.config))


@pytest.mark.parametrize("architecture", ["LlamaForQuestionAnswering", "LlamaModel"])
def test_a_backbone_is_found_under_another_prefix(saved, wrapped, architecture):
    found = hub.load(saved, lenient=hub.Lenient(architecture=architecture, initialise=("^qa_outputs",)))
    backbone = found.model if architecture == "LlamaModel" else found.model.backbone
    same(backbone.trunk.blocks, wrapped.model.trunk.blocks)


def test_lenient_renames_and_ignores_by_pattern(folder, wrapped):
    def rename(tensors):
        for name in list(tensors):
            tensors[name.replace("model.layers.", "decoder.block_")] = tensors.pop(name)
        tensors["decoder.step"] = np.zeros((), np.int64)

    change(folder, rename)
    with pytest.raises(ValueError, match="differences"):
        hub.load(folder)
    lenient = hub.Lenient(rename={r"^decoder\.block_": "model.layers."}, ignore=(r"^decoder\.step$",))
    same(hub.load(folder, lenient=lenient).model, wrapped.model)
    with pytest.raises(ValueError, match=r"1 difference\n  extra: decoder\.step \[\]"):
        hub.load(folder, lenient=hub.Lenient(rename=lenient.rename))


def test_a_stack_is_started_anew_only_as_a_whole(folder):
    change(folder, lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"missing: model\.layers\.2\.mlp\.up_proj\.weight"):
        hub.load(folder, lenient=hub.Lenient(initialise=("up_proj",)))
    for i in (0, 1):
        change(folder, lambda tensors, i=i: tensors.pop(f"model.layers.{i}.mlp.up_proj.weight"))
    fresh = hub.load(folder, lenient=hub.Lenient(initialise=("up_proj",)))
    assert float(jnp.std(fresh.model.trunk.blocks.feedforward.up.kernel[...])) > 0


def test_wrap_refuses_a_model_that_the_architecture_cannot_be():
    for changed in (
        replace(LLAMA, window=4),
        with_fields(LLAMA, qk_norm=1e-5),
        with_fields(LLAMA, scale=0.5),
        replace(LLAMA, embedding=replace(LLAMA.embedding, scaled=True)),
        gpt2_tiny(),
    ):
        with pytest.raises(ValueError, match="a LlamaForCausalLM cannot be the model given"):
            hub.wrap(shape(changed), "LlamaForCausalLM")
    same_but_spelled = with_fields(LLAMA, out_bias=None, dropout=0.5, remat="full")
    hub.wrap(shape(same_but_spelled), "LlamaForCausalLM")
    with pytest.raises(ValueError, match=r"no architecture is called 'LlamaForFun'; supported are .*LlamaForCausalLM"):
        hub.wrap(build(LLAMA), "LlamaForFun")


@pytest.mark.parametrize("id_", [31, -1])
def test_ids_that_are_no_tokens_are_refused(wrapped, id_):
    """A lookup would give NaN, or another token's embedding. Inside a transform there is nothing to look at."""
    vocab = wrapped.vocabulary
    ids = np.array([[4, vocab if id_ > 0 else id_]])
    match = rf"token ids must be in \[0, {vocab}\), input_ids has {ids[0, 1]}"
    for given in (ids, jnp.asarray(ids)):
        with pytest.raises(ValueError, match=match):
            wrapped(input_ids=given)
        with pytest.raises(ValueError, match=match):
            wrapped.generate(given, max_new_tokens=1)
    assert jax.eval_shape(lambda ids: wrapped(input_ids=ids).logits, ids).shape == (1, 2, vocab)
