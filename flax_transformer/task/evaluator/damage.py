"""Damaged texts: how well they are restored, beside how well they would be if left as they are."""

from typing import ClassVar

from flax_transformer.frozen import frozen
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.evaluator.kind import Restored, restore, sample_lines, samples_of
from flax_transformer.task.example.damage import MASK
from flax_transformer.task.translation_score import score
from flax_transformer.text_table import align


@frozen
class Restorations(Evaluator):
    """Score the test texts of each damage: those restored exactly, and chrF."""

    exported: ClassVar[bool] = True
    metric: ClassVar[str] = "exact_match"

    count: int = 1
    """Test texts of each damage shown on the terminal."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        return self.show(restore(finished))

    def show(self, restored: dict[str, Restored]) -> Shown:
        """Say how well texts were restored."""
        lines = [line for name, kind in restored.items() for line in sample_lines(name, kind, self.count)]
        metrics: dict[str, float] = {}
        rows = []
        for name, kind in restored.items():
            copied = score([source.replace(MASK, "") for source in kind.sources], kind.targets)
            found = score(kind.hypotheses, kind.targets)
            metrics |= {
                f"loss_{name}": kind.loss, f"exact_match_{name}": found.exact_match, f"chrf_{name}": found.chrf,
                f"copied_exact_match_{name}": copied.exact_match, f"copied_chrf_{name}": copied.chrf,
            }  # fmt: skip
            shares = (f"{copied.exact_match:.1f} %", f"{found.exact_match:.1f} %")
            rows.append((name, *shares, f"{copied.chrf:.1f}", f"{found.chrf:.1f}", f"{kind.loss:.4f}"))
        means = {
            name: sum(metrics[f"{name}_{kind}"] for kind in restored) / len(restored)
            for name in ("exact_match", "chrf", "copied_exact_match", "copied_chrf")
        }
        header = ("damage", "exact: untouched", "restored", "chrF: untouched", "restored", "loss a token")
        headline = (
            f"{means['exact_match']:.1f} % of texts restored exactly (untouched: {means['copied_exact_match']:.1f} %)"
            f", chrF {means['chrf']:.1f} (untouched: {means['copied_chrf']:.1f})"
        )
        return Shown(
            metrics={**means, **metrics},
            samples=samples_of(restored),
            lines=(*lines, "", align([header, *rows], "lr"), "", headline),
        )
