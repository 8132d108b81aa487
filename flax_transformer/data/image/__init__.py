"""Images in, batches out: sources, transforms, fixed-shape batches.

`open_images` takes a folder of whichever form and gives a `DataSet` of tables. Images pass through transforms of
examples (`geometry`, `colour`), are laid out by `ImageRows`, or with their boxes by `SceneRows`, and changed as batches
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
from flax_transformer.data.image.image_folder import ImageFolderData, ImageSetsData
from flax_transformer.data.image.image_pair import ImagePairData, image_pairs
from flax_transformer.data.image.image_set import Files, InMemoryImages, Objects, image_scenes, labelled_images
from flax_transformer.data.image.open import ImageData, open_images
from flax_transformer.data.image.pair_augment import PairAugment
from flax_transformer.data.image.stream import DecodedRows, ImageStream, InMemoryRows, each_image_once, load_images
from flax_transformer.data.image.text import CaptionData, QuestionData, captioned_images, visual_questions

__all__ = [
    "CaptionData",
    "CenterCrop",
    "ColourJitter",
    "DecodedRows",
    "Draw",
    "Erase",
    "Files",
    "Flip",
    "ImageData",
    "ImageFolderData",
    "ImagePairData",
    "ImageRows",
    "ImageSetsData",
    "ImageStream",
    "InMemoryImages",
    "InMemoryRows",
    "MixupCutmix",
    "Normalise",
    "Objects",
    "PairAugment",
    "QuestionData",
    "RandAugment",
    "RandomApply",
    "RandomCrop",
    "RandomResize",
    "RandomResizedCrop",
    "Resize",
    "SceneRows",
    "ShiftFlip",
    "captioned_images",
    "decode_image",
    "each_image_once",
    "image_pairs",
    "image_scenes",
    "image_size",
    "labelled_images",
    "load_images",
    "open_images",
    "visual_questions",
]
