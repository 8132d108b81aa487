"""The training loop: steps, reports, evaluations, checkpoints, and every way a run may end."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import jax

from flax_transformer.frozen import frozen
from flax_transformer.listing import listed
from flax_transformer.train.checkpoint import CheckpointError, Checkpoints
from flax_transformer.train.compilation import Watched
from flax_transformer.train.metric_window import MetricWindow, NotFinite, all_finite
from flax_transformer.train.metrics import MetricWriter
from flax_transformer.train.preemption import Interrupted, Preempted, noticing
from flax_transformer.train.profile import Profile, Tracing
from flax_transformer.train.progress import duration, make_progress, spelled
from flax_transformer.train.state import TrainState
from flax_transformer.train.time_budget import TimeBudget
from flax_transformer.train.watchdog import Watchdog

__all__ = ["Batches", "Evaluation", "Interrupted", "NotFinite", "Preempted", "Reporting", "TrainConfig", "fit"]


@frozen
class TrainConfig:
    """How long to train, and how often to look, evaluate and save; all in steps."""

    steps: int = 1_000
    """Updates of the parameters."""
    seed: int = 0
    """Of initial parameters, dropout, and the order and changes of data."""
    log_every: int = 50
    """Steps between lines of the log, each the mean since the last."""
    eval_every: int = 500
    """Steps between evaluations on the validation split."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep: int = 3
    """Checkpoints kept, the newest."""
    average: int = 1
    """Checkpoints averaged into the final model; at most `keep`."""
    accumulate: int = 1
    """Parts a batch is cut into, one after the other, to save memory."""
    ema: float = 0.0
    """Decay of the moving average of parameters, evaluated in their stead; ramped (`moving_average`); 0: none."""
    patience: int | None = None
    """Stop after this many evaluations without a better `monitor`; None never does."""
    monitor: str = "loss"
    """The validation metric that patience and keep_best watch; whoever measures it says which direction is better."""
    keep_best: bool = False
    """End with the parameters that were best by `monitor`, not the last ones; of equally good ones with those of the
    lower validation loss, then the later. Their checkpoint is kept beside the newest."""
    skip_not_finite: int = 0
    """Batches at most in a run that may be left out because their loss or gradient is not finite; one more ends it."""
    stall: float = 600.0
    """Seconds a step may take (or ten times the median, if that is more) before the run is ended with all stacks shown;
    the first step, an evaluation and saving may take six times as long. 0 waits for ever."""

    def __post_init__(self):
        for name in ("steps", "log_every", "eval_every", "checkpoint_every", "keep", "average", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name} must be at least 1, got {getattr(self, name)}")
        if self.average > self.keep:
            raise ValueError(
                f"cannot average more checkpoints than are kept, got average={self.average}, keep={self.keep}"
            )
        if self.average > 1 and self.keep_best:
            raise ValueError(f"the final model is the best or an average, got keep_best and average={self.average}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"train.ema must be in [0, 1), got {self.ema}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"train.patience must be at least 1, got {self.patience}")
        if self.skip_not_finite < 0 or self.stall < 0:
            raise ValueError(
                f"skip_not_finite and stall must not be negative, got {self.skip_not_finite} and {self.stall}"
            )


@runtime_checkable
class Batches(Protocol):
    """Training data: an endless iterator that knows its position."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches."""

    def __next__(self) -> Any:
        """Return the next batch."""

    def get_state(self) -> dict:
        """Return the position, as JSON-able data."""

    def set_state(self, state: dict) -> None:
        """Go on from a position."""


@dataclass(frozen=True)
class Evaluation:
    """How a state is measured on validation data."""

    measure: Callable[[TrainState, int], dict[str, float]]
    """`measure(state, step) -> metrics`, of the model that `evaluated_model` gives."""
    better: Mapping[str, Literal["lower", "higher"]] = field(default_factory=lambda: {"loss": "lower"})
    """Which direction is better, of the metrics that may be watched."""


@dataclass(frozen=True)
class Reporting:
    """Where what a run measures goes, and what is told beside it."""

    writer: MetricWriter
    schedule: Callable[[int], Any]
    """The learning rate of a step."""
    unit: str = "items"
    """What the objective counts: `tokens` are reported as such, and as `tokens_per_second`."""
    profile: Profile | None = None
    """Steps that are traced."""


