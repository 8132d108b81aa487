"""What programs made of a checkpoint have in common, whatever their format: inputs with open sides, and their check."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from flax_transformer.hub import Pretrained
from flax_transformer.hub.file import CONFIG
from flax_transformer.listing import listed
from flax_transformer.nn import EmbeddingConfig
from flax_transformer.nn.config import configs_in
from flax_transformer.parallel.sharding import path_name
from flax_transformer.task.checkpoint import audio_processor_of, positions_of, written_positions_of

Arrays = dict[str, Shaped[np.ndarray, "..."]]

ABOUT = "program.json"
PLATFORMS = ("cpu", "cuda", "tpu")
SAMPLES = 1_000
"""Of a recording at least."""
CLOSE = 1e-4
"""How far, in parts of the largest value, what a program gives may be from what the checkpoint does."""


def check_target(folder: str | Path, length: int | None) -> Path:
    """Return the folder that a program is to be written to, which must be new or empty."""
    folder = Path(folder)
    if length is not None and length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"a program is written to a new or empty folder, got {folder}")
    return folder


@contextmanager
def made_whole(folder: Path) -> Iterator[None]:
    """Make a program's folder, which is removed again where writing into it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def check_files(folder: Path, *names: str) -> None:
    """Raise FileNotFoundError unless a program's folder has all of its files."""
    if lacking := [name for name in names if not (folder / name).is_file()]:
        whole = f"{', '.join(names[:-1])} and {names[-1]}"
        raise FileNotFoundError(f"a program's folder has {whole}, {folder} has no {listed(lacking)}")


def check_platforms(platforms: Sequence[str]) -> None:
    """Raise ValueError unless these are platforms that a program may be lowered for."""
    if not platforms or {*platforms} - {*PLATFORMS, "rocm"}:
        raise ValueError(f"platforms must be some of {', '.join((*PLATFORMS, 'rocm'))}, got {listed([*platforms])}")


def named_parameters(pretrained: Pretrained) -> dict[str, Any]:
    """Return the parameters of a checkpoint by their paths.

    Raises:
      ValueError: parameters without names of their own, or of four bits, for which files have no type.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(pretrained.model)
    found = {path_name(path): leaf for path, leaf in paths}
    if len(found) < len(paths):
        raise ValueError("a program's parameters need names of their own, some of this checkpoint's have none")
    if few := {str(leaf.dtype) for leaf in found.values() if str(leaf.dtype) in ("int4", "uint4")}:
        raise ValueError(f"a program's parameters have 8 bits or more, the checkpoint has kernels of {listed(few)}")
    return found


def as_function(pretrained: Pretrained, names: Sequence[str]) -> Callable[..., dict[str, Any]]:
    """Return a checkpoint's forward pass as a function of its parameters and inputs, both by name.

    Args:
      names: of its parameters, in the order of `named_parameters`.
    """
    tree = jax.tree.structure(pretrained.model)

    def run(parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        model = jax.tree.unflatten(tree, [parameters[name] for name in names])
        return named_outputs(replace(pretrained, model=model)(**inputs))

    return run


def named_outputs(output: Any) -> dict[str, Any]:
    """Return the arrays that a checkpoint gave, by name."""
    return {name: output[name] for name in output.keys() if isinstance(output[name], jax.Array)}  # noqa: SIM118


def input_shapes(
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
    least, most = limits_of(pretrained, needed)
    if length is not None and not least["t"] <= length <= (most["t"] or length):
        raise ValueError(f"a {name} reads from {least['t']} to {most['t']}, got length {length}")
    sides = {side for _, shape in shapes.values() for side in shape if isinstance(side, str)}
    letters = sorted(sides - {"t"} if length else sides)
    limits = constraints_of({side: (least.get(side, 1), most.get(side)) for side in letters})
    symbols = dict(zip(letters, export.symbolic_shape(", ".join(letters), constraints=limits), strict=True))
    values = {"t": length, **symbols} if length else symbols
    return {
        each: jax.ShapeDtypeStruct(tuple(values.get(side, side) for side in shape), dtype)
        for each, (dtype, shape) in shapes.items()
    }


def limits_of(pretrained: Pretrained, needed: Sequence[str]) -> tuple[dict[str, int], dict[str, int | None]]:
    """Return the least and the most that sides may be; None for no limit."""
    config, most = pretrained.model.cfg, {"t": None, "s": None}
    if "input_ids" in needed:
        most["t"] = positions_of(config)
    if "decoder_input_ids" in needed:
        most["s"] = written_positions_of(config)
    return {"t": SAMPLES if "input_values" in needed else 1}, most


def constraints_of(limits: Mapping[str, Sequence[int | None]]) -> list[str]:
    """Return the least and the most that open sides may be as constraints of `jax.export`."""
    least = [f"{side} >= {least}" for side, (least, _) in limits.items() if least > 1]
    return least + [f"{side} <= {most}" for side, (_, most) in limits.items() if most]


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


def about_program(pretrained: Pretrained, given: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Say what a program takes and gives, for program.json.

    Args:
      given: shapes and types of the inputs, by name.
      made: of the outputs.
    """
    said = lambda tree: {  # noqa: E731
        name: {"dtype": str(each.dtype), "shape": [side if isinstance(side, int) else str(side) for side in each.shape]}
        for name, each in tree.items()
    }
    least, most = limits_of(pretrained, [*given])
    sides = {str(side) for each in given.values() for side in each.shape if not isinstance(side, int)}
    return {
        "architecture": pretrained.config["architectures"][0], "inputs": said(given), "outputs": said(made),
        "limits": {side: [least.get(side, 1), most.get(side)] for side in sorted(sides)}, "jax": jax.__version__,
    }  # fmt: skip


