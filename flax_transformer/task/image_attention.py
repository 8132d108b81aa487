"""Attention weights of a model over the patches of an image, or the film of a video."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_transformer.data.image import decode_image
from flax_transformer.hub import Pretrained
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.registration import Architecture
from flax_transformer.models.patch_attention import LARGEST, PatchAttention, Tiles
from flax_transformer.models.vision.imagegpt import over_pixels
from flax_transformer.ops import capture
from flax_transformer.report import ImageAttention, ImageMaps, Tiling
from flax_transformer.task.attention import spell, where_weights_are
from flax_transformer.task.captioning import room
from flax_transformer.task.checkpoint import image_processor_of, open_checkpoint, tokenizer_of
from flax_transformer.task.classification import label_names
from flax_transformer.task.detection import THRESHOLD
from flax_transformer.task.video_classification import read_video

WORDS = 24
"""Tokens of a caption that is drawn, at most."""


def draw_file(name: str | Path, file: str | Path, text: str = "") -> tuple[ImageAttention, list[str]]:
    """Return the attention of any checkpoint or run over an image or a video.

    Args:
      name: as `open_checkpoint` takes it.
      file: of an image, or a video as `read_video` takes it.
      text: for a model that reads one with the image.

    Raises:
      FileNotFoundError, FolderError, CheckpointError: what cannot be opened.
      ValueError: as `draw_image`, `draw_video`, `read_video`, or what cannot be opened.
    """
    pretrained = open_checkpoint(str(name))
    if "videos" in pretrained.architecture.inputs.reads:
        return draw_video(pretrained, read_video(pretrained, file), Path(file).name)
    return draw_image(pretrained, file, Path(file).name, text)


def draw_video(pretrained: Pretrained, frames: Sequence[Any], source: str = "") -> tuple[ImageAttention, list[str]]:
    """Lay what every head looks at over a film of a video, its frames side by side, and say what is too much for that.

    Args:
      frames: of Pillow, as many as the model sees.
      source: the video's name.

    Raises:
      ValueError: a checkpoint that reads no videos.
    """
    name, known = pretrained.config["architectures"][0], pretrained.architecture
    model = getattr(pretrained.model, "backbone", pretrained.model)
    if "videos" not in known.inputs.reads:
        raise ValueError(f"a {name} reads {' and '.join(known.inputs.reads)}, it was given videos")
    if not known.inputs.takes_alone("pixel_values"):
        raise ValueError(f"attention over a video is drawn where a model needs nothing else, a {name} needs a mask")
    processor = image_processor_of(pretrained)
    given = Inputs(**processor(list(frames)))
    output, found = _looked(pretrained, given)
    laid = model.over_video(found, *given.pixel_values.shape[1:2], *given.pixel_values.shape[-2:])
    span = getattr(model.cfg.patches, "span", 1)
    shown = [processor.shown(frame) for frame in list(frames)[::span][: len(frames) // span]]
    pixels = np.concatenate(shown, axis=1)
    return _drawn(source, pixels, laid, _prediction(pretrained, output)[0])


def layout_of(pretrained: Pretrained) -> Callable[[Sequence[np.ndarray], int, int], list[PatchAttention]] | None:
    """Return what lays a model's attention weights out over an image; None where no layers attend to its parts."""
    known = pretrained.architecture
    at = known.at.removesuffix(".")
    part = operator.attrgetter(at)(pretrained.model) if at else pretrained.model
    if known.inputs.colours:
        return partial(over_pixels, part.cfg.depth)
    part = part if hasattr(part, "over_patches") else getattr(part, "backbone", None)
    drawn = known.inputs.takes_alone("pixel_values") or _writes(known) or reads_both(pretrained)
    drawn = drawn and "spatial_shapes" not in known.inputs.names  # of patches in rows, which are no image
    return getattr(part, "over_patches", None) if drawn else None


def _writes(known: Architecture) -> bool:
    """Return whether a model writes about images, of which nobody asks it anything."""
    needs = known.inputs.needs
    return (
        "text2text-generation" in known.uses
        and needs[0] == "pixel_values"
        and not {"input_ids", "decoder_input_ids"} <= {*needs}
    )


def reads_both(pretrained: Pretrained) -> bool:
    """Return whether a model is given a text and an image at once."""
    known = pretrained.architecture
    both = set(known.inputs.needs) == {"input_ids", "pixel_values"}
    return both and not (known.inputs.either or known.inputs.several or _writes(known))


