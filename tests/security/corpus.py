"""Small valid files, what opens them, and what is done to them."""

import gzip
import hashlib
import json
import runpy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict
from mutate import Damaged, damaged_bytes, damaged_header, damaged_json, damaged_text, enormous
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.data.image import open_images
from flax_transformer.data.synthetic import numbers
from flax_transformer.data.text import build_pairs, tfds_pairs, train_byte_bpe
from flax_transformer.data.text.batch import load_ragged, ragged
from flax_transformer.data.text.labelled import LabelledText
from flax_transformer.data.text.parallel import ParallelText
from flax_transformer.data.text.plain import read_text
from flax_transformer.data.text.tokenizer import load_tokenizer
from flax_transformer.hub import adapter, file
from flax_transformer.hub.generate import make_settings
from flax_transformer.hub.processor.image import load_image_processor
from flax_transformer.hub.processor.tokenizer import HubTokenizer, load_hub_tokenizer
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.config import to_json
from flax_transformer.train.folder import RunFolder, read_experiment
from flax_transformer.train.lora import LoraConfig, init_lora

EXPERIMENTS = Path(__file__).parent.parent.parent / "experiments"
GOLDEN = Path(__file__).parent.parent / "hub" / "golden"
TEXTS = ["over and over", "über ☃ <mask> </s>", ""]


@dataclass(frozen=True)
class Case:
    """Damage to one file of a folder."""

    label: str
    file: str
    damage: Callable[[Path], Any]
    legal: bool = False
    """Whether what is there then may be valid, and another thing."""


@dataclass(frozen=True)
class Corpus:
    """What `make` writes into a folder and `open` reads; `cases(folder, seed, amount)` damage a copy of it each.

    `open` gives something that is equal where what was read is.
    """

    make: Callable[[Path], Any]
    open: Callable[[Path], Any]
    cases: Callable[[Path, int, int], Iterator[Case]]


def cases_of(name: str, damaged: Damaged) -> Iterator[Case]:
    for label, content, legal in damaged:
        yield Case(f"{name}: {label}", name, lambda folder, c=content: (folder / name).write_bytes(c), legal)


def json_cases(folder: Path, seed: int, amount: int, *, name: str) -> Iterator[Case]:
    content = (folder / name).read_bytes()
    yield from cases_of(name, damaged_text(content))
    yield from cases_of(name, damaged_json(content, seed, amount))
    every = range(len(content))  # a digit or a letter less or more is a number or a name again
    yield from cases_of(name, damaged_bytes(content, seed, amount // 4, every))


def digest(tree: Any) -> str:
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        found.update(f"{leaf.shape}{leaf.dtype}".encode() + np.asarray(leaf).tobytes())
    return found.hexdigest()


# Checkpoints of Hugging Face: config.json, generation_config.json, weights


def copy_golden(folder: Path, *, family: str) -> None:
    shutil.copytree(GOLDEN / family, folder, dirs_exist_ok=True)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3], "max_length": 12, "num_beams": 2}')


def open_hub(folder: Path) -> Any:
    loaded = hub.load(folder)
    settings = make_settings(loaded.config, loaded.generation, {})
    return digest(loaded.model), loaded.model.cfg, settings, settings.config(3), settings.constraints(3)


def shard(folder: Path) -> None:
    copy_golden(folder, family="gpt2")
    hub.save(hub.load(folder), folder, max_shard_size=8000)


