"""The tokenizer beside weights: read, or said to be unreadable where it is used, for weights are worth having alone."""

import logging
import os
from pathlib import Path
from typing import Any

from flax_transformer.hub.file import write_files
from flax_transformer.hub.processor.file import read_files
from flax_transformer.hub.processor.tokenizer import HubTokenizer, load_hub_tokenizer


class UnreadableTokenizer:
    """Stands for a tokenizer that cannot be read; any use but `save` says why.

    Raises:
        ValueError: at every use.
    """

    def __init__(self, folder: Path, reason: str):
        self._folder, self._files, self._reason = folder, read_files(folder), reason

    def __repr__(self) -> str:
        return f"UnreadableTokenizer({str(self._folder)!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying asks for what need not be there
            raise AttributeError(name)
        raise ValueError(f"this checkpoint's tokenizer cannot be read: {self._reason}")

    def __call__(self, *texts: Any, **options: Any) -> None:
        """Say why not."""
        return self.engine

    def save(self, folder: str | os.PathLike) -> None:
        """Write the files as they were, byte for byte."""
        write_files(self._files, Path(folder))


def open_tokenizer(folder: Path) -> HubTokenizer | UnreadableTokenizer | None:
    """Read a checkpoint's tokenizer; None where it has none. What is wrong with it is logged, and said at its use."""
    try:
        return load_hub_tokenizer(folder)
    except ValueError as error:
        logging.getLogger(__name__).warning("these weights are without a tokenizer: %s", error)
        return UnreadableTokenizer(folder, str(error))
