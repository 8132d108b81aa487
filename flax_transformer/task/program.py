"""A checkpoint as a program: StableHLO that runs without this library, of any batch and length, with its parameters."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from flax_transformer.hub import Pretrained
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.listing import listed
from flax_transformer.nn import EmbeddingConfig
from flax_transformer.nn.config import configs_in
from flax_transformer.parallel.sharding import path_name
from flax_transformer.task.checkpoint import audio_processor_of, positions_of, written_positions_of

PROGRAM, PARAMETERS, ABOUT = "program.jax", "parameters.safetensors", "program.json"
PLATFORMS = ("cpu", "cuda", "tpu")
SAMPLES = 1_000
"""Of a recording at least."""
CLOSE = 1e-4
"""How far, in parts of the largest value, what the program gives may be from what the checkpoint does."""

Arrays = dict[str, Shaped[np.ndarray, "..."]]


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
        if {*inputs} != {*self.about["inputs"]}:
            raise ValueError(f"the program takes {listed([*self.about['inputs']])}, got {listed([*inputs])}")
        given = {name: jnp.asarray(inputs[name], each["dtype"]) for name, each in self.about["inputs"].items()}
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
    folder = Path(folder)
    if length is not None and length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"a program is written to a new or empty folder, got {folder}")
    if not platforms or {*platforms} - {*PLATFORMS, "rocm"}:
        raise ValueError(f"platforms must be some of {', '.join((*PLATFORMS, 'rocm'))}, got {listed([*platforms])}")
    _need_flatbuffers()
    parameters = _parameters(pretrained)
    exported = _exported(pretrained, parameters, tuple(platforms), length, image)
    about = _about(pretrained, exported)
    program = Program(exported, parameters, about)
    about["largest_difference"] = _difference(pretrained, program)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(pretrained, program, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return program


def open_program(folder: str | Path) -> Program:
    """Read a program and its parameters.

    Raises:
      FileNotFoundError: a folder without one.
    """
    from safetensors.numpy import load_file

    folder, names = Path(folder), (PROGRAM, PARAMETERS, ABOUT)
    if lacking := [name for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(f"a program's folder has {', '.join(names)}, {folder} has no {listed(lacking)}")
    _need_flatbuffers()
    exported = jax.export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    return Program(exported, load_file(folder / PARAMETERS), read_json(folder / ABOUT))


def _need_flatbuffers() -> None:
    try:
        import flatbuffers  # noqa: F401
    except ImportError as error:
        raise ValueError('programs take flatbuffers: pip install "flax-transformer[export]"') from error


def _parameters(pretrained: Pretrained) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(pretrained.model)
    found = {path_name(path): leaf for path, leaf in paths}
    if len(found) < len(paths):
        raise ValueError("a program's parameters need names of their own, some of this checkpoint's have none")
    if few := {str(leaf.dtype) for leaf in found.values() if str(leaf.dtype) in ("int4", "uint4")}:
        raise ValueError(f"a program's parameters have 8 bits or more, the checkpoint has kernels of {listed(few)}")
    return found


def _exported(
    pretrained: Pretrained, parameters: Mapping[str, Any], platforms: tuple[str, ...], length: int | None,
    image: tuple[int, int] | None,
) -> Any:  # fmt: skip
    from jax import export

    names, tree = list(parameters), jax.tree.structure(pretrained.model)

    def run(parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        model = jax.tree.unflatten(tree, [parameters[name] for name in names])
        return _named(replace(pretrained, model=model)(**inputs))

    given = _inputs(pretrained, length, image)
    try:
        return export.export(jax.jit(run), platforms=platforms)(dict(parameters), given)
    except jax.errors.InconclusiveDimensionOperation as error:
        name = pretrained.config["architectures"][0]
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"a {name} computes otherwise for other lengths, which one program cannot; say which length: {first}"
        ) from error


def _named(output: Any) -> dict[str, Any]:
    return {name: output[name] for name in output.keys() if isinstance(output[name], jax.Array)}  # noqa: SIM118


def _inputs(
    pretrained: Pretrained, length: int | None, image: tuple[int, int] | None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes of what a checkpoint is given; b rows, t and s positions stay open."""
    from jax import export

    known, name = pretrained.architecture.inputs, pretrained.config["architectures"][0]
    if known.frames or known.several or {*known.needs} - {*READ}:
        raise ValueError(f"a program is of texts, images and recordings, a {name} reads {' and '.join(known.reads)}")
    needed = [*known.needs, *(each for each in ("attention_mask", "decoder_input_ids") if each in known.takes)]
    if "input_features" in needed:
        needed = [each for each in needed if each != "attention_mask"]
    embeddings = [each for each in configs_in(pretrained.model.cfg) if isinstance(each, EmbeddingConfig)]
    if "token_type_ids" in known.takes and any(isinstance(each.types, int) and each.types > 1 for each in embeddings):
        needed.append("token_type_ids")
    shapes = {each: READ[each](pretrained, image) for each in dict.fromkeys(needed)}
    least, most = _limits(pretrained, needed)
    if length is not None and not least["t"] <= length <= (most["t"] or length):
        raise ValueError(f"a {name} reads from {least['t']} to {most['t']}, got length {length}")
    sides = {side for _, shape in shapes.values() for side in shape if isinstance(side, str)}
    letters = sorted(sides - {"t"} if length else sides)
    limits = [f"{side} >= {least[side]}" for side in letters if least.get(side, 1) > 1]
    limits += [f"{side} <= {most[side]}" for side in letters if most.get(side)]
    symbols = dict(zip(letters, export.symbolic_shape(", ".join(letters), constraints=limits), strict=True))
    values = {"t": length, **symbols} if length else symbols
    return {
        each: jax.ShapeDtypeStruct(tuple(values.get(side, side) for side in shape), dtype)
        for each, (dtype, shape) in shapes.items()
    }


