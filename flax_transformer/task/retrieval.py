"""Retrieval: examples of image pairs, and recall among a test's pairs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.data.examples import Arrays, Chain
from flax_transformer.data.identity import name_function
from flax_transformer.data.image import ImageRows, PairAugment, each_image_once, labelled_images
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.image.image_set import Images
from flax_transformer.data.image.stream import order
from flax_transformer.data.table import Table
from flax_transformer.frozen import frozen
from flax_transformer.metric.finite import check_finite
from flax_transformer.metric.matching import matched, one_to_one
from flax_transformer.ops.norm import unit
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import image_stream, normalised, opened, processor_of, shape_of
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import Spec
from flax_transformer.text_table import align


@dataclass(frozen=True, eq=False)
class HeldMatches:
    """Held-out halves, each side by itself, and which belong together."""

    sides: tuple[str, str]
    """What the halves are called: "texts", "images"."""
    first: Callable[[], Iterable[Arrays]]
    """Gives batches of the first side's `inputs`, and `weights`, 0 where a row is empty."""
    second: Callable[[], Iterable[Arrays]]
    """The same of the second."""
    belong: Bool[np.ndarray, "_ _"]
    """True where the first of the row and the second of the column belong together."""
    show: tuple[Callable[[int], Any], Callable[[int], Any]]
    """Of each side, what a half is by its number: a text, or an image of Pillow's as the model sees it."""


def numbered(images: Images) -> Table:
    """Return images by their numbers in place of classes."""
    return labelled_images(images, np.arange(len(images), dtype=np.int32))


def only(batch: Mapping[str, Any], name: str, called: str | None = None) -> Arrays:
    """Return a batch with one of its inputs alone, perhaps under another name."""
    return {**batch, "inputs": {called or name: batch["inputs"][name]}}


def as_seen(images: Any, fixed: Sequence[Any], index: int) -> Any:
    """Return an image of Pillow's as the model sees it."""
    return Chain(tuple(fixed))({"image": images[index]}, np.random.default_rng(0))["image"]


@frozen
class ImagePairs(LabelledImages):
    """Lay out both images of a pair a row, changed alike and then each by itself; held out are `HeldMatches`."""

    alike: PairAugment = PairAugment()
    """What is changed in both images of a training pair alike, at random."""

    def __post_init__(self):
        super().__post_init__()
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("images of pairs are not mixed, got augment.mixup or augment.cutmix")

    def open(self, data: Any, context: Context) -> Opened:
        """Open the pairs.

        Args:
          data: has `open()`, which gives a `DataSet` of pairs of images.
        """
        found = opened(data, "pairs")
        settled = self._settled(context, found.channels)
        shape, fixed = shape_of(found, settled.size), settled._fixed()
        if self.alike.turn and shape[0] != shape[1]:
            raise ValueError(f"images that are turned must be as high as wide, got alike.turn and {shape[:2]} pixels")
        normalise = normalised(settled.mean, settled.std, found.channels)
        train = found.splits["train"]
        each = () if self.augment.area else fixed
        sides = [settled._held(numbered(side), each) for side in (train["image"], train["other"])]
        source = PairRows(sides, self.alike, self.augment.examples(shape[:2], settled.resample), context.seed)
        before, after = self.augment.batches(0)
        batches = image_stream(
            source, *before, normalise, *after, Halves(), rows=2 * self.rows, seed=context.seed, pairs=True
        )

        rows = context.held_rows(self.rows)
        held = {
            (split, name): settled._held(numbered(found.splits[split][column]), fixed)
            for split in ("validation", "test")
            for name, column in (("images", "image"), ("others", "other"))
        }

        def side(split: str, name: str) -> Iterable[Arrays]:
            return each_image_once(*held[split, name], rows=rows, collate=ImageRows(), normalise=normalise)

        def both(split: str) -> Iterable[Arrays]:
            halves = zip(*(side(split, name) for name in ("images", "others")), strict=True)
            return ({**one, "inputs": {**one["inputs"], "others": other["inputs"]["images"]}} for one, other in halves)

        test = found.splits["test"]
        return Opened(
            spec=Spec(uses=("retrieval",), image=shape),
            batches=batches,
            validation=partial(both, "validation"),
            test=partial(both, "test"),
            held=HeldMatches(
                sides=("images", "others"),
                first=partial(side, "test", "images"),
                second=lambda: (only(batch, "images", "others") for batch in side("test", "others")),
                belong=np.eye(len(test), dtype=bool),
                show=tuple(partial(as_seen, images, fixed) for images in (test["image"], test["other"])),
            ),
            processor=processor_of(fixed, normalise),
        )


@dataclass(frozen=True, eq=False)
class PairRows:
    """Rows of pairs in random order, epoch after epoch: 2i and 2i + 1 are the halves of one."""

    sides: Sequence[Sequence[Any]]
    """Of each half, its images and what makes them one size."""
    alike: PairAugment
    """What changes both halves alike."""
    transforms: Sequence[Any]
    """What changes each image at random."""
    seed: int

    @property
    def identity(self) -> dict[str, Any]:
        """Name images, transforms and order."""
        changes = [[name_function(each) for each in (self.alike, *fixed, *self.transforms)] for _, *fixed in self.sides]
        return {"data": [images.fingerprint for images, *_ in self.sides], "transforms": changes, "seed": self.seed}

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Pick rows."""
        examples = []
        for number in numbers.tolist():
            pair, half = divmod(number, 2)
            images, *fixed = self.sides[half]
            epoch, place = divmod(pair, len(images))
            index = int(order(len(images), self.seed, epoch)[place])
            example = self.alike(images[index], np.random.default_rng((self.seed, pair, 1)))
            rng = np.random.default_rng((self.seed, number))
            examples.append(Chain((*fixed, *self.transforms))(example, rng))
        return ImageRows()(examples)


@frozen
class Halves:
    """Part a batch of images into the first and the second of each pair."""

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Return `images` and `others`."""
        images = batch["inputs"]["images"]
        rest = {name: batch[name][0::2] for name in ("labels", "weights")}
        return {**rest, "inputs": {"images": images[0::2], "others": images[1::2]}}


