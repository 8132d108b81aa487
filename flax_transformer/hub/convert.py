"""Checkpoints as Orbax keeps them: config.json and tokenizer files of Hugging Face, parameters under our own paths."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, SingleDeviceSharding

from flax_transformer.atomic import write_file
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import CONFIG, common_dtype, read_json
from flax_transformer.hub.load import read_dtype, read_model
from flax_transformer.hub.pretrained import Pretrained
from flax_transformer.hub.processor.open import open_processor, open_tokenizer
from flax_transformer.hub.quantized.model import quantized_kernels, whole_dtype
from flax_transformer.hub.registry import find_family
from flax_transformer.models.preset import abstract
from flax_transformer.nn import with_precision
from flax_transformer.parallel import tree_shardings
from flax_transformer.train.checkpoint import CheckpointError, Checkpoints

STEPS = "checkpoints"
"""Folder inside an Orbax folder, and inside a run's, that holds the parameters by step."""


def is_orbax(folder: str | os.PathLike) -> bool:
    """Return whether a folder is one that `save_orbax` wrote."""
    folder = Path(folder)
    return (folder / STEPS).is_dir() and (folder / CONFIG).is_file() and "model_type" in read_json(folder / CONFIG)


def describe(pretrained: Pretrained, folder: str | os.PathLike) -> None:
    """Write all of a checkpoint but its parameters: config.json, how it generates, and the processors' files.

    Args:
      pretrained: its model may be abstract, so that a run can say what it trains before there is anything to save.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / CONFIG, {"dtype": whole_dtype(pretrained.model), **pretrained.config})
    if pretrained.generation:
        _write_json(folder / pretrained.family.generation, pretrained.generation)
    for each in (pretrained.tokenizer, pretrained.processor):
        if each is not None:
            each.save(folder)


def save_orbax(pretrained: Pretrained, folder: str | os.PathLike) -> None:
    """Write an Orbax folder, which `load_orbax` opens without reading it through one host's memory.

    Raises:
      CheckpointError: when it cannot be written.
      ValueError: kernels of few bits, which `hub.save` writes.
    """
    if quantized_kernels(pretrained.model):
        raise ValueError(
            "an Orbax folder has whole kernels, this checkpoint's have few bits: hub.save writes those, and loaded "
            "with a dtype, as float32, they are whole"
        )
    describe(pretrained, folder)
    with Checkpoints(Path(folder) / STEPS, keep=1) as checkpoints:
        checkpoints.save(0, {"model": pretrained.model}, {})


def load_orbax(
    folder: str | os.PathLike,
    *,
    steps: str | os.PathLike | None = None,
    step: int | None = None,
    dtype: Any = None,
    mesh: Mesh | None = None,
) -> Pretrained:
    """Open an Orbax folder, or any training state beside a description of its model; straight onto the devices.

    Of a state that has a moving average, that is what is read.

    Args:
      folder: has config.json and tokenizer files, as `describe` writes them.
      steps: the folder of Orbax checkpoints; `checkpoints` in `folder` by default.
      step: which of them; the newest by default.
      dtype: float32, bfloat16 or float16, of parameters and computation; the parameters' own by default.
      mesh: devices to spread over by the sharding table; the default device without one.

    Raises:
      FileNotFoundError: no config.json.
      ValueError: an architecture or option that is not supported.
      CheckpointError: no such step, a damaged one, or parameters of another model than config.json says.
    """
    folder = Path(folder)
    fields = Fields.of(read_json(folder / CONFIG))
    dtype = read_dtype(dtype)
    config = read_model(fields, folder)
    with Checkpoints(folder / STEPS if steps is None else steps, keep=None) as checkpoints:
        known = checkpoints.steps()
        if not known or (step is not None and step not in known):
            asked = "" if step is None else f" of step {step}"
            raise CheckpointError(f"no checkpoint{asked} in {checkpoints.folder}, there are {known or 'none'}")
        shapes = checkpoints.shapes(step)
        tree = "ema" if any(name.startswith("ema.") for name in shapes) else "model"
        own = common_dtype(leaf for name, leaf in shapes.items() if name.startswith(f"{tree}."))
        config = with_precision(config, compute=dtype or own, params=dtype or own)
        restored, _ = checkpoints.restore({tree: _placed(abstract(config), mesh)}, step)
    said = folder / find_family(fields)[0].generation
    generation = read_json(said) if said.is_file() else {}
    tokenizer, processor = open_tokenizer(folder), open_processor(folder)
    return Pretrained(restored[tree], fields, tokenizer, Fields.of(generation), processor)


def _placed(model: Any, mesh: Mesh | None) -> Any:
    """Return where every parameter of an abstract model will be."""
    here = SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: here, model) if mesh is None else tree_shardings(model, mesh)

    def place(leaf, at):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at)

    return jax.tree.map(place, model, shardings)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(dict(data), indent=2, sort_keys=True, ensure_ascii=False)
    write_file(path, text + "\n")
