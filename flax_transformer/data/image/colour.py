"""What an image looks like: its colours changed a little, or by operations drawn from a list.

Transforms of examples as in `geometry`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from flax_transformer.data.examples import Example
from flax_transformer.data.image.geometry import check_share
from flax_transformer.frozen import frozen

GREY = 128
"""What is put where an image is turned or moved away from."""


@frozen
class ColourJitter:
    """Multiply brightness, contrast and saturation, in random order, each by a factor from 1 − x to 1 + x."""

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            check_share(name, getattr(self, name))

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Change the colours of one image."""
        changes = (("Brightness", self.brightness), ("Contrast", self.contrast), ("Color", self.saturation))
        image = example["image"]
        for number in rng.permutation(len(changes)):
            name, width = changes[number]
            if width:
                image = _enhanced(image, name, rng.uniform(1 - width, 1 + width))
        return {**example, "image": image}


@frozen
class RandAugment:
    """Apply operations drawn from `OPERATIONS` one after the other, all with one strength (Cubuk et al. 2019,
    https://arxiv.org/abs/1909.13719).

    With a `deviation` the strength is drawn anew each time, and with a `share` below 1 an operation may be left
    out, as DeiT is trained: `RandAugment(deviation=0.5, share=0.5)`.
    """

    layers: int = 2
    """Operations an image."""
    magnitude: float = 9.0
    """Strength, 0 to 10."""
    deviation: float = 0.0
    """Standard deviation of the strength."""
    share: float = 1.0
    """How many of the drawn operations are applied."""

    def __post_init__(self) -> None:
        check_share("share", self.share)
        if self.layers < 1 or not 0 <= self.magnitude <= 10 or self.deviation < 0:
            raise ValueError(
                f"layers must be at least 1, magnitude in [0, 10] and deviation not negative, got {self.layers}, "
                f"{self.magnitude}, {self.deviation}"
            )

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Change one image.

        Raises:
          ValueError: the example has boxes, which would not go along.
        """
        if "boxes" in example:
            raise ValueError("RandAugment moves what is to be seen, it takes no examples with boxes")
        image, operations = example["image"], list(OPERATIONS.values())
        for number in rng.integers(len(operations), size=self.layers):
            strength = np.clip(rng.normal(self.magnitude, self.deviation), 0, 10) / 10
            sign = 1 if rng.random() < 0.5 else -1
            if rng.random() < self.share:
                image = operations[number](image, float(strength), sign)
        return {**example, "image": image}


def _enhanced(image: Any, name: str, factor: float) -> Any:
    import PIL.ImageEnhance

    return getattr(PIL.ImageEnhance, name)(image).enhance(factor)


def _enhance(name: str) -> Callable[[Any, float, int], Any]:
    return lambda image, strength, sign: _enhanced(image, name, 1 + sign * 0.9 * strength)


def _toned(name: str, *amount: int) -> Callable[[Any, float, int], Any]:
    """Return an operation of Pillow's on single values: from the first amount at no strength by the second at full."""

    def apply(image: Any, strength: float, sign: int) -> Any:
        import PIL.ImageOps

        options = [amount[0] + round(amount[1] * strength)] if amount else []
        return getattr(PIL.ImageOps, name)(image, *options)

    return apply


def _warped(image: Any, matrix: tuple[float | int, ...]) -> Any:
    import PIL.Image

    fill = (GREY,) * len(image.getbands())
    affine, bilinear = PIL.Image.Transform.AFFINE, PIL.Image.Resampling.BILINEAR
    return image.transform(image.size, affine, matrix, resample=bilinear, fillcolor=fill)


def _rotated(image: Any, strength: float, sign: int) -> Any:
    import PIL.Image

    fill = (GREY,) * len(image.getbands())
    return image.rotate(sign * 30 * strength, resample=PIL.Image.Resampling.BILINEAR, fillcolor=fill)


def _brightened_dark(image: Any, strength: float, sign: int) -> Any:
    """Add to values below the middle."""
    added = round(110 * strength)
    table = [min(255, value + added) if value < 128 else value for value in range(256)]
    return image.point(table * len(image.getbands()))


OPERATIONS: dict[str, Callable[[Any, float, int], Any]] = {
    "autocontrast": _toned("autocontrast"),
    "equalize": _toned("equalize"),
    "invert": _toned("invert"),
    "posterize": _toned("posterize", 8, -4),
    "solarize": _toned("solarize", 256, -256),
    "solarize_add": _brightened_dark,
    "colour": _enhance("Color"),
    "contrast": _enhance("Contrast"),
    "brightness": _enhance("Brightness"),
    "sharpness": _enhance("Sharpness"),
    "rotate": _rotated,
    "shear_x": lambda image, strength, sign: _warped(image, (1, sign * 0.3 * strength, 0, 0, 1, 0)),
    "shear_y": lambda image, strength, sign: _warped(image, (1, 0, 0, sign * 0.3 * strength, 1, 0)),
    "move_x": lambda image, strength, sign: _warped(image, (1, 0, sign * 0.45 * strength * image.width, 0, 1, 0)),
    "move_y": lambda image, strength, sign: _warped(image, (1, 0, 0, 0, 1, sign * 0.45 * strength * image.height)),
}
"""What may be done to an image, by the strength 0 to 1 and a sign, as in the library timm: at full strength a turn by
30°, a shear by 0.3, a move by 0.45 of the side, colour, contrast, brightness and sharpness by 1 ± 0.9, solarising
everything, posterising to 4 bits."""