def _limits(pretrained: Pretrained, needed: Sequence[str]) -> tuple[dict[str, int], dict[str, int | None]]:
    """Return the least and the most that sides may be; None for no limit."""
    config, most = pretrained.model.cfg, {"t": None, "s": None}
    if "input_ids" in needed:
        most["t"] = positions_of(config)
    if "decoder_input_ids" in needed:
        most["s"] = written_positions_of(config)
    return {"t": SAMPLES if "input_values" in needed else 1}, most


def _image(pretrained: Pretrained, image: tuple[int, int] | None) -> tuple[Any, tuple[Any, ...]]:
    config, name = pretrained.model.cfg, pretrained.config["architectures"][0]
    if "spatial_shapes" in pretrained.architecture.inputs.names:
        raise ValueError(f"a program is of images of one size, a {name} reads patches of images of any shape")
    of = next((each.image for each in configs_in(config) if hasattr(each, "image")), None)
    if of is None and image is None:
        raise ValueError(f"a program is of images of one size, a {name} takes any: say which")
    if of is not None and image not in (None, tuple(of)):
        raise ValueError(f"a {name} sees images of {of[0]} × {of[1]} pixels, got {image[0]} × {image[1]}")
    channels = next(each.channels for each in configs_in(config) if hasattr(each, "channels"))
    return jnp.float32, ("b", channels, *(of or image))


def _frames(pretrained: Pretrained, image: Any) -> tuple[Any, tuple[Any, ...]]:
    made = audio_processor_of(pretrained)(np.zeros(1_000, np.float32))["input_features"]
    return jnp.float32, ("b", *made.shape[1:])


READ = {
    "input_ids": lambda pretrained, image: (jnp.int32, ("b", "t")),
    "token_type_ids": lambda pretrained, image: (jnp.int32, ("b", "t")),
    "attention_mask": lambda pretrained, image: (jnp.int32, ("b", "t")),
    "decoder_input_ids": lambda pretrained, image: (jnp.int32, ("b", "s")),
    "pixel_values": _image,
    "input_features": _frames,
    "input_values": lambda pretrained, image: (jnp.float32, ("b", "t")),
}
"""What a program may be given, with its type and shape."""


def _about(pretrained: Pretrained, exported: Any) -> dict[str, Any]:
    (_, given), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    made = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    said = lambda tree: {  # noqa: E731
        name: {"dtype": str(each.dtype), "shape": [side if isinstance(side, int) else str(side) for side in each.shape]}
        for name, each in tree.items()
    }
    least, most = _limits(pretrained, [*given])
    sides = {str(side) for each in given.values() for side in each.shape if not isinstance(side, int)}
    return {
        "architecture": pretrained.config["architectures"][0], "inputs": said(given), "outputs": said(made),
        "limits": {side: [least.get(side, 1), most.get(side)] for side in sorted(sides)},
        "platforms": list(exported.platforms), "calling_convention_version": exported.calling_convention_version,
        "jax": jax.__version__,
    }  # fmt: skip


def _difference(pretrained: Pretrained, program: Program) -> float:
    """Run both on two batches of random inputs, and return by how much outputs differ, in parts of the largest."""
    draw, worst = np.random.default_rng(0), 0.0
    samples = SAMPLES if "input_values" in program.about["inputs"] else 1
    for sides in ({"b": 1, "t": 5 * samples, "s": 3}, {"b": 2, "t": 7 * samples, "s": 4}):
        inputs = {}
        for name, each in program.about["inputs"].items():
            shape = [sides.get(side, side) for side in each["shape"]]
            random = draw.normal(size=shape) if each["dtype"] == "float32" else draw.integers(0, 2, shape)
            inputs[name] = jnp.asarray(np.ones(shape) if name == "attention_mask" else random, each["dtype"])
        expected = jax.jit(lambda pretrained, inputs: _named(pretrained(**inputs)))(pretrained, inputs)
        for name, found in program(**inputs).items():
            one, other = (np.asarray(each, np.float32) for each in (found, expected[name]))
            worst = max(worst, float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-6)))
    if not worst <= CLOSE:
        raise ValueError(f"the program's outputs differ from the checkpoint's by {worst:.2g} of the largest value")
    return worst


def _write(pretrained: Pretrained, program: Program, folder: Path) -> None:
    from safetensors.numpy import save_file

    (folder / PROGRAM).write_bytes(program.exported.serialize())
    save_file({name: np.asarray(leaf) for name, leaf in program.parameters.items()}, folder / PARAMETERS)
    (folder / ABOUT).write_text(json.dumps(program.about, indent=2) + "\n")
    (folder / CONFIG).write_text(json.dumps(dict(pretrained.config), indent=2) + "\n")
    for each in (pretrained.tokenizer, pretrained.processor):
        if each is not None:
            each.save(folder)
