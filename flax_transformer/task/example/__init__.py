"""How data become examples and batches: frozen values with `open`, which an experiment names beside its data."""

from flax_transformer.task.example.audio import (
    HeldSounds,
    LabelledSounds,
    SoundAugment,
)
from flax_transformer.task.example.captioned import CaptionedImages, HeldCaptions, ImageCaptions
from flax_transformer.task.example.damage import DamagedTexts, Lines
from flax_transformer.task.example.distillation import TaughtImages
from flax_transformer.task.example.exercise import Amount, ExerciseTexts
from flax_transformer.task.example.image import Augment, HeldImages, LabelledImages
from flax_transformer.task.example.image_pair import ImagePairs
from flax_transformer.task.example.label import LabelledTexts
from flax_transformer.task.example.mask import MaskedTexts, TextLines
from flax_transformer.task.example.matched import HeldMatches
from flax_transformer.task.example.opened import Context, ExampleMaker, Opened, VocabularyConfig, stream
from flax_transformer.task.example.pair import BPE, AlignedBatching, Batching, SentencePairs
from flax_transformer.task.example.pixel import HeldPixels, PixelSequences
from flax_transformer.task.example.scene import DetectionImages
from flax_transformer.task.example.skeleton import HeldSkeletons, LabelledSkeletons
from flax_transformer.task.example.speech import SpokenLetters, SpokenTexts
from flax_transformer.task.example.story import HeldStories, StoryQuestions
from flax_transformer.task.example.trajectory import HeldPlay, TrajectoryParts
from flax_transformer.task.example.video import HeldClips, LabelledVideos
from flax_transformer.task.example.visual_question import AskedImages, AskedTexts, HeldQuestions
from flax_transformer.task.example.window import TextWindows

__all__ = [
    "BPE",
    "AlignedBatching",
    "Amount",
    "AskedImages",
    "AskedTexts",
    "Augment",
    "Batching",
    "CaptionedImages",
    "Context",
    "DamagedTexts",
    "DetectionImages",
    "ExampleMaker",
    "ExerciseTexts",
    "HeldCaptions",
    "HeldClips",
    "HeldImages",
    "HeldMatches",
    "HeldPixels",
    "HeldPlay",
    "HeldQuestions",
    "HeldSkeletons",
    "HeldSounds",
    "HeldStories",
    "ImageCaptions",
    "ImagePairs",
    "LabelledImages",
    "LabelledSkeletons",
    "LabelledSounds",
    "LabelledTexts",
    "LabelledVideos",
    "Lines",
    "MaskedTexts",
    "Opened",
    "PixelSequences",
    "SentencePairs",
    "SoundAugment",
    "SpokenLetters",
    "SpokenTexts",
    "StoryQuestions",
    "TaughtImages",
    "TextLines",
    "TextWindows",
    "TrajectoryParts",
    "VocabularyConfig",
    "stream",
]
