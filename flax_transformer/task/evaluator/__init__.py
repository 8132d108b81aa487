"""What a finished model is tested and shown by: frozen values that are called with it."""

from flax_transformer.task.evaluator.caption import Captions
from flax_transformer.task.evaluator.damage import Restorations
from flax_transformer.task.evaluator.detect import DetectionEvaluator
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.evaluator.exercise import Answers
from flax_transformer.task.evaluator.label import Labels, PictureLabels, SoundLabels
from flax_transformer.task.evaluator.mask import Guesses
from flax_transformer.task.evaluator.pixel import Completions, PixelBits
from flax_transformer.task.evaluator.probe import LayerProbe
from flax_transformer.task.evaluator.retrieval import RetrievalEvaluator
from flax_transformer.task.evaluator.rollout import Rollouts
from flax_transformer.task.evaluator.story import TaskErrors
from flax_transformer.task.evaluator.text import Continuations, TextLoss
from flax_transformer.task.evaluator.transcript import Transcripts
from flax_transformer.task.evaluator.translate import Translations
from flax_transformer.task.evaluator.visual_question import VisualAnswers

__all__ = [
    "Answers",
    "Captions",
    "Completions",
    "Continuations",
    "DetectionEvaluator",
    "Evaluator",
    "Finished",
    "Guesses",
    "Labels",
    "LayerProbe",
    "PictureLabels",
    "PixelBits",
    "Restorations",
    "RetrievalEvaluator",
    "Rollouts",
    "Shown",
    "SoundLabels",
    "TaskErrors",
    "TextLoss",
    "Transcripts",
    "Translations",
    "VisualAnswers",
]
