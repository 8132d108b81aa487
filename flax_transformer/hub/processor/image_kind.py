"""Kinds of image processors: what each takes for granted, and the steps that a checkpoint's options make of it.

A field that is absent has the kind's own value, one that is null has none. Options of steps that a kind does not have
are ignored, as `transformers` does, and so are fields that no kind knows, unless they are steps: `do_…: true`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flax_transformer.hub.processor.image_step import (
    MAX_PIXELS,
    CenterCrop,
    Normalize,
    Offset,
    PackPatches,
    Pad,
    Patchify,
    PillowResize,
    Quantize,
    Rescale,
    ResizeToMultiples,
    ResizeToPatches,
    ResizeToPixels,
    ResizeUpToMultiples,
    SmoothResize,
    StackImages,
)

Options = Mapping[str, Any]
LARGEST = 2**12
"""Pixels that an edge may be asked to have."""

SIZES = ({"height", "width"}, {"shortest_edge"}, {"shortest_edge", "longest_edge"}, {"max_height", "max_width"})
FILTERS = range(6)
OTHERS = {"do_convert_rgb", "do_reduce_labels", "do_convert_annotations"}
"""Flags besides those of steps: the first thing that is done, and what is done to labels, by others."""


def _resize(options: Options) -> tuple[Any, ...]:
    size = _size(options, "size", square=bool(options.get("default_to_square")))
    return (PillowResize(size, _filter(options)),)


def _resize_smoothly(options: Options) -> tuple[Any, ...]:
    if _filter(options) not in (2, 3):
        raise ValueError(f"resample must be 2 or 3 where floats are resized, got {options['resample']!r}")
    if not options["do_rescale"]:
        raise ValueError("do_resize needs do_rescale where floats are resized, got none")
    return (SmoothResize(*_rectangle(options, "size"), cubic=options["resample"] == 3),)


def _resize_and_crop(options: Options) -> tuple[Any, ...]:
    """Resize a little larger and cut out the middle, or where that would be 384 pixels and more, just resize."""
    size = _size(options, "size", square=False)
    if set(size) != {"shortest_edge"}:
        raise ValueError(f"size must give the shortest_edge, got {size!r}")
    edge, share = size["shortest_edge"], options["crop_pct"]
    if not _is_number(share) or not 0.01 <= share <= 1:
        raise ValueError(f"crop_pct must be from 0.01 to 1, got {share!r}")
    if edge >= 384:
        return (PillowResize({"height": edge, "width": edge}, _filter(options)),)
    return PillowResize({"shortest_edge": int(edge / share)}, _filter(options)), CenterCrop(edge, edge)


def _resize_to_multiples(options: Options) -> tuple[Any, ...]:
    size, multiple = _size(options, "size", square=False), options["size_divisor"]
    if set(size) != {"shortest_edge"}:
        raise ValueError(f"size must give the shortest_edge, got {size!r}")
    if not _is_edge(multiple):
        raise ValueError(f"size_divisor must be a whole number from 1 to {LARGEST}, got {multiple!r}")
    return (ResizeToMultiples(size, _filter(options), multiple),)


def _resize_up(options: Options) -> tuple[Any, ...]:
    given, multiple, longest = options["size"], options["size_divisor"], options.get("max_size")
    if given == _UP_TO and longest:
        given = {**_UP_TO, "longest_edge": longest}
    size = _size({**options, "size": given}, "size", square=False)
    if multiple != 0 and not _is_edge(multiple):
        raise ValueError(f"size_divisor must be a whole number from 0 to {LARGEST}, got {multiple!r}")
    return (ResizeUpToMultiples(size, _filter(options), max(multiple, 1)),)


def _center_crop(options: Options) -> tuple[Any, ...]:
    return (CenterCrop(*_rectangle(options, "crop_size")),)


def _rescale(options: Options) -> tuple[Any, ...]:
    if not _is_number(options["rescale_factor"]):
        raise ValueError(f"rescale_factor must be a number, got {options['rescale_factor']!r}")
    return (Rescale(float(options["rescale_factor"])),)


def _offset(options: Options) -> tuple[Any, ...]:
    if not options["do_rescale"]:
        raise ValueError("offset needs do_rescale, got none")
    return (Offset(),)


def _normalize(options: Options) -> tuple[Any, ...]:
    found = []
    for name in ("image_mean", "image_std"):
        value = options[name]
        numbers = list(value) if isinstance(value, list | tuple) else [value]
        if not numbers or not all(map(_is_number, numbers)) or (name == "image_std" and min(numbers) <= 0):
            raise ValueError(f"{name} must be numbers{' above 0' * (name == 'image_std')}, got {value!r:.60}")
        found.append(tuple(map(float, numbers)) if isinstance(value, list | tuple) else float(value))
    return (Normalize(*found),)


def _pad(options: Options) -> Pad:
    return Pad(None if options.get("pad_size") is None else _rectangle(options, "pad_size"))


def _pad_and_mask(options: Options) -> Pad:
    return Pad(_pad(options).size, mask=True)


def _patches(options: Options) -> dict[str, int]:
    names = {"patch": "patch_size", "most": "max_num_patches"}
    for name in names.values():
        if not _is_edge(options[name]):
            raise ValueError(f"{name} must be a whole number from 1 to {LARGEST}, got {options[name]!r}")
    return {ours: options[theirs] for ours, theirs in names.items()}


def _resize_to_patches(options: Options) -> tuple[Any, ...]:
    return (ResizeToPatches({}, _filter(options), **_patches(options)),)


def _patchify(options: Options) -> Patchify:
    return Patchify(**_patches(options))


def _packed(options: Options) -> dict[str, int]:
    names = {"patch": "patch_size", "frames": "temporal_patch_size", "merge": "merge_size"}
    for name in names.values():
        if not _is_edge(options[name]):
            raise ValueError(f"{name} must be a whole number from 1 to {LARGEST}, got {options[name]!r}")
    return {ours: options[theirs] for ours, theirs in names.items()}


def _resize_to_pixels(options: Options) -> tuple[Any, ...]:
    sizes, size = _packed(options), options["size"]
    bounds = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
    found = [
        options[name] if options.get(name) is not None else size.get(within) if isinstance(size, Mapping) else None
        for name, within in bounds.items()
    ]
    if any(type(each) is not int or not 1 <= each <= MAX_PIXELS for each in found):
        raise ValueError(
            "size must give the pixels of an image as shortest_edge and longest_edge, or min_pixels and max_pixels, "
            f"from 1 to {MAX_PIXELS:,}, got {found}"
        )
    return (ResizeToPixels({}, _filter(options), sizes["patch"] * sizes["merge"], *found),)


def _pack_patches(options: Options) -> PackPatches:
    return PackPatches(**_packed(options))


def _quantize(options: Options) -> Quantize:
    clusters = options.get("clusters")
    rows = clusters if isinstance(clusters, list | tuple) else ()
    if not rows or not all(
        isinstance(row, list | tuple) and len(row) == 3 and all(map(_is_number, row)) for row in rows
    ):
        raise ValueError(f"clusters must be a list of colours of three numbers, got {clusters!r:.60}")
    return Quantize(tuple(tuple(map(float, row)) for row in rows))


def _size(options: Options, name: str, *, square: bool) -> dict[str, int]:
    """Read a size in any of its spellings: a number, two, or an object."""
    size = options.get(name)
    if isinstance(size, list | tuple) and len(size) == 2:
        size = dict(zip(("height", "width"), size, strict=True))
    elif _is_edge(size) and square:
        size = {"height": size, "width": size}
    elif _is_edge(size):
        size = {"shortest_edge": size} | ({"longest_edge": options["max_size"]} if options.get("max_size") else {})
    if not isinstance(size, Mapping) or set(size) not in SIZES or not all(map(_is_edge, size.values())):
        rule = f"a whole number from 1 to {LARGEST}, two, or an object of {'; '.join(map(_spell, SIZES))}"
        raise ValueError(f"{name} must be {rule}, got {size!r:.80}")
    return dict(size)


def _rectangle(options: Options, name: str) -> tuple[int, int]:
    size = _size(options, name, square=True)
    if set(size) != {"height", "width"}:
        raise ValueError(f"{name} must give height and width, got {size!r}")
    return size["height"], size["width"]


def _filter(options: Options) -> int:
    if isinstance(options["resample"], bool) or options["resample"] not in FILTERS:
        raise ValueError(f"resample must be one of 0 to 5, got {options['resample']!r}")
    return int(options["resample"])


def _is_edge(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _spell(names: set[str]) -> str:
    return " and ".join(sorted(names))


Make = Callable[[Options], Any]
RESIZE, CROP, RESCALE, NORMALIZE = (
    ("do_resize", _resize), ("do_center_crop", _center_crop), ("do_rescale", _rescale), ("do_normalize", _normalize)
)  # fmt: skip
"""The flag that asks for a step, and what makes steps of the options."""


@dataclass(frozen=True)
class ImageProcessorType:
    """One `image_processor_type`, without its ending."""

    options: Options
    """What is assumed."""
    steps: tuple[tuple[str, Make], ...] = (RESIZE, CROP, RESCALE, NORMALIZE)
    """In this order, each if it is asked for."""
    batch: tuple[str, Make] | None = ("do_pad", _pad)
    """What makes a batch of images, if it is asked for; else they must be of one size. Without a flag: always."""
    frames: bool = False
    """Whether images are frames of videos."""


_UP_TO = {"shortest_edge": 800, "longest_edge": 1333}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "do_convert_rgb": True,
}
_EVERY = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
_CROP = {"do_center_crop": True, "crop_size": 224}
_BILINEAR, _BICUBIC = {"resample": 2}, {"resample": 3}
_IN_A_SQUARE = {"default_to_square": True}
_SQUARES = {"min_pixels": None, "max_pixels": None, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}


KINDS = {
    "ViT": ImageProcessorType(_EVERY | _HALF | _BILINEAR | _IN_A_SQUARE | {"size": 224}),
    "DeiT": ImageProcessorType(_EVERY | _HALF | _BICUBIC | _IN_A_SQUARE | _CROP | {"size": 256}),
    "Pvt": ImageProcessorType(_EVERY | _IMAGENET | _BICUBIC | _IN_A_SQUARE | {"size": 224}),
    "Beit": ImageProcessorType(_EVERY | _HALF | _BICUBIC | _IN_A_SQUARE | {"size": 224, "crop_size": 224}, batch=None),
    "Segformer": ImageProcessorType(
        _EVERY | _IMAGENET | _BILINEAR | _IN_A_SQUARE | {"size": 512}, (RESIZE, RESCALE, NORMALIZE), None
    ),
    "ImageGPT": ImageProcessorType(
        _EVERY | _HALF | _BILINEAR | _IN_A_SQUARE | {"size": 256, "do_color_quantize": True},
        (RESIZE, RESCALE, NORMALIZE), ("do_color_quantize", _quantize),
    ),
    "ConvNext": ImageProcessorType(
        _EVERY | _HALF | _BICUBIC | {"size": 384, "crop_pct": 224 / 256},
        (("do_resize", _resize_and_crop), CROP, RESCALE, NORMALIZE), None,
    ),
    "Bit": ImageProcessorType(_EVERY | _CLIP | _BICUBIC | _CROP | {"size": 224}),
    "DINOv3ViT": ImageProcessorType(
        _EVERY | _IMAGENET | _BILINEAR | {"size": 224, "crop_size": 224},
        (RESCALE, ("do_resize", _resize_smoothly), CROP, NORMALIZE),
    ),
    "CLIP": ImageProcessorType(_EVERY | _CLIP | _BICUBIC | _CROP | {"size": 224}),
    "Blip": ImageProcessorType(_EVERY | _CLIP | _BICUBIC | _IN_A_SQUARE | {"size": 384}),
    "Siglip": ImageProcessorType(
        _EVERY | _HALF | _BICUBIC | {"size": {"height": 224, "width": 224}, "do_convert_rgb": True}
    ),
    "Siglip2": ImageProcessorType(
        _EVERY | _HALF | _BILINEAR | {"patch_size": 16, "max_num_patches": 256},
        (("do_resize", _resize_to_patches), RESCALE, NORMALIZE), ("", _patchify),
    ),
    "Qwen2VL": ImageProcessorType(
        _EVERY | _CLIP | _BICUBIC | {"size": {"shortest_edge": 56**2, "longest_edge": 1280 * 28**2}} | _SQUARES,
        (("do_resize", _resize_to_pixels), RESCALE, NORMALIZE), ("", _pack_patches),
    ),
    "VideoMAE": ImageProcessorType(
        _EVERY | _HALF | _BILINEAR | _CROP | {"size": 224}, batch=None, frames=True,
    ),
    "Vivit": ImageProcessorType(
        _EVERY | _HALF | _BILINEAR | _CROP | {"size": 256, "rescale_factor": 1 / 127.5, "offset": True},
        (RESIZE, CROP, RESCALE, ("offset", _offset), NORMALIZE), None, frames=True,
    ),
    "Vilt": ImageProcessorType(
        _EVERY | _HALF | _BICUBIC | {"size": 384, "size_divisor": 32, "do_pad": True},
        (("do_resize", _resize_to_multiples), RESCALE, NORMALIZE), ("do_pad", _pad_and_mask),
    ),
    "Detr": ImageProcessorType(
        _EVERY | _IMAGENET | _BILINEAR | {"size": 800, "max_size": 1333, "do_pad": True},
        (RESIZE, RESCALE, NORMALIZE), ("do_pad", _pad_and_mask),
    ),
    "Mask2Former": ImageProcessorType(
        _EVERY | _IMAGENET | _BILINEAR | {"size": _UP_TO, "max_size": None, "size_divisor": 32},
        (("do_resize", _resize_up), RESCALE, NORMALIZE), ("", _pad_and_mask),
    ),
}  # fmt: skip
"""By name: `ViT` stands for `ViTImageProcessor`, `ViTImageProcessorFast` and `ViTFeatureExtractor`."""

FAMILIES = {
    "vit": "ViT", "vit_mae": "ViT", "vit_msn": "ViT", "swin": "ViT", "swinv2": "ViT", "deit": "DeiT", "pvt": "Pvt",
    "pvt_v2": "Pvt", "imagegpt": "ImageGPT", "dinov2": "Bit", "dinov3_vit": "DINOv3ViT", "bit": "Bit", "beit": "Beit",
    "convnext": "ConvNext", "convnextv2": "ConvNext", "resnet": "ConvNext", "regnet": "ConvNext", "detr": "Detr",
    "clip": "CLIP", "upernet": "Segformer", "segformer": "Segformer", "siglip": "Siglip", "siglip2": "Siglip2",
    "blip": "Blip", "git": "CLIP", "mask2former": "Mask2Former", "vilt": "Vilt", "vivit": "Vivit",
    "videomae": "VideoMAE", "timesformer": "VideoMAE", "qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2VL",
}  # fmt: skip
"""By `model_type` of config.json, where a checkpoint does not name its processor."""


def name_kind(config: Options, model_type: str | None) -> str:
    """Return the kind of processor that a checkpoint has: a name in `KINDS`.

    Raises:
      ValueError: one that is not known.
    """
    name = config.get("image_processor_type") or config.get("feature_extractor_type")
    if name is None and model_type in FAMILIES:
        return FAMILIES[model_type]
    short = str(name)
    for ending in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        short = short.removesuffix(ending)
    if short not in KINDS or short == name:
        known = ", ".join(f"{each}ImageProcessor" for each in KINDS)
        raise ValueError(f"image_processor_type must be one of {known}, got {name!r}")
    return short


def read_steps(config: Options, kind: ImageProcessorType) -> tuple[bool, tuple[Any, ...], Any]:
    """Return whether images are made RGB, the steps of each image, and the one that makes a batch of them.

    Raises:
      ValueError: an option with an impossible value, or a step that nobody knows.
    """
    options = {**kind.options, **config}
    if "do_pad" not in config and "pad_and_return_pixel_mask" in config:
        options["do_pad"] = config["pad_and_return_pixel_mask"]
    if "max_size" not in kind.options:
        options.pop("max_size", None)
    elif options["size"] is None:
        options["size"] = kind.options["size"]
    if unknown := [name for name in options if name.startswith("do_") and options[name] and name not in _FLAGS]:
        raise ValueError(f"{unknown[0]} is a step that is not known here")

    def asked(flag: str) -> bool:
        if not isinstance(value := options.get(flag), bool | None):
            raise ValueError(f"{flag} must be true or false, got {value!r}")
        return bool(value)

    steps = tuple(step for flag, make in kind.steps if asked(flag) for step in make(options))
    batch = kind.batch[1](options) if kind.batch and (not kind.batch[0] or asked(kind.batch[0])) else StackImages()
    return asked("do_convert_rgb"), steps, batch


_FLAGS = OTHERS.union(*({flag for flag, _ in (*kind.steps, kind.batch or RESIZE)} for kind in KINDS.values())) - {""}
OPTIONS = _FLAGS.union({"pad_size", "clusters"}, *(kind.options for kind in KINDS.values()))
"""All that somebody may ask to be otherwise."""
