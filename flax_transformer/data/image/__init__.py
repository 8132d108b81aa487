"""Images in, batches out: sources, transforms, fixed-shape batches.

`open_images` takes a folder of whichever form and gives an `ImageSet`. Images pass through transforms of examples
(`geometry`, `colour`), are laid out by `ImageRows`, or with their boxes by `SceneRows`, and changed as batches
(`ShiftFlip`, `Normalise`, `Erase`, `Mix`). `hold` keeps small ones in memory, `ImageStream` streams them
for training, `each_image_once` for evaluation.
"""

from flax_transformer.data.image.asked import Asked, QuestionData
from flax_transformer.data.image.asked_shape import AskedShapes, ShapeQuestions
from flax_transformer.data.image.batch import Draw, Erase, ImageRows, Mix, Normalise, SceneRows, ShiftFlip
from flax_transformer.data.image.captioned import CaptionData, Captioned
from flax_transformer.data.image.captioned_scene import CaptionedScenes, SceneCaptions
from flax_transformer.data.image.captioned_shape import CaptionedShapes, ShapeCaptions
from flax_transformer.data.image.colour import ColourJitter, RandAugment
from flax_transformer.data.image.decode import decode_image, image_size
from flax_transformer.data.image.geometry import (
    CenterCrop,
    Flip,
    RandomCrop,
    RandomResize,
    RandomResizedCrop,
    Resize,
    Sometimes,
)
from flax_transformer.data.image.labelled import DrawnShapes, LabelledData
from flax_transformer.data.image.open import ImageData, open_images
from flax_transformer.data.image.picture import Files, Held, ImageSet, Objects, Pictures, Scenes
from flax_transformer.data.image.scene import SceneData, ShapeScenes
from flax_transformer.data.image.stream import DecodedRows, HeldRows, ImageStream, each_image_once, hold
from flax_transformer.data.image.twin import TwinData, Twins

__all__ = [
    "Asked",
    "AskedShapes",
    "CaptionData",
    "Captioned",
    "CaptionedScenes",
    "CaptionedShapes",
    "CenterCrop",
    "ColourJitter",
    "DecodedRows",
    "Draw",
    "DrawnShapes",
    "Erase",
    "Files",
    "Flip",
    "Held",
    "HeldRows",
    "ImageData",
    "ImageRows",
    "ImageSet",
    "ImageStream",
    "LabelledData",
    "Mix",
    "Normalise",
    "Objects",
    "Pictures",
    "QuestionData",
    "RandAugment",
    "RandomCrop",
    "RandomResize",
    "RandomResizedCrop",
    "Resize",
    "SceneCaptions",
    "SceneData",
    "SceneRows",
    "Scenes",
    "ShapeCaptions",
    "ShapeQuestions",
    "ShapeScenes",
    "ShiftFlip",
    "Sometimes",
    "TwinData",
    "Twins",
    "decode_image",
    "each_image_once",
    "hold",
    "image_size",
    "open_images",
]