def types_of(about: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of a program's inputs, by name.

    Raises:
      ValueError: inputs that it does not have, or lacks.
    """
    if {*inputs} != {*about["inputs"]}:
        raise ValueError(f"the program takes {listed([*about['inputs']])}, got {listed([*inputs])}")
    return {name: each["dtype"] for name, each in about["inputs"].items()}


def computed_otherwise(pretrained: Pretrained, error: Exception) -> ValueError:
    """Return what is said where lengths decide how a checkpoint computes."""
    name, first = pretrained.config["architectures"][0], str(error).strip().splitlines()[0]
    return ValueError(
        f"a {name} computes otherwise for other lengths, which one program cannot; say which length: {first}"
    )


def largest_difference(
    pretrained: Pretrained, about: Mapping[str, Any], run: Callable[..., Mapping[str, Any]]
) -> float:
    """Run a program and its checkpoint on two batches of random inputs.

    Returns:
      by how much outputs differ, in parts of the largest value.

    Raises:
      ValueError: more than `CLOSE`.
    """
    draw, worst = np.random.default_rng(0), 0.0
    samples = SAMPLES if "input_values" in about["inputs"] else 1
    for sides in ({"b": 1, "t": 5 * samples, "s": 3}, {"b": 2, "t": 7 * samples, "s": 4}):
        inputs = {}
        for name, each in about["inputs"].items():
            shape = [sides.get(side, side) for side in each["shape"]]
            random = draw.normal(size=shape) if each["dtype"] == "float32" else draw.integers(0, 2, shape)
            inputs[name] = jnp.asarray(np.ones(shape) if name == "attention_mask" else random, each["dtype"])
        expected = jax.jit(lambda pretrained, inputs: named_outputs(pretrained(**inputs)))(pretrained, inputs)
        for name, found in run(**inputs).items():
            one, other = (np.asarray(each, np.float32) for each in (found, expected[name]))
            worst = max(worst, float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-6)))
    if not worst <= CLOSE:
        raise ValueError(f"the program's outputs differ from the checkpoint's by {worst:.2g} of the largest value")
    return worst


def write_beside(pretrained: Pretrained, about: Mapping[str, Any], folder: Path) -> None:
    """Write what a program says about itself, and the configuration, tokenizer and processor of its checkpoint."""
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    (folder / CONFIG).write_text(json.dumps(dict(pretrained.config), indent=2) + "\n")
    for each in (pretrained.tokenizer, pretrained.processor):
        if each is not None:
            each.save(folder)
