"""What programs of golden checkpoints are given, and that they give what transformers said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hub.test_golden import real_positions

OTHER = {
    "decision_transformer": "reads trajectories", "dit": "a program is of texts, images and recordings",
    "lxmert": "a program is of texts", "siglip2": "reads patches of images of any shape",
    "whisper": "needs a feature extractor",
    "timesformer": "reads videos", "videomae": "reads videos", "vivit": "reads videos",
}  # fmt: skip
"""What has no program, and why."""


def read_expected(golden: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return what a golden checkpoint was given, and what is expected of it."""
    with np.load(golden / "expected.npz") as arrays:
        expected = dict(arrays)
    return {name.removeprefix("in_"): value for name, value in expected.items() if name.startswith("in_")}, expected


def with_what_is_asked_for(export: Any, given: dict[str, np.ndarray]) -> Any:
    """Call `export` with what may stay open, and then with the sides at hand that must be said."""
    options: dict[str, Any] = {}
    for _ in range(3):
        try:
            return export(**options)
        except ValueError as error:
            if "say which rows" in str(error):
                options["rows"] = len(next(iter(given.values())))
            elif "say which length" in str(error):
                options["length"] = given["input_ids"].shape[1]
            elif "takes any: say which" in str(error):
                options["image"] = given["pixel_values"].shape[2:]
            else:
                raise
    return export(**options)


def assert_as_expected(program: Any, given: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Run a program on a golden checkpoint's inputs; skip where these do not fit it."""
    said, limits = program.about["inputs"], program.about["limits"]
    blank = {"attention_mask": np.ones, "token_type_ids": np.zeros}
    shape = next(iter(given.values())).shape
    inputs = {name: given[name] if name in given else blank[name](shape) for name in said}

    def fits(side: Any, length: int) -> bool:
        return side == length if isinstance(side, int) else limits[side][0] <= length <= (limits[side][1] or length)

    odd = [
        name for name, each in said.items()
        if len(each["shape"]) != inputs[name].ndim or not all(map(fits, each["shape"], inputs[name].shape))
    ]  # fmt: skip
    if rest := {*given} - {*inputs} | {*odd}:
        pytest.skip(f"the golden inputs have other shapes than the program, or more: {sorted(rest)}")
    got, compared = program(**inputs), 0
    for name, value in expected.items():
        if name.removeprefix("out_") in got and name.startswith("out_"):
            found, real = np.asarray(got[name.removeprefix("out_")]), real_positions(name, value, given)
            assert np.abs(found - value)[real].max() <= 1e-5 * np.abs(value[real]).max(), name
            compared += 1
    assert compared
