"""Learning rates over steps, by name: each a warmup followed by one of Optax's schedules."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import optax


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """A learning rate that rises linearly over `warmup` steps to its peak, then follows `name`.

    - constant: stays.
    - linear, cosine: fall to `final` × peak at the last step.
    - inverse_sqrt: peak · sqrt(warmup / step) (fairseq's name).
    - noam: the paper's D^-0.5 · min(step^-0.5, step · warmup^-1.5), times the optimizer's learning rate as a factor
      (Vaswani et al. 2017, §5.3); needs `width`.
    - exponential: multiplied by `decay_rate` every `decay_every` steps, smoothly.
    - step: the same, in stairs.
    - wsd: stays, then falls linearly to `final` × peak over the last `decay_fraction` of the steps (Hu et al. 2024).
    """

    name: Literal["constant", "linear", "cosine", "inverse_sqrt", "noam", "exponential", "step", "wsd"] = "inverse_sqrt"
    warmup: int = 0
    final: float = 0.0
    width: int = 512
    decay_rate: float = 0.5
    decay_every: int = 1_000
    decay_fraction: float = 0.2

    def __post_init__(self):
        if self.warmup < 0:
            raise ValueError(f"warmup must not be negative, got {self.warmup}")
        if self.name in ("inverse_sqrt", "noam") and self.warmup < 1:
            raise ValueError(f"{self.name} needs a warmup of at least 1 step, got {self.warmup}")
        if self.decay_every < 1:
            raise ValueError(f"decay_every must be at least 1, got {self.decay_every}")
        for field in ("final", "decay_rate", "decay_fraction"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"{field} must be in [0, 1], got {getattr(self, field)}")


def noam_schedule(width: int, warmup: int, factor: float = 1.0) -> optax.Schedule:
    """Give the paper's schedule: factor · width^-0.5 · min(step^-0.5, step · warmup^-1.5), counting steps from 1."""
    peak = factor * (width * warmup) ** -0.5
    return inverse_sqrt_schedule(peak, warmup)


def inverse_sqrt_schedule(peak: float, warmup: int) -> optax.Schedule:
    """Rise linearly to `peak` at step `warmup`, then fall as peak · sqrt(warmup / step); steps count from 1."""

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        return peak * jnp.minimum(step / warmup, jnp.sqrt(warmup / step))

    return schedule


def make_schedule(config: ScheduleConfig, peak: float, steps: int) -> optax.Schedule:
    """Make the schedule of a run.

    Args:
      peak: highest learning rate (for noam: the factor).
      steps: of the whole run; where the decays end.

    Raises:
      ValueError: when the warmup is longer than the run.
    """
    if config.warmup > steps:
        raise ValueError(f"warmup must not be longer than the run, got warmup={config.warmup}, steps={steps}")
    if config.name == "inverse_sqrt":
        return inverse_sqrt_schedule(peak, config.warmup)
    if config.name == "noam":
        return noam_schedule(config.width, config.warmup, peak)
    rest = max(steps - config.warmup, 1)
    falling = max(round(config.decay_fraction * steps), 1)
    stairs = config.name == "step"
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, config.final * peak, rest),
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest, alpha=config.final),
        "exponential": lambda: optax.exponential_decay(peak, config.decay_every, config.decay_rate),
        "step": lambda: optax.exponential_decay(peak, config.decay_every, config.decay_rate, staircase=stairs),
        "wsd": lambda: optax.linear_schedule(peak, config.final * peak, falling, max(rest - falling, 0)),
    }[config.name]()
    if not config.warmup:
        return after
    # The first step must not be wasted on a rate of zero, so the rise ends at step `warmup`, counted from 1.
    rise = optax.linear_schedule(peak / config.warmup, peak, max(config.warmup - 1, 1))
    return optax.join_schedules([rise, after], [config.warmup])
