"""The command `embed`, for texts and for images."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, put, read_lines
from flax_transformer.cli.unreadable import Refused

Texts = Annotated[tuple[str, ...], tyro.conf.Positional]


def embed(
    checkpoint: Folder,
    texts: Texts = (),
    /,
    pooling: Literal["mean", "first", "last"] | None = None,
    normalise: bool = False,
    prompt: str | None = None,
    images: bool = False,
    output: Path | None = None,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Return a vector for each text or image: the text or file, a tab, and the numbers with spaces between them.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      texts: Texts, or files of images for a checkpoint that reads those; without them every line of standard input is
        one.
      pooling: How the states of a text's tokens become one: their mean (by default), the first or the last; for a
        model of texts alone that does not say it itself, as a sentence encoder does.
      normalise: Divide each vector by its length.
      prompt: What is put before each text: the name of one of a sentence encoder's prompts, as query or passage, or a
        text. By default the one that it takes unasked, if there is one.
      images: Take arguments for files of images, where a checkpoint reads texts too and not all are files.
      output: File to write the vectors to in place of printing them: a row each in .npy; .npz has them as vectors, and
        names; .jsonl has a JSON object a line.
      jsonl: Print a JSON object for each instead: the text or file, and its vector.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint

    keep_programs()
    names = list(texts) or read_lines()
    if not names:
        return
    if output is not None and output.suffix not in (".npy", ".npz", ".jsonl"):
        raise ValueError(f"vectors are written to a file of .npy, .npz or .jsonl, got {output}")
    pretrained = open_checkpoint(checkpoint, revision=revision)
    reads = pretrained.architecture.inputs.reads
    seen = "images" in reads and (images or "text" not in reads or all(Path(name).exists() for name in names))
    if seen and pooling is not None:
        raise ValueError(f"the states of a text are pooled, got images and pooling={pooling}")
    if seen and prompt is not None:
        raise ValueError(f"a prompt is put before texts, got images and prompt={prompt!r}")
    with Refused() as refuse:
        vectors = _vectors(pretrained, names, refuse, seen=seen, pooling=pooling, normalise=normalise, prompt=prompt)
        if output is None:
            for name, vector in vectors:
                numbers = " ".join(f"{value:.6g}" for value in vector)
                put({"file" if seen else "text": name, "vector": vector.tolist()}, f"{name}\t{numbers}", jsonl=jsonl)
        else:
            _save_vectors(output, "file" if seen else "text", list(vectors))


def _vectors(pretrained, names: list[str], refuse: Refused, *, seen: bool, pooling, normalise: bool, prompt):
    """Return each text or file that can be read, and its vector."""
    import numpy as np

    from flax_transformer.task.checkpoint import read_several
    from flax_transformer.task.embedding import embed as run
    from flax_transformer.task.embedding import embed_images
    from flax_transformer.task.image_input import read_image

    if not seen:
        yield from zip(names, run(pretrained, names, pooling, normalise=normalise, prompt=prompt), strict=True)
        return
    embed_images(pretrained, [])  # refuses what cannot
    for files, images in read_several(names, partial(read_image, pretrained), refuse):
        vectors = embed_images(pretrained, images)
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) if normalise else vectors
        yield from zip(files, vectors, strict=True)


def _save_vectors(output: Path, kind: str, found: list) -> None:
    """Write vectors into a file by its suffix."""
    import json

    import numpy as np

    if not found:
        return
    names, vectors = [name for name, _ in found], np.stack([vector for _, vector in found])
    part = output.with_name(f"{output.name}.part")
    with open(part, "wb") as file:
        if output.suffix == ".npy":
            np.save(file, vectors)
        elif output.suffix == ".npz":
            np.savez(file, vectors=vectors, names=np.array(names))
        else:
            records = (json.dumps({kind: name, "vector": row.tolist()}, ensure_ascii=False) for name, row in found)
            file.writelines(f"{record}\n".encode() for record in records)
    part.replace(output)
    print(f"{output}: {vectors.shape[0]:,} vectors of {vectors.shape[1]:,} numbers")
