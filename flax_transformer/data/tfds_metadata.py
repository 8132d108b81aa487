"""Data sets that TFDS has prepared: what is looked at before TFDS opens one."""

import json
from collections.abc import Iterator
from typing import Any


def refuse_code(path: Any) -> None:
    """Refuse a features.json by which TFDS would import code that is not its own.

    Raises:
      ValueError: it names a class from elsewhere, or is no JSON.
    """
    try:
        kinds = list(_kinds(json.loads(path.read_text())))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON: {first_line(error)}") from error
    foreign = next((kind for kind in kinds if not str(kind).startswith("tensorflow_datasets.core.features.")), None)
    if foreign is not None:
        raise ValueError(f"{path} may name features of TFDS, it names {foreign!r}")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its kind if it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _kinds(features: Any) -> Iterator[Any]:
    """Return the class names in a features.json, which TFDS imports; also those of its older forms."""
    if isinstance(features, dict):
        yield from (features[key] for key in ("pythonClassName", "python_class_name") if key in features)
        yield from (features[key] for key in ("type",) if isinstance(features.get(key), str))
        if {"jsonFeature", "json_feature"} & features.keys():
            yield "JSON inside of JSON"
    for part in features.values() if isinstance(features, dict) else features if isinstance(features, list) else ():
        yield from _kinds(part)
