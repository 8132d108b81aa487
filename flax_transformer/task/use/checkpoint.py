"""Open whatever holds a text model, and turn one form into the other."""

from pathlib import Path

from flax_transformer import hub
from flax_transformer.hub.convert import STEPS, is_orbax, load_orbax, save_orbax
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.task.run import EXPORT


def open_checkpoint(
    name: str, *, dtype: str | None = None, revision: str | None = None, step: int | None = None
) -> hub.Pretrained:
    """Open a Hugging Face folder, a hub id, an Orbax folder, or the run folder of an experiment on text.

    Args:
      name: folder or hub id.
      dtype: float32, bfloat16 or float16; the checkpoint's own by default.
      revision: branch, tag or commit of a hub id.
      step: of a run, to take one of its checkpoints; by default the finished model, or the newest checkpoint.

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
            return hub.load(folder / EXPORT, dtype=dtype)
        return load_orbax(folder / EXPORT, steps=folder / STEPS, step=step, dtype=dtype)
    if is_orbax(folder):
        return load_orbax(folder, step=step, dtype=dtype)
    if (folder / CONFIG).is_file() and "type" in (data := read_json(folder / CONFIG)) and "model_type" not in data:
        kind = str(data["type"]).split(":")[-1]
        raise ValueError(f"{folder} is the run of a {kind} and does not say which checkpoint it trains: no {EXPORT}/")
    if step is not None:
        raise ValueError(f"only a run has steps, got {name} and step={step}")
    return hub.load(name, dtype=dtype, revision=revision)


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
