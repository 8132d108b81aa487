"""What is measured: a model with a batch of its own sizes, and what can be done to the two."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.interpreters import partial_eval

from flax_transformer.bench.flops import Flops, alone, count_flops
from flax_transformer.bench.timing import Program, array_shape
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.compress.quantize import GROUP
from flax_transformer.decode import Greedy, Parallel, greedy
from flax_transformer.frozen import frozen
from flax_transformer.models.preset import module_of
from flax_transformer.nn import Precision, own_tables, quantize_cache, with_fields, with_precision
from flax_transformer.nn.cache import check_cache_kind
from flax_transformer.nn.config import check_at_least, check_rates, configs_in, field_names
from flax_transformer.nn.quantized import BITS, check_kind
from flax_transformer.objective import OBJECTIVES
from flax_transformer.ops.platform import platform
from flax_transformer.parallel import MeshConfig, path_name, row_parts
from flax_transformer.parallel.axis import spelled
from flax_transformer.train.carry import NOTHING, Carry, carry_of
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import TrainState, abstract_state, parameter_count
from flax_transformer.train.step import make_train_step

Batch = dict[str, Any]
ADAM = OptimizerConfig(learning_rate=1e-4, schedule=ScheduleConfig(name="constant"))
PROGRAMS = ("forward", "train", "decode")


@frozen
class Facts:
    """What is known of a target before it is compiled."""

    name: str
    parameters: int | None
    """Of a model; None of a function."""
    shape: dict[str, int]
    dtype: str
    items: int | None
    """How many of what it is for come out of a call: tokens, images, rows; None where nothing says."""
    unit: str
    """What these are."""
    flops: dict[str, Flops]
    """By program, on all devices together."""


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
    start: Callable[[Any, Batch, int], tuple[Any, Any]] | None = None
    """What decoding by `step` begins with: a cache with room for so many tokens, and a token of each row."""
    items: int | None = None
    """As those of `Facts`."""
    unit: str = "items"
    optimizer: OptimizerConfig = ADAM
    train: TrainConfig = TrainConfig()
    """The steps that the optimizer's schedule follows, `accumulate` and `ema`."""
    mesh: MeshConfig = MeshConfig()

    @property
    def programs(self) -> tuple[str, ...]:
        """What can be measured, in the order of `PROGRAMS`."""
        has = {"forward": True, "train": self.objective is not None, "decode": self.decode is not None}
        return tuple(name for name in PROGRAMS if has[name])

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return self.shape["rows"]

    @property
    def state(self) -> TrainState:
        """The state of training, abstract; without one of the optimizer where nothing is trained."""
        trained = self.objective is not None
        optimizer = make_optimizer(self.optimizer, self.train.steps) if trained else optax.set_to_zero()
        return abstract_state(self.init, optimizer, ema=self.train.ema > 0, carry=self.carry)

    @property
    def carry(self) -> Carry:
        """What the objective carries."""
        return NOTHING if self.objective is None else carry_of(self.objective)

    @property
    def step(self) -> Callable:
        """The training step that is measured, and planned."""
        optimizer = make_optimizer(self.optimizer, self.train.steps)
        return make_train_step(self.objective, optimizer, accumulate=self.train.accumulate, ema=self.train.ema)

    def check_rows(self, sizes: Mapping[str, int]) -> None:
        """Raise ValueError where a mesh of these sizes cannot share out the rows."""
        parts, accumulate = row_parts(sizes), self.train.accumulate
        if self.rows % (parts * accumulate):
            raise ValueError(
                f"rows must be a multiple of {parts} × {accumulate} ({spelled('batch')}, and accumulate), got "
                f"{self.rows}; --batch sets them"
            )

    def learning(self, model: Any) -> list[bool]:
        """Return of each parameter whether it gets a gradient: the loss depends on it, and it is not frozen."""
        paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)]
        free = [bool(re.search(self.optimizer.trainable, path)) for path in paths]
        if self.carry is not NOTHING:
            return free
        with alone():

            def loss(model, batch):
                return self.objective(model, batch, key=jax.random.key(0))[0]

            closed = jax.make_jaxpr(loss)(model, self.batch)
        used = partial_eval.dce_jaxpr(closed.jaxpr, [True])[1]
        return [one and other for one, other in zip(free, used, strict=False)]  # after the parameters comes the batch

    def facts(self, what: Sequence[str], state: TrainState | None = None) -> Facts:
        """Return what is known; FLOPs are counted as on one device, whatever mesh is set."""
        state = self.state if state is None else state
        made = {"forward": (self.forward, state.model), "decode": (self.decode, state.model)}
        made |= {"train": (self.step, state)} if "train" in what else {}
        with alone():
            flops = {name: count_flops(*made[name], self.batch) for name in what}
        return Facts(
            name=self.name, parameters=parameter_count(state.model), shape=self.shape, items=self.items,
            unit=self.unit, flops=flops, dtype=self.dtype or flops[what[-1]].dtype,
        )  # fmt: skip


