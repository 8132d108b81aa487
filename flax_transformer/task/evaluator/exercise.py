"""Exercises of several tasks: how many are answered exactly."""

from typing import ClassVar

from flax_transformer.frozen import frozen
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.evaluator.kind import restore, sample_lines, samples_of
from flax_transformer.text_table import align


@frozen
class Answers(Evaluator):
    """Count the test exercises of each task that are answered exactly."""

    exported: ClassVar[bool] = True
    metric: ClassVar[str] = "exact_match"

    count: int = 2
    """Test exercises of each task shown on the terminal."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        restored = restore(finished)
        lines = [line for name, kind in restored.items() for line in sample_lines(name, kind, self.count)]
        rows = [
            (name, f"{len(kind.exact):,}", f"{kind.exact_match:.1f} %", f"{kind.loss:.4f}")
            for name, kind in restored.items()
        ]
        mean = sum(kind.exact_match for kind in restored.values()) / len(restored)
        losses = {f"loss_{name}": kind.loss for name, kind in restored.items()}
        matches = {f"exact_match_{name}": kind.exact_match for name, kind in restored.items()}
        return Shown(
            metrics={"exact_match": mean, **matches, **losses},
            samples=samples_of(restored),
            lines=(
                *lines, "", align([("task", "tests", "exact match", "loss a token"), *rows], "lr"), "",
                f"exact match {mean:.1f} %, the mean of {len(restored)} tasks",
            ),
        )  # fmt: skip