def draw_image(
    pretrained: Pretrained, image: Any, source: str = "", text: str = ""
) -> tuple[ImageAttention, list[str]]:
    """Lay what every head looks at over an image, and say which layers have too many patches for that.

    It runs on the CPU by the `xla` backend, as only that one has the weights.

    Args:
      image: a file, bytes, or an image of Pillow's.
      source: the image's name.
      text: that the model reads with the image, if it reads both.

    Raises:
      FileNotFoundError: no such file.
      ValueError: what is no image, a checkpoint that reads none, or has no attention over the whole of it, or a text
        too many or too few.
    """
    name, known = pretrained.config["architectures"][0], pretrained.architecture
    if "images" not in known.inputs.reads:
        raise ValueError(f"a {name} reads {' and '.join(known.inputs.reads)}, it was given images")
    if (layout := layout_of(pretrained)) is None:
        raise ValueError(
            "attention over an image can be drawn where layers attend to its patches, as in ViT, DeiT, DINOv2, "
            "DINOv3, MAE, BEiT, CCT, PVT, SegFormer, Swin, DETR, ImageGPT, CLIP, SigLIP and ViLT; "
            f"a {name} has none such"
        )
    if reads_both(pretrained) != bool(text.strip()):
        rule = "sees an image alone, it was given text too" if text else "reads text with an image, it was given none"
        raise ValueError(f"a {name} {rule}")
    processor = image_processor_of(pretrained)
    if isinstance(image, str | Path | bytes):
        image = decode_image(image, channels=pretrained.config.channels or 3)
    words = tokenizer_of(pretrained, text)([text]) if text else {}
    pixels, given = processor.shown(image), Inputs(**processor(image), **words)
    written = _caption(pretrained, given) if _writes(known) else ()
    if written:
        (reads,) = {"input_ids", "decoder_input_ids"} & set(known.inputs.needs)
        given = replace(given, **{reads: np.asarray(written[:-1])[None]})
    output, found = _looked(pretrained, given)
    prediction, answers = _spelled(pretrained, written[1:]) if written else _prediction(pretrained, output)
    laid = layout(found, *(pixels.shape[:2] if given.pixel_values is None else given.pixel_values.shape[-2:]))
    laid = [_answering(each, answers) for each in laid]
    if text:
        spelt = spell(pretrained.tokenizer, words["input_ids"][0].tolist())
        laid = [_worded(each, spelt) for each in laid]
    return _drawn(source, pixels, laid, prediction)


def _drawn(
    source: str, pixels: Any, laid: Sequence[PatchAttention], prediction: str
) -> tuple[ImageAttention, list[str]]:
    """Draw what was laid out, and say what was not."""
    notes = [
        f"The attention of {each.name} is not drawn: {each.queries.grid} patches are too many."
        for each in laid
        if each.weights is None
    ]
    maps = [
        ImageMaps(each.name, np.asarray(each.weights, np.float32), *map(_tiling, (each.queries, each.keys)))
        for each in laid
        if each.weights is not None
    ]
    if not maps:
        raise ValueError(f"attention is drawn where a head has at most {LARGEST:,} weights, got more in every layer")
    return ImageAttention(source, np.broadcast_to(pixels, (*pixels.shape[:2], 3)), tuple(maps), prediction), notes


def _looked(pretrained: Pretrained, given: Inputs) -> tuple[Any, list[np.ndarray]]:
    """Run the model where attention has its weights; give them beside its output."""
    with where_weights_are():
        return jax.device_get(_captured(jax.tree.map(np.asarray, pretrained), given))


@jax.jit
def _captured(pretrained: Pretrained, given: Inputs) -> tuple[Any, list[jax.Array]]:
    """Return logits, and attention weights in the order of layers."""
    known, fields = pretrained.architecture, pretrained.config

    def run(model, given):
        return known.call(model, given, None, fields).logits

    return capture(run, "attention_weights")(pretrained.model, given)


def _caption(pretrained: Pretrained, given: Inputs) -> tuple[int, ...]:
    """Return the tokens of a caption, what it begins with among them."""
    most = room(pretrained, WORDS)
    return tuple(np.asarray(pretrained.generate(pixel_values=given.pixel_values, max_new_tokens=most))[0].tolist())


def _spelled(pretrained: Pretrained, tokens: Sequence[int]) -> tuple[str, dict[int, str]]:
    """Return what a caption is, and name the positions by the tokens that are written there."""
    write = str if pretrained.tokenizer is None else pretrained.tokenizer.decode
    return write([*tokens]).strip(), {i: write([token]).strip() or "end" for i, token in enumerate(tokens)}


def _prediction(pretrained: Pretrained, logits: Any) -> tuple[str, dict[int, str]]:
    """Return what a model tells an image for, and name the answers of one that finds objects, the surest first."""
    uses = pretrained.architecture.uses
    if not {"classification", "object-detection", "visual-question-answering"} & set(uses):
        return "", {}
    probabilities = np.asarray(jax.nn.softmax(logits[0].astype(np.float32)))
    if "object-detection" not in uses:
        best = int(probabilities.argmax())
        return f"{label_names(pretrained, len(probabilities))[best]} {probabilities[best]:.2f}", {}
    names, likely = label_names(pretrained, probabilities.shape[-1] - 1), probabilities[:, :-1]
    order = np.argsort(-likely.max(-1), kind="stable")
    sure = [int(i) for i in order if likely[i].max() >= THRESHOLD]
    answers = {i: f"{names[likely[i].argmax()]} {likely[i].max():.2f}" for i in sure or order[:1].tolist()}
    return ", ".join(answers[i] for i in sure) or "nothing found", answers


def _answering(laid: PatchAttention, answers: Mapping[int, str]) -> PatchAttention:
    """Keep the queries that found something, under the names of that, where those that look are queries."""
    if laid.weights is None or not answers or math.prod(laid.queries.grid):
        return laid
    queries = laid.queries._replace(tokens=tuple(answers.values()))
    return laid._replace(weights=laid.weights[..., list(answers), :], queries=queries)


def _worded(laid: PatchAttention, words: tuple[str, ...]) -> PatchAttention:
    """Name the tokens of a text, which come before all else."""
    sides = (tiles._replace(tokens=(*words, *tiles.tokens[len(words) :])) for tiles in (laid.queries, laid.keys))
    return PatchAttention(laid.name, laid.weights, *sides)


def _tiling(tiles: Tiles) -> Tiling:
    return Tiling(*tiles.grid, *tiles.size, tiles.tokens)
