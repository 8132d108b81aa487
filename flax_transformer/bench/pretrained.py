"""A Hugging Face checkpoint as something to measure: the model its config.json describes, with random weights."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from flax_transformer.bench.family import FAMILIES, FIRST
from flax_transformer.bench.workload import Size, Workload, changed, compute_type, from_config
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.load import read_model
from flax_transformer.hub.registry import find_family
from flax_transformer.models.preset import module_of

CHOICES = 2
"""Answers a question has, where they are chosen from."""


def from_pretrained(name: str, size: Size) -> Workload:
    """Make the workload of a folder with a config.json, or of a hub id, from which that one file is fetched.

    A language model is trained and decodes as a preset does; any other model has a forward pass alone, as nothing says
    what it is trained on.

    Raises:
      ValueError: no such folder or id, an architecture that is not supported, a size that it decides itself.
    """
    if size.vocab is not None:
        raise ValueError(f"config.json decides on the vocabulary of {name}, got vocab={size.vocab}")
    file = _config_file(name)
    fields = Fields.of(read_json(file))
    if "model_type" not in fields:
        raise ValueError(f"{file} must be of a Hugging Face checkpoint, which has a model_type; it has none")
    config = read_model(fields, file.parent)
    if type(config) in FAMILIES:
        return from_config(name, config, size)
    if size.documents is not None:
        raise ValueError(f"documents are packed for decoder-only language models alone, {name} is none")
    return _called(name, fields, changed(config, size), size.batch or 32, size.length or 32)


def _called(name: str, fields: Fields, config: Any, rows: int, length: int) -> Workload:
    """Take the call that stands for a class of `transformers`."""
    architecture = find_family(fields)[1]
    choices = (CHOICES,) if fields["architectures"][0].endswith("ForMultipleChoice") else ()
    random = np.random.default_rng(0)
    tokens = random.integers(FIRST, fields.integer("vocab_size"), (rows, *choices, length)).astype(np.int32)
    if isinstance(end := fields.get("eos_token_id"), int):
        tokens[..., -1] = end  # where BART and T5 look
    batch = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    return Workload(
        name=name,
        dtype=compute_type(config),
        init=lambda key: module_of(config)(config, rngs=nnx.Rngs(key)),
        batch=batch,
        shape={"rows": rows, **({"choices": CHOICES} if choices else {}), "length": length},
        forward=lambda model, batch: dict(_found(architecture.call(model, Inputs(**batch), None, fields))),
        items=tokens.size,
        unit="tokens",
    )


def _found(output: Any) -> dict[str, Any]:
    return {name: output[name] for name in output.keys()}  # noqa: SIM118


def _config_file(name: str) -> Path:
    """Give the config.json of a folder, of what a run has exported, or of a hub id."""
    folder = Path(name)
    if folder.is_dir():
        for place in (folder / "export" / CONFIG, folder / CONFIG):
            if place.is_file():
                return place
        raise ValueError(f"a checkpoint has a {CONFIG}, there is none in {folder}")
    found = re.fullmatch(r"(?P<name>\w[\w.-]*(/[\w.-]+)?)(@(?P<revision>\w[\w./-]*))?", name)
    if not found:
        raise ValueError(f"there is no folder {folder}, and a hub id is NAME or OWNER/NAME, perhaps @REVISION")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(found["name"], CONFIG, revision=found["revision"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"no folder {folder}, and the hub did not give {CONFIG} of {name}: {reason}") from error
