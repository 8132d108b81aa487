"""Folders of sentence-transformers: modules.json, a folder for each module, and prompts; read, and written again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import CONFIG, PICKLES, WEIGHTS, Tensor, open_tensors, read_json
from flax_transformer.hub.registry import find_uses
from flax_transformer.hub.sentence import KINDS, SENTENCE, modules_of
from flax_transformer.train.config import parse_json

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
"""File of prompts, and of how vectors are compared."""
NO_SETTINGS = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
"""What it says of a model that is new."""
LENGTHS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Files in which max_seq_length and do_lower_case may stand, beside the Transformer's config.json."""
TEXT_ONLY = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "query_expansion": (None,),
}
"""Fields of those files of which few values are supported."""


class SentenceFolder(NamedTuple):
    """What there is of a model in such a folder."""

    fields: Fields
    """config.json's, and the modules."""
    transformer: Path
    """The folder of the Transformer, with its tokenizer."""
    tensors: dict[str, Tensor]
    """Of the modules, each by its folder and its name there."""


def is_sentence_folder(folder: Path) -> bool:
    """Return whether sentence-transformers wrote a folder."""
    return (folder / MODULES).is_file()


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Read modules.json: kind, type and path of each module.

    Raises:
      ValueError: a file that is no such list, a module that is not known, or a Transformer that is not the first.
    """
    stated, file = parse_json((folder / MODULES).read_bytes(), folder / MODULES), folder / MODULES
    if not isinstance(stated, list) or not stated or not all(isinstance(each, dict) for each in stated):
        raise ValueError(f"{file} must be a list of modules, it is {stated!r:.60}")
    modules = []
    for each in stated:
        kind, path = each.get("type"), each.get("path", "")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise ValueError(f"{file} must give type and path of every module as texts, it has {each!r:.99}")
        known = kind.split(".")[-1]
        if known not in KINDS or not kind.startswith("sentence_transformers."):
            raise ValueError(f"{file} has the module {kind!r:.99}; supported are {', '.join(KINDS)}")
        if path and (Path(path).name != path or path == ".."):
            raise ValueError(f"{file} must give each module a folder in its own, it has {path!r:.99}")
        modules.append({"kind": known, "type": kind, "path": path})
    kinds = [each["kind"] for each in modules]
    if kinds[0] != "Transformer" or "Transformer" in kinds[1:]:
        raise ValueError(f"{file} must begin with the one Transformer that it has, it has {', '.join(kinds)}")
    return modules


def open_sentence_folder(folder: Path) -> SentenceFolder:
    """Open a folder of sentence-transformers; no tensor is read yet.

    Raises:
      FileNotFoundError: no config.json where modules.json says that there is one.
      ValueError: as `read_modules`, or modules with options that are not supported, or kept in a pickle.
    """
    first, *others = read_modules(folder)
    inside = folder / first["path"]
    config = read_json(inside / CONFIG)
    for each in others:
        file = folder / each["path"] / CONFIG
        each["config"] = read_json(file) if file.is_file() else {}
    name = next((name for name in LENGTHS if (inside / name).is_file()), LENGTHS[0])
    said = read_json(inside / name) if (inside / name).is_file() else {}
    for field, supported in TEXT_ONLY.items():
        if said.get(field, supported[0]) not in supported:
            raise ValueError(f"{inside / name} has {field}={said[field]!r:.60}; supported is {supported[0]!r}")
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    stated = {"transformer": {**first, "file": name, "config": said}, "modules": others, "settings": settings}
    fields = Fields.of({**config, "architectures": [_class_of(config, inside)], SENTENCE: stated})
    modules_of(fields)
    prompts_of(fields)
    tensors = {}
    for each in others:
        if each["kind"] == "Dense":
            found = _open_dense(folder / each["path"])
            tensors |= {f"{each['path']}/{name}": tensor for name, tensor in found.items()}
    return SentenceFolder(fields, inside, tensors)


def _class_of(config: Mapping[str, Any], folder: Path) -> str:
    """Name the class of the family that gives hidden states of texts."""
    from flax_transformer.hub.registry import families

    try:
        names = find_uses(config.get("model_type"), "feature-extraction")
        known = families()[config["model_type"]].architectures
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    return next((name for name in names if "decoder_input_ids" not in known[name].inputs.names), names[0])


def _open_dense(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).is_file():
        pickles = [file.name for pattern in PICKLES for file in sorted(folder.glob(pattern))]
        if pickles:
            raise ValueError(
                f"{folder} has only {', '.join(pickles)}; such files can run code when opened and are not read: where "
                "you trust it, SentenceTransformer(…).save(…) of sentence-transformers writes safetensors"
            )
        raise FileNotFoundError(f"no {WEIGHTS} in {folder}")
    return open_tensors(folder)


def prompts_of(fields: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the one that is taken unasked, if there is one.

    Raises:
      ValueError: prompts that are no texts by name, or a default that is none of them.
    """
    stated = fields.get(SENTENCE)
    settings = stated.get("settings") if isinstance(stated, dict) else None
    settings = settings if isinstance(settings, dict) else {}
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ValueError(f"{SETTINGS} must give prompts as texts by name, they are {prompts!r:.60}")
    prompts = {name: text or "" for name, text in prompts.items()}
    if default is not None and default not in prompts:
        raise ValueError(f"default_prompt_name must be one of the prompts {', '.join(prompts)}, it is {default!r:.60}")
    return prompts, default


class Lengths(NamedTuple):
    """What a sentence encoder does to texts before they are tokens."""

    most: int | None
    """Tokens of a text, its marks included; the rest is cut. None: as the tokenizer says."""
    lower: bool
    """Whether it writes all letters small."""


def lengths_of(fields: Mapping[str, Any]) -> Lengths:
    """Read how long texts may be, and whether they are lower-cased.

    Raises:
      ValueError: values of another kind.
    """
    stated = fields.get(SENTENCE)
    said = (stated.get("transformer") or {}).get("config") or {} if isinstance(stated, dict) else {}
    said = Fields.of(said)
    return Lengths(said.integer("max_seq_length", None), said.flag("do_lower_case", False))


def written(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the files of JSON of a sentence encoder, by path, and where its tensors are.

    Returns:
      The files, config.json among them; and the folder of the Transformer, "" where it is the folder itself.
    """
    stated = config[SENTENCE]
    first = {"path": "", "file": LENGTHS[0], "config": {}, "type": _type("Transformer")}
    first |= stated.get("transformer") or {}
    said = {"do_lower_case": False, "max_seq_length": None, **first["config"]}
    inside = f"{first['path']}/" if first["path"] else ""
    modules = [first, *modules_of(config)]
    files: dict[str, Any] = {
        f"{inside}{CONFIG}": {name: value for name, value in config.items() if name != SENTENCE},
        f"{inside}{first['file']}": first["config"] or said,
        MODULES: [
            {"idx": i, "name": str(i), "path": each["path"], "type": each.get("type") or _type(each["kind"])}
            for i, each in enumerate(modules)
        ],
        SETTINGS: stated.get("settings") or dict(NO_SETTINGS),
    }
    files |= {f"{each['path']}/{CONFIG}": each["config"] for each in modules[1:]}
    return files, inside


def _type(kind: str) -> str:
    """Name a module as all versions of the library open it."""
    return f"sentence_transformers.models.{kind}"
