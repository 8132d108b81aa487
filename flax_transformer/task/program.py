"""A checkpoint as a program: StableHLO that runs without this library, of any batch and length, with its parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.file import read_json
from flax_transformer.task.exported import (
    ABOUT,
    PLATFORMS,
    Arrays,
    about_program,
    as_function,
    check_files,
    check_platforms,
    check_target,
    computed_otherwise,
    input_shapes,
    largest_difference,
    made_whole,
    named_parameters,
    types_of,
    write_beside,
)

PROGRAM, PARAMETERS = "program.jax", "parameters.safetensors"


@dataclass(frozen=True, eq=False)
class Program:
    """A program that was written by `export_program`; `program(**inputs)` gives outputs by name."""

    exported: Any
    """A `jax.export.Exported`."""
    parameters: Mapping[str, Any]
    about: Mapping[str, Any]
    """What program.json says: inputs and outputs with their types and shapes, platforms, versions."""

    def __call__(self, **inputs: Any) -> Arrays:
        """Run it.

        Raises:
          ValueError: inputs that it does not have, or lacks; `jax.export` says which shapes do not fit.
        """
        given = {name: jnp.asarray(inputs[name], dtype) for name, dtype in types_of(self.about, inputs).items()}
        return dict(self.exported.call(dict(self.parameters), given))


def export_program(
    pretrained: Pretrained,
    folder: str | Path,
    *,
    platforms: Sequence[str] = PLATFORMS,
    length: int | None = None,
    image: tuple[int, int] | None = None,
) -> Program:
    """Write a checkpoint's forward pass as a program of `jax.export`, and run it beside the checkpoint.

    The folder gets `program.jax`, which `jax.export.deserialize` reads; `parameters.safetensors`, its first argument, a
    dictionary by name; `program.json`, which says what it is given and gives; and the checkpoint's configuration,
    tokenizer and processor. Rows and the lengths of texts and recordings stay open, texts up to the positions there
    are. The second argument is a dictionary of inputs by the names of `transformers`.

    Args:
      folder: a new or empty one.
      platforms: where it may run.
      length: tokens of a text, or samples of a recording, of a model whose computation depends on it; open by default.
      image: height and width of images, of a model that takes any; by default what the model has.

    Raises:
      ValueError: a folder that holds something, no platforms or unknown ones, a length or size that the model does not
        have, a checkpoint that reads something else than texts, images and recordings, or whose lengths decide how it
        computes, or with kernels of four bits, for which files of parameters have no type; a program that gives other
        numbers; without the package flatbuffers.
    """
    folder = check_target(folder, length)
    check_platforms(platforms)
    _need_flatbuffers()
    parameters = named_parameters(pretrained)
    exported = _exported(pretrained, parameters, tuple(platforms), length, image)
    (_, given), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    about = {
        **about_program(pretrained, given, jax.tree.unflatten(exported.out_tree, exported.out_avals)),
        "platforms": list(exported.platforms), "calling_convention_version": exported.calling_convention_version,
    }  # fmt: skip
    program = Program(exported, parameters, about)
    about["largest_difference"] = largest_difference(pretrained, about, program)
    with made_whole(folder):
        _write(pretrained, program, folder)
    return program


def open_program(folder: str | Path) -> Program:
    """Read a program and its parameters.

    Raises:
      FileNotFoundError: a folder without one.
    """
    from safetensors.numpy import load_file

    folder = Path(folder)
    check_files(folder, PROGRAM, PARAMETERS, ABOUT)
    _need_flatbuffers()
    exported = jax.export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    return Program(exported, load_file(folder / PARAMETERS), read_json(folder / ABOUT))


def _need_flatbuffers() -> None:
    try:
        import flatbuffers  # noqa: F401
    except ImportError as error:
        raise ValueError('programs take flatbuffers: pip install "flax-transformer[export]"') from error


def _exported(
    pretrained: Pretrained, parameters: Mapping[str, Any], platforms: tuple[str, ...], length: int | None,
    image: tuple[int, int] | None,
) -> Any:  # fmt: skip
    from jax import export

    run, given = as_function(pretrained, [*parameters]), input_shapes(pretrained, length, image)
    try:
        return export.export(jax.jit(run), platforms=platforms)(dict(parameters), given)
    except jax.errors.InconclusiveDimensionOperation as error:
        raise computed_otherwise(pretrained, error) from error


def _write(pretrained: Pretrained, program: Program, folder: Path) -> None:
    from safetensors.numpy import save_file

    (folder / PROGRAM).write_bytes(program.exported.serialize())
    save_file({name: np.asarray(leaf) for name, leaf in program.parameters.items()}, folder / PARAMETERS)
    write_beside(pretrained, program.about, folder)
