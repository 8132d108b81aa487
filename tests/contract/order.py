"""What the order of a model's layers must be, told from the names of its parameters alone."""

import itertools
import re

import jax
import numpy as np

from flax_transformer.parallel import path_name
from flax_transformer.train.order import layer_distances
from flax_transformer.train.parameter_axis import parameter_axes

LAYER = re.compile(r"^(.*?)(dense_blocks|blocks|rest|first|block|halt|reader|writer|forward\.\d+|backward\.\d+)\.")
"""What a parameter of a layer is called, but for heads."""
ENTRY = re.compile(
    r"(^|\.)(patches|patch_norm|stem|front|front_norm|conv_front|class_token|distillation_token|register_tokens|mask_token|positions?|"
    r"places|times?|time_in|time_out|class_table|kind|queries|query_positions|(source_)?embedding|bucket|shared|length|regions\.(feature|place)\w*)(\.|$)"
)
"""What inputs come to first, wherever it is."""
BETWEEN = re.compile(
    r"(^encoder\.head|(^|\.)(merges?\.?\d|embeddings\.[1-9]|split|project|bridge|look|fed|frames|"
    r"encoder\.last|neck|encoded|decoded|decoder\.stem|middle|resize|merger|levels|"
    r"pixels\.(project|lateral|smooth|output)\w*|project\d))(\.|$)"
)
"""What lies between layers, where it lies beside them."""
HEAD = re.compile(
    r"(^|^model\.|^(model\.)?(text|vision)\.)(head|(\w+_)?head|scores|boxes|masks|output_bias|log_scale|bias|answers|sentence|dense|output|action|state|left|"
    r"features|objects|attributes|region_dense|join|modulation|copy_\w+|generate|decoder\.last)(\.|$)"
)
BELOW = (
    ("encoder.", "decoder."), ("backbone.", "encoder."), ("vision.", "text."), ("trunk.", "cross_trunk."),
    ("region_trunk.", "cross_trunk."), ("encoder.vision.", "decoder."),
)  # fmt: skip
"""Parts of which the first lies below the second, but for towers beside each other."""


def told(model):
    """Return the distance of every parameter by its path, as a flat list, the lowest layer first."""
    distances = jax.tree_util.tree_leaves_with_path(layer_distances(model))
    return {path_name(path): np.ravel(each).tolist() for path, each in distances}


def check_order(model, *, towers=False):
    """Check that what names tell of the order of layers is what the model says."""
    found = told(model)
    inside = {name: match for name in found if (match := LAYER.match(name)) and not HEAD.match(name)}
    depth = max(max(found[name]) for name in inside)
    assert {each for name in inside for each in found[name]} == set(range(1, depth + 1)), "a layer is missing"
    stacks = {}
    for name, distances in found.items():
        if name in inside:
            assert np.all(np.diff(distances) == -1), f"{name}: layers must lie on top of each other, {distances}"
            stacks.setdefault(inside[name][1] + inside[name][2], set()).add(tuple(distances))
        elif HEAD.match(name):
            assert distances == [0], f"{name} is of the heads, got {distances}"
        elif BETWEEN.search(name):
            assert 0 <= distances[0] <= depth + 1, name
        elif ENTRY.search(name):
            assert distances == [depth + 1], f"{name} must lie below all of {depth} layers, got {distances}"
        else:
            assert re.search(r"norm\d?\.(scale|bias)$", name) or name.startswith(("actions.", "states.", "returns.")), (
                name
            )
    for path, seen in stacks.items():
        assert len(seen) == 1, f"parameters of one stack, {path}, must agree, got {seen}"
    check_stacks({path: seen.pop() for path, seen in stacks.items()}, towers)


def check_stacks(stacks, towers):
    """Check which stacks lie on which."""
    for (low, lower), (high, upper) in itertools.permutations(stacks.items(), 2):
        (ahead, number), (other, later) = _numbered(low), _numbered(high)
        if ahead == other and number < later:
            assert min(lower) > max(upper), f"{low} must lie below {high}"
        if low.endswith("dense_blocks") and high == f"{low.removesuffix('dense_blocks')}blocks":
            assert min(lower) == max(upper) + 1, f"{low} must lie right below {high}"
        if low.endswith("first") and high == f"{low.removesuffix('first')}rest":
            assert min(lower) == max(upper) + 1, f"{low} must lie right below {high}"
        for first, second in () if towers else BELOW:
            begins = [re.search(rf"(^|\.){re.escape(part)}", path) for part, path in ((first, low), (second, high))]
            if all(begins) and low[: begins[0].start()] == high[: begins[1].start()]:
                assert min(lower) > max(upper), f"{low} must lie below {high}"
    if towers:
        assert {min(each) for each in stacks.values()} == {1}, "the last layers of towers must be level"


def _numbered(path):
    """Return what is before the first number in a path, and the number."""
    found = re.match(r"(.*?[a-z.])(\d+)", path.replace("backward", "forward"))
    return (found[1], int(found[2])) if found else (path, 0)


def check_axes(model):
    """Check that every parameter has the axes of layers of the stacks it lies in, and a kernel those of a matrix."""
    axes = jax.tree.leaves(parameter_axes(model))
    for (path, leaf), its in zip(jax.tree_util.tree_leaves_with_path(model), axes, strict=True):
        name = path_name(path)
        stacked = bool(re.search(r"(^|\.)(dense_blocks|blocks|rest)\.|(^|\.)(boxes|masks)\.dense\.", name))
        layers = stacked + bool(re.search(r"\.experts\.", name))
        assert its.layers == layers, f"{name} {leaf.shape} must have {layers} axes of layers, got {its}"
        assert its.layers + its.inputs + its.outputs == leaf.ndim, name
        assert bool(its.inputs) == bool(re.search(r"(kernel|embedding)$", name)), f"{name} {its}"
        if re.search(r"(conv\d?|convolution|each|narrow|patches|patch|tubelet|residual|places)\.kernel$", name):
            assert its.outputs == 1, f"{name} {leaf.shape} must be a matrix of windows and outputs, got {its}"
