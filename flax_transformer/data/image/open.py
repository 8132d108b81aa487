"""Images of whichever form a folder has them in."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.folder import FileType, has_class_folders, inner_folder, open_folders
from flax_transformer.data.image.coco import find_coco, open_coco
from flax_transformer.data.image.decode import is_image_name
from flax_transformer.data.image.idx import find_idx, open_idx
from flax_transformer.data.image.image_set import Files, labelled_images
from flax_transformer.data.image.tfds import TfdsImages, find_tfds, open_tfds
from flax_transformer.data.split import complete_splits, normal, stratified_subset
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed

IMAGE_FILES = FileType(
    one="image",
    many="images",
    named=is_image_name,
    forms="class folders, COCO's or TFDS's annotations, or idx files",
)


@frozen
class ImageData:
    """Images of a folder: class folders, idx files, COCO's json, or what TFDS has prepared, whichever it holds."""

    root: str
    """The folder of the data."""
    names: tuple[str, ...] = ()
    """What the classes are called, in their order; as the files call them by default."""
    holdout: float = 0.1
    """Share of the training images, of each class, for each of validation and test that the folder lacks."""
    split_seed: int = 0
    """Which images these are."""
    limit: int | None = None
    """Training images that are used, of each class its share; None: all."""

    def open(self) -> DataSet:
        """Open the images; errors as `open_images` and `stratified_subset`, and for classes unlike the names."""
        found = self.found()
        if self.limit is None:
            return found
        train = found.splits["train"]
        chosen = stratified_subset(_image_names(train), _labels(train), self.limit, seed=self.split_seed)
        return replace(found, splits={**found.splits, "train": train.take(chosen)})

    def found(self) -> DataSet:
        """Open all that there are."""
        found = open_images(self.root, holdout=self.holdout, seed=self.split_seed)
        if self.names and len(self.names) != len(found.classes):
            raise ValueError(
                f"names must be as many as the classes, got {listed(self.names)} for {listed(found.classes)}"
            )
        return replace(found, classes=self.names) if self.names else found


def open_images(root: str | os.PathLike, *, holdout: float = 0.1, seed: int = 0) -> DataSet:
    """Open the images of a folder without decoding them, and hold out a part where it has no such split.

    What lacks a validation or a test split gives a share of each class for it.

    Args:
      root: the folder.
      holdout: the share.
      seed: which images are held out, with their names.

    Raises:
      FileNotFoundError, ValueError: as `image_splits`, and for too few images to hold out.
    """
    found = image_splits(root)
    splits = complete_splits(found.splits, _image_names, _labels, share=holdout, seed=seed, where=root)
    return replace(found, splits=splits)


def image_splits(root: str | os.PathLike) -> DataSet:
    """Open the images of a folder without decoding them, in the splits that it has.

    Forms, and what they look like: `data.folder.open_folders` (class folders), `find_idx`, `find_coco`, `find_tfds`.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no images, several forms together, and what each form refuses.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of images, there is none")
    while not (forms := _forms(root)) and (inner := inner_folder(root, IMAGE_FILES)):
        root = inner
    if len(forms) > 1:
        raise ValueError(f"{root} must have images in one form, got {' and '.join(forms)}")
    kind, class_ids, channels = "classes", (), 3
    match forms:
        case {"TFDS features": found}:
            kind, splits, classes, channels = open_tfds(found)
        case {"COCO annotations": found}:
            kind, (splits, classes, class_ids) = "boxes", open_coco(root, found)
        case {"idx files": found}:
            splits, classes = open_idx(found)
            channels = splits["train"]["image"].pixels.shape[-1]
        case _:
            files, classes = open_folders(root, IMAGE_FILES)
            splits = {
                split: labelled_images(Files(each.root, each.names), each.labels) for split, each in files.items()
            }
    if kind == "classes" and len(classes) < 2:
        raise ValueError(f"{root} must have images of at least two classes, got {', '.join(classes)}")
    return DataSet(splits, classes, kind, channels, class_ids)


def _forms(root: Path) -> dict[str, Any]:
    found = {"idx files": find_idx(root), "COCO annotations": find_coco(root), "TFDS features": find_tfds(root)}
    if (found["idx files"] or found["TFDS features"]) and has_class_folders(root, IMAGE_FILES):
        found["class folders"] = root
    return {name: each for name, each in found.items() if each}


def _labels(table: Table) -> np.ndarray:
    """Return each image's class; where there are boxes, all have one."""
    return table["label"] if "label" in table.columns else np.zeros(len(table), np.int32)


def _image_names(table: Table) -> list[str]:
    """Name images by what does not depend on where their folder is."""
    source = table["image"]
    if isinstance(source, Files):
        return [normal(Path(name).as_posix()) for name in source.names]
    return [str(index) for index in (source.indices if isinstance(source, TfdsImages) else range(len(source)))]