TOP = (1, 5, 10)
"""Among how many that are ranked first the right one is looked for."""


GAP, FRAME = 4, 3
"""Pixels between the images of a strip, and around those that are right."""


@frozen
class RetrievalEvaluator(Evaluator):
    """Rank all test halves, which are `HeldMatches`, by each of the other side; count how often a right one is first.

    `texts_r1`, `texts_r5` and `texts_r10` are the recalls of a first side called `texts`: the fraction whose own second
    half (image) is among so many. Those of the second side have its name. `recall` is the mean of both at 1. Where each
    half belongs to one of the other side, `matched` is the fraction that is right when all are matched at once.
    """

    takes: ClassVar[type] = HeldMatches
    metric: ClassVar[str] = "recall"

    count: int = 24
    """Queries that the report shows."""
    found: int = 5
    """Finds that are shown of each."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, scores = finished.opened.held, self.scores(finished)
        metrics, table = tested(finished.objective, finished.model, finished.opened.test()), []
        for sides, each, right in ((held.sides, scores, held.belong), (held.sides[::-1], scores.T, held.belong.T)):
            recalls, row = ranked(each, right)
            metrics |= {f"{sides[0]}_{k}": share for k, share in recalls.items()}
            table.append((" → ".join(sides), *row))
        metrics["recall"] = sum(metrics[f"{side}_r1"] for side in held.sides) / 2
        head = ("test", "asked of", *(f"in {k}" for k in TOP), "median rank")
        if one_to_one(held.belong):
            metrics["matched"] = matched(scores, held.belong)
            table.append((" ↔ ".join(held.sides), table[0][1], f"{100 * metrics['matched']:.2f} %", "", "", ""))
        samples = self._samples(finished, scores)
        return Shown(metrics=metrics, samples=samples, lines=("", align([head, *table], "lrrrrr")))

    def scores(self, finished: Finished) -> Float[np.ndarray, "F S"]:
        """Score every half of the first side with each of the second: the cosine of their vectors."""
        held, model = finished.opened.held, finished.model
        return embedded(model, held.first(), 0) @ embedded(model, held.second(), 1).T

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
            rank = int(best_ranks(scores[number : number + 1], right[None])[0]) + 1
            if isinstance(show(int(best[0])), str):
                others = " · ".join(f"{i}. {show(int(each))}" for i, each in enumerate(best, start=1))
                own = f"rank {rank:,} of {len(order):,}: {show(int(np.flatnonzero(right)[0]))}"
                samples.append({"source": query, "target": own, "hypothesis": others})
                continue
            images = [(show(int(each)), bool(right[each])) for each in best]
            if not isinstance(query, str):
                images = [(query, None), *images]
            samples.append({
                "picture": save_image(finished.folder.root, str(number), strip(images)),
                "source": query if isinstance(query, str) else f"{held.sides[0][:-1]} {number}, and what it finds",
                "caption": f"the right one has rank {rank:,} of {len(order):,}",
            })  # fmt: skip
        return samples


def embedded(model: Any, batches: Iterable[Any], side: int) -> Float[np.ndarray, "_ E"]:
    """Embed one side of pairs, without the rows that only fill up a batch."""
    return np.concatenate([np.asarray(_embed(model, each["inputs"])[side])[each["weights"] > 0] for each in batches])


@jax.jit
def _embed(model: Any, inputs: Any) -> tuple[Array | None, Array | None]:
    found = model.hidden_states(**inputs)
    if isinstance(found, tuple):
        return tuple(found)
    vectors = unit(model.output(found))  # of a sentence encoder, which is one for both sides
    return vectors, vectors


def ranked(
    scores: Float[np.ndarray, "F S"], right: Bool[np.ndarray, "F S"]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Rank the second halves for each first one that has a right one; return the recalls, and a line of a table."""
    asked = right.any(axis=1)  # a text that tells no test image is there to be taken for another
    ranks = best_ranks(scores[asked], right[asked])
    recalls = {f"r{k}": float((ranks < k).mean()) for k in TOP}
    shares = (f"{100 * share:.2f} %" for share in recalls.values())
    return recalls, (f"{asked.sum():,} of {right.shape[1]:,}", *shares, f"{np.median(ranks) + 1:g}")


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


def strip(images: Iterable[tuple[Any, bool | None]]) -> Any:
    """Put images of Pillow's in a row: green around right ones, red around wrong, a wide gap after a question."""
    import PIL.Image

    images = list(images)
    high = max(image.height for image, _ in images) + 2 * FRAME
    places, x = [], 0
    for image, right in images:
        places.append(x)
        x += image.width + 2 * FRAME + GAP * (4 if right is None else 1)
    row = PIL.Image.new("RGB", (x - GAP, high), "white")
    for (image, right), x in zip(images, places, strict=True):
        colour = {None: "white", True: (40, 160, 70), False: (215, 60, 50)}[right]
        row.paste(colour, (x, 0, x + image.width + 2 * FRAME, image.height + 2 * FRAME))
        row.paste(image.convert("RGB"), (x + FRAME, FRAME))
    return row