def program_facts(name: str, program: Program, items: int | None = None, unit: str = "items") -> Facts:
    """Return what is known of any function; its FLOPs are by its name without the file's."""
    flops = count_flops(program.function, *program.arguments)
    return Facts(
        name=name, parameters=None, shape=array_shape(program.arguments), dtype=flops.dtype, items=items, unit=unit,
        flops={name.rpartition(":")[2]: flops},
    )  # fmt: skip


@frozen
class Size:
    """What the command line asks for; None leaves it to the target."""

    batch: int | None = None
    length: int | None = None
    vocab: int | None = None
    dtype: str | None = None
    params: str | None = None
    """What parameters are kept in; those of 16 bits are not trained."""
    remat: str | None = None
    """A name in `nn.REMAT`."""
    documents: int | None = None
    """Packed in each row of a decoder-only preset, each seeing itself alone."""
    dropout: float | None = None
    """Every rate of it; attention with dropout of its weights is not fused."""
    accumulate: int | None = None
    """Parts that a training step takes its batch in, one after the other."""
    weights: str | None = None
    """What kernels are rounded to, as `compress.Quantization` has it; such a model is not trained."""
    group: int | None = None
    """Inputs that share a scale; None: 64 with 4 bits, else all of an output's."""
    activations: str | None = None
    """What the inputs of products with them are rounded to."""
    cache: str | None = None
    """What keys and values are rounded to while decoding, as `nn.quantize_cache` has it."""
    capacity: float | None = None
    """That of experts, as `ExpertsConfig` has it: without one none of them drops a token."""

    @property
    def quantization(self) -> Quantization | None:
        """What becomes of kernels."""
        if self.weights is None:
            return None
        group = GROUP if self.group is None and BITS[self.weights] == 4 else self.group
        return Quantization(weights=self.weights, group=group, activations=self.activations)

    def __post_init__(self):
        check_at_least(self, 1, "batch", "length", "documents", "accumulate", "group")
        check_at_least(self, 2, "vocab")
        if self.dropout is not None:
            check_rates(self, "dropout")
        if self.weights is not None:
            check_kind(self.weights)
        elif self.activations is not None:
            raise ValueError(f"activations={self.activations!r} go with weights of few bits, got none")
        elif self.group is not None:
            raise ValueError(f"group={self.group} is of weights of few bits, got none")
        if self.cache is not None:
            check_cache_kind(self.cache)


def compute_type(config: Any) -> str:
    """Find the compute type: of the first `Precision` in a config; empty where it has none."""
    return next((each.compute for each in configs_in(config) if isinstance(each, Precision)), "")


def changed(config: Any, size: Size) -> Any:
    """Change types, rematerialisation and dropout, at any depth of a config."""
    numbers = {name: value for name, value in (("compute", size.dtype), ("params", size.params)) if value is not None}
    config = with_precision(config, **numbers) if numbers else config
    rates = [name for name in field_names(config) if name.endswith("dropout")]
    changes = {} if size.dropout is None else dict.fromkeys(rates, size.dropout)
    changes |= {} if size.remat is None else {"remat": size.remat}
    if size.capacity is not None and "experts" not in field_names(config):
        raise ValueError(f"a capacity is of experts, {type(config).__name__} has none, got {size.capacity}")
    changes |= {} if size.capacity is None else {"capacity": size.capacity}
    return with_fields(config, **changes) if changes else config


def measurable(config: Any) -> type | None:
    """Find the `Measurable` class of a config; None where there is none, or it does not say how its models are fed."""
    try:
        found = module_of(config)
    except ValueError:
        return None
    return found if hasattr(found, "example_batch") else None