class _Patience:
    """Remembers the best evaluation, and counts those since without improvement."""

    def __init__(self, config: TrainConfig, better: Mapping[str, str], saved: dict):
        if (config.keep_best or config.patience is not None) and config.monitor not in better:
            raise ValueError(f"train.monitor must be one of {', '.join(better)}, got {config.monitor!r}")
        self._sign = -1 if better.get(config.monitor) == "higher" else 1
        self._config, self.best, self.bad = config, saved.get("best"), saved.get("bad", 0)
        self.best_step, self.loss = saved.get("best_step"), saved.get("loss")

    def see(self, step: int, metrics: dict[str, float]) -> None:
        if self._config.monitor not in metrics:
            if self._config.patience is None and not self._config.keep_best:
                return
            watcher = "keep_best" if self._config.patience is None else "patience"
            raise ValueError(f"{watcher} watches {self._config.monitor!r}, evaluation gave {listed(metrics)}")
        value, loss = self._sign * metrics[self._config.monitor], metrics.get("loss")
        loss = loss if loss is not None and math.isfinite(loss) else None
        better = math.isfinite(value) and (self.best is None or value < self.best)
        self.bad = 0 if better else self.bad + 1
        if better or (value == self.best and (self.loss is None or (loss is not None and loss <= self.loss))):
            self.best, self.best_step, self.loss = value, step, loss

    @property
    def exhausted(self) -> bool:
        return self._config.patience is not None and self.bad >= self._config.patience

    def saved(self) -> dict:
        return {"best": self.best, "best_step": self.best_step, "bad": self.bad, "loss": self.loss}


class _Run:
    """A state on its way, and what is done with it: report, validate, save."""

    def __init__(
        self,
        state: TrainState,
        batches: Batches,
        config: TrainConfig,
        *,
        checkpoints: Checkpoints,
        evaluation: Evaluation,
        reporting: Reporting,
    ):
        meta: dict = {}
        self.budget = TimeBudget()
        newest = checkpoints.newest()
        if newest is not None:
            with self.budget.on("saving"):
                state, meta = checkpoints.restore(state, newest)
            batches.set_state(meta["data"])
        self.state, self.step, self._batches, self._config = state, int(state.step), batches, config
        self._checkpoints, self._reporting = checkpoints, reporting
        self._measure = evaluation.measure
        self.patience = _Patience(config, evaluation.better, meta.get("patience", {}))
        self.window = MetricWindow(config.skip_not_finite, meta.get("skipped", 0), reporting.unit)
        self.progress = make_progress(config.steps, self.step, first=jax.process_index() == 0)
        if self.step:
            self.progress.say(f"resuming from step {self.step}")

    @property
    def over(self) -> bool:
        return self.step >= self._config.steps or self.patience.exhausted

    def due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self._config.steps

    def advance(self, train_step: Watched) -> None:
        with self.budget.on("waiting"):
            batch = next(self._batches)
        self.state, metrics = train_step(self.state, batch)
        self.budget.add("compiling", train_step.took)
        self.step += 1
        if train_step.cause:
            took = duration(train_step.took)
            self.progress.say(f"step {self.step}: compiled again in {took}, as this changed: {train_step.cause}")
        self.window.add(self.step, metrics)
        self._checkpoints.check()

    def pause(self, due: list[bool], ending: Any) -> None:
        """Do what is due between two steps: report, evaluate, save."""
        self.report()
        if due[1]:
            self.validate()
        if due[2] or self.is_best or self.patience.exhausted or ending:
            self.save()
        if ending:
            self._checkpoints.wait()
        self.window.restart_clock()

    def report(self) -> None:
        self._checkpoints.check_folder()
        before = self.window.skipped
        metrics = self.window.take()
        if self.window.skipped > before:
            self.progress.say(
                f"step {self.step}: {self.window.skipped} batches skipped so far, of {self._config.skip_not_finite} at "
                "most, as their loss or gradient was not finite"
            )
        if metrics:
            metrics["learning_rate"] = float(self._reporting.schedule(self.step - self.window.skipped - 1))
            self._reporting.writer.write(self.step, "train", {**metrics, **self.window.counted, **self.budget.take()})
            self.progress.step(self.step, metrics)

    def validate(self) -> None:
        with self.budget.on("evaluating"):
            measured = self._measure(self.state, self.step)
        self._reporting.writer.write(self.step, "validation", measured)
        shown = "  ".join(f"{name} {spelled(name, value)}" for name, value in measured.items())
        self.progress.say(f"step {self.step}  validation  {shown}")
        self.patience.see(self.step, measured)

    def save(self) -> None:
        if not all_finite((self.state.model, self.state.carried)):
            what = "what is carried" if all_finite(self.state.model) else "parameters"
            raise NotFinite(f"{what} stopped being finite at step {self.step}")
        position = {
            "data": self._batches.get_state(), "patience": self.patience.saved(), "skipped": self.window.skipped
        }  # fmt: skip
        score = self.patience.best if self.is_best else None
        with self.budget.on("saving"):
            self._checkpoints.save(self.step, self.state, position, score=score)

    def finish(self) -> TrainState:
        """Save the last state, and give what the run ends with."""
        config = self._config
        if self.patience.exhausted:
            self.progress.say(
                f"stopped at step {self.step}: no better {config.monitor} in {config.patience} evaluations"
            )
        self.save()
        self._checkpoints.wait()
        return self.best()

    @property
    def is_best(self) -> bool:
        """Whether the parameters are those of the best evaluation, and to be kept for it."""
        return self._config.keep_best and self.patience.best_step == self.step

    def best(self) -> TrainState:
        """Return the last state, with the best parameters where they are kept."""
        step = self.patience.best_step
        if not self._config.keep_best or step in (None, self.step):
            return self.state
        self.progress.say(f"the final model is that of step {step}, the best by {self._config.monitor}")
        kept = {name: getattr(self.state, name) for name in ("model", "ema", "carried")}
        return replace(self.state, **self._checkpoints.restore(kept, step)[0])


