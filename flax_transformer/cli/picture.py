"""Commands on pictures: `ask | caption | detect | search`.

CHECKPOINT is a Hugging Face folder, a hub id, or the run folder of an experiment on pictures.
"""

from pathlib import Path
from typing import Annotated

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, read_lines


def caption(
    checkpoint: Folder,
    pictures: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    /,
    max_new_tokens: int | None = None,
    num_beams: int = 4,
    revision: str | None = None,
) -> None:
    """Say what is on pictures: a line for each, its file and a tab before it where there are several.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder.
      pictures: Files of pictures; without them every line of standard input names one.
      max_new_tokens: Tokens of a caption at most; by default 40, or as many as the model has positions.
      num_beams: Hypotheses of beam search; 1 for none.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.use import caption as run
    from flax_transformer.task.use import open_checkpoint

    keep_programs()
    names = list(pictures) or read_lines()
    if not names:
        return
    found = run(
        open_checkpoint(checkpoint, revision=revision), names, max_new_tokens=max_new_tokens, num_beams=num_beams
    )
    for name, text in zip(names, found, strict=True):
        print(f"{name}\t{text}" if len(names) > 1 else text)


def ask(
    checkpoint: Folder,
    picture: Annotated[Path, tyro.conf.Positional],
    questions: Annotated[tuple[str, ...], tyro.conf.Positional],
    /,
    top: int = 5,
    revision: str | None = None,
) -> None:
    """Answer questions about a picture: probability and answer, separated by a tab, the most probable first.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder, of a model that answers questions about pictures.
      picture: File of a picture.
      questions: What is asked; each alone.
      top: Answers of each at most.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.use import ask as run
    from flax_transformer.task.use import open_checkpoint

    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    keep_programs()
    for question, answers in zip(
        questions, run(open_checkpoint(checkpoint, revision=revision), picture, questions), strict=True
    ):
        if len(questions) > 1:
            print(question)
        for each in answers[:top]:
            print(f"{each.probability:.4f}\t{each.name}")


def detect(
    checkpoint: Folder,
    picture: Annotated[Path, tyro.conf.Positional],
    /,
    output: Path | None = None,
    threshold: float = 0.5,
    revision: str | None = None,
) -> None:
    """Find objects in a picture: probability, class, and left, top, right and bottom in pixels, separated by tabs.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder.
      picture: File of a picture.
      output: File to write the picture to with the boxes drawn in; none by default.
      threshold: Probability above which an object counts as found.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.data.image import decode_image
    from flax_transformer.task.use import detect as run
    from flax_transformer.task.use import draw_found, open_checkpoint

    keep_programs()
    pretrained, image = open_checkpoint(checkpoint, revision=revision), decode_image(picture)
    (found,) = run(pretrained, image, threshold)
    for each in found:
        print(f"{each.probability:.4f}\t{each.label}\t" + "\t".join(f"{side:.1f}" for side in each.box))
    if not found:
        print(f"nothing is found above {threshold:g}")
    if output is not None:
        draw_found(pretrained, image, found).save(output)
        print(output)


def search(
    checkpoint: Folder,
    query: Annotated[str, tyro.conf.Positional],
    folder: Annotated[Path, tyro.conf.Positional],
    /,
    top: int = 10,
    index: Path | None = None,
    revision: str | None = None,
) -> None:
    """Find pictures of a folder by a text, or by a picture: cosine and file, separated by a tab, the best first.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder, of a model that matches pictures and texts.
      query: What is to be seen, or the file of a picture that others are to be like.
      folder: Pictures, also those of folders in it.
      top: Pictures at most.
      index: File that keeps what the model makes of the pictures; .embeddings.npz in the folder by default.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.use import open_checkpoint
    from flax_transformer.task.use import search as run

    keep_programs()
    for hit in run(open_checkpoint(checkpoint, revision=revision), query, folder, top=top, index=index):
        print(f"{hit.score:.4f}\t{hit.file}")
