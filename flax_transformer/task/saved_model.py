"""A checkpoint as a SavedModel, which jax2tf writes and TensorFlow runs back."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
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
    constraints_of,
    input_shapes,
    largest_difference,
    made_whole,
    named_parameters,
    types_of,
    write_beside,
)

SAVED_MODEL, SIGNATURE = "saved_model.pb", "serving_default"
NEEDED = 'a SavedModel takes TensorFlow: pip install "flax-transformer[tensorflow]"'


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A program that was written by `export_saved_model`; `program(**inputs)` gives outputs by name."""

    loaded: Any
    """What `tf.saved_model.load` returns."""
    about: Mapping[str, Any]
    """What program.json says: inputs and outputs with their types and shapes, platforms, versions."""

    def __call__(self, **inputs: Any) -> Arrays:
        """Run it.

        Raises:
          ValueError: inputs that it does not have, or lacks; TensorFlow says which shapes do not fit.
        """
        tf = _tensorflow()
        given = {
            name: tf.constant(np.asarray(inputs[name], dtype)) for name, dtype in types_of(self.about, inputs).items()
        }
        return {name: each.numpy() for name, each in self.loaded.signatures[SIGNATURE](**given).items()}


def export_saved_model(
    pretrained: Pretrained,
    folder: str | Path,
    *,
    platforms: Sequence[str] = PLATFORMS,
    length: int | None = None,
    image: tuple[int, int] | None = None,
) -> SavedModel:
    """Write a checkpoint's forward pass as a SavedModel of TensorFlow, and run it beside the checkpoint.

    The folder gets `saved_model.pb` and `variables/`, which `tf.saved_model.load` and TensorFlow Serving read without
    JAX; `program.json`, which says what it is given and gives; and the checkpoint's configuration, tokenizer and
    processor. Its signature `serving_default` has inputs and outputs by the names of `transformers`. Rows and lengths
    stay open as in `task.program.export_program`. It has no gradient.

    Args:
      folder: a new or empty one.
      platforms: where it may run.
      length: tokens of a text, or samples of a recording, of a model whose computation depends on it; open by default.
      image: height and width of images, of a model that takes any; by default what the model has.

    Raises:
      ValueError: as `export_program`; a checkpoint with parts that TensorFlow cannot run; without the package
        tensorflow.
    """
    folder, tf = check_target(folder, length), _tensorflow()
    check_platforms(platforms)
    parameters, given = named_parameters(pretrained), input_shapes(pretrained, length, image)
    run = jax.jit(as_function(pretrained, [*parameters]))
    try:
        made = jax.eval_shape(run, parameters, given)
    except jax.errors.InconclusiveDimensionOperation as error:
        raise computed_otherwise(pretrained, error) from error
    about = {**about_program(pretrained, given, made), "platforms": [*platforms], "tensorflow": tf.__version__}
    with made_whole(folder):
        try:
            _save(run, parameters, about, folder)
            program = SavedModel(tf.saved_model.load(folder), about)
            about["largest_difference"] = largest_difference(pretrained, about, program)
        except Exception as error:  # of whatever kind TensorFlow has
            raise ValueError(f"a {about['architecture']} has no SavedModel: {_lacking(error)}") from error
        write_beside(pretrained, about, folder)
    return program


def open_saved_model(folder: str | Path) -> SavedModel:
    """Read a SavedModel.

    Raises:
      FileNotFoundError: a folder without one.
      ValueError: without the package tensorflow.
    """
    folder = Path(folder)
    check_files(folder, SAVED_MODEL, ABOUT)
    return SavedModel(_tensorflow().saved_model.load(folder), read_json(folder / ABOUT))


def _lacking(error: Exception) -> str:
    """Say why there is no SavedModel: versions that do not go together, or else the first line that is of the error."""
    said = str(error)
    if versions := re.search(r"produced by: StableHLO_v([\d.]+).*using StableHLO_v([\d.]+)", said, re.DOTALL):
        return (
            f"JAX {jax.__version__} writes StableHLO {versions[1]}, TensorFlow {_tensorflow().__version__} reads "
            f"{versions[2]}; it takes a newer TensorFlow, as tf-nightly may be, or an older JAX"
        )
    frame = ("Graph execution error", "Detected at", "<stack traces")
    return next((line for line in said.strip().splitlines() if line and not line.startswith(frame)), said)


def _save(run: Any, parameters: Mapping[str, Any], about: Mapping[str, Any], folder: Path) -> None:
    """Write a function of parameters and inputs as a SavedModel: parameters are variables, inputs its signature's."""
    from jax.experimental import jax2tf

    tf, inputs = _tensorflow(), about["inputs"]
    converted = jax2tf.convert(
        run, with_gradient=False, native_serialization_platforms=about["platforms"],
        polymorphic_shapes=[None, {name: f"({', '.join(map(str, each['shape']))})" for name, each in inputs.items()}],
        polymorphic_constraints=constraints_of(about["limits"]),
    )  # fmt: skip
    module = tf.Module()
    module.parameters = {
        name: tf.Variable(np.asarray(leaf), trainable=False, name=name) for name, leaf in parameters.items()
    }
    module.run = tf.function(lambda **inputs: converted(module.parameters, inputs), autograph=False)
    signature = module.run.get_concrete_function(**{
        name: tf.TensorSpec([side if isinstance(side, int) else None for side in each["shape"]], each["dtype"], name)
        for name, each in inputs.items()
    })  # fmt: skip
    tf.saved_model.save(module, folder, {SIGNATURE: signature})


def _tensorflow() -> Any:
    first = "tensorflow" not in sys.modules
    try:
        import tensorflow
    except ImportError as error:
        raise ValueError(NEEDED) from error
    if first:
        tensorflow.config.set_visible_devices([], "GPU")  # JAX has their memory
    return tensorflow
