"""Which kernels of ours are modules of `transformers` that may have low-rank factors, and how those lie in theirs.

Axes: I inputs and O outputs of a tensor of theirs, which may have several kernels of ours side by side.
"""

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np

from flax_transformer.hub.adapter import ties
from flax_transformer.hub.quantized.model import plain
from flax_transformer.hub.table import Kernel, Layout, Shape
from flax_transformer.hub.weights import Entry, renamer, resolve
from flax_transformer.listing import listed
from flax_transformer.parallel import path_name
from flax_transformer.train.lora import LoraConfig
from flax_transformer.train.parameter_axis import parameter_axes

OUTPUT, TABLE = re.compile(r"(^|\.)head\.token\.embedding$"), re.compile(r"(^|\.)embedding\.token\.embedding$")
ALL_LINEAR = "all-linear"
ROUTED = re.compile(r"(^|\.)(experts|router)\.")


@dataclass(frozen=True)
class Placement:
    """Where a tensor of theirs [O, I, …] or [I, O] has the inputs and outputs of kernels of ours."""

    inputs: np.ndarray
    """[I]: which input of ours each of theirs is."""
    outputs: np.ndarray
    """[O]: which output of ours, those of one kernel after those of another."""
    turned: bool
    """Whether their tensor has inputs first."""


@dataclass(frozen=True)
class Target:
    """A row of a table whose tensors factors may change, one in each layer."""

    entry: Entry
    modules: tuple[str, ...]
    """What `transformers` calls the module of each layer."""
    inputs: int
    """How many axes of a kernel of ours are inputs."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Of our kernels that lie in one tensor of theirs."""
        return self.entry.row.ours

    @property
    def is_table(self) -> bool:
        """Whether tokens are looked up in it."""
        return TABLE.search(self.paths[0]) is not None

    @property
    def is_output(self) -> bool:
        """Whether it is a linear layer of theirs whose kernel is kept as a table of ours, transposed."""
        return OUTPUT.search(self.paths[0]) is not None

    @property
    def is_turned(self) -> bool:
        """Whether their linear layer keeps inputs first, as Conv1D does."""
        return self.placement.turned and not (self.is_table or self.is_output)

    @property
    def widths(self) -> list[int]:
        """How many outputs each kernel of ours has."""
        return [math.prod(shape[self.inputs :]) for shape in self.entry.shapes]

    @cached_property
    def placement(self) -> Placement:
        """Where inputs and outputs are."""
        try:
            return _placement(self.entry.row.layout, self.entry.shapes, self.inputs)
        except ValueError as error:
            raise ValueError(f"{listed(self.paths)} cannot have factors of {self.modules[0]}: {error}") from error


@cache
def _placement(layout: Layout, shapes: tuple[Shape, ...], inputs: int) -> Placement:
    """Follow every input and output of ours into their tensor."""
    sources, targets, before = [], [], 0
    for shape in shapes:
        rows, columns = math.prod(shape[:inputs]), math.prod(shape[inputs:])
        at = np.arange(rows, dtype=np.int32)[:, None], np.arange(columns, dtype=np.int32)[None] + before
        for found, part in zip((sources, targets), at, strict=True):
            found.append(np.broadcast_to(part, (rows, columns)).reshape(shape))
        before += columns
    source, target = (each.reshape(each.shape[0], -1) for each in map(layout.join, (sources, targets)))
    for turned, (ours, theirs) in enumerate(((source, target), (source.T, target.T))):
        if (ours == ours[:1]).all() and (theirs == theirs[:, :1]).all():
            return Placement(ours[0].copy(), theirs[:, 0].copy(), bool(turned))
    raise ValueError("its outputs are not the same of each input")


def targets_of(pretrained: Any) -> dict[str, Target]:
    """Return the rows whose tensors factors may change, by the path of each of our kernels in them.

    Kernels of experts, routers, positions and the like are no such modules of `transformers`, or not alone, as those
    that several modules share; convolutions of one channel alone have other factors in PEFT, transposed ones none.
    """
    family, model = pretrained.family, plain(pretrained.model)
    rename, leaves = renamer(family.modules), jax.tree_util.tree_leaves_with_path(parameter_axes(model))
    axes = {path_name(path): each for path, each in leaves}
    tied = ties(pretrained.config, pretrained.config["architectures"][0])
    found = {}
    for entry in resolve(family.rows(pretrained.architecture), model):
        path, name = entry.row.ours[0], entry.row.theirs
        table = TABLE.search(path) and not tied and not name.endswith("shared.weight")
        kernel = path.endswith(".kernel") and not ROUTED.search(path) and len(entry.leads) < 2
        depthwise = len(entry.shape) > 2 and entry.shape[1] == 1
        upward = isinstance(entry.row.layout, Kernel) and entry.row.layout.transposed
        kernel = kernel and not depthwise and not upward and not {*entry.names} & {*family.copies.values()}
        if (kernel or table or OUTPUT.search(path)) and name.endswith(".weight"):
            modules = tuple(rename(each).removesuffix(".weight") for each in entry.names)
            found |= dict.fromkeys(entry.row.ours, Target(entry, modules, axes[path].inputs))
    return found


