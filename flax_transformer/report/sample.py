"""What a run leaves for its page beside samples.jsonl: images, and which class was predicted for which.

A sample of an image has `picture`, its file in the run's folder, and `source`, its name; one of a recording has `audio`
too; `wide` asks for a whole line of the page. One that was classified, also a text alone, has `target`, `hypothesis`,
its `score`, and `scores`, the probabilities of the most probable classes by name; one in which objects were sought
`size`, the width and height that boxes are within, `objects` with `label` and `box`, and `found` with their `score`
too; any other a `caption`. That of a video has `frames`, how many of them its image is a sheet of.
Axes: M samples, E classes.
"""

import base64
import json
import math
import re
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

SAMPLES = "samples"
"""Folder of a run's that has the images of its samples."""
CONFUSION = "confusion.json"
"""File of a run's folder that counts the samples of each class by the class predicted."""
LONGEST = 512
"""Pixels that an image's longer side has at most, unless it is asked for larger."""
NAME = re.compile(SAMPLES + r"/[\w.-]{1,100}\.(png|wav)", re.ASCII)
KINDS = {"png": ("image/png", b"\x89PNG\r\n\x1a\n"), "wav": ("audio/wav", b"RIFF")}
"""Of files, by their suffixes: their media types, and what they begin with."""


def sheet(images: Sequence[Any]) -> Any:
    """Put images of Pillow, all of one size, in rows on one: about half as many rows as columns."""
    import PIL.Image

    (width, height), columns = images[0].size, _columns(len(images))
    whole = PIL.Image.new(images[0].mode, (width * columns, height * -(-len(images) // columns)))
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        whole.paste(image, (column * width, row * height))
    return whole


def from_sheet(whole: Any, count: int) -> list[Any]:
    """Cut so many images out of a sheet.

    >>> import PIL.Image
    >>> images = [PIL.Image.new("L", (3, 2), number) for number in range(8)]
    >>> sheet(images).size, [each.getpixel((0, 0)) for each in from_sheet(sheet(images), 8)]
    ((12, 4), [0, 1, 2, 3, 4, 5, 6, 7])
    """
    columns = _columns(count)
    width, height = whole.width // columns, whole.height // -(-count // columns)
    places = [divmod(number, columns) for number in range(count)]
    return [whole.crop((x * width, y * height, (x + 1) * width, (y + 1) * height)) for y, x in places]


def _columns(count: int) -> int:
    return math.ceil(math.sqrt(2 * count))


def save_image(root: Path, name: str, pixels: Any, longest: int = LONGEST) -> str:
    """Write the image of a sample into a run's folder; give what the sample calls it.

    Args:
      root: the run's folder.
      name: of letters, digits, `-` and `_`.
      pixels: an image of Pillow, or bytes [H, W] or [H, W, C] of one or three channels.
      longest: pixels that the longer side has at most.

    Raises:
      ValueError: another name.
    """
    import PIL.Image
    import PIL.ImageOps

    place = f"{SAMPLES}/{name}.png"
    if not NAME.fullmatch(place):
        raise ValueError(f"the name of an image must be of letters, digits, '-' and '_', got {name!r}")
    if isinstance(pixels, np.ndarray):
        pixels = PIL.Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    image = pixels if pixels.mode in ("L", "RGB") else pixels.convert("RGB")
    if max(image.size) > longest:
        image = PIL.ImageOps.contain(image, (longest, longest))
    (root / SAMPLES).mkdir(exist_ok=True)
    image.save(root / place, optimize=True)
    return place


def save_audio(root: Path, name: str, samples: Float[np.ndarray, "T"], rate: int) -> str:
    """Write the recording of a sample into a run's folder, as WAV of 16 bits; give what the sample calls it.

    Args:
      root: the run's folder.
      name: of letters, digits, `-` and `_`.
      samples: between -1 and 1.
      rate: samples a second.
    """
    place = f"{SAMPLES}/{name}.wav"
    (root / SAMPLES).mkdir(exist_ok=True)
    with wave.open(str(root / place), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(np.round(np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes())
    return place


def read_media(root: Path, place: Any) -> str | None:
    """Return the image or the recording of a sample as a data URL; None where there is no such file in the run's own
    folder.
    """
    if not isinstance(place, str) or not (name := NAME.fullmatch(place)):
        return None
    path, (kind, signature) = root / place, KINDS[name[1]]
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return None
    content = path.read_bytes()
    return f"data:{kind};base64,{base64.b64encode(content).decode()}" if content.startswith(signature) else None


def write_confusion(root: Path, classes: Sequence[str], truth: Sequence[int], predicted: Sequence[int]) -> None:
    """Count the samples of each class by the class predicted, into a run's folder.

    Args:
      root: the run's folder.
      classes: their E names.
      truth: numbers of the M true classes.
      predicted: numbers of the M classes predicted.
    """
    counts = np.zeros((len(classes), len(classes)), int)
    np.add.at(counts, (np.asarray(truth, int), np.asarray(predicted, int)), 1)
    (root / CONFUSION).write_text(json.dumps({"classes": list(classes), "counts": counts.tolist()}) + "\n")


def read_confusion(root: Path) -> dict[str, Any] | None:
    """Return the `classes` and `counts` of a run; None where there are none, or they do not fit each other."""
    path = root / CONFUSION
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        counts = np.array(value["counts"])
        classes = [str(name) for name in value["classes"]]
    except (ValueError, TypeError, KeyError):
        return None
    if counts.shape != (len(classes), len(classes)) or counts.dtype.kind != "i" or (counts < 0).any():
        return None
    return {"classes": classes, "counts": counts.tolist()}


def image_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page shows of a sample with an image or probabilities: what is of the right kind of its fields."""
    texts = {name: str(sample[name]) for name in ("source", "target", "hypothesis", "caption") if name in sample}
    played = {"audio": sample["audio"]} if isinstance(sample.get("audio"), str) else {}
    played |= {"wide": True} if sample.get("wide") is True else {}
    shown = {"picture": sample.get("picture"), **played, **texts, "score": _number(sample.get("score"))}
    if isinstance(scores := sample.get("scores"), Mapping):
        shown["scores"] = [[str(name), _number(value)] for name, value in scores.items()][:5]
    size = _numbers(sample.get("size"), 2)
    if size and min(size) > 0:
        shown |= {"size": size, **{name: _boxes(sample.get(name)) for name in ("objects", "found")}}
    return shown


def _boxes(value: Any) -> list[dict[str, Any]]:
    boxes = [each for each in value if isinstance(each, Mapping)] if isinstance(value, list | tuple) else []
    found = [
        {"label": str(each.get("label", "")), "score": _number(each.get("score")), "box": _numbers(each.get("box"), 4)}
        for each in boxes
    ]
    return [each for each in found if each["box"]]


def _numbers(value: Any, count: int) -> list[float] | None:
    found = [_number(each) for each in value] if isinstance(value, list | tuple) else []
    return found if len(found) == count and None not in found else None


def _number(value: Any) -> float | None:
    """Keep 4 digits of a number, and nothing of anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")
