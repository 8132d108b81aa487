"""What a checkpoint has and its model does not use comes out as it went in, of every family."""

import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.head import POOLER
from flax_transformer.hub.registry import families
from tests.contract.golden import DECODERS

GOLDEN = sorted((Path(__file__).parent / "golden").iterdir())


def matching(pattern):
    """Write the shortest text that a pattern finds, and more where it may go on."""

    def text(parts):
        for kind, value in parts:
            match str(kind):
                case "LITERAL":
                    yield chr(value)
                case "BRANCH":
                    yield from text(value[1][0])
                case "SUBPATTERN":
                    yield from text(value[3])
                case "MAX_REPEAT":
                    yield from [*text(value[2])] * value[0]
                case "IN":
                    yield "0" if str(value[0][0]) == "CATEGORY" else chr(value[0][1])
                case "AT":
                    continue
                case other:
                    raise AssertionError(f"{pattern} has {other}")

    return "".join(text(re._parser.parse(pattern))) + ("" if pattern.endswith("$") else "of_no_use")


def tensors(folder):
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def with_more(folder, into):
    """Copy a checkpoint, and put beside its tensors one of each kind that its class has no use for."""
    shutil.copytree(folder, into)
    (file,) = into.glob("*.safetensors")
    opened = hub.load(folder)
    family, architecture = opened.family, opened.architecture
    before = load_file(file)
    more = {name: before[original] for name, original in family.copies.items() if original in before}
    for number, pattern in enumerate((*family.ignored, *architecture.ignored)):
        name = matching(pattern)
        if name in before or (architecture.base and family.settled is not None and POOLER.search(name)):
            continue  # the model has it, or would have it
        kinds = np.float32, np.float16, np.int64, np.uint8, np.bool_, np.float64, jnp.bfloat16
        more[name] = np.arange(number, number + 6).reshape(2, 3).astype(kinds[number % len(kinds)])
    for name in before:
        if name.endswith("num_batches_tracked"):
            more[name] = np.array(7, np.int64)
    save_file(before | more, file, {"format": "pt"})
    return into


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert (one[name].dtype, one[name].shape) == (other[name].dtype, other[name].shape), name
        assert one[name].tobytes() == other[name].tobytes(), name


@pytest.mark.rotates
@pytest.mark.proves("every family", "weights", "tensors that the model does not use too")
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda folder: folder.name)
def test_every_tensor_comes_back(golden, tmp_path):
    folder = with_more(golden, tmp_path / "in")
    size = sum(each.nbytes for each in tensors(folder).values())
    hub.save(hub.load(folder), tmp_path / "out", max_shard_size=size // 3)
    assert len([*(tmp_path / "out").glob("*.safetensors")]) > 1
    same(tensors(folder), tensors(tmp_path / "out"))


HEADS = [
    (golden.name, name)
    for golden in GOLDEN
    if golden.name in families()
    for name in families()[golden.name].architectures
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), HEADS, ids=[name for _, name in HEADS])
def test_every_class_gives_every_tensor_back(kind, name, tmp_path):
    stated = {"is_decoder": True} if name in DECODERS else {}
    lenient = hub.Lenient(architecture=name, config=stated, initialise=(".",), ignore=(".",))
    hub.save(hub.load(Path(__file__).parent / "golden" / kind, lenient=lenient), tmp_path / "made")
    folder = with_more(tmp_path / "made", tmp_path / "in")
    hub.save(hub.load(folder), tmp_path / "out")
    same(tensors(folder), tensors(tmp_path / "out"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_more(Path(__file__).parent / "golden" / "bert", tmp_path_factory.mktemp("bert") / "in")


def test_another_head_leaves_the_tensors_of_the_old_one_out(folder, tmp_path):
    lenient = hub.Lenient(architecture="BertForSequenceClassification", initialise=("^classifier",))
    other = hub.load(folder, lenient=lenient)
    hub.save(other, tmp_path)
    base = {name for name in tensors(folder) if name.startswith("bert.") and not re.search("of_no_use|_ids", name)}
    assert tensors(tmp_path).keys() == base | {"classifier.weight", "classifier.bias"}


def test_ignored_ones_and_other_numbers(folder, tmp_path):
    hub.save(hub.load(folder, lenient=hub.Lenient(ignore=("position_ids",))), tmp_path / "without")
    lost = tensors(folder).keys() - tensors(tmp_path / "without").keys()
    assert lost
    assert all("position_ids" in name for name in lost)
    hub.save(hub.load(folder, dtype="bfloat16"), tmp_path / "rounded")
    kinds = {str(each.dtype) for each in tensors(tmp_path / "rounded").values()}
    assert "bfloat16" in kinds
    assert not kinds & {"float32", "float16"}


def test_a_copy_follows_the_table_it_is_tied_to(folder, tmp_path):
    changed = jax.tree.map(lambda leaf: leaf * 2, hub.load(folder))
    hub.save(changed, tmp_path)
    before, after = tensors(folder), tensors(tmp_path)
    name = "cls.predictions.decoder.weight"
    np.testing.assert_array_equal(after[name], 2 * before[name])
    np.testing.assert_array_equal(after[name], after["bert.embeddings.word_embeddings.weight"])


def test_equal_checkpoints_are_compiled_once(folder):
    one, other = hub.load(folder), hub.load(folder)
    assert hash(one.unused) == hash(other.unused)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    assert mean.unused.tensors
    assert jax.tree.structure(mean) == jax.tree.structure(one)
