"""Images that TensorFlow Datasets has prepared as ArrayRecord, read without TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from flax_transformer.data.image.decode import decode_image, image_size
from flax_transformer.data.image.image_set import Objects, image_scenes, labelled_images
from flax_transformer.data.split import split_of
from flax_transformer.data.table import Table
from flax_transformer.data.tfds_metadata import first_line, refuse_code
from flax_transformer.listing import listed


@dataclass(frozen=True, eq=False)
class TfdsImages:
    """Images that are encoded in records."""

    source: Any  # a TFDS random-access data source that leaves images encoded
    feature: str
    origin: str
    identity: str
    indices: Int[np.ndarray, " B"]
    channels: int = 3

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return decode_image(self._content(index), channels=self.channels, name=self.name(index))

    @property
    def fingerprint(self) -> str:
        """Name which images they are: by data set, version and split, and their numbers there."""
        return f"{self.identity} {self.indices.tolist()}"

    def name(self, index: int) -> str:
        """Return where an image comes from."""
        return f"{self.origin}, record {self.indices[index]}"

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height of an image, from its header."""
        return image_size(self._content(index), name=self.name(index))

    def take(self, indices: Int[np.ndarray, "_"]) -> "TfdsImages":
        """Pick some."""
        return TfdsImages(self.source, self.feature, self.origin, self.identity, self.indices[indices], self.channels)

    def _content(self, index: int) -> bytes:
        return read_record(self.source, int(self.indices[index]), self.origin)[self.feature]


def find_tfds(root: Path) -> list[Path]:
    """Find the folders of prepared data sets in a folder, or up to three folders down."""
    found = (root.glob(f"{level}features.json") for level in ("", "*/", "*/*/", "*/*/*/"))
    return [path.parent for level in found for path in sorted(level) if (path.parent / "dataset_info.json").exists()]


def open_tfds(folders: Sequence[Path]) -> tuple[Literal["classes", "boxes"], dict[str, Any], tuple[str, ...], int]:
    """Open the splits of a prepared data set: what is known of its images, the splits, the classes, the channels.

    Every record is read once, for its class or its boxes; images stay encoded. The images are those of the one
    `Image` feature, the classes those of the one `ClassLabel`, and where that stands in a sequence beside a
    `BBoxFeature`, they are of objects; those of crowds (`is_crowd`) are left out.

    Raises:
      ValueError: several data sets, one not prepared as ArrayRecord, features of other kinds, damaged records.
    """
    import tensorflow_datasets as tfds

    if len(folders) > 1:
        raise ValueError(f"a folder must have one prepared data set, got {listed(folders)}")
    folder = folders[0]
    refuse_code(folder / "features.json")
    try:
        builder = tfds.builder_from_directory(str(folder))
        features, splits = builder.info.features, dict(builder.info.splits)
    except Exception as error:
        raise ValueError(f"TFDS cannot open {folder}: {first_line(error)}") from error
    if builder.info.file_format.value != "array_record":
        raise ValueError(f"{folder} must be prepared as array_record, got {builder.info.file_format.value}")
    image, label, boxes = _roles(features, folder)
    channels = features[image].shape[-1] or 3
    classes = tuple(features[label].names) if boxes is None else tuple(features[boxes[0]].feature[label].names)
    found: dict[str, Any] = {}
    for name in splits:
        split = split_of(name)
        if split is None or split in found:
            continue
        origin = f"{folder}, split {name}"
        try:
            source = builder.as_data_source(split=name, decoders={image: tfds.decode.SkipDecoding()})
        except Exception as error:
            raise ValueError(f"{origin} cannot be read: {first_line(error)}") from error
        indices = np.arange(len(source))
        images = TfdsImages(
            source, image, origin, f"{builder.info.full_name} {name}", indices, 1 if channels == 1 else 3
        )
        found[split] = _images(images, label) if boxes is None else _scenes(images, label, *boxes)
    if "train" not in found:
        raise ValueError(f"{folder} must have a split train, got {listed(splits)}")
    return "classes" if boxes is None else "boxes", found, classes, 1 if channels == 1 else 3


def read_record(source: Any, index: int, origin: str) -> Mapping[str, Any]:
    """Read one record.

    Raises:
      ValueError: it is damaged.
    """
    try:
        return source[index]
    except Exception as error:
        raise ValueError(f"{origin}, record {index} cannot be read: {first_line(error)}") from error


def _roles(features: Any, folder: Path) -> tuple[str, str, tuple[str, str] | None]:
    """Name the features of images and of classes; for objects also their sequence and its feature of boxes."""
    import tensorflow_datasets as tfds

    kinds = tfds.features
    images = [name for name, each in features.items() if isinstance(each, kinds.Image)]
    labels = [name for name, each in features.items() if isinstance(each, kinds.ClassLabel)]
    objects = [
        (name, inner)
        for name, each in features.items()
        if isinstance(each, kinds.Sequence) and isinstance(inner := each.feature, kinds.FeaturesDict)
    ]
    for name, inner in objects:
        boxes = [key for key, each in inner.items() if isinstance(each, kinds.BBoxFeature)]
        classes = [key for key, each in inner.items() if isinstance(each, kinds.ClassLabel)]
        if len(images) == len(boxes) == 1 and classes:
            return images[0], "label" if "label" in classes else classes[0], (name, boxes[0])
    if len(images) == 1 and (len(labels) == 1 or "label" in labels):
        return images[0], "label" if "label" in labels else labels[0], None
    raise ValueError(f"{folder} must have one feature of images, and classes or boxes, got {listed(features)}")


def _images(images: TfdsImages, label: str) -> Table:
    labels = [read_record(images.source, index, images.origin)[label] for index in range(len(images))]
    if min(labels, default=0) < 0:
        raise ValueError(f"every record must have a class, got {min(labels)} in {images.name(int(np.argmin(labels)))}")
    return labelled_images(images, np.array(labels, np.int32))


def _scenes(images: TfdsImages, label: str, objects: str, box: str) -> Table:
    """Read all boxes; TFDS has them as top, left, bottom and right, as shares of height and width."""
    found = []
    for index in range(len(images)):
        record = read_record(images.source, index, images.origin)
        width, height = image_size(record[images.feature], name=images.name(index))
        relative = np.array(record[objects][box], np.float32).reshape(-1, 4)
        wrong = ~((relative[:, :2] < relative[:, 2:]).all(1) & (relative >= 0).all(1) & (relative <= 1).all(1))
        if wrong.any():
            raise ValueError(
                f"a box must have an area within the image, got {relative[wrong][0].tolist()} in {images.name(index)}"
            )
        boxes = relative[:, [1, 0, 3, 2]] * np.array([width, height, width, height], np.float32)
        classes, areas = np.array(record[objects][label], np.int32).reshape(-1), record[objects].get("area")
        crowd = np.array(record[objects].get("is_crowd", [False] * len(boxes)), bool)
        found.append(Objects.from_annotations(boxes, classes, None if areas is None else np.array(areas, float), crowd))
    return image_scenes(images, found, np.arange(len(images)))