def weight_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    content = (folder / file.WEIGHTS).read_bytes()
    data = range(8 + int.from_bytes(content[:8], "little"), len(content))
    yield from cases_of(file.WEIGHTS, damaged_header(content, seed, amount))
    yield from cases_of(file.WEIGHTS, damaged_bytes(content, seed, amount // 2, data))
    yield Case("no weights", file.WEIGHTS, lambda folder: (folder / file.WEIGHTS).unlink())
    yield Case(
        "a folder", file.WEIGHTS, lambda folder: (folder / file.WEIGHTS).unlink() or (folder / file.WEIGHTS).mkdir()
    )


def make_adapter(folder: Path) -> None:
    plain = hub.load(GOLDEN / "gpt2")
    lora = init_lora(plain.model, LoraConfig(rank=2, pattern=r"(query|up)\.kernel$"), jax.random.key(0))
    hub.save_adapter(lora, plain, folder, base=GOLDEN / "gpt2")


def open_adapter(folder: Path) -> Any:
    factors = hub.load_adapter(folder, hub.load(GOLDEN / "gpt2"))
    return digest(factors), list(factors), [each.scale for each in factors.values()]


def adapter_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    yield from json_cases(folder, seed, amount, name=adapter.ADAPTER)
    content = (folder / adapter.WEIGHTS).read_bytes()
    data = range(8 + int.from_bytes(content[:8], "little"), len(content))
    yield from cases_of(adapter.WEIGHTS, damaged_header(content, seed, amount))
    yield from cases_of(adapter.WEIGHTS, damaged_bytes(content, seed, amount // 2, data))
    yield Case("no factors", adapter.WEIGHTS, lambda folder: (folder / adapter.WEIGHTS).unlink())


def make_flax(folder: Path) -> None:
    """Write the weights as Flax models of `transformers` 4 did."""
    copy_golden(folder, family="gpt2")
    tree: dict = {}
    for name, array in load_file(folder / file.WEIGHTS).items():
        tree[tuple(name.split("."))] = array
    (folder / file.FLAX).write_bytes(msgpack_serialize(unflatten_dict(tree)))
    (folder / file.WEIGHTS).unlink()


def flax_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    content = (folder / file.FLAX).read_bytes()
    numbers = np.zeros(len(content), bool)
    for tensor in file.open_tensors(folder).values():
        begin = content.find(data := tensor.read().tobytes())
        numbers[begin : begin + len(data)] = True
    for label, changed, _ in damaged_bytes(content, seed, 2 * amount):
        place = label.removeprefix("byte ").removesuffix(" flipped")
        yield from cases_of(file.FLAX, [(label, changed, place.isdigit() and bool(numbers[int(place)]))])


def shard_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    yield from json_cases(folder, seed, amount, name=file.INDEX)
    shards = sorted(path.name for path in folder.glob("model-*"))
    for name in shards[:2]:
        yield from cases_of(name, ((f"as {other}", (folder / other).read_bytes(), False) for other in shards[2:4]))
        yield Case(f"{name} missing", name, lambda folder, name=name: (folder / name).unlink())
    outside = folder.parent / "outside.safetensors"
    shutil.copy(folder / shards[0], outside)
    index = json.loads((folder / file.INDEX).read_text())
    names = ("../outside.safetensors", str(outside), "..", ".", "", "a/../x", "nul\0", "config.json", "/dev/zero")
    for name in names:
        where = {tensor: name if at == shards[0] else at for tensor, at in index["weight_map"].items()}
        yield from cases_of(file.INDEX, [(f"shard {name!r}", json.dumps({"weight_map": where}).encode(), False)])


def config_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    yield from cases_of("config.json", enormous((folder / "config.json").read_bytes()))
    yield from json_cases(folder, seed, amount, name="config.json")


# Tokenizers


def make_tokenizer(folder: Path) -> None:
    HubTokenizer.of(train_byte_bpe(TEXTS * 3, vocab_size=262).with_mask()).save(folder)


def make_wordpiece(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "over", "and", "##r", "u", "##ber", "☃"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "model_max_length": 64, "padding_side": "right"}'
    )
    (folder / "special_tokens_map.json").write_text('{"mask_token": {"content": "[MASK]", "lstrip": true}}')
    (folder / "added_tokens.json").write_text('{"<new>": 11, "<newer>": 12}')


def make_byte_bpe(folder: Path) -> None:
    trained = json.loads(train_byte_bpe(TEXTS * 3, vocab_size=262).json())["model"]
    (folder / "vocab.json").write_text(json.dumps(trained["vocab"]))
    (folder / "merges.txt").write_text("".join(" ".join(merge) + "\n" for merge in trained["merges"]))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}'
    )


def open_tokenizer(folder: Path) -> Any:
    tokenizer = load_hub_tokenizer(folder)
    if tokenizer is None:
        return None
    inputs = tokenizer(TEXTS, padding=64 if tokenizer.pad is not None else None) if tokenizer.pad is not None else {}
    special = [getattr(tokenizer, name) for name in ("pad", "bos", "eos", "unk", "cls", "sep", "mask")]
    options = [tokenizer.padding_side, tokenizer.truncation_side, tokenizer.model_max_length, tokenizer.types]
    rows = {name: rows.tolist() for name, rows in inputs.items()}
    ids = tokenizer.encode(TEXTS)
    return rows, ids, tokenizer.decode(ids), special, options, tokenizer.vocab_size


PROCESSORS = {
    "preprocessor_config.json": {
        "image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 6}, "crop_pct": 0.875,
        "resample": 3, "do_center_crop": True, "crop_size": {"height": 5, "width": 4}, "do_resize": True,
        "do_rescale": True, "rescale_factor": 0.5, "do_normalize": True, "image_mean": [0.1, 0.2, 0.3],
        "image_std": [1.0, 2.0, 3.0],
    },
    "processor_config.json": {
        "processor_class": "AProcessor",
        "image_processor": {
            "feature_extractor_type": "ImageGPTFeatureExtractor", "size": [3, 4],
            "clusters": [[0.1, 0.2, 0.3], [1, 2, 3]],
        },
    },
}  # fmt: skip


def make_image_processor(folder: Path, *, name: str) -> None:
    (folder / name).write_text(json.dumps(PROCESSORS[name]))


def open_image_processor(folder: Path) -> Any:
    processor = load_image_processor(folder)
    if processor is None:
        return None
    made = processor(np.arange(9 * 8 * 3, dtype=np.uint8).reshape(9, 8, 3))
    return repr(processor), {name: value.tolist() for name, value in made.items()}


def image_processor_cases(folder: Path, seed: int, amount: int, *, name: str) -> Iterator[Case]:
    for case in json_cases(folder, seed, amount, name=name):
        yield replace(
            case, legal=case.legal or any(name in case.label for name in ("image_mean", "image_std"))
        )  # one number for all channels


def make_chat(folder: Path) -> None:
    make_tokenizer(folder)
    template = "{% for m in messages %}{{ m.role + ': ' + m.content|trim ~ eos_token }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(template + "{{ tools|tojson }}")


def make_chat_config(folder: Path) -> None:
    make_tokenizer(folder)
    options = json.loads((folder / "tokenizer_config.json").read_text())
    listed = [{"name": "default", "template": "{{ messages[0].content }}{{ eos_token }}"}]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": listed, "eos_token": options["eos_token"]})
    )


