"""`flax-transformer export CHECKPOINT FOLDER`: a checkpoint as a program for where this library is not."""

from typing import Annotated, Literal

import tyro

from flax_transformer.cli.read import Folder


def export(
    checkpoint: Folder,
    folder: Annotated[str, tyro.conf.Positional],
    /,
    to: Literal["stablehlo", "onnx", "saved-model"] = "stablehlo",
    platforms: tuple[Literal["cpu", "cuda", "tpu", "rocm"], ...] = (),
    rows: int | None = None,
    length: int | None = None,
    image: tuple[int, int] | None = None,
    revision: str | None = None,
) -> None:
    """Write a checkpoint's forward pass as a StableHLO program of jax.export with its parameters, ONNX or SavedModel.

    It takes any batch, and texts and recordings of any length; it is run beside the checkpoint before it is written.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      folder: A new or empty folder for the program, program.json, tokenizer and processor.
      to: The program's format.
      platforms: Where a StableHLO program or a SavedModel may run; by default cpu, cuda and tpu.
      rows: Rows of a batch, of a model that has no ONNX with rows open.
      length: Tokens of a text, or samples of a recording, of a model whose computation depends on it; open by default.
      image: Height and width of images, of a model that takes any.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.text_table import align

    if rows is not None and to != "onnx":
        raise ValueError("rows stay open in a StableHLO program and a SavedModel; --rows is of --to onnx")
    if platforms and to == "onnx":
        raise ValueError(
            "an ONNX program runs where its runtime does; --platforms is of --to stablehlo and saved-model"
        )
    pretrained = open_checkpoint(checkpoint, revision=revision)
    if to == "onnx":
        from flax_transformer.task.onnx_program import export_onnx

        about = export_onnx(pretrained, folder, rows=rows, length=length, image=image).about
    elif to == "saved-model":
        from flax_transformer.task.saved_model import PLATFORMS, export_saved_model

        about = export_saved_model(
            pretrained, folder, platforms=platforms or PLATFORMS, length=length, image=image
        ).about
    else:
        from flax_transformer.task.program import PLATFORMS, export_program

        about = export_program(pretrained, folder, platforms=platforms or PLATFORMS, length=length, image=image).about
    said = [
        (what, name, each["dtype"], " × ".join(map(str, each["shape"])))
        for what in ("input", "output")
        for name, each in about[f"{what}s"].items()
    ]
    print(align(said, "l"))
    print(f"as the checkpoint to {about['largest_difference']:.1e} of the largest value")