def from_config(name: str, config: Any, size: Size, rules: Sequence[Quantization] = (), **changes: Any) -> Workload:
    """Make the workload of a model's config, with a batch of the size asked for.

    Args:
      rules: what becomes of kernels, where the size asks for nothing.
      changes: fields of the workload that are other than what the model says.

    Raises:
      ValueError: for a model that does not say how it is fed.
    """
    model = measurable(config)
    if model is None:
        raise ValueError(
            f"{name} must be a model that says by example_batch how it is fed, {type(config).__name__} not"
        )
    config = changed(config, size)
    batch = changes.pop("batch", None) or model.example_batch(config, size.batch or 32, size.length)
    if size.documents is not None:
        batch = _packed(name, model.use, batch, size.documents)
    shape, items, unit = model.describe_batch(config, batch)
    rules = tuple(rules) if size.quantization is None else (size.quantization,)

    def init(key: jax.Array) -> Any:
        made = config.build(nnx.Rngs(key))
        return quantize_model(made, rules) if rules else made

    made = {
        "init": init,
        "forward": forward,
        "objective": OBJECTIVES.get(model.use) if not rules and size.params in (None, "float32") else None,
        "decode": DECODERS.get(model.use),
    }
    if model.use in STARTS:
        made["start"] = partial(_start, STARTS[model.use], size.cache)
        made["decode"] = partial(_by_step, made["start"])
    elif size.cache is not None:
        raise ValueError(f"a cache is of models that decode token by token, {name} has none to round to {size.cache}")
    if size.accumulate is not None:
        made["train"] = replace(changes.pop("train", TrainConfig()), accumulate=size.accumulate)
    described = {"dtype": compute_type(config), "shape": dict(shape), "items": items, "unit": unit}
    return Workload(name=name, batch=batch, **described, **{**made, **changes})


def _packed(name: str, use: str, batch: Batch, documents: int) -> Batch:
    if use != "text-generation":
        raise ValueError(f"documents are packed for decoder-only models alone, {name} is none")
    rows, length = batch["labels"].shape
    if documents > length:
        raise ValueError(f"a row of {length} tokens holds as many documents at most, got {documents}")
    of = np.arange(length) * documents // length
    fields = {"segments": of + 1, "positions": np.arange(length) - np.searchsorted(of, of)}
    packed = {name: np.broadcast_to(field.astype(np.int32), (rows, length)) for name, field in fields.items()}
    return {**batch, "inputs": {**batch["inputs"], **packed}}


def forward(model: Any, batch: Batch) -> Any:
    """Compute what a model is called for, without dropout: logits, scores, or hidden states where it has no output."""
    hidden = model.hidden_states(**batch["inputs"])
    made = model.output(hidden) if hasattr(model, "output") else hidden
    return made.logits() if callable(getattr(made, "logits", None)) else made


def hidden(model: Any, batch: Batch) -> Any:
    """Compute the hidden states of a model that is called for them alone, whatever it could make of them."""
    return model.hidden_states(**batch["inputs"])


def ready(model: Any) -> Any:
    """Lay a model out as decoding wants it on this platform: on a CPU by its `for_decoding`, else as it is."""
    lay_out = getattr(type(model), "for_decoding", None)
    return jax.jit(lay_out)(model) if lay_out and platform() == "cpu" else model


def _continue(model: Any, batch: Batch, length: int) -> tuple[Any, Any]:
    tokens = batch["inputs"]["tokens"]
    return model.init_cache(len(tokens), length), jnp.asarray(tokens[:, 0])


def _respond(model: Any, batch: Batch, length: int) -> tuple[Any, Any]:
    inputs = batch["inputs"]
    lengths, begin = inputs.get("lengths"), jnp.ones(len(batch["labels"]), jnp.int32)
    return model.init_cache(model.encode(inputs["source"], lengths), lengths, length), begin


STARTS = {"text-generation": _continue, "text2text-generation": _respond}
"""What decoding token by token begins with, by what a model can do."""


def _start(begin: Callable, rounds: str | None, model: Any, batch: Batch, length: int) -> tuple[Any, Any]:
    cache, token = begin(model, batch, length)
    return quantize_cache(cache, rounds), token


def _by_step(start: Callable, model: Any, batch: Batch) -> Any:
    model, config = own_tables(model), _endless(batch)
    cache, token = start(model, batch, config.stages[0])
    return greedy(partial(type(model).step, model), cache, token, config, grow=getattr(type(cache), "grow", None))


def _at_once(model: Any, batch: Batch, iterations: int) -> Any:
    inputs, length = batch["inputs"], batch["labels"].shape[1]
    config = Parallel(max_length=length, mask=1, iterations=iterations)
    return own_tables(model).write(inputs["source"], inputs.get("lengths"), config)


def _endless(batch: Batch) -> Greedy:
    return Greedy(max_length=batch["labels"].shape[1], eos=())


DECODERS = {
    "mask-predict": partial(_at_once, iterations=10),
    "ctc-generation": partial(_at_once, iterations=1),
}
"""Decoding of models that write all tokens at once: the likeliest length in ten passes, or the best path in one. Others
decode greedily and without an end, as many tokens as the batch has labels a row."""
