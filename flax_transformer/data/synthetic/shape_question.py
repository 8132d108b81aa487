"""Generated images with questions that only the image answers: shapes of a few colours, on noisy ground.

Axes: B questions.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from jaxtyping import Float

from flax_transformer.data.image.text import QuestionData, visual_questions
from flax_transformer.data.split import SPLITS
from flax_transformer.data.synthetic.shape import SHAPES, RenderedImages, ShapeScenes
from flax_transformer.data.synthetic.shape_caption import COLOURS
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen

VisibleShapes = list[tuple[str, str, float]]
"""Of every object its colour, its shape and where its middle is, from left to right."""


@frozen
class ShapeVQA(ShapeScenes):
    """Scenes of shapes that have one of six colours, and questions about each; the same ones of a seed."""

    train: int = 6_000
    """Images to train on."""
    size: int = 48
    """Pixels of both sides."""
    objects: int = 3
    """Shapes in an image at most; there is at least one."""
    smallest: float = 0.25
    """Least side of a box, as a share of the image's."""
    questions: int = 4
    """About each image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.questions <= 16:
            raise ValueError(f"questions must be from 1 to 16 an image, got {self.questions}")

    def ground(self, rng: np.random.Generator) -> Float[np.ndarray, "3"]:
        """Draw a grey, which no object has."""
        return np.full(3, rng.uniform(90, 250))

    def colours(self, number: int, count: int) -> list[str]:
        """Name the colours of a scene's objects."""
        return np.random.default_rng((self.scene_seed, number, 2)).choice(list(COLOURS), count).tolist()

    def paint(
        self, number: int, count: int, ground: Float[np.ndarray, "3"], rng: np.random.Generator
    ) -> Sequence[Float[np.ndarray, "3"]]:
        """Return the colours of a scene's objects."""
        return [np.array(COLOURS[name], float) for name in self.colours(number, count)]

    def open(self) -> DataSet:
        """Lay out all scenes and questions; images are drawn when they are asked for."""
        counts = (self.train, self.held_out, self.held_out)
        ends = np.cumsum(counts)
        splits = {}
        for split, count, end in zip(SPLITS, counts, ends, strict=True):
            numbers = np.arange(end - count, end)
            asked = [pair for number in numbers.tolist() for pair in self.ask(number)]
            of = np.repeat(np.arange(count), self.questions)
            questions, answers = zip(*asked, strict=True)
            splits[split] = visual_questions(
                RenderedImages(self, numbers), of, questions, [(answer,) for answer in answers]
            )
        return DataSet(splits, kind="questions")

    def ask(self, number: int) -> list[tuple[str, str]]:
        """Return questions about a scene, each with its answer."""
        objects, rng = self.layout(number), np.random.default_rng((self.scene_seed, number, 3))
        middles = (objects.boxes[:, 0] + objects.boxes[:, 2]).tolist()
        shapes = [SHAPES[label] for label in objects.classes.tolist()]
        seen = list(zip(self.colours(number, len(shapes)), shapes, middles, strict=True))
        found: list[tuple[str, str]] = []
        while len(found) < self.questions:
            made = KINDS[rng.integers(len(KINDS))](seen, rng)
            found += [] if made is None or made in found else [made]
        return found


def which_colour(seen: VisibleShapes, rng: np.random.Generator) -> tuple[str, str] | None:
    """Return a question for the colour of a shape of which there is one."""
    shapes = [shape for _, shape, _ in seen]
    once = [(colour, shape) for colour, shape, _ in seen if shapes.count(shape) == 1]
    if not once:
        return None
    colour, shape = once[rng.integers(len(once))]
    return f"what colour is the {shape}?", colour


def which_shape(seen: VisibleShapes, rng: np.random.Generator) -> tuple[str, str] | None:
    """Return a question for the shape of a colour of which there is one."""
    colours = [colour for colour, _, _ in seen]
    once = [(colour, shape) for colour, shape, _ in seen if colours.count(colour) == 1]
    if not once:
        return None
    colour, shape = once[rng.integers(len(once))]
    return f"what shape is {colour}?", shape


def how_many(seen: VisibleShapes, rng: np.random.Generator) -> tuple[str, str]:
    """Return a question of how many shapes there are, of a kind or in all."""
    kind = ["shape", *SHAPES][rng.integers(len(SHAPES) + 1)]
    count = len(seen) if kind == "shape" else sum(shape == kind for _, shape, _ in seen)
    return f"how many {kind}{'es' if kind == 'cross' else 's'} are there?", str(count)


def is_there(seen: VisibleShapes, rng: np.random.Generator) -> tuple[str, str]:
    """Return a question of whether there is a shape of a colour, as often there as not."""
    yes = bool(rng.integers(2))
    there = {(colour, shape) for colour, shape, _ in seen}
    others = [(colour, shape) for colour in COLOURS for shape in SHAPES if (colour, shape) not in there]
    chosen = sorted(there) if yes else others
    colour, shape = chosen[rng.integers(len(chosen))]
    return f"is there a {colour} {shape}?", "yes" if yes else "no"


def is_left(seen: VisibleShapes, rng: np.random.Generator) -> tuple[str, str] | None:
    """Return a question of whether one of two shapes is left of the other, as often as not."""
    named = [(colour, shape) for colour, shape, _ in seen]
    once = [each for each in seen if named.count(each[:2]) == 1]
    if len(once) < 2:
        return None
    one, other = (once[i] for i in rng.permutation(len(once))[:2])
    if one[2] == other[2]:
        return None
    (colour, shape, _), (of, kind, _) = one, other
    return f"is the {colour} {shape} left of the {of} {kind}?", "yes" if one[2] < other[2] else "no"


KINDS: tuple[Any, ...] = (which_colour, which_shape, how_many, is_there, is_left)


@frozen
class ShapeQuestions(QuestionData):
    """Images with questions: of a folder, or drawn shapes where no folder is named."""

    root: str = ""
    """Folder of images and files of questions; empty: shapes are drawn."""
    shapes: ShapeVQA = field(default_factory=ShapeVQA)
    """Which ones."""

    def open(self) -> DataSet:
        """Open the folder, or draw."""
        return super().open() if self.root else self.shapes.open()