def fit(
    state: TrainState,
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict]],
    batches: Batches,
    config: TrainConfig,
    *,
    checkpoints: Checkpoints,
    evaluation: Evaluation,
    reporting: Reporting,
) -> TrainState:
    """Train until `config.steps`, or until patience ends, from the newest checkpoint if there is one.

    Args:
      state: a new state; its arrays are replaced when a checkpoint is found.
      train_step: compiled; it may reuse the memory of the state it is given.
      evaluation: what gives validation metrics.
      reporting: where they go.

    Returns:
      The last state; with `keep_best` its model, average and what is carried are those of the best evaluation.

    Raises:
      NotFinite: at the first step whose loss, gradient or parameters are not finite; no checkpoint is made of it or
        after it.
      CheckpointError: as soon as a save is known to have failed, or the run folder cannot be written.
      Interrupted: after Ctrl-C, with the state saved.
      Preempted: after SIGTERM to any process, with the state of one agreed step saved.
    """
    run = _Run(state, batches, config, checkpoints=checkpoints, evaluation=evaluation, reporting=reporting)
    stacks = checkpoints.folder.parent / f"stacks-{jax.process_index()}.txt"
    watched, tracing = Watched(train_step, ("state", "batch")), Tracing(reporting.profile)
    try:
        with noticing(run.progress.say) as notice, Watchdog(config.stall, stacks) as watchdog, watched, tracing:
            while not run.over:
                tracing.before(run.step + 1, run.state)
                run.advance(watched)
                watchdog.beat()
                due = [run.due(every) for every in (config.log_every, config.eval_every, config.checkpoint_every)]
                ending = notice.due(run.step)
                if any(due) or ending:
                    with watchdog.patient():
                        run.pause(due, ending)
                if ending:
                    break
            else:
                with watchdog.patient():
                    final = run.finish()
                ending = notice.due(run.step)
        if ending:
            raise ending(f"{_ENDINGS[ending]} at step {run.step}; the same command goes on from there")
        return final
    except (NotFinite, OSError) as error:
        checkpoints.wait()
        kept = checkpoints.steps()
        kind = NotFinite if isinstance(error, NotFinite) else CheckpointError
        raise kind(f"{error}; the last good checkpoint is {f'step {kept[-1]}' if kept else 'none'}") from error
    finally:
        if tracing.done:
            run.progress.say(f"profile: xprof --logdir {reporting.profile.folder}")
        run.progress.close()


_ENDINGS = {Interrupted: "stopped", Preempted: "preempted"}
