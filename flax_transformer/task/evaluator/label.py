"""Classifiers: how many test texts they tell, and some of them.

Axes: B rows, E classes.
"""

from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float

from flax_transformer.frozen import frozen
from flax_transformer.task.evaluate import evaluate
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown


@frozen
class Labels(Evaluator):
    """Measure the accuracy on the test texts, which are `Labelled`, and show the first of them."""

    metric: ClassVar[str] = "accuracy"

    count: int = 6
    """Texts shown on the terminal."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened, model, test = finished.opened, finished.model, finished.opened.held
        metrics = evaluate(finished.objective, model, opened.test())
        chances = np.concatenate([_chances(model, batch) for batch in opened.test()])
        names = opened.spec.classes
        samples = [
            {"source": test.texts[i], "target": names[test.labels[i]], "hypothesis": names[row.argmax()],
             "score": float(row.max())}
            for i, row in enumerate(chances)
        ]  # fmt: skip
        wide = max(map(len, names))
        lines = [
            f"  {'✓' if each['hypothesis'] == each['target'] else '✗'} {each['hypothesis']:{wide}} {each['score']:.2f}"
            f"  {each['source'][:90]}"
            for each in samples[: self.count]
        ]
        headline = f"test accuracy {100 * metrics['accuracy']:.2f} % on {len(samples):,} sentences"
        return Shown(metrics=metrics, samples=samples[:100], lines=("", *lines, "", headline))


def _chances(model: Any, batch: Any) -> Float[np.ndarray, "B E"]:
    """Give each class's probability, of the rows that have tokens."""
    return np.asarray(_probabilities(model, batch))[batch["weights"] > 0]


@jax.jit
def _probabilities(model: Any, batch: Any) -> Float[jax.Array, "B E"]:
    return jax.nn.softmax(model.output(model.hidden_states(**batch["inputs"])))
