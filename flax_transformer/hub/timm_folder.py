"""Folders of timm: config.json names an `architecture`, arguments of its function, and how images are prepared."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.image_step import CenterCrop

ARCHITECTURE, ARGUMENTS, IMAGES = "architecture", "model_args", "pretrained_cfg"
KINDS = {"vit": "timm_vit", "deit": "timm_vit", "eva": "timm_eva", "eva02": "timm_eva", "convnext": "timm_convnext"}
"""How the names of architectures begin, and the family that reads these."""
ROTARY = "_rope_reg"
"""What is in names of those that timm makes as an EVA, and calls a `vit_…`."""
CLASSES = {
    "timm_vit": ("TimmVisionTransformerModel", "TimmVisionTransformerForImageClassification"),
    "timm_eva": ("TimmEvaModel", "TimmEvaForImageClassification"),
    "timm_convnext": ("TimmConvNeXtModel", "TimmConvNeXtForImageClassification"),
}
"""Of a family: without classes, and with them."""
DISTILLED = "TimmVisionTransformerForImageClassificationWithTeacher"
OURS = ("model_type", "architectures", "dtype", "torch_dtype", "num_labels", "id2label", "label2id")
"""Fields that timm has not."""
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def is_timm(config: Mapping[str, Any]) -> bool:
    """Return whether timm wrote a config.json."""
    return "model_type" not in config and isinstance(config.get(ARCHITECTURE), str)


def is_timm_folder(folder: Path) -> bool:
    """Return whether timm wrote a folder."""
    return (folder / CONFIG).is_file() and is_timm(read_json(folder / CONFIG))


def with_model_type(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json of timm with `model_type`, `architectures` and classes as others have them.

    Raises:
      ValueError: an architecture of another kind than those that are read.
    """
    name = config[ARCHITECTURE]
    kind = "timm_eva" if ROTARY in name else KINDS.get(name.split("_")[0])
    if kind is None:
        raise ValueError(f"config.json is of timm's {name!r:.60}; read are {', '.join(f'{each}_…' for each in KINDS)}")
    classes, names = config.get("num_classes", 1000), config.get("label_names")
    labels = {"num_labels": classes} if type(classes) is int and classes > 0 else {}
    if labels and isinstance(names, list) and len(names) == classes:
        labels = {"id2label": {str(number): str(label) for number, label in enumerate(names)}}
    known = CLASSES[kind][classes != 0]
    if "_distilled_" in name and classes != 0:
        known = DISTILLED
    return {**config, "model_type": kind, "architectures": [known], **labels}


def without_model_type(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as timm keeps them, of a config of one of its families; others stay as they are."""
    if config.get("model_type") not in CLASSES:
        return dict(config)
    fields = Fields.of(dict(config))
    kept = {name: value for name, value in config.items() if name not in OURS}
    classes = 0 if config["architectures"][0].endswith("Model") else fields.labels
    names = [config.get("id2label", {}).get(str(number)) for number in range(classes)]
    named = {} if None in names or names == [f"LABEL_{number}" for number in range(classes)] else {"label_names": names}
    return {**{name: value for name, value in kept.items() if name != "label_names"}, "num_classes": classes, **named}


def arguments(fields: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an architecture's function: `known`, or what config.json has instead; null says nothing.

    Raises:
      ValueError: an argument that is not read.
    """
    given = fields.get(ARGUMENTS) or {}
    given = {name: value for name, value in given.items() if name != "num_classes" and value is not None}
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"config.json has the argument {unknown[0]!r:.60} of timm's; read are {', '.join(known)}")
    return {**known, **given}


def ratio_of(inner: int, embed: int) -> float:
    """Return the `mlp_ratio` of which timm makes an inner width again, as it rounds down."""
    ratio = inner / embed
    return ratio if int(embed * ratio) == inner else math.nextafter(ratio, math.inf)


def pair(value: Any) -> tuple[int, int]:
    """Return what timm takes as one number for both sides of an image, or as two."""
    return tuple(value) if isinstance(value, list | tuple) else (value, value)


def stated_image(fields: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a checkpoint was trained with."""
    size = (fields.get(IMAGES) or {}).get("input_size", (3, 224, 224))
    if not isinstance(size, list | tuple) or len(size) != 3 or not all(type(side) is int and side > 0 for side in size):
        raise ValueError(f"config.json must give input_size as channels, height and width, it is {size!r:.60}")
    return tuple(size)


def written_image(channels: int, height: int, width: int) -> dict[str, Any]:
    """Return what config.json says of images for which a model was made here; without it timm takes it for another."""
    return {IMAGES: {"input_size": [channels, height, width]}}


def timm_processor(folder: Path) -> ImageProcessor:
    """Make the image processor that a folder of timm describes, which has no file of its own for it.

    Raises:
      ValueError: a way to prepare images that is not supported.
    """
    config = read_json(folder / CONFIG)
    said = config.get(IMAGES) or {}
    _, height, width = stated_image(config)
    mode, share = said.get("crop_mode", "center"), said.get("crop_pct", 0.875)
    if mode not in ("center", "squash") or said.get("interpolation", "bicubic") not in FILTERS:
        raise ValueError(
            f"images are resized by {', '.join(FILTERS)} and cut in the middle or squashed, config.json has "
            f"{mode!r:.20} and {said.get('interpolation')!r:.20}"
        )
    if not isinstance(share, int | float) or not 0.01 <= share <= 1:
        raise ValueError(f"crop_pct must be from 0.01 to 1, got {share!r:.20}")
    tall, wide = (math.floor(side / share) for side in (height, width))
    if mode == "center" and height != width:
        raise ValueError(f"images are cut to squares, config.json has {height} × {width} pixels")
    size = {"shortest_edge": tall} if mode == "center" else {"height": tall, "width": wide}
    made = ImageProcessor.of({
        "image_processor_type": "CLIPImageProcessor", "size": size, "crop_size": {"height": height, "width": width},
        "resample": FILTERS[said.get("interpolation", "bicubic")],
        "image_mean": said.get("mean", (0.485, 0.456, 0.406)), "image_std": said.get("std", (0.229, 0.224, 0.225)),
    })  # fmt: skip
    steps = [replace(step, even=True) if isinstance(step, CenterCrop) else step for step in made.steps]
    return replace(made, files={}, steps=tuple(steps))
