"""What every evaluator is given, and what it returns."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, Literal

import jax

from flax_transformer import hub
from flax_transformer.frozen import frozen
from flax_transformer.metric.finite import check_finite
from flax_transformer.objective import Objective
from flax_transformer.task.opened import Opened
from flax_transformer.train.batch_layout import fill_rows
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.mean import terms_of


@frozen
class Finished:
    """A finished run: its model, and what there is to test it on."""

    model: Any
    """As it was trained, or merged of what was."""
    pretrained: hub.Pretrained | None
    """The same, as the checkpoint that is exported; None where the recipe names no family."""
    opened: Opened
    objective: Objective
    folder: RunFolder
    seed: int = 0
    before: Mapping[str, float] = field(default_factory=dict)
    """Validation metrics of the model that training began with; empty where it was new."""
    computed: dict[Any, Any] = field(default_factory=dict)
    """What evaluators have computed that others need too: see `once`."""

    def once(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """Return what has been computed under a name, by any evaluator; compute it where it has not."""
        if name not in self.computed:
            self.computed[name] = compute()
        return self.computed[name]


@frozen
class Shown:
    """What a finished model is shown by: metrics of the test, samples for the report, lines for the terminal."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[dict] = ()
    lines: Sequence[str] = ()
    last: Sequence[str] = ()
    """Lines for the very end: what to try next."""


@frozen
class Evaluator:
    """`evaluator(finished)` tests a finished model. A subclass has its options as fields and defines `__call__`."""

    takes: ClassVar[type] = object
    """What must be held out for it, `Opened.held`."""
    metric: ClassVar[str] = ""
    """The number that tells how good the model is, by its name in metrics.jsonl."""
    better: ClassVar[Literal["lower", "higher"]] = "higher"
    """Which direction of it is better."""

    validates: ClassVar[bool] = False
    """Whether it measures `metric` during training too, so that `train.monitor` may watch it."""
    exported: ClassVar[bool] = False
    """Whether it tests the checkpoint that is exported, to generate with it, say."""
    draws: ClassVar[bool] = False
    """Whether it needs the model to show a run again: for images, or samples of one that has none yet."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        raise NotImplementedError

    def validate(self, model: Any, batches: Iterable[Any]) -> Mapping[str, float]:
        """Measure a model on validation data, on the mesh in context; every process is asked. Nothing by default."""
        return {}

    def watch(self, finished: Finished, step: int) -> Mapping[str, float]:
        """Look at a model during training, at an evaluation; every process is asked. Nothing by default.

        Args:
          finished: as that of a finished run, which has no checkpoint to export yet.
          step: of training.

        Returns:
          Metrics of validation besides.
        """
        return {}

    def preview(self, data: Any, model: Any, tokenizer: Any) -> tuple[list[dict], str]:
        """Return samples of a run that has none yet, and a note on where they are from; none by default.

        Args:
          data: the experiment's, not opened.
          model: of the newest checkpoint.
          tokenizer: the run's.
        """
        return [], ""

    def notes(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return what the reader of a run's test metrics must know; nothing by default."""
        return []

    def text_attention(self, model: Any, tokenizer: Any, samples: Sequence[dict]) -> tuple[list, list[str]]:
        """Draw some samples for the report, and say why where that cannot be; nothing by default."""
        return [], []


def check_held_out(evaluators: Iterable[Any], held: Any) -> None:
    """Refuse evaluators of other things than those that are held out, before anything is trained.

    Raises:
      ValueError: one; names it, what it takes and what there is.
    """
    for each in evaluators:
        takes = getattr(each, "takes", object)  # a function is an evaluator too
        if not isinstance(held, takes):
            raise ValueError(
                f"{type(each).__name__} tests {takes.__name__}, the examples hold out {type(held).__name__}"
            )


def evaluate(objective: Objective, model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Average an objective and its metrics over batches, without dropout; compiled once for equal objectives.

    Raises:
      ValueError: an objective that compares rows, and a batch that the mesh in context cannot split as it is.
    """
    sums = [_sums(objective, model, fill_rows(batch, objective.separable_held_out)) for batch in batches]
    total = jax.tree.map(lambda *each: sum(map(float, each)), *sums)
    count = total.pop("count")

    def mean(value):
        return sum(each.total / (each.count or 1.0) for each in terms_of(value, count))

    return objective.summary({name: mean(value) for name, value in total.items()})


def tested(objective: Objective, model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Average an objective and its metrics over test data, as `evaluate` does.

    Raises:
      ValueError: a loss that is not finite, beside which no other number means anything.
    """
    found = evaluate(objective, model, batches)
    check_finite("losses of the test", found["loss"])
    return found


@partial(jax.jit, static_argnums=0)
def _sums(objective: Objective, model: Any, batch: Any) -> dict[str, Any]:
    return objective.held_out(model, batch)


def compared(source: str, hypothesis: str, target: str) -> Iterable[str]:
    """Show one source and what came of it; where that is wrong, also what it should be."""
    yield f"  {source}"
    yield f"  {'=' if hypothesis == target else '→'} {hypothesis}"
    if hypothesis != target:
        yield f"    expected: {target}"
