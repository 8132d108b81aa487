"""A checkpoint as an ONNX program, which jax2onnx writes and ONNX Runtime runs back."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.file import read_json
from flax_transformer.ops.dropless import all_at_once
from flax_transformer.task.exported import (
    ABOUT,
    Arrays,
    about_program,
    check_files,
    check_target,
    computed_otherwise,
    input_shapes,
    largest_difference,
    made_whole,
    named_outputs,
    types_of,
    write_beside,
)

ONNX = "model.onnx"
NEEDED = 'ONNX takes jax2onnx: pip install "flax-transformer[onnx]" && pip install --no-deps jax2onnx'


@dataclass(frozen=True, eq=False)
class OnnxProgram:
    """A program that was written by `export_onnx`; `program(**inputs)` gives outputs by name, on a CPU."""

    session: Any
    """An `onnxruntime.InferenceSession`."""
    about: Mapping[str, Any]
    """What program.json says: inputs and outputs with their types and shapes, versions."""

    def __call__(self, **inputs: Any) -> Arrays:
        """Run it.

        Raises:
          ValueError: inputs that it does not have, or lacks; ONNX Runtime says which shapes do not fit.
        """
        given = {name: np.asarray(inputs[name], dtype) for name, dtype in types_of(self.about, inputs).items()}
        names = [*self.about["outputs"]]
        return dict(zip(names, self.session.run(names, given), strict=True))


def export_onnx(
    pretrained: Pretrained, folder: str | Path, *, rows: int | None = None, length: int | None = None,
    image: tuple[int, int] | None = None,
) -> OnnxProgram:  # fmt: skip
    """Write a checkpoint's forward pass as an ONNX program, and run it beside the checkpoint.

    The folder gets `model.onnx`, large parameters in `model.onnx.data`; `program.json`, which says what it is given and
    gives; and the checkpoint's configuration, tokenizer and processor. Inputs and outputs have the names of
    `transformers`. Rows and lengths that are not given stay open; jax2onnx can say so of most families, not of all.

    Args:
      folder: a new or empty one.
      rows: of a batch.
      length: as `task.program.export_program` takes it; all lengths are fixed then, also of what is written.
      image: height and width of images, of a model that takes any; by default what the model has.

    Raises:
      ValueError: as `export_program`; a checkpoint with parts for which jax2onnx or ONNX Runtime has no translation;
        without the packages jax2onnx and onnxruntime.
    """
    folder, to_onnx = check_target(folder, length), _jax2onnx()
    given = input_shapes(pretrained, length, image)
    if rows is not None and rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    given = {name: _fixed(each, {"b": rows, "s": length}) for name, each in given.items()}
    traced, made = _traced(pretrained, given)
    about = about_program(pretrained, given, made)
    with made_whole(folder):
        try:
            names = {name: _origin(traced.jaxpr, var) for name, var in zip(made, traced.jaxpr.outvars, strict=True)}
            firsts = {value: name for name, value in reversed(names.items())}
            with _quiet():
                to_onnx(
                    _distinct(traced, firsts.values(), names), [*given.values()], model_name=about["architecture"],
                    input_names=[*given], output_names=[*firsts.values()], return_mode="file",
                    output_path=str(folder / ONNX),
                )  # fmt: skip
            _add_names(folder, {name: firsts[value] for name, value in names.items() if firsts[value] != name})
            program = OnnxProgram(_session(folder), about)
            about["largest_difference"] = largest_difference(pretrained, about, program)
        except Exception as error:  # of whatever kind jax2onnx and ONNX Runtime have
            raise ValueError(f"a {about['architecture']} has no ONNX{_lacking(error)}") from error
        write_beside(pretrained, about, folder)
    return program


def open_onnx(folder: str | Path) -> OnnxProgram:
    """Read an ONNX program.

    Raises:
      FileNotFoundError: a folder without one.
    """
    folder = Path(folder)
    check_files(folder, ONNX, ABOUT)
    return OnnxProgram(_session(folder), read_json(folder / ABOUT))


def _fixed(given: jax.ShapeDtypeStruct, sides: Mapping[str, int | None]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(sides.get(str(side)) or side for side in given.shape), given.dtype)


def _lacking(error: Exception) -> str:
    """Say why there is no ONNX: what must not stay open, or else the first line of an error."""
    first = str(error).strip().splitlines()[0]
    if isinstance(error, jax.errors.InconclusiveDimensionOperation):
        of = "rows" if "'b'" in first else "length"
        return f" with {of} open; say which {of}: {first}"
    return f": {first}"


def _traced(pretrained: Pretrained, given: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[Any, dict[str, Any]]:
    """Trace a checkpoint, and return the outputs' shapes by name in the order of the program's.

    jax2onnx has substitutes for functions of `jax.numpy`, which take less than those do; what is traced has none.
    """

    def run(*arrays: Any) -> dict[str, Any]:
        return named_outputs(pretrained(**dict(zip(given, arrays, strict=True))))

    try:
        with all_at_once():
            traced, made = jax.make_jaxpr(run, return_shape=True)(*given.values())
    except jax.errors.InconclusiveDimensionOperation as error:
        raise computed_otherwise(pretrained, error) from error
    return traced, dict(sorted(made.items()))


def _origin(jaxpr: Any, var: Any) -> Any:
    """Return what stands for a value, wherever it was computed: the same of two outputs that are one."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("jit", "pjit") and var in eqn.outvars:
            inner = eqn.params["jaxpr"].jaxpr
            return _origin(inner, inner.outvars[eqn.outvars.index(var)])
    return var


def _distinct(traced: Any, firsts: Collection[str], names: Mapping[str, Any]) -> Callable[..., list[Any]]:
    """Return the traced function, of whose outputs those of one value are one, as jax2onnx asks for."""
    run = jex_core.jaxpr_as_fun(traced)

    def distinct(*arrays: Any) -> list[Any]:
        given = dict(zip(names, run(*arrays), strict=True))
        return [given[name] for name in firsts]

    return distinct


def _add_names(folder: Path, firsts: Mapping[str, str]) -> None:
    """Give outputs their other names too: those of `firsts`, by name."""
    import onnx

    if not firsts:
        return
    program = onnx.load(folder / ONNX, load_external_data=False)
    outputs = {each.name: each for each in program.graph.output}
    for name, first in firsts.items():
        program.graph.node.append(onnx.helper.make_node("Identity", [first], [name]))
        program.graph.output.append(outputs[first])
        program.graph.output[-1].name = name
    onnx.save(program, folder / ONNX)


def _jax2onnx() -> Callable[..., Any]:
    try:
        with _quiet():
            import onnxruntime  # noqa: F401
            from jax2onnx import to_onnx
    except ImportError as error:
        raise ValueError(NEEDED) from error
    return to_onnx


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back warnings of examples whose packages are missing, and of sides that are open."""
    logs = [logging.getLogger(name) for name in ("jax2onnx", "onnx_ir")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _session(folder: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ValueError(NEEDED) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    return onnxruntime.InferenceSession(str(folder / ONNX), options, providers=["CPUExecutionProvider"])
