"""Commands on images: `ask | caption | detect | search`.

CHECKPOINT is a Hugging Face folder, a hub id, or the run folder of an experiment on images.
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, put, read_lines
from flax_transformer.cli.unreadable import Refused

Files = Annotated[tuple[str, ...], tyro.conf.Positional]


def caption(
    checkpoint: Folder,
    images: Files = (),
    /,
    max_new_tokens: int | None = None,
    num_beams: int = 4,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Return what is on images: a line for each, its file and a tab before it where there are several.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder.
      images: Files of images; without them every line of standard input names one.
      max_new_tokens: Tokens of a caption at most; by default 40, or as many as the model has positions.
      num_beams: Hypotheses of beam search; 1 for none.
      jsonl: Print a JSON object for each image instead: file and caption.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.captioning import caption as run
    from flax_transformer.task.checkpoint import open_checkpoint, read_several
    from flax_transformer.task.image_input import read_image

    keep_programs()
    names = list(images) or read_lines()
    if not names:
        return
    pretrained, settings = open_checkpoint(checkpoint, revision=revision), {"num_beams": num_beams}
    run(pretrained, [], max_new_tokens=max_new_tokens, **settings)  # refuses what cannot write captions
    with Refused() as refuse:
        for files, decoded in read_several(names, partial(read_image, pretrained), refuse):
            found = run(pretrained, decoded, max_new_tokens=max_new_tokens, **settings)
            for name, text in zip(files, found, strict=True):
                line = f"{name}\t{text}" if len(names) > 1 else text
                put({"file": name, "caption": text}, line, jsonl=jsonl)


def ask(
    checkpoint: Folder,
    image: Annotated[Path, tyro.conf.Positional],
    questions: Annotated[tuple[str, ...], tyro.conf.Positional],
    /,
    top: int = 5,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Answer questions about an image: probability and answer, separated by a tab, the most probable first.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder, of a model that answers questions about images.
      image: File of an image.
      questions: What is asked; each alone.
      top: Answers of each at most.
      jsonl: Print a JSON object for each question instead: file, question and answers.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.visual_question_answering import ask as run

    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    keep_programs()
    found = run(open_checkpoint(checkpoint, revision=revision), image, questions)
    for question, answers in zip(questions, found, strict=True):
        title = [question] if len(questions) > 1 else []
        lines = [f"{each.probability:.4f}\t{each.name}" for each in answers[:top]]
        record = {"file": str(image), "question": question, "answers": list(map(asdict, answers[:top]))}
        put(record, *title, *lines, jsonl=jsonl)


def detect(
    checkpoint: Folder,
    images: Files = (),
    /,
    output: Path | None = None,
    threshold: float = 0.5,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Find objects in images: probability, class, and left, top, right and bottom in pixels, separated by tabs.

    Where there are several images, the file and a tab are before each object.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder.
      images: Files of images; without them every line of standard input names one.
      output: File to write the image to with the boxes drawn in, or a folder where there are several; none by
        default.
      threshold: Probability above which an object counts as found.
      jsonl: Print a JSON object for each image instead: file and objects.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint, read_several
    from flax_transformer.task.detection import detect as run
    from flax_transformer.task.detection import draw_found
    from flax_transformer.task.image_input import read_image

    keep_programs()
    names = list(images) or read_lines()
    if not names:
        return
    pretrained = open_checkpoint(checkpoint, revision=revision)
    run(pretrained, [], threshold)  # refuses what cannot detect
    drawn = {} if output is None else _outputs(output, names)
    with Refused() as refuse:
        for (name,), (image,) in read_several(names, partial(read_image, pretrained), refuse, rows=1):
            (found,) = run(pretrained, image, threshold)
            head = f"{name}\t" if len(names) > 1 else ""
            lines = [
                f"{head}{each.probability:.4f}\t{each.label}\t" + "\t".join(f"{side:.1f}" for side in each.box)
                for each in found
            ]
            nothing = f"{head}nothing is found above {threshold:g}"
            put({"file": name, "objects": list(map(asdict, found))}, *(lines or [nothing]), jsonl=jsonl)
            if name in drawn:
                draw_found(pretrained, image, found).save(drawn[name])
                if not jsonl:
                    print(drawn[name])


def _outputs(output: Path, names: list[str]) -> dict[str, Path]:
    """Name the file that each image is drawn to: in a folder, where there are several."""
    if len(names) == 1 and not output.is_dir():
        return {names[0]: output}
    if output.suffix and not output.is_dir():
        raise ValueError(f"the output of several images must be a folder, got {output}")
    found = {name: output / f"{Path(name).stem}.png" for name in names}
    if len({*found.values()}) < len(found):
        raise ValueError(f"images drawn into one folder must differ in their names, got {len(names)} with the same")
    output.mkdir(parents=True, exist_ok=True)
    return found


def search(
    checkpoint: Folder,
    query: Annotated[str, tyro.conf.Positional],
    folder: Annotated[Path, tyro.conf.Positional],
    /,
    top: int = 10,
    index: Path | None = None,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Find images of a folder by a text, or by an image, or lines of texts by a text: cosine and file, or cosine, file,
    number of the line and the line, separated by tabs, the best first.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder, of a model that matches images and texts, or of a sentence
        encoder, which searches for lines.
      query: What is to be seen, or the file of an image that others are to be like; or a text.
      folder: Images, also those of folders in it; or a text file, or a folder of them.
      top: Images or lines at most.
      index: File that keeps what the model makes of them; .embeddings.npz in the folder by default.
      jsonl: Print a JSON object for each instead: file and score, line and text.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.embedding import search as run

    keep_programs()
    pretrained = open_checkpoint(checkpoint, revision=revision)
    if "sentence-similarity" in pretrained.architecture.uses:
        from flax_transformer.task.line_search import search_lines

        for hit in search_lines(pretrained, query, folder, top=top, index=index):
            row = f"{hit.score:.4f}\t{hit.file}\t{hit.line}\t{hit.text}"
            put({"file": str(hit.file), "line": hit.line, "text": hit.text, "score": hit.score}, row, jsonl=jsonl)
        return
    with Refused() as refuse:
        for hit in run(pretrained, query, folder, top=top, index=index, refuse=refuse):
            put({"file": str(hit.file), "score": hit.score}, f"{hit.score:.4f}\t{hit.file}", jsonl=jsonl)
