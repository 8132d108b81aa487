"""What is measured: a model with a batch of its own sizes, and what can be done to the two."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from flax_transformer.bench.family import FAMILIES, Batch
from flax_transformer.bench.flops import Flops, alone, count_flops
from flax_transformer.frozen import frozen
from flax_transformer.models.preset import module_of
from flax_transformer.nn import Precision, with_precision
from flax_transformer.parallel import MeshConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.step import make_train_step

ADAM = OptimizerConfig(learning_rate=1e-4, schedule=ScheduleConfig(name="constant"))
PROGRAMS = ("forward", "train", "decode")


@frozen
class Workload:
    """A model and one batch, with what can be done to them."""

    name: str
    dtype: str
    """What matrices are multiplied in; empty where only the program tells."""
    init: Callable[[jax.Array], Any]
    batch: Batch
    shape: dict[str, int]
    forward: Callable[[Any, Batch], Any]
    objective: Callable[..., Any] | None = None
    """What training minimises; None: nothing says."""
    decode: Callable[[Any, Batch], Any] | None = None
    """None: there is no telling how."""
    ready: Callable[[Any], Any] = lambda model: model
    """Lays the model out for `decode`."""
    items: int | None = None
    """How many of what a model is for come out of a call: positions, images, rows."""
    unit: str = "items"
    """What these are."""
    optimizer: OptimizerConfig = ADAM
    steps: int = 1_000
    """Of the run whose schedule the optimizer follows."""
    mesh: MeshConfig = MeshConfig()
    accumulate: int = 1
    ema: float = 0.0

    @property
    def programs(self) -> tuple[str, ...]:
        """What can be measured, in the order of `PROGRAMS`."""
        has = {"forward": True, "train": self.objective is not None, "decode": self.decode is not None}
        return tuple(name for name in PROGRAMS if has[name])


@frozen
class Size:
    """What the command line asks for; None leaves it to the target."""

    batch: int | None = None
    length: int | None = None
    vocab: int | None = None
    dtype: str | None = None
    remat: str | None = None
    """A name in `nn.stack.REMAT`."""
    documents: int | None = None
    """Packed in each row of a decoder-only preset, each seeing itself alone."""
    dropout: float | None = None
    """Every rate of it; attention with dropout of its weights is not fused."""

    def __post_init__(self):
        for name in ("batch", "length", "vocab", "documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be a positive number, got {value}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.vocab is not None and self.vocab < 2:
            raise ValueError(f"vocab must be at least 2, got {self.vocab}")


def compute_type(config: Any) -> str:
    """Find the compute type: of the first `Precision` in a config."""
    if isinstance(config, Precision):
        return config.compute
    if dataclasses.is_dataclass(config):
        found = (compute_type(getattr(config, field.name)) for field in dataclasses.fields(config))
        return next((dtype for dtype in found if dtype), "")
    return ""


def changed(config: Any, size: Size) -> Any:
    """Change type, rematerialisation and dropout, at any depth of a config."""
    config = config if size.dtype is None else with_precision(config, compute=size.dtype)
    config = config if size.remat is None else _with(config, lambda name: name == "remat", size.remat)
    return config if size.dropout is None else _with(config, lambda name: name.endswith("dropout"), size.dropout)


def _with(config: Any, chosen: Callable[[str], bool], value: Any) -> Any:
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    parts = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.init}
    return replace(config, **{k: value if chosen(k) else _with(v, chosen, value) for k, v in parts.items()})


def from_config(name: str, config: Any, size: Size, **changes: Any) -> Workload:
    """Make the workload of a model's config, with a batch of the size asked for.

    Args:
      changes: fields of the workload that are other than the family's.

    Raises:
      ValueError: for a model of no family that can be measured.
    """
    family = FAMILIES.get(type(config))
    if family is None:
        known = ", ".join(kind.__name__ for kind in FAMILIES)
        raise ValueError(f"{name} must be of a family that can be measured ({known}), got {type(config).__name__}")
    config = changed(config, size)
    batch = changes.pop("batch", None) or family.batch(config, size.batch or 32, size.length or 32)
    if size.documents is not None:
        batch = _packed(name, batch, size.documents)
    shape = family.shape(config, batch)
    return Workload(
        name=name,
        dtype=compute_type(config),
        items=shape["rows"] * shape.get("target", shape.get("length")),
        unit="tokens",
        **{
            "init": lambda key: module_of(config)(config, rngs=nnx.Rngs(key)),
            "batch": batch,
            "shape": shape,
            "forward": family.forward,
            "objective": family.objective,
            "decode": family.decode,
            "ready": family.ready,
            **changes,
        },
    )


def _packed(name: str, batch: Batch, documents: int) -> Batch:
    if "tokens" not in batch["inputs"] or "places" in batch:
        raise ValueError(f"documents are packed for decoder-only models alone, {name} is none")
    rows, length = batch["labels"].shape
    if documents > length:
        raise ValueError(f"a row of {length} tokens holds as many documents at most, got {documents}")
    of = np.arange(length) * documents // length
    fields = {"segments": of + 1, "positions": np.arange(length) - np.searchsorted(of, of)}
    packed = {name: np.broadcast_to(field.astype(np.int32), (rows, length)) for name, field in fields.items()}
    return {**batch, "inputs": {**batch["inputs"], **packed}}


def count_programs(workload: Workload, what: Sequence[str], optimizer: Any, state: Any) -> dict[str, Flops]:
    """Count the FLOPs of a model's programs, as on one device, whatever mesh is set.

    Args:
      state: of training, abstract.
    """
    with alone():
        made = {
            "forward": lambda: count_flops(workload.forward, state.model, workload.batch),
            "train": lambda: count_flops(train_step(workload, optimizer), state, workload.batch),
            "decode": lambda: count_flops(workload.decode, state.model, workload.batch),
        }
        return {name: made[name]() for name in what}


def train_step(workload: Workload, optimizer: Any) -> Callable:
    """Make the training step that is measured, and planned."""
    return make_train_step(workload.objective, optimizer, accumulate=workload.accumulate, ema=workload.ema)