def open_chat(folder: Path) -> Any:
    tokenizer = load_hub_tokenizer(folder)
    said = [{"role": "user", "content": text} for text in TEXTS]
    more = tokenizer.chat_templates.get("tool_use", "none")
    found = [tokenizer.apply_chat_template(said, tokenize=False, chat_template=name) for name in (None, more)]
    return found, tokenizer.apply_chat_template(said)["input_ids"].tolist()


def chat_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        for label, changed, _ in damaged_bytes((folder / name).read_bytes(), seed, 2 * amount):
            yield from cases_of(name, [(label, changed, True)])  # another text is another template
        yield Case(f"{name}: removed", name, lambda folder, name=name: (folder / name).unlink(), True)


def chat_config_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for case in json_cases(folder, seed, amount, name="tokenizer_config.json"):
        yield replace(case, legal=case.legal or "chat_template" in case.label)  # any text is a template


def open_own_tokenizer(folder: Path) -> Any:
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    ids = tokenizer.encode(TEXTS)
    return ids, tokenizer.decode(ids), tokenizer.vocab_size, tokenizer.mask


def tokenizer_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    names = sorted(path.name for path in folder.glob("*"))
    for name in names:
        if name.endswith(".json"):
            for case in json_cases(folder, seed, amount, name=name):
                # The tokenizers library takes a list for the fields of a part, in their order.
                yield replace(case, legal=case.legal or case.label.startswith("tokenizer.json: decoder [["))
        else:
            content = (folder / name).read_bytes()
            for label, changed, _ in damaged_bytes(content, seed, amount):
                # Without a checksum a line is as good as another; of a word that comes twice the last place counts.
                yield from cases_of(name, [(label, changed, label.endswith(("flipped", "twice")))])
    if "tokenizer.json" in names:
        yield from cases_of("tokenizer.json", bombs(json.loads((folder / "tokenizer.json").read_text())))


