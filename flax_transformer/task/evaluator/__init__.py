"""What a finished model is tested and shown by: frozen values that are called with it."""

from flax_transformer.task.evaluator.damage import Restorations
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.evaluator.exercise import Answers
from flax_transformer.task.evaluator.label import Labels, PictureLabels
from flax_transformer.task.evaluator.mask import Guesses
from flax_transformer.task.evaluator.text import Continuations, TextLoss
from flax_transformer.task.evaluator.translate import Translations

__all__ = [
    "Answers",
    "Continuations",
    "Evaluator",
    "Finished",
    "Guesses",
    "Labels",
    "PictureLabels",
    "Restorations",
    "Shown",
    "TextLoss",
    "Translations",
]
