"""Checkpoints to work with: opened, converted, asked for what a task needs; files read one by one."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from flax_transformer import hub
from flax_transformer.data.image.decode import is_image_name
from flax_transformer.hub import Pretrained
from flax_transformer.hub.convert import STEPS, is_orbax, load_orbax, save_orbax
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.open import Unreadable
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.registration import USES
from flax_transformer.hub.sentence_folder import lengths_of
from flax_transformer.listing import listed
from flax_transformer.nn import EmbeddingConfig
from flax_transformer.nn.config import configs_in
from flax_transformer.task.run import EXPORT


def open_checkpoint(
    name: str, *, dtype: str | None = None, revision: str | None = None, step: int | None = None,
    mesh: Mesh | None = None,
) -> hub.Pretrained:  # fmt: skip
    """Open a Hugging Face folder, a hub id, an Orbax folder, or the run folder of an experiment on text.

    Args:
      name: folder or hub id.
      dtype: float32, bfloat16 or float16; the checkpoint's own by default.
      revision: branch, tag or commit of a hub id.
      step: of a run, to take one of its checkpoints; by default the finished model, or the newest checkpoint.
      mesh: devices to spread over by the sharding table; the default device without one.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: a run that has no text model, a step of something that is no run, or a broken checkpoint.
      CheckpointError: a run that has no such step.
    """
    folder = Path(name)
    if (folder / EXPORT / CONFIG).is_file():
        if revision is not None:
            raise ValueError(f"only a hub id has revisions, got the run {folder} and revision {revision!r}")
        finished = any((folder / EXPORT).glob("*.safetensors"))
        if finished and step is None:
            return hub.load(folder / EXPORT, dtype=dtype, mesh=mesh)
        return load_orbax(folder / EXPORT, steps=folder / STEPS, step=step, dtype=dtype, mesh=mesh)
    if is_orbax(folder):
        return load_orbax(folder, step=step, dtype=dtype, mesh=mesh)
    if (folder / CONFIG).is_file() and "type" in (data := read_json(folder / CONFIG)) and "model_type" not in data:
        kind = str(data["type"]).split(":")[-1]
        raise ValueError(f"{folder} is the run of a {kind} and does not say which checkpoint it trains: no {EXPORT}/")
    if step is not None:
        raise ValueError(f"only a run has steps, got {name} and step={step}")
    return hub.load(name, dtype=dtype, revision=revision, mesh=mesh)


def convert(
    source: str,
    destination: str | Path,
    *,
    dtype: str | None = None,
    revision: str | None = None,
    step: int | None = None,
) -> str:
    """Write a run or an Orbax folder as a Hugging Face folder, and a Hugging Face folder or hub id as an Orbax folder.

    Args:
      source: what `open_checkpoint` opens.
      destination: a folder that is new or empty.
      dtype: of the parameters written; the source's own by default, and then nothing is lost.
      revision: branch, tag or commit of a hub id.
      step: of a run; the finished model by default.

    Returns:
      What was written, in a few words.

    Raises:
      ValueError: a destination that holds something; what `open_checkpoint` raises.
    """
    destination = Path(destination)
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise ValueError(f"the destination must be a new or empty folder, got {destination}")
    pretrained = open_checkpoint(source, dtype=dtype, revision=revision, step=step)
    if is_orbax(source) or (Path(source) / EXPORT).is_dir():
        hub.save(pretrained, destination)
        return "Hugging Face folder"
    save_orbax(pretrained, destination)
    return "Orbax folder"


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
    return _processor_of(pretrained, "a recording needs a feature extractor")


def _processor_of(pretrained: Pretrained, rule: str) -> Any:
    if pretrained.processor is None:
        raise ValueError(f"{rule}, the checkpoint has no preprocessor_config.json")
    if isinstance(pretrained.processor, Unreadable):
        pretrained.processor()
    return pretrained.processor


def positions_of(config: Any) -> int | None:
    """Find how many positions of a text a model reads, by its config; None where it sets no limit."""
    if getattr(config, "source_embedding", None) is not None:
        return _positions(config.source_embedding, getattr(config, "encoder", None))
    return written_positions_of(config)


def written_positions_of(config: Any) -> int | None:
    """Find how many positions a model writes, by its config: as many as it reads, but where a decoder has its own."""
    for name in ("backbone", "encoder", "question", "text"):
        inner = getattr(config, name, None)
        if any(isinstance(each, EmbeddingConfig) for each in configs_in(inner)):
            return positions_of(inner)
    return _positions(config.embedding, config)


def _positions(table: Any, of: Any) -> int | None:
    rotary = any(getattr(each, "rotary", None) is not None for each in configs_in(getattr(of, "block", None)))
    return table.max_length if table.position == "learned" or rotary else None


def read_length(pretrained: Pretrained) -> int | None:
    """Return how many tokens of a text a checkpoint reads, special ones included; None where there is no limit.

    Raises:
      ValueError: as `tokenizer_of`.
    """
    stated = lengths_of(pretrained.config).most or tokenizer_of(pretrained).model_max_length
    return min((limit for limit in (stated, positions_of(pretrained.model.cfg)) if limit), default=None)


File = str | os.PathLike


Refuse = Callable[[File, Exception], None]
"""`refuse(file, error)` is told of a file that cannot be read."""


def read_several(
    files: Iterable[File], read: Callable[[File], Any], refuse: Refuse | None = None, *, rows: int = 32
) -> Iterator[tuple[list[File], list[Any]]]:
    """Read files, `rows` at a time; those that cannot be read are left out.

    Args:
      read: gives what is in a file, such as a decoded image.
      refuse: is told of each that is left out; without it the first ends it.

    Yields:
      The files that could be read, at least one and at most `rows`, and what is in them.

    Raises:
      ValueError, OSError: as `read`, without `refuse`.
    """
    names: list[File] = []
    contents: list[Any] = []
    for file in files:
        try:
            contents.append(read(file))
        except (ValueError, OSError) as error:
            if refuse is None:
                raise
            refuse(file, error)
            continue
        names.append(file)
        if len(names) == rows:
            yield names, contents
            names, contents = [], []
    if names:
        yield names, contents