def find_targets(config: LoraConfig, pretrained: Any) -> LoraConfig:
    """Return a config whose pattern is of the kernels that PEFT would adapt by the same `target_modules`.

    Queries, keys and values that are one module there have factors of the same rank each. Without `target_modules` the
    config stays as it is.

    Raises:
      ValueError: a name of no module, or of some layers of a stack alone, or of modules that have no factors.
    """
    if not config.target_modules:
        return config
    targets, chosen = targets_of(pretrained), {}
    for name in config.target_modules:
        found = {path: each for path, each in targets.items() if _is_meant(name, each, pretrained)}
        for target in found.values():
            apart = [module for module in target.modules if name != ALL_LINEAR and not _ends(module, name)]
            if apart:
                raise ValueError(f"the layers of a stack are adapted together, {name} is not {listed(apart)}")
        if not found:
            raise _no_module(name, targets.values(), pretrained)
        chosen |= found
    return replace(config, pattern=f"^(?:{'|'.join(map(re.escape, chosen))})$", target_modules=())


def _is_meant(name: str, target: Target, pretrained: Any) -> bool:
    """Return whether a row has modules that a name means."""
    if name != ALL_LINEAR:
        return any(_ends(module, name) for module in target.modules)
    texts = "classification" in pretrained.architecture.uses and pretrained.architecture.inputs.reads == ("text",)
    head = texts and target.modules in (("classifier",), ("score",))
    return not (target.is_table or target.is_output or head) and len(target.entry.shape) == 2


def _ends(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")


def _no_module(name: str, targets: Iterable[Target], pretrained: Any) -> ValueError:
    """Say why a name means no module that may have factors."""
    others = [module for module in modules_of(pretrained).values() if _ends(module, name)]
    if others:
        return ValueError(
            f"PEFT has factors of linear layers, convolutions and tables of tokens, each a module of transformers; "
            f"{name} is {listed(dict.fromkeys(others))}"
        )
    known = dict.fromkeys(module.rpartition(".")[2] for target in targets for module in target.modules)
    nearest = difflib.get_close_matches(name, known, len(known), 0.0)
    return ValueError(
        f"target_modules must name modules of the checkpoint, got {name!r:.60}, there are {listed(nearest)}"
    )


def modules_of(pretrained: Any) -> dict[str, str]:
    """Return what `transformers` calls the module of every tensor of a checkpoint, by the tensor's name in files."""
    rename = renamer(pretrained.family.modules)
    entries = resolve(pretrained.family.rows(pretrained.architecture), plain(pretrained.model))
    return {name: rename(name).rpartition(".")[0] for entry in entries for name in entry.names}


def shortest(modules: Iterable[str], among: Iterable[str]) -> list[str]:
    """Name modules as PEFT does: by the last parts of their names, where all that end so are meant.

    Args:
      modules: which are meant.
      among: all there are; what they are in is not meant either.

    >>> shortest(["h.0.attn.proj", "h.1.attn.proj"], ["h.0.attn.proj", "h.1.attn.proj", "h.0.mlp.proj"])
    ['attn.proj']
    """
    meant, others = set(modules), set(among)
    others |= {".".join(each.split(".")[:end]) for each in others for end in range(1, each.count(".") + 1)}
    ends: dict[str, set[str]] = {}
    for each in others | meant:
        parts = each.split(".")
        for start in range(len(parts)):
            ends.setdefault(".".join(parts[start:]), set()).add(each)
    found: dict[str, None] = {}
    for each in sorted(meant):
        parts = each.split(".")
        tails = (".".join(parts[start:]) for start in reversed(range(len(parts))))
        found[next((tail for tail in tails if ends[tail] <= meant), each)] = None
    return list(found)
