"""What stands beside weights: read, or said to be unreadable where it is used, for weights are worth having alone."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flax_transformer.hub.file import write_files
from flax_transformer.hub.processor.audio import AudioProcessor, hears, load_audio_processor, read_audio_files
from flax_transformer.hub.processor.file import read_files
from flax_transformer.hub.processor.image import ImageProcessor, load_image_processor, read_image_files
from flax_transformer.hub.processor.tokenizer import HubTokenizer, load_hub_tokenizer
from flax_transformer.hub.timm_folder import is_timm_folder, timm_processor


class Unreadable:
    """Stands for a tokenizer or processor that cannot be read; any use but `save` says why.

    Raises:
        ValueError: at every use.
    """

    def __init__(self, what: str, files: Mapping[str, bytes], reason: str):
        self._what, self._files, self._reason = what, files, reason

    def __repr__(self) -> str:
        return f"Unreadable({self._what!r}, {self._reason!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying asks for what need not be there
            raise AttributeError(name)
        raise ValueError(f"this checkpoint's {self._what} cannot be read: {self._reason}")

    def __call__(self, *inputs: Any, **options: Any) -> None:
        """Return why not."""
        return self.engine

    def save(self, folder: str | os.PathLike) -> None:
        """Write the files as they were, byte for byte."""
        write_files(self._files, Path(folder))


def open_tokenizer(folder: Path) -> HubTokenizer | Unreadable | None:
    """Read a checkpoint's tokenizer; None where it has none. What is wrong with it is logged, and said at its use."""
    return _open("tokenizer", load_hub_tokenizer, read_files, folder)


def open_image_processor(folder: Path) -> ImageProcessor | Unreadable | None:
    """Read a checkpoint's image processor; None where it has none. What is wrong is logged, and said at its use."""
    return _open("image processor", _image_processor, read_image_files, folder)


def _image_processor(folder: Path) -> ImageProcessor | None:
    found = load_image_processor(folder)
    return timm_processor(folder) if found is None and is_timm_folder(folder) else found


def open_processor(folder: Path) -> ImageProcessor | AudioProcessor | Unreadable | None:
    """Read what makes a model's inputs of recordings, or of images; as `open_image_processor`."""
    with contextlib.suppress(ValueError):  # broken files are told of below
        if hears(folder):
            return _open("feature extractor", load_audio_processor, read_audio_files, folder)
    return open_image_processor(folder)


def _open(what: str, load: Callable[[Path], Any], read: Callable[[Path], dict[str, bytes]], folder: Path) -> Any:
    try:
        return load(folder)
    except ValueError as error:
        logging.getLogger(__name__).warning("these weights are without their %s: %s", what, error)
        return Unreadable(what, read(folder), str(error))
