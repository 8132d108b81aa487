"""Optimizers by name, with clipping, a weight-decay mask and a schedule, all of them Optax's own."""

from typing import Any, Literal

import jax
import optax
from optax import contrib

from flax_transformer.frozen import frozen
from flax_transformer.parallel import path_name
from flax_transformer.train.finetune import (
    check_pattern,
    decay_by_layer,
    path_mask,
    train_only,
    unfreeze_gradually,
)
from flax_transformer.train.movement import move
from flax_transformer.train.parameter_axis import Axes, parameter_axes, per_layer
from flax_transformer.train.schedule import ScheduleConfig, make_schedule
from flax_transformer.train.sparsity import SparsityConfig, sparsify


@frozen
class OptimizerConfig:
    """An optimizer, its learning rate, and what is decayed."""

    name: Literal["adam", "adamw", "sgd", "rmsprop", "adafactor", "lion", "muon"] = "adam"
    """The optimizer, by its name in Optax."""
    learning_rate: float = 1e-3
    """The peak; of the schedule `noam` a factor."""
    schedule: ScheduleConfig = ScheduleConfig(warmup=1)
    """How the learning rate changes over a run."""
    b1: float = 0.9
    """Decay of the mean of gradients in Adam and AdamW, and in Muon beyond kernels; in Lion the weight of momentum."""
    b2: float = 0.98
    """Decay of the mean of squared gradients in Adam, AdamW, RMSProp, in Muon beyond kernels; in Lion of momentum."""
    eps: float = 1e-9
    """Added to the denominator of an update, in Adam, AdamW and RMSProp."""
    momentum: float = 0.9
    """Of SGD, RMSProp and Muon."""
    weight_decay: float = 0.0
    """Decoupled weight decay: times the learning rate, what a parameter loses in a step."""
    decay_pattern: str = r"kernel$"
    """Weight decay touches parameters whose path matches; not biases, norms or embeddings by default."""
    clip_norm: float | None = None
    """Scale gradients down to this global norm."""
    trainable: str = ""
    """Only parameters whose path matches are trained, and only they have optimizer state; empty trains all."""
    layer_decay: float = 1.0
    """Each layer learns this much slower than the one above it; heads at the full rate, embeddings the slowest. The
    model says the order of its layers: `layer_order`, see `flax_transformer.order`."""
    unfreeze_every: int = 0
    """Train the heads first, and one more layer down after every so many steps; 0 trains all from the beginning."""
    sparsity: SparsityConfig = SparsityConfig()
    """How many values of kernels become zero, and stay so."""

    def __post_init__(self):
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.weight_decay and self.name == "adam":
            raise ValueError(f"adam has no weight decay, got {self.weight_decay}; adamw has")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm must be positive, got {self.clip_norm}")
        for name in ("b1", "b2", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must be in (0, 1], got {self.layer_decay}")
        if self.unfreeze_every < 0:
            raise ValueError(f"unfreeze_every must not be negative, got {self.unfreeze_every}")
        check_pattern("decay_pattern", self.decay_pattern)
        check_pattern("trainable", self.trainable)


def muon_cosine(learning_rate: float, *, warmup: int = 50) -> OptimizerConfig:
    """Return Muon with a cosine schedule, for small models that begin with nothing."""
    schedule = ScheduleConfig(name="cosine", warmup=warmup)
    return OptimizerConfig(
        name="muon", learning_rate=learning_rate, schedule=schedule, b2=0.99, eps=1e-8, weight_decay=0.05, clip_norm=1.0
    )


def adamw_linear(learning_rate: float, *, warmup: int = 100) -> OptimizerConfig:
    """Return AdamW with a linear schedule, as BERT is fine-tuned (Devlin et al. 2018, appendix A.3)."""
    schedule = ScheduleConfig(name="linear", warmup=warmup)
    return OptimizerConfig(
        name="adamw",
        learning_rate=learning_rate,
        schedule=schedule,
        b2=0.999,
        eps=1e-8,
        weight_decay=0.01,
        clip_norm=1.0,
    )


def _decay(c: OptimizerConfig) -> optax.GradientTransformation:
    return optax.add_decayed_weights(c.weight_decay, path_mask(c.decay_pattern)) if c.weight_decay else optax.identity()


def _muon(c: OptimizerConfig) -> optax.GradientTransformation:
    """Orthogonalise the momentum of kernels (Jordan et al. 2024), in steps as large as Adam's (Liu et al. 2025, §2.2).

    Embeddings, biases and norms get Adam with Nesterov momentum, as in `optax.contrib.muon`.

    Kernels have more axes than two (heads, layers), so each says which of its axes are inputs and which outputs.
    """

    def numbers(path: tuple, leaf: jax.Array, axes: Axes) -> contrib.MuonDimensionNumbers | None:
        if not path_name(path).endswith("kernel"):
            return None
        places = tuple(range(leaf.ndim))
        outputs = axes.layers + axes.inputs
        return contrib.MuonDimensionNumbers(places[axes.layers : outputs], places[outputs:])

    def dimensions(tree: Any) -> Any:
        return jax.tree_util.tree_map_with_path(numbers, tree, parameter_axes(tree))

    muon = contrib.muon(
        1.0, beta=c.momentum, adam_b1=c.b1, adam_b2=c.b2, consistent_rms=0.2, muon_weight_dimension_numbers=dimensions
    )
    return optax.chain(muon, optax.scale(-1.0))  # a step upwards, as all of these


def _direction(c: OptimizerConfig) -> optax.GradientTransformation:
    """Return what turns gradients into a step of learning rate 1, upwards."""
    adam = optax.scale_by_adam(c.b1, c.b2, c.eps)
    return {
        "adam": lambda: adam,
        "adamw": lambda: adam,
        "sgd": lambda: optax.trace(c.momentum) if c.momentum else optax.identity(),
        "rmsprop": lambda: optax.chain(optax.scale_by_rms(c.b2, c.eps, eps_in_sqrt=False), optax.trace(c.momentum)),
        "adafactor": lambda: per_layer(
            optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms())
        ),
        "lion": lambda: optax.scale_by_lion(c.b1, c.b2),
        "muon": lambda: _muon(c),
    }[c.name]()


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Make the optimizer of a run of `steps` steps.

    Raises:
      ValueError: when the schedule does not fit into the run.
    """
    schedule = make_schedule(config.schedule, config.learning_rate, steps)
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    optimizer = optax.chain(clip, _direction(config), _decay(config), optax.scale_by_learning_rate(schedule))
    if config.layer_decay < 1:
        optimizer = optax.chain(optimizer, decay_by_layer(config.layer_decay))
    if config.unfreeze_every:
        optimizer = optax.chain(optimizer, unfreeze_gradually(config.unfreeze_every))
    if config.sparsity.by == "movement":
        optimizer = move(config.sparsity, steps, optimizer, schedule)
    elif config.sparsity.changes:
        optimizer = optax.chain(optimizer, sparsify(config.sparsity, steps))
    return train_only(config.trainable, optimizer) if config.trainable else optimizer
