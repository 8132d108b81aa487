"""Images in, batches out: sources, transforms, fixed-shape batches.

`open_images` takes a folder of whichever form and gives an `ImageSet`. Images pass through transforms of examples
(`geometry`, `colour`), are laid out by `ImageRows`, or with their boxes by `SceneRows`, and changed as batches
(`ShiftFlip`, `Normalise`, `Erase`, `MixupCutmix`). `load_images` keeps small ones in memory, `ImageStream` streams them
for training, `each_image_once` for evaluation.
"""

from flax_transformer.data.image.batch import Draw, Erase, ImageRows, MixupCutmix, Normalise, SceneRows, ShiftFlip
from flax_transformer.data.image.colour import ColourJitter, RandAugment
from flax_transformer.data.image.decode import decode_image, image_size
from flax_transformer.data.image.geometry import (
    CenterCrop,
    Flip,
    RandomApply,
    RandomCrop,
    RandomResize,
    RandomResizedCrop,
    Resize,
)
from flax_transformer.data.image.image_pair import ImagePairData, PairedImages
from flax_transformer.data.image.image_set import Files, ImageSet, ImageSplit, InMemoryImages, Objects, Scenes
from flax_transformer.data.image.open import ImageData, open_images
from flax_transformer.data.image.stream import DecodedRows, ImageStream, InMemoryRows, each_image_once, load_images
from flax_transformer.data.image.text import CaptionData, Captioned, QuestionData, VisualQuestions

__all__ = [
    "CaptionData",
    "Captioned",
    "CenterCrop",
    "ColourJitter",
    "DecodedRows",
    "Draw",
    "Erase",
    "Files",
    "Flip",
    "ImageData",
    "ImagePairData",
    "ImageRows",
    "ImageSet",
    "ImageSplit",
    "ImageStream",
    "InMemoryImages",
    "InMemoryRows",
    "MixupCutmix",
    "Normalise",
    "Objects",
    "PairedImages",
    "QuestionData",
    "RandAugment",
    "RandomApply",
    "RandomCrop",
    "RandomResize",
    "RandomResizedCrop",
    "Resize",
    "SceneRows",
    "Scenes",
    "ShiftFlip",
    "VisualQuestions",
    "decode_image",
    "each_image_once",
    "image_size",
    "load_images",
    "open_images",
]