def bombs(tokenizer: dict) -> Damaged:
    """Tokenizers that are valid and do harm: by search without end, by text without end."""
    for pattern in ("(o+)+$", "(?:o|oo)+$", "(.*)*x", "(", "(?<!a+)b", "\\p{Nonsense}", "o{1,100000}{1,100000}"):
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        yield f"splits at {pattern}", json.dumps(tokenizer | {"pre_tokenizer": split}).encode(), True
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
    for kind, key in (("normalizer", "normalizers"), ("decoder", "decoders")):
        grown = {"type": "Sequence", key: [longer] * 6}
        yield f"{kind} that grows", json.dumps(tokenizer | {kind: grown}).encode(), False
    prepend = {"type": "Prepend", "prepend": "a" * 10**5}
    yield "a long beginning", json.dumps(tokenizer | {"normalizer": prepend}).encode(), True
    nested: dict = {"type": "Sequence", "normalizers": []}
    for _ in range(100):
        nested = {"type": "Sequence", "normalizers": [nested]}
    yield "nested normalizers", json.dumps(tokenizer | {"normalizer": nested}).encode(), True
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAQAAAAAAA="}  # 1 MiB, it says, and has 4 bytes
    yield "a lying charsmap", json.dumps(tokenizer | {"normalizer": charsmap}).encode(), False
    model = tokenizer["model"]
    for vocab in ({"a": 2**32}, {"a": 2**32 - 1}, {"a": -1}, {"a": 0, "b": 0}, {}):
        yield (
            f"vocabulary {vocab}",
            json.dumps(tokenizer | {"model": model | {"vocab": vocab, "merges": []}}).encode(),
            False,
        )
    for kind in ("Unigram", "WordLevel", "WordPiece", "Lua"):
        yield f"model {kind}", json.dumps(tokenizer | {"model": model | {"type": kind}}).encode(), True


# What runs write


def make_run(folder: Path) -> None:
    experiment = runpy.run_path(str(EXPERIMENTS / "translate_numbers.py"))["EXPERIMENT"]
    (folder / "config.json").write_text(json.dumps(to_json(experiment), indent=2))


def run_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    yield from json_cases(folder, seed, amount, name="config.json")
    config = json.loads((folder / "config.json").read_text())
    names = (
        "os:system", "os:", ":", "flax_transformer.train.config:importlib", "flax_transformer.train.config:dataclasses",
        "flax_transformer.cli.__main__:main", "flax_transformer.data:numbers", "flax_transformer",
        "flax_transformer..x:y",
        "flax_transformer.train.folder:RunFolder.__init__", "flax_transformerx:y", "flax_transformer/../os:system", "",
        "builtins:eval", "flax_transformer.no_such:x", "flax_transformer.\ud800:x",
        "flax_transformer.train.folder:FolderError",
    )  # fmt: skip
    for name in names:
        changed = config | {"type": name}
        yield from cases_of("config.json", [(f"type {name!r}", json.dumps(changed).encode(), False)])
        changed = config | {"seed": {"function": name}}
        yield from cases_of("config.json", [(f"function {name!r}", json.dumps(changed).encode(), False)])


def open_run(folder: Path) -> Any:
    return json.dumps(to_json(read_experiment(RunFolder(folder))), sort_keys=True)


STATE = {"model": {"kernel": jnp.arange(64.0).reshape(8, 8), "bias": jnp.ones(8)}, "step": jnp.int32(7)}


