"""Images in, batches out: sources, transforms, fixed-shape batches.

`open_images` takes a folder of whichever form and gives an `ImageSet`. Images pass through transforms of examples
(`geometry`, `colour`), are laid out by `ImageRows`, or with their boxes by `SceneRows`, and changed as batches
(`ShiftFlip`, `Normalise`, `Erase`, `Mix`). `hold` keeps small ones in memory, `ImageStream` streams them
for training, `each_image_once` for evaluation.
"""

from flax_transformer.data.image.batch import Draw, Erase, ImageRows, Mix, Normalise, SceneRows, ShiftFlip
from flax_transformer.data.image.caption import CaptionData, Captioned
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
from flax_transformer.data.image.image_pair import TwinData, Twins
from flax_transformer.data.image.image_set import Files, Held, ImageSet, Objects, Pictures, Scenes
from flax_transformer.data.image.labelled_shape import DrawnShapes, LabelledData
from flax_transformer.data.image.open import ImageData, open_images
from flax_transformer.data.image.question import Asked, QuestionData
from flax_transformer.data.image.scene import SceneData, ShapeScenes
from flax_transformer.data.image.scene_caption import CaptionedScenes, SceneCaptions
from flax_transformer.data.image.shape_caption import CaptionedShapes, ShapeCaptions
from flax_transformer.data.image.shape_question import AskedShapes, ShapeQuestions
from flax_transformer.data.image.stream import DecodedRows, HeldRows, ImageStream, each_image_once, hold

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
