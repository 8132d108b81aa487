"""Commands on images: `caption | detect | segment | search | translate-image`.

CHECKPOINT is a Hugging Face folder, a hub id, or the run folder of an experiment on images.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

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
    prompt: str | None = None,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Return what is on images: a line for each, its file and a tab before it where there are several.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder.
      images: Files of images; without them every line of standard input names one.
      max_new_tokens: Tokens of a caption at most; by default 40, or as many as the model has positions.
      num_beams: Hypotheses of beam search; 1 for none.
      prompt: What is asked of each image, of a checkpoint that reads images among words, as Qwen2-VL; by default to
        describe it.
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
    pretrained, settings = open_checkpoint(checkpoint, revision=revision), {"num_beams": num_beams, "prompt": prompt}
    run(pretrained, [], max_new_tokens=max_new_tokens, **settings)  # refuses what cannot write captions
    with Refused() as refuse:
        for files, decoded in read_several(names, partial(read_image, pretrained), refuse):
            found = run(pretrained, decoded, max_new_tokens=max_new_tokens, **settings)
            for name, text in zip(files, found, strict=True):
                line = f"{name}\t{text}" if len(names) > 1 else text
                put({"file": name, "caption": text}, line, jsonl=jsonl)


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
    from flax_transformer.task.detection import detect as run
    from flax_transformer.task.detection import draw_found

    def said(found: Any) -> tuple[dict[str, Any], list[str]]:
        lines = [
            f"{each.probability:.4f}\t{each.label}\t" + "\t".join(f"{side:.1f}" for side in each.box) for each in found
        ]
        return {"objects": list(map(asdict, found))}, lines

    _look(_Asked(checkpoint, images, output, threshold, jsonl, revision), run, said, draw_found)


def segment(
    checkpoint: Folder,
    images: Files = (),
    /,
    output: Path | None = None,
    overlay: bool = False,
    subtask: Literal["semantic", "instance", "panoptic"] | None = None,
    threshold: float = 0.5,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Tell what every pixel of images is of: fraction of the pixels and class, the largest first, separated by tabs.

    Of a checkpoint that tells objects apart there is a line for each, with its probability at the end. Where there are
    several images, the file and a tab are before each line.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder.
      images: Files of images; without them every line of standard input names one.
      output: File to write a map to, an image as large whose values are the numbers of the classes, or of the objects
        from 1 on; a folder where there are several; none by default.
      overlay: Write the image itself instead, with a colour over each region and what it is.
      subtask: Of a checkpoint that tells objects apart: panoptic, the surest object of each pixel, which is what is
        done by default; instance, objects by the score of class and mask together; semantic, the class of each pixel.
      threshold: Probability above which an object counts as found.
      jsonl: Print a JSON object for each image instead: file and regions, with those numbers.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.segmentation import draw_segmented, map_image
    from flax_transformer.task.segmentation import segment as run

    def said(found: Any) -> tuple[dict[str, Any], list[str]]:
        lines = [
            f"{each.fraction:.4f}\t{each.label}" + ("" if each.probability is None else f"\t{each.probability:.4f}")
            for each in found.regions
        ]
        return {"regions": list(map(asdict, found.regions))}, lines

    def draw(pretrained: Any, image: Any, found: Any) -> Any:
        return draw_segmented(image, found) if overlay else map_image(found.numbers)

    _look(_Asked(checkpoint, images, output, threshold, jsonl, revision), partial(run, subtask=subtask), said, draw)


@dataclass(frozen=True)
class _Asked:
    """What `detect` and `segment` are asked."""

    checkpoint: Folder
    images: tuple[str, ...]
    output: Path | None
    threshold: float
    jsonl: bool
    revision: str | None


def _look(
    asked: _Asked,
    run: Callable[..., list[Any]],
    said: Callable[[Any], tuple[dict[str, Any], list[str]]],
    draw: Callable[..., Any],
) -> None:
    """Print what is found in each image, and draw it where there is an output.

    Args:
      run: `run(pretrained, images, threshold)` finds it.
      said: gives fields of a JSON object, and lines.
      draw: `draw(pretrained, image, found)` makes an image of Pillow's.
    """
    from flax_transformer.task.checkpoint import open_checkpoint, read_several
    from flax_transformer.task.image_input import read_image

    keep_programs()
    names = list(asked.images) or read_lines()
    if not names:
        return
    pretrained = open_checkpoint(asked.checkpoint, revision=asked.revision)
    run(pretrained, [], asked.threshold)  # refuses a checkpoint of another kind
    drawn = {} if asked.output is None else _outputs(asked.output, names)
    with Refused() as refuse:
        for (name,), (image,) in read_several(names, partial(read_image, pretrained), refuse, rows=1):
            (found,) = run(pretrained, image, asked.threshold)
            fields, lines = said(found)
            head = f"{name}\t" if len(names) > 1 else ""
            lines = lines or [f"nothing is found above {asked.threshold:g}"]
            put({"file": name, **fields}, *(head + line for line in lines), jsonl=asked.jsonl)
            if name in drawn:
                draw(pretrained, image, found).save(drawn[name])
                if not asked.jsonl:
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
    by: Literal["vectors", "words", "both"] = "vectors",
    weight: float = 0.5,
    index: Path | None = None,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Find images of a folder by a text, or by an image, passages of an index, or lines of texts: the best first.

    Of images cosine and file are separated by a tab; of passages the score, the document and its characters, and the
    text; of lines the cosine, the file, the number of the line and the line.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder: of a model that matches images and texts, of what an index
        was made by, or of a sentence encoder, which searches for lines.
      query: What is to be found, or the file of an image that others are to be like.
      folder: Images, also those of folders in it; an index of texts that `index` wrote; a text file, or a folder of
        them.
      top: Images, passages or lines at most.
      by: Of an index: the cosine of vectors, BM25 of words, or both.
      weight: Of vectors, from 0 to 1, where both are searched; words have the rest.
      index: File that keeps what the model makes of images or lines; .embeddings.npz in the folder by default.
      jsonl: Print a JSON object for each instead.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.embedding import search as run
    from flax_transformer.task.text_index import SAID, load_index, search_index

    keep_programs()
    if (folder / SAID).is_file():
        texts = load_index(folder)
        embedder = None if by == "words" else open_checkpoint(checkpoint, revision=revision)
        for each in search_index(texts, embedder, [query], top, by, weight)[0]:
            part, text = each.passage, " ".join(each.passage.text.split())
            line = f"{each.score:.4f}\t{part.document}:{part.start}-{part.end}\t{text}"
            put({"score": each.score, **asdict(part)}, line, jsonl=jsonl)
        return
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


def translate_image(
    workdir: Folder,
    images: Files,
    /,
    output: Path = Path("translated.png"),
    backward: bool = False,
) -> None:
    """Turn images into others with the model of a run of image_to_image.py: of another drawing, in colours, larger.

    An image of another size than the run's is resized before.

    Args:
      workdir: Folder of a run.
      images: Files of images.
      output: File to write, or a folder where there are several images.
      backward: Go the way back, with a run that has learned both.
    """
    from flax_transformer.task.image_translation import open_image_translator

    keep_programs()
    names = list(images)
    if not names:
        raise ValueError("images are files that are named, got none")
    translator = open_image_translator(workdir, backward=backward)
    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent} to write {output.name} to")
    written = _outputs(output, names)
    with Refused() as refuse:
        for name in names:
            try:
                (made,) = translator([name])
            except (ValueError, OSError) as error:
                refuse(name, error)
                continue
            made.save(written[name])
            print(written[name])
