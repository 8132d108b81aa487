"""What is found by what belongs to it: captions by images, images by captions, images by images.

Axes: F first halves, S second halves, E width of the common space.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.finite import check_finite
from flax_transformer.text_table import align

TOP = (1, 5, 10)
"""Among how many that are ranked first the right one is looked for."""
GAP, FRAME = 4, 3
"""Pixels between the images of a strip, and around those that are right."""


@frozen
class RetrievalEvaluator(Evaluator):
    """Rank all test halves, which are `HeldMatches`, by each of the other side; count how often a right one is first.

    `forth_r1`, `forth_r5` and `forth_r10` are shares of the first side (texts) whose own second half (image) is among
    so many; `back_r…` the reverse.
    """

    metric: ClassVar[str] = "recall"

    count: int = 24
    """Queries that the report shows."""
    found: int = 5
    """Finds that are shown of each."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, model = finished.opened.held, finished.model
        first, second = embedded(model, held.first(), 0), embedded(model, held.second(), 1)
        metrics, table = tested(finished.objective, model, finished.opened.test()), []
        for name, scores, right in (
            ("forth", first @ second.T, held.belong),
            ("back", second @ first.T, held.belong.T),
        ):
            asked = right.any(axis=1)  # a text that tells no test image is there to be taken for another
            ranks = best_ranks(scores[asked], right[asked])
            shares = {k: float((ranks < k).mean()) for k in TOP}
            metrics |= {f"{name}_r{k}": share for k, share in shares.items()}
            one, other = held.sides if name == "forth" else held.sides[::-1]
            told = [f"{100 * share:.2f} %" for share in shares.values()]
            table.append(
                (f"{one} → {other}", f"{asked.sum():,} of {right.shape[1]:,}", *told, f"{np.median(ranks) + 1:g}")
            )
        metrics["recall"] = (metrics["forth_r1"] + metrics["back_r1"]) / 2
        head = ("test", "asked of", *(f"in {k}" for k in TOP), "median rank")
        samples = self._samples(finished, first @ second.T)
        return Shown(metrics=metrics, samples=samples, lines=("", align([head, *table], "lrrrrr")))

    def _samples(self, finished: Finished, scores: Float[np.ndarray, "F S"]) -> list[dict[str, Any]]:
        """Draw what is found by some of the first side, the right ones framed."""
        held, samples = finished.opened.held, []
        asked = np.flatnonzero(held.belong.any(axis=1))
        for number in asked[
            np.arange(min(self.count, len(asked))) * len(asked) // min(self.count, len(asked))
        ].tolist():
            order = np.argsort(-scores[number], kind="stable")
            best, right = order[: self.found], held.belong[number]
            query, show = held.show[0](number), held.show[1]
            pictures = [(show(int(each)), bool(right[each])) for each in best]
            if not isinstance(query, str):
                pictures = [(query, None), *pictures]
            rank = int(best_ranks(scores[number : number + 1], right[None])[0]) + 1
            samples.append({
                "picture": save_image(finished.folder.root, str(number), strip(pictures)),
                "source": query if isinstance(query, str) else f"{held.sides[0][:-1]} {number}, and what it finds",
                "caption": f"the right one has rank {rank:,} of {len(order):,}",
            })  # fmt: skip
        return samples


def embedded(model: Any, batches: Iterable[Any], side: int) -> Float[np.ndarray, "_ E"]:
    """Embed one side of pairs, without the rows that only fill up a batch."""
    return np.concatenate([np.asarray(_embed(model, each["inputs"])[side])[each["weights"] > 0] for each in batches])


@jax.jit
def _embed(model: Any, inputs: Any) -> tuple[Array | None, Array | None]:
    return tuple(model.hidden_states(**inputs))


def best_ranks(scores: Float[np.ndarray, "F S"], right: Bool[np.ndarray, "F S"]) -> Int[np.ndarray, " F"]:
    """Count for each row how many wrong ones score at least as much as its best right one.

    Raises:
      ValueError: scores that are not finite, which have no order.

    >>> best_ranks(np.array([[3.0, 1.0, 2.0]]), np.array([[False, False, True]])).tolist()
    [1]
    """
    check_finite("scores", scores)
    best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
    return ((scores >= best) & ~right).sum(axis=1)


def strip(pictures: Iterable[tuple[Any, bool | None]]) -> Any:
    """Put images of Pillow's in a row: green around right ones, red around wrong, a wide gap after a question."""
    import PIL.Image

    pictures = list(pictures)
    high = max(picture.height for picture, _ in pictures) + 2 * FRAME
    places, x = [], 0
    for picture, right in pictures:
        places.append(x)
        x += picture.width + 2 * FRAME + GAP * (4 if right is None else 1)
    row = PIL.Image.new("RGB", (x - GAP, high), "white")
    for (picture, right), x in zip(pictures, places, strict=True):
        colour = {None: "white", True: (40, 160, 70), False: (215, 60, 50)}[right]
        row.paste(colour, (x, 0, x + picture.width + 2 * FRAME, picture.height + 2 * FRAME))
        row.paste(picture.convert("RGB"), (x + FRAME, FRAME))
    return row
