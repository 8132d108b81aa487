"""What a checkpoint folder says about images: images to a model's inputs, as `transformers` makes them with Pillow.

Axes: B images or videos, I frames, C channels, H × W pixels.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.hub.file import CONFIG, write_files
from flax_transformer.hub.processor.call import as_tensors
from flax_transformer.hub.processor.file import read_object
from flax_transformer.hub.processor.image_kind import KINDS, OPTIONS, name_kind, read_steps
from flax_transformer.hub.processor.image_source import read_images, read_pixels, split_videos
from flax_transformer.hub.processor.image_step import Normalize, Offset, Rescale, StackImages
from flax_transformer.listing import listed

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
INSIDE = "image_processor"
"""Where a processor of several kinds of inputs has the options of images."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ImageProcessor:
    """A checkpoint's image processor; made by ``load_image_processor`` or ``ImageProcessor.of``.

    >>> processor = ImageProcessor.of({"image_processor_type": "ViTImageProcessor", "size": 2})
    >>> processor.steps[0]
    PillowResize(size={'height': 2, 'width': 2}, resample=2)
    >>> processor(np.full((5, 4, 3), 255, np.uint8))["pixel_values"].shape
    (1, 3, 2, 2)
    """

    config: Mapping[str, Any] = field(repr=False)
    """Every option, known or not."""
    files: Mapping[str, bytes] = field(repr=False)
    model_type: str | None = None
    """Of config.json, which says what is not said otherwise."""
    rgb: bool
    """Whether images are made RGB before anything else: transparency over white, grey three times."""
    steps: tuple[Any, ...]
    """What is done to each image."""
    batch: Any
    """What makes a batch of them."""
    frames: bool = False
    """Whether they are frames of videos."""

    def __repr__(self) -> str:
        return f"ImageProcessor: {', '.join(f'{step!r:.60}' for step in (*self.steps, self.batch))}"

    @classmethod
    def of(cls, config: Mapping[str, Any], *, model_type: str | None = None) -> "ImageProcessor":
        """Make the image processor that options describe, those of preprocessor_config.json.

        Raises:
          ValueError: an unknown kind of processor, or an option that makes no sense.
        """
        config = {name: value for name, value in config.items() if name != "feature_extractor_type"} | {
            "image_processor_type": f"{name_kind(config, model_type)}ImageProcessor"
        }
        files = {PREPROCESSOR: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()}
        return _make(config, files, None)

    def updated(self, **changes: Any) -> "ImageProcessor":
        """Return a copy with some options changed, such as the size.

        Raises:
          ValueError: what is no option, or has an impossible value.
        """
        if unknown := sorted(changes.keys() - OPTIONS):
            raise ValueError(f"options of image processors are {', '.join(sorted(OPTIONS))}; got {listed(unknown)}")
        return ImageProcessor.of({**self.config, **changes}, model_type=self.model_type)

    def __call__(self, images: Any, *, return_tensors: str | None = None, **changes: Any) -> dict[str, np.ndarray]:
        """Make a model's inputs of images, or of videos where it is for these.

        Values must be whole and from 0 to 255, or from 0 to 1. Files are turned upright and made RGB first.

        Args:
          images: one or a list: Pillow's, files, bytes, or arrays with channels first or last, or grey without. A list
            of images is one video, and a list of such lists several.
          return_tensors: "np", or "jax" for JAX's arrays.
          changes: of options, for this call.

        Returns:
          `pixel_values` [B, C, H, W], of videos [B, I, C, H, W]; with them `pixel_mask` [B, H, W] where models are told
          of padding; or
          `input_ids` [B, H·W] where pixels are numbers of colours; or patches with `image_grid_thw`, see `PackPatches`.

        Raises:
          FileNotFoundError: no such file.
          ValueError: what is no image, or has other channels than the model.
        """
        if changes:
            return self.updated(**changes)(images, return_tensors=return_tensors)
        if self.frames:
            done = StackImages()([StackImages()(self._done(video))["pixel_values"] for video in split_videos(images)])
        else:
            done = self.batch(self._done(images))
        return as_tensors(done, return_tensors)

    def _done(self, images: Any) -> list[np.ndarray]:
        done = []
        for image in read_images(images):
            pixels = read_pixels(image, rgb=self.rgb)
            for step in self.steps:
                if isinstance(step, Rescale) and step.factor < 0.1 and pixels.dtype.kind == "f" and pixels.max() <= 1:
                    logging.getLogger(__name__).warning(
                        "values from 0 to 1 are scaled by %.6g once more, as transformers does: give bytes from 0 to "
                        "255, or do_rescale=False",
                        step.factor,
                    )
                pixels = step(pixels)
            done.append(pixels)
        return done

    def shown(self, image: Any) -> np.ndarray:
        """Return an image as the model sees it, before its values are changed: bytes [H, W, C].

        Args:
          image: of Pillow, a file, or bytes.

        Raises:
          FileNotFoundError, ValueError: as in a call.
        """
        (image,) = read_images(image)
        pixels = read_pixels(image, rgb=self.rgb)
        for step in self.steps:
            pixels = pixels if isinstance(step, Rescale | Offset | Normalize) else step(pixels)
        return np.moveaxis(pixels, 0, -1)

    def save(self, folder: str | os.PathLike) -> None:
        """Write the files that `transformers` reads, byte for byte those that it was read from, if any."""
        write_files(self.files, Path(folder))


def read_image_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a folder that say what is done to images, by name."""
    return {name: (folder / name).read_bytes() for name in (PREPROCESSOR, PROCESSOR) if (folder / name).is_file()}


def load_image_processor(folder: Path) -> ImageProcessor | None:
    """Read the image processor of a checkpoint folder; None where it has none.

    Raises:
      ValueError: one that is not known, or broken files; names the file.
    """
    files = read_image_files(folder)
    inside = read_object(files, PROCESSOR, folder).get(INSIDE)
    name = PREPROCESSOR if inside is None else PROCESSOR
    if name not in files:
        return None
    config = read_object(files, PREPROCESSOR, folder) if inside is None else inside
    if not isinstance(config, Mapping):
        raise ValueError(f"{folder / name}: {INSIDE} must be an object, got {config!r:.40}")
    model = {CONFIG: (folder / CONFIG).read_bytes()} if (folder / CONFIG).is_file() else {}
    try:
        model_type = read_object(model, CONFIG, folder).get("model_type")
        return _make(config, files, model_type if isinstance(model_type, str) else None)
    except ValueError as error:
        raise ValueError(f"{folder / name}: {error}") from error


def _make(config: Mapping[str, Any], files: Mapping[str, bytes], model_type: str | None) -> ImageProcessor:
    kind = KINDS[name_kind(config, model_type)]
    rgb, steps, batch = read_steps(config, kind)
    return ImageProcessor(
        config=config, files=files, model_type=model_type, rgb=rgb, steps=steps, batch=batch, frames=kind.frames
    )
