"""Questions about images: how many are answered rightly, of which kinds, and some of them.

Axes: B questions, E answers.
"""

from collections import Counter
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.evaluator.label import class_probabilities, class_sample, telling
from flax_transformer.text_table import align


@frozen
class VisualAnswers(Evaluator):
    """Measure how many test questions, which are `HeldQuestions`, get an answer that is right, and show some.

    Those whose answers the model cannot give count as wrong.
    """

    metric: ClassVar[str] = "accuracy"

    kinds: int = 6
    """Kinds of questions shown on the terminal, the most frequent: by how they begin."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, names = finished.opened.held, finished.opened.spec.classes
        metrics = dict(tested(finished.objective, finished.model, finished.opened.test()))
        probabilities = class_probabilities(finished)
        predicted = probabilities.argmax(axis=1)
        good = held.right[np.arange(len(predicted)), predicted]
        asked = len(good) + held.others
        metrics["accuracy"] = float(good.sum() / asked)
        truth = np.where(good, predicted, held.right.argmax(axis=1))
        samples = [self._sample(finished, names, probabilities[i], int(i)) for i in telling(truth, probabilities)]
        beyond = f", {held.others:,} of them of answers that it cannot give" if held.others else ""
        headline = f"test accuracy {100 * metrics['accuracy']:.2f} % on {asked:,} questions{beyond}"
        return Shown(
            metrics=metrics, samples=samples, lines=("", self._table(held.asked.questions, good), "", headline)
        )

    def _sample(
        self, finished: Finished, names: tuple[str, ...], probabilities: Float[np.ndarray, "E"], index: int
    ) -> dict[str, Any]:
        """Tell of one question: its image, if the model sees one, what is right and what the model says."""
        held = finished.opened.held
        seen = {}
        if held.show is not None:
            seen["picture"] = save_image(finished.folder.root, str(index), held.show(index))
        answers = ", ".join(held.asked.answers[index])
        return {**seen, "source": held.asked.questions[index], **class_sample(names, answers, probabilities)}

    def _table(self, questions: Any, good: Bool[np.ndarray, " B"]) -> str:
        """Tell how often questions that begin alike are answered rightly."""
        kinds = [" ".join(question.split()[:2]) for question in questions]
        rows = [("questions that begin", "asked", "right")]
        for kind, count in Counter(kinds).most_common(self.kinds):
            here: Int[np.ndarray, "_"] = np.flatnonzero([each == kind for each in kinds])
            rows.append((f"{kind} …", f"{count:,}", f"{100 * good[here].mean():.2f} %"))
        return align(rows, "lrr")
