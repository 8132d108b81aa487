"""Small data sets of images, of every form, for tests."""

import gzip
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL.Image


def pixels(seed=0, height=6, width=8, channels=3):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def write_image(path: Path, array=None, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels() if array is None else array).save(path, **options)
    return path


def class_folders(root: Path, classes=("cat", "dog"), count=5, suffix=".png", size=(6, 8)) -> Path:
    for label, name in enumerate(classes):
        for number in range(count):
            write_image(root / name / f"{number}{suffix}", pixels(100 * label + number, *size))
    return root


def idx_bytes(array) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def idx_folder(root: Path, count=20, test=6, classes=2, pack=True) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, size in (("train", count), ("t10k", test)):
        for what, array in (("images-idx3", pixels(size, size, 4, 5)), ("labels-idx1", np.arange(size) % classes)):
            content = idx_bytes(array)
            path = root / f"{name}-{what}-ubyte{'.gz' if pack else ''}"
            path.write_bytes(gzip.compress(content, mtime=0) if pack else content)
    return root


def coco(count=6, width=8, height=6) -> dict:
    boxes = [[1, 1, 3, 4], [2.5, 0, 5.5, 6]]
    return {
        "images": [
            {"id": 10 + i, "file_name": f"{i}.png", "width": width, "height": height} for i in range(count)
        ],
        "annotations": [
            {"id": 2 * i + j, "image_id": 10 + i, "category_id": 3 * j + 1, "bbox": boxes[j], "area": 1, "iscrowd": 0}
            for i in range(count)
            for j in range(i % 3)
        ],
        "categories": [{"id": 1, "name": "cell"}, {"id": 4, "name": "Zelle für Zelle"}],
    }  # fmt: skip


def coco_folder(root: Path, count=6, name="annotations/instances_train2017.json", images="train2017") -> Path:
    for number in range(count):
        write_image(root / images / f"{number}.png", pixels(number))
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(coco(count)))
    return root


def tfds_folder(root: Path, *, boxes=False, count=9) -> Path:
    """Prepare a TFDS data set, with classes or with boxes."""
    import io
    from types import MappingProxyType

    import tensorflow_datasets as tfds

    def encoded(number):
        file = io.BytesIO()
        PIL.Image.fromarray(pixels(number, 6 + number % 2)).save(file, "PNG")
        return io.BytesIO(file.getvalue())

    names = tfds.features.ClassLabel(names=["x", "y", "z"])
    known = {"label": names} | ({"bbox": tfds.features.BBoxFeature()} if boxes else {})
    known = {"objects": tfds.features.Sequence(known)} if boxes else known

    class Toy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        url_infos = MappingProxyType({})

        def _info(self):
            features = {"image": tfds.features.Image(shape=(None, None, 3)), **known}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(count), "test": self._generate_examples(4)}

        def _generate_examples(self, count):
            for number in range(count):
                objects = [{"bbox": tfds.features.BBox(0.0, 0.5, 0.5, 1.0), "label": j} for j in range(number % 3)]
                yield number, {"image": encoded(number)} | ({"objects": objects} if boxes else {"label": number % 3})

    Toy.name = "toy"
    builder = Toy(data_dir=str(root))
    builder.download_and_prepare(file_format="array_record")
    return Path(builder.data_path)


def png_bomb(width=60_000, height=60_000) -> bytes:
    """An image of a few bytes that says it is enormous, and is valid as far as that."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
