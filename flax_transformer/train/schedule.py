"""Learning rates over steps, by name.

Steps count from 1, so that a run of n steps has the rates of steps 1, …, n; Optax counts from 0, so a schedule is
called with the number of steps done before. The first step of a warmup has peak / warmup; the peak is that of step
`warmup`, or of the first step without one; what falls to `final` × peak has it in step n.
"""

from typing import Literal

import jax.numpy as jnp
import optax

from flax_transformer.frozen import frozen


@frozen
class ScheduleConfig:
    """A learning rate that rises linearly to its peak, in step `warmup` or the first, then follows `name`.

    With n steps in the run and t of them done since the peak:

    - constant: stays.
    - linear, cosine: fall to `final` × peak in the last step.
    - inverse_sqrt: peak · sqrt(warmup / (warmup + t)) (fairseq's name).
    - noam: the paper's D^-0.5 · min(step^-0.5, step · warmup^-1.5), times the optimizer's learning rate as a factor
      (Vaswani et al. 2017, §5.3); needs `width`.
    - exponential: peak · decay_rate^(t / decay_every).
    - step: the same, in stairs of `decay_every` steps.
    - wsd: stays, then falls linearly to `final` × peak over the last `decay_fraction` of the steps (Hu et al. 2024), or
      over those that the warmup leaves.

    A run of one step has the peak, as has the last step of one that is all warmup. With a `final` of 0 the last step
    changes nothing.
    """

    name: Literal["constant", "linear", "cosine", "inverse_sqrt", "noam", "exponential", "step", "wsd"] = "inverse_sqrt"
    """The shape after the warmup."""
    warmup: int = 0
    """Steps to the peak."""
    final: float = 0.0
    """What is left of the peak in the last step."""
    width: int = 512
    """D of "noam"."""
    decay_rate: float = 0.5
    """Factor of "exponential" and "step" over `decay_every` steps."""
    decay_every: int = 1_000
    """Steps in which "exponential" and "step" decay by `decay_rate`."""
    decay_fraction: float = 0.2
    """Of the steps, those at the end in which "wsd" falls."""

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
    """Return the paper's schedule: factor · width^-0.5 · min(step^-0.5, step · warmup^-1.5), counting steps from 1."""
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
      steps: of the whole run; the last of them ends the decays.

    Raises:
      ValueError: when the warmup is longer than the run.
    """
    if config.warmup > steps:
        raise ValueError(
            f"warmup must not be longer than the run, got warmup={config.warmup}, steps={steps}; "
            f"for a run as short as this add --optimizer.schedule.warmup {max(steps // 10, 1)}"
        )
    if config.name == "inverse_sqrt":
        return inverse_sqrt_schedule(peak, config.warmup)
    if config.name == "noam":
        return noam_schedule(config.width, config.warmup, peak)
    top = max(config.warmup, 1)
    left = max(steps - top, 1)
    falling = min(max(round(config.decay_fraction * steps), 1), left)
    stairs = config.name == "step"
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, config.final * peak, left),
        "cosine": lambda: optax.cosine_decay_schedule(peak, left, alpha=config.final),
        "exponential": lambda: optax.exponential_decay(peak, config.decay_every, config.decay_rate),
        "step": lambda: optax.exponential_decay(peak, config.decay_every, config.decay_rate, staircase=stairs),
        "wsd": lambda: optax.linear_schedule(peak, config.final * peak, falling, left - falling),
    }[config.name]()
    # The first step must not be wasted on a rate of zero, so the rise ends at step `warmup`, counted from 1.
    rise = optax.linear_schedule(peak / top, peak, max(top - 1, 1))
    return optax.join_schedules([rise, after], [top - 1])