def make_checkpoints(folder: Path) -> None:
    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(5, STATE, {"data": {"position": 3}})


def make_unsealed(folder: Path) -> None:
    make_checkpoints(folder)
    (folder / "checkpoints" / "5.sha256.json").unlink()


def open_checkpoints(folder: Path) -> Any:
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), STATE)
    with Checkpoints(folder / "checkpoints", keep=None) as checkpoints:
        state, meta = checkpoints.restore(abstract)
    return digest(state), meta


def checkpoint_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    sealed = (folder / "checkpoints" / "5.sha256.json").exists()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        content = path.read_bytes()
        yield Case(f"{name}: removed", name, lambda folder, name=name: (folder / name).unlink(), not sealed)
        for label, changed, _ in damaged_bytes(content, seed, amount):
            yield from cases_of(name, [(label, changed, not sealed)])
        if content.lstrip()[:1] == b"{":
            for label, changed, _ in (*damaged_text(content), *damaged_json(content, seed, amount)):
                yield from cases_of(name, [(label, changed, not sealed)])


# Data


def make_tfds(folder: Path) -> None:
    build_pairs(
        "words", {"train": numbers(30), "test": numbers(5, split="test")}, source="en", target="de", data_dir=folder
    )


def open_tfds(folder: Path) -> Any:
    pairs = tfds_pairs("words", "train", source="en", target="de", data_dir=folder)
    return [pairs[i] for i in range(len(pairs))]


def tfds_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(folder)), path.read_bytes()
        yield Case(f"{name}: removed", name, lambda folder, name=name: (folder / name).unlink(), True)
        if path.suffix == ".json":
            yield from json_cases(folder, seed, amount, name=name)
        else:
            yield from cases_of(name, damaged_bytes(content, seed, 2 * amount))


def make_text(folder: Path) -> None:
    lines = [f"{pair['source']}\t{pair['target']}" for pair in numbers(20)]
    (folder / "train.en.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    (folder / "train.de").write_text("\n".join(lines))
    (folder / "dev.tsv").write_text("".join(f"{line[:5]}\t{i % 2}\n" for i, line in enumerate(lines)))


def open_text(folder: Path) -> Any:
    pairs = ParallelText(root=str(folder), source="en", target="de").read("train")
    labelled = LabelledText(root=str(folder), labels=("0", "1")).read("validation")
    return [*pairs], [*labelled], read_text(folder / "train.en.gz")


def make_arrays(folder: Path) -> None:
    ragged([np.arange(5), np.arange(3)], np.int32).save(folder / "x")


def open_arrays(folder: Path) -> Any:
    return [row.tolist() for row in load_ragged(folder / "x")]


def file_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for name in sorted(path.name for path in folder.iterdir()):
        for label, changed, _ in damaged_bytes((folder / name).read_bytes(), seed, amount):
            legal = name.endswith((".de", ".tsv")) or (label.endswith("flipped") and not name.endswith(".gz"))
            yield from cases_of(name, [(label, changed, legal)])


# Images


def make_images(folder: Path) -> None:
    """Write class folders with an image of each format."""
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3), np.uint8)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    for name in ("a/x.png", "a/y.jpg", "a/z.gif", "b/x.webp", "b/y.bmp", "b/z.tif", "b/w.ppm"):
        (folder / name).parent.mkdir(exist_ok=True)
        PIL.Image.fromarray(pixels).save(folder / name, **({} if name.endswith("m") else {"exif": exif}))


def open_pictures(folder: Path) -> Any:
    found = open_images(folder)
    items = [each[number] for each in found.splits.values() for number in range(len(each))]
    seen = [(np.asarray(item["image"]).tobytes(), item["image"].size, item.get("label")) for item in items]
    boxes = [(item["boxes"].tolist(), item["classes"].tolist()) for item in items if "boxes" in item]
    return sorted(seen), sorted(boxes), found.classes


