"""What makes another pair of a pair of images: both halves changed alike."""

from typing import Any

import numpy as np

from flax_transformer.data.examples import Example
from flax_transformer.data.image.geometry import check_share
from flax_transformer.frozen import frozen


@frozen
class PairAugment:
    """Mirror images, turn them by quarters, and put their channels in another order.

    Halves that are given generators of one state are changed alike. They still belong together, and to no other pair,
    so few pairs become many: as rotations are classes of their own in Lee et al. 2019,
    https://arxiv.org/abs/1910.05872.
    """

    flip: float = 0.0
    """Share of pairs that are mirrored."""
    turn: float = 0.0
    """Share of pairs that are turned by one, two or three quarters."""
    channels: float = 0.0
    """Share of pairs whose channels are in a random order."""

    def __post_init__(self) -> None:
        for name in ("flip", "turn", "channels"):
            check_share(name, getattr(self, name))

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Change one image of Pillow's."""
        import PIL.Image

        image, (flip, turn, channels) = example["image"], rng.random(3)
        quarters, order = int(rng.integers(1, 4)), rng.permutation(len(image.getbands()))
        if flip < self.flip:
            image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
        if turn < self.turn:
            image = image.transpose(getattr(PIL.Image.Transpose, f"ROTATE_{90 * quarters}"))
        if channels < self.channels:
            image = _reordered(image, order)
        return {**example, "image": image}


def _reordered(image: Any, order: np.ndarray) -> Any:
    import PIL.Image

    bands = image.split()
    return PIL.Image.merge(image.mode, [bands[number] for number in order])
