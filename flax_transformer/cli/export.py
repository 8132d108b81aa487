"""`flax-transformer export CHECKPOINT FOLDER`: a checkpoint as a program for where this library is not."""

from typing import Annotated, Literal

import tyro

from flax_transformer.cli.read import Folder


def export(
    checkpoint: Folder,
    folder: Annotated[str, tyro.conf.Positional],
    /,
    platforms: tuple[Literal["cpu", "cuda", "tpu", "rocm"], ...] = ("cpu", "cuda", "tpu"),
    length: int | None = None,
    image: tuple[int, int] | None = None,
    revision: str | None = None,
) -> None:
    """Write a checkpoint's forward pass as a StableHLO program of jax.export, with its parameters beside it.

    It takes any batch, and texts and recordings of any length; it is run beside the checkpoint before it is written.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      folder: A new or empty folder for program.jax, parameters.safetensors, program.json, tokenizer and processor.
      platforms: Where it may run.
      length: Tokens of a text, or samples of a recording, of a model whose computation depends on it; open by default.
      image: Height and width of images, of a model that takes any.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.program import export_program
    from flax_transformer.text_table import align

    pretrained = open_checkpoint(checkpoint, revision=revision)
    program = export_program(pretrained, folder, platforms=platforms, length=length, image=image)
    rows = [
        (what, name, each["dtype"], " × ".join(map(str, each["shape"])))
        for what in ("input", "output")
        for name, each in program.about[f"{what}s"].items()
    ]
    print(align(rows, "l"))
    print(f"as the checkpoint to {program.about['largest_difference']:.1e} of the largest value")