def image_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(folder)), path.read_bytes()
        for label, changed, _ in damaged_bytes(content, seed, amount):
            yield from cases_of(name, [(label, changed, True)])  # no checksum: another image, or bytes nobody reads
        yield from cases_of(name, (("a page", b"<html></html>", False), ("empty", b"", False)))
        yield Case(f"{name}: removed", name, lambda folder, name=name: (folder / name).unlink(), True)
    other = (folder / "b" / "y.bmp").read_bytes()
    yield from cases_of("a/y.jpg", [("another format", other, False)])


def make_scenes(folder: Path) -> None:
    """Write COCO's json and its images."""
    make_images(folder)
    (folder / "images").mkdir()
    for number in range(3):
        shutil.copy(folder / "a" / "x.png", folder / "images" / f"{number}.png")
    shutil.rmtree(folder / "a")
    shutil.rmtree(folder / "b")
    images = [{"id": number, "file_name": f"{number}.png", "width": 7, "height": 9} for number in range(3)]
    box = {"bbox": [1, 2, 3.5, 4], "iscrowd": 0}
    boxes = [{"id": number, "image_id": number, "category_id": 1 + number % 2} | box for number in range(3)]
    categories = [{"id": number, "name": name} for number, name in ((1, "cell"), (2, "über"))]
    file = {"images": images, "annotations": boxes, "categories": categories}
    (folder / "train.json").write_text(json.dumps(file))


def make_idx(folder: Path) -> None:
    sizes = (("train", 12), ("t10k", 2))
    for name, count in sizes:
        pixels, labels = bytes(range(count * 6)), bytes(number % 2 for number in range(count))
        head = b"\0\0\x08\x03" + b"".join(size.to_bytes(4) for size in (count, 3, 2))
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels, mtime=0))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + count.to_bytes(4) + labels)


def idx_cases(folder: Path, seed: int, amount: int) -> Iterator[Case]:
    for path in sorted(folder.iterdir()):
        for label, changed, _ in damaged_bytes(path.read_bytes(), seed, amount):
            yield from cases_of(path.name, [(label, changed, path.suffix != ".gz" and label.endswith("flipped"))])


CORPORA = {
    "weights": Corpus(partial(copy_golden, family="gpt2"), open_hub, weight_cases),
    "shards": Corpus(shard, open_hub, shard_cases),
    **{
        f"config-{family.name}": Corpus(partial(copy_golden, family=family.name), open_hub, config_cases)
        for family in sorted(GOLDEN.iterdir())
    },
    "flax": Corpus(make_flax, open_hub, flax_cases),
    "generation": Corpus(
        partial(copy_golden, family="gpt2"), open_hub, partial(json_cases, name="generation_config.json")
    ),
    "tokenizer": Corpus(make_tokenizer, open_tokenizer, tokenizer_cases),
    "wordpiece": Corpus(make_wordpiece, open_tokenizer, tokenizer_cases),
    "byte-bpe": Corpus(make_byte_bpe, open_tokenizer, tokenizer_cases),
    "chat": Corpus(make_chat, open_chat, chat_cases),
    "chat-config": Corpus(make_chat_config, open_chat, chat_config_cases),
    "own-tokenizer": Corpus(make_tokenizer, open_own_tokenizer, tokenizer_cases),
    **{
        name: Corpus(
            partial(make_image_processor, name=name), open_image_processor, partial(image_processor_cases, name=name)
        )
        for name in PROCESSORS
    },
    "run": Corpus(make_run, open_run, run_cases),
    "checkpoints": Corpus(make_checkpoints, open_checkpoints, checkpoint_cases),
    "unsealed": Corpus(make_unsealed, open_checkpoints, checkpoint_cases),
    "text": Corpus(make_text, open_text, file_cases),
    "adapter": Corpus(make_adapter, open_adapter, adapter_cases),
    "arrays": Corpus(make_arrays, open_arrays, file_cases),
    "tfds": Corpus(make_tfds, open_tfds, tfds_cases),
    "images": Corpus(make_images, open_pictures, image_cases),
    "scenes": Corpus(make_scenes, open_pictures, partial(json_cases, name="train.json")),
    "idx": Corpus(make_idx, open_pictures, idx_cases),
}
