"""Weights that Flax models of transformers 4 saved: the same model as from safetensors, or a sentence.

The files are made here by Flax's own serialisation, under the names that those models had: a torch weight of a linear
layer was a kernel, turned; of an embedding an embedding; of a layer norm a scale, of a root-mean-square norm a weight.
"""

import json
import shutil
from pathlib import Path

import flax.serialization
import jax
import ml_dtypes
import msgpack
import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.hub import file

pytestmark = pytest.mark.proves("Flax weights of `transformers` 4", "`flax_model.msgpack` is read")

GOLDEN = Path(__file__).parent / "golden"
TABLES = ("embed", "shared", "wte", "wpe", "relative_attention_bias")
PATHS = {
    "bert": ["bert.encoder.layer.0.attention.self.query.kernel", "bert.embeddings.LayerNorm.scale"],
    "roberta": ["roberta.encoder.layer.0.output.dense.kernel", "roberta.embeddings.word_embeddings.embedding"],
    "distilbert": [
        "distilbert.transformer.layer.0.attention.q_lin.kernel",
        "distilbert.transformer.layer.0.sa_layer_norm.scale",
    ],
    "gpt2": ["transformer.h.0.attn.c_attn.kernel", "transformer.wte.embedding", "transformer.h.0.ln_1.scale"],
    "t5": [
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.embedding",
        "encoder.final_layer_norm.weight",
    ],
    "bart": ["model.encoder.layers.0.self_attn.q_proj.kernel", "model.shared.embedding", "final_logits_bias"],
    "marian": ["model.decoder.layers.0.encoder_attn.k_proj.kernel", "final_logits_bias"],
    "llama": ["model.layers.0.self_attn.q_proj.kernel", "model.embed_tokens.embedding", "model.norm.weight"],
    "mistral": ["model.layers.0.mlp.gate_proj.kernel", "model.layers.0.input_layernorm.weight"],
}
"""Of each family that had Flax models, some names as they had them."""


def flax_tree(folder):
    """Nest the arrays of a folder as its Flax model had them."""
    root_mean_square = folder.name in ("t5", "llama", "mistral")
    tree = {}
    for name, array in load_file(folder / file.WEIGHTS).items():
        *path, last = name.split(".")
        if last == "weight" and array.ndim == 1:
            last = "weight" if root_mean_square else "scale"
        elif last == "weight":
            table = any(part in path[-1] for part in TABLES)
            last, array = ("embedding", array) if table else ("kernel", np.ascontiguousarray(array.T))
        inner = tree
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = array
    return tree


def flat(tree, path=()):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, (*path, name))
        else:
            yield (*path, name), value


def save_flax(tree, folder, name=file.FLAX):
    (folder / name).write_bytes(flax.serialization.msgpack_serialize(tree))


def bare(family, folder):
    shutil.copytree(GOLDEN / family, folder)
    (folder / file.WEIGHTS).unlink()
    return folder


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.rotates
@pytest.mark.parametrize("family", PATHS)
def test_a_flax_checkpoint_is_the_torch_one(family, tmp_path):
    folder, tree = bare(family, tmp_path / family), flax_tree(GOLDEN / family)
    assert set(PATHS[family]) <= {".".join(path) for path, _ in flat(tree)}
    save_flax(tree, folder)
    loaded = hub.load(folder)
    same(loaded.model, hub.load(GOLDEN / family).model)
    hub.save(loaded, tmp_path / "out")
    same(hub.load(tmp_path / "out").model, loaded.model)


def test_shards_chunks_and_half_precision(tmp_path, monkeypatch):
    folder, tree = bare("gpt2", tmp_path / "gpt2"), flax_tree(GOLDEN / "gpt2")
    leaves = [("/".join(path), array.astype(ml_dtypes.bfloat16)) for path, array in flat(tree)]
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 256)
    index = {}
    for i in range(3):
        name = f"flax_model-{i + 1:05}-of-00003.msgpack"
        part = dict(leaves[i::3]) if i else flax.traverse_util.unflatten_dict(dict(leaves[::3]), sep="/")
        save_flax(part, folder, name)
        index |= dict.fromkeys((path for path, _ in leaves[i::3]), name)
    (folder / file.FLAX_INDEX).write_text(json.dumps({"weight_map": index}))
    loaded = hub.load(folder)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(loaded.model)} == {"bfloat16"}
    same(loaded.model, hub.load(GOLDEN / "gpt2", dtype="bfloat16").model)


def test_safetensors_stand_before_flax(tmp_path):
    shutil.copytree(GOLDEN / "gpt2", tmp_path / "gpt2")
    (tmp_path / "gpt2" / file.FLAX).write_bytes(b"x")
    same(hub.load(tmp_path / "gpt2").model, hub.load(GOLDEN / "gpt2").model)


def test_what_is_not_there_is_told_by_torchs_names(tmp_path):
    folder, tree = bare("gpt2", tmp_path / "gpt2"), flax_tree(GOLDEN / "gpt2")
    kernel = tree["transformer"]["h"]["0"]["attn"].pop("c_attn")["kernel"]
    save_flax(tree, folder)
    with pytest.raises(ValueError, match=rf"missing: transformer\.h\.0\.attn\.c_attn\.weight \[{kernel.shape[1]}, "):
        hub.load(folder)


def array(shape=(2,), dtype="float32", data=bytes(8), code=1):
    return msgpack.ExtType(code, msgpack.packb([shape, dtype, data]))


BAD = {
    "empty": b"",
    "text": b"x",
    "a list": msgpack.packb([1, 2]),
    "a long list": b"\xdd\xff\xff\xff\xff",
    "long maps": b"\xdf\x7f\xff\xff\xff" * 50,
    "nested": b"\x81\xa1a" * 100_000,
    "cut": msgpack.packb({"a": array()})[:-1],
    "longer": msgpack.packb({"a": array()}) + b"x",
    "a number": msgpack.packb({"a": 1}),
    "a key of bytes": msgpack.packb({b"a": array()}),
    "a number for a key": b"\x81\x01" + msgpack.packb(array()),
    "complex": msgpack.packb({"a": array(code=2)}),
    "no array": msgpack.packb({"a": msgpack.ExtType(1, b"abc")}),
    "objects": msgpack.packb({"a": array(dtype="object")}),
    "records": msgpack.packb({"a": array(dtype="f4,f4")}),
    "shape": msgpack.packb({"a": array(shape=(3,))}),
    "huge shape": msgpack.packb({"a": array(shape=(2**62, 2**62))}),
    "negative shape": msgpack.packb({"a": array(shape=(-1,))}),
    "shape of text": msgpack.packb({"a": array(shape="ab")}),
    "bytes": msgpack.packb({"a": array(data=bytes(7))}),
    "chunks": msgpack.packb({"a": {"__msgpack_chunked_array__": True, "shape": {"0": 9}, "chunks": {"0": array()}}}),
    "chunks missing": msgpack.packb({"a": {"__msgpack_chunked_array__": True, "shape": {"0": 9}}}),
    "chunks of chunks": msgpack.packb(
        {"a": {"__msgpack_chunked_array__": True, "shape": {"0": 1}, "chunks": {"0": {"x": array()}}}}
    ),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_damaged_files_are_value_errors_that_name_them(tmp_path, content):
    folder = bare("gpt2", tmp_path / "gpt2")
    (folder / file.FLAX).write_bytes(content)
    with pytest.raises(
        ValueError, match=r"flax_model\.msgpack is not a whole msgpack file of Flax arrays: ."
    ) as caught:
        hub.load(folder)
    assert len(str(caught.value)) < 1000
