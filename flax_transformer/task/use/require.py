"""What a checkpoint must be and have for a use, said at the door."""

import os
from pathlib import Path
from typing import Any

from flax_transformer.data.image.decode import is_image_name
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.open import Unreadable
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.registration import USES
from flax_transformer.listing import listed


def require_use(pretrained: Pretrained, use: str, reads: str = "text") -> None:
    """Demand a checkpoint that can do something.

    Args:
      use: one of `USES`.
      reads: what it does so with: one of the values of `MODALITIES`.

    Raises:
      TypeError: what is no loaded checkpoint.
      ValueError: one that cannot, or that reads something else; says what it can, or reads.
    """
    if not isinstance(pretrained, Pretrained):
        got = repr(str(pretrained)) if isinstance(pretrained, str | os.PathLike) else f"a {type(pretrained).__name__}"
        raise TypeError(f"a checkpoint comes first, as `hub.load` returns it, got {listed([got])}")
    name, known = pretrained.config["architectures"][0], pretrained.architecture
    if use not in known.uses:
        can = ", ".join(USES[each] for each in known.uses)
        raise ValueError(f"to {USES[use]} takes a checkpoint that can, got a {name}, which can {can}")
    if reads not in known.inputs.reads:
        raise ValueError(f"a {name} reads {' and '.join(known.inputs.reads)}, it was given {reads}")


def tokenizer_of(pretrained: Pretrained, *texts: str) -> HubTokenizer:
    """Return the checkpoint's tokenizer, for some texts.

    Raises:
      ValueError: when it reads no text, has no tokenizer or one that cannot be read, or a text is the name of an
        image's file.
    """
    name, reads = pretrained.config["architectures"][0], pretrained.architecture.inputs.reads
    if "text" not in reads:
        raise ValueError(f"a {name} reads {' and '.join(reads)}, it was given text")
    for text in texts:
        if is_image_name(text) and Path(text).is_file():
            raise ValueError(f"a {name} reads text, it was given the image {text}")
    if pretrained.tokenizer is None:
        raise ValueError("text needs a tokenizer, the checkpoint has no tokenizer files, such as a tokenizer.json")
    if isinstance(pretrained.tokenizer, Unreadable):
        pretrained.tokenizer()
    return pretrained.tokenizer


def file_of(pretrained: Pretrained, file: str | os.PathLike, kind: str) -> Path:
    """Return the path of a file that a checkpoint is to read.

    Args:
      kind: what the checkpoint reads of files, in words.

    Raises:
      ValueError: there is none, or it is a folder; says what the checkpoint reads.
    """
    path, name = Path(file), pretrained.config["architectures"][0]
    if not path.is_file():
        rule = f"a {name} reads {kind}"
        said = f"{os.fspath(file)[:200]!r}"
        raise ValueError(f"{rule}, and {f'{said} is a folder' if path.is_dir() else f'there is no file {said}'}")
    return path


def image_processor_of(pretrained: Pretrained) -> ImageProcessor:
    """Return the checkpoint's image processor.

    Raises:
      ValueError: when it has none, or one that cannot be read.
    """
    return _processor_of(pretrained, "an image needs an image processor")


def audio_processor_of(pretrained: Pretrained) -> AudioProcessor:
    """Return the checkpoint's feature extractor.

    Raises:
      ValueError: when it has none, or one that cannot be read.
    """
    return _processor_of(pretrained, "a sound needs a feature extractor")


def _processor_of(pretrained: Pretrained, rule: str) -> Any:
    if pretrained.processor is None:
        raise ValueError(f"{rule}, the checkpoint has no preprocessor_config.json")
    if isinstance(pretrained.processor, Unreadable):
        pretrained.processor()
    return pretrained.processor


def positions_of(config: Any) -> int | None:
    """Find how many positions a model's config has room for; None where it sets no limit."""
    for name in ("backbone", "encoder"):
        inner = getattr(config, name, None)
        if hasattr(inner, "embedding"):
            return positions_of(inner)
    table = config.embedding
    rotary = getattr(getattr(config, "block", None), "rotary", None) is not None
    return table.max_length if table.position == "learned" or rotary else None
