"""What is done to images before a model sees them, one after the other: each step a value, and a function of pixels.

Arithmetic is that of `transformers` with Pillow, in its order and its floats, so that results are the same bit for bit.
Axes: B images, C channels, H × W pixels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Shaped

from flax_transformer.data.image.geometry import new_size

ImageArray = Shaped[np.ndarray, "C H W"]
MAX_PIXELS = 2**24
"""Pixels that an image may have after it is resized: a thin one can become very long."""


@dataclass(frozen=True)
class PillowResize:
    """Resize by Pillow, in 8 bits: floats from 0 to 1 are made bytes and floats again."""

    size: Mapping[str, int]
    """`height`, `width`; `shortest_edge`, perhaps with a `longest_edge` there may be; or `max_height`, `max_width`."""
    resample: int
    """Pillow's number of a filter: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box, 5 Hamming."""

    def __call__(self, image: ImageArray) -> Shaped[np.ndarray, "C h w"]:
        """Return the image in another size.

        Raises:
          ValueError: values that are neither bytes nor from 0 to 1, or a new size that nobody wants.
        """
        import PIL.Image

        height, width = self.becomes(*image.shape[1:])
        if min(height, width) < 1 or height * width > MAX_PIXELS:
            shape, to = (" × ".join(map(str, size)) for size in (image.shape[:0:-1], (width, height)))
            raise ValueError(f"a resized image must have 1 to {MAX_PIXELS:,} pixels, got {shape}, which becomes {to}")
        share = _is_share(image)
        pixels = np.moveaxis(Rescale(255.0)(image) if share else image, 0, -1).astype(np.uint8)
        drawn = PIL.Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        resized = np.asarray(drawn.resize((width, height), resample=self.resample))
        resized = np.moveaxis(resized, -1, 0) if resized.ndim == 3 else resized[None]
        return Rescale(1 / 255)(resized) if share else resized

    def becomes(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image gets."""
        return new_size(self.size, height, width)


@dataclass(frozen=True)
class ResizeToMultiples(PillowResize):
    """Resize by the shorter side, the longer one to 1333/800 of that at most, and both down to multiples (ViLT)."""

    multiple: int

    def becomes(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image gets.

        >>> ResizeToMultiples({"shortest_edge": 384}, 3, 32).becomes(480, 640)
        (384, 512)
        """
        edge = self.size["shortest_edge"]
        scale, longest = edge / min(height, width), int(1333 / 800 * edge)
        sides = (edge, scale * width) if height < width else (scale * height, edge)
        if max(sides) > longest:
            scale = longest / max(sides)
            sides = tuple(scale * side for side in sides)
        high, wide = (int(side + 0.5) // self.multiple * self.multiple for side in sides)
        return high, wide


@dataclass(frozen=True)
class ResizeUpToMultiples(PillowResize):
    """Resize as is said, but both sides up to the next multiples (Mask2Former)."""

    multiple: int

    def becomes(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image gets.

        Raises:
          ValueError: a size without a limit of the longer side.

        >>> ResizeUpToMultiples({"shortest_edge": 384, "longest_edge": 640}, 3, 32).becomes(480, 600)
        (384, 480)
        """
        if {*self.size} == {"shortest_edge"}:
            raise ValueError(f"size must give the longest_edge beside the shortest_edge, got {self.size!r}")
        high, wide = (-(-side // self.multiple) * self.multiple for side in super().becomes(height, width))
        return high, wide


@dataclass(frozen=True)
class ResizeToPatches(PillowResize):
    """Resize so that there are as many patches as may be, whole ones, and sides keep their ratio about (NaFlex)."""

    patch: int
    most: int

    def becomes(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image gets.

        >>> ResizeToPatches({}, 2, 16, 256).becomes(480, 640)
        (224, 288)
        """

        def scaled(scale: float) -> tuple[int, ...]:
            return tuple(max(1, math.ceil(side * scale / self.patch)) * self.patch for side in (height, width))

        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            middle = (low + high) / 2
            fits = math.prod(scaled(middle)) <= self.most * self.patch**2
            low, high = (middle, high) if fits else (low, middle)
        rows, columns = scaled(low)
        return rows, columns


@dataclass(frozen=True)
class ResizeToPixels(PillowResize):
    """Resize to sides that are multiples and to a number of pixels within bounds; sides keep their ratio about
    (Qwen2-VL)."""

    multiple: int
    least: int
    """Pixels at least."""
    most: int

    def becomes(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image gets.

        Raises:
          ValueError: one side more than 200 times the other.

        >>> ResizeToPixels({}, 3, 28, 3_136, 1_003_520).becomes(480, 640)
        (476, 644)
        """
        if max(height, width) > 200 * min(height, width):
            raise ValueError(f"an image must be at most 200 times as long as it is wide, got {width} × {height}")
        high, wide = (round(side / self.multiple) * self.multiple for side in (height, width))
        if high * wide > self.most:
            scale = math.sqrt(height * width / self.most)
            high, wide = (
                max(self.multiple, math.floor(side / scale / self.multiple) * self.multiple) for side in (height, width)
            )
        elif high * wide < self.least:
            scale = math.sqrt(self.least / (height * width))
            high, wide = (math.ceil(side * scale / self.multiple) * self.multiple for side in (height, width))
        return high, wide


@dataclass(frozen=True)
class SmoothResize:
    """Resize in float32, each pixel a mean of all that it covers, as PyTorch does with `antialias`."""

    height: int
    width: int
    cubic: bool = False
    """Whether weights are a cubic's, of twice the reach, and not a triangle's."""

    def __call__(self, image: ImageArray) -> Float[np.ndarray, "C h w"]:
        """Return the image in the other size."""
        down, across = (self._weights(*sides) for sides in zip(image.shape[1:], (self.height, self.width), strict=True))
        return np.einsum("hH,cHW,wW->chw", down, image.astype(np.float32), across, optimize=True)

    def _weights(self, old: int, new: int) -> Float[np.ndarray, "new old"]:
        half, scale = np.float32(0.5), np.float32(old) / np.float32(new)  # every step is rounded, as there
        wide, centre = max(scale, np.float32(1)), scale * (np.arange(new, dtype=np.float32) + half)[:, None]
        reach, place = np.float32(2 if self.cubic else 1) * wide, np.arange(old, dtype=np.float32)
        seen = (place >= np.trunc(centre - reach + half)) & (place < np.trunc(centre + reach + half))
        x = np.abs((place - centre + half) * (np.float32(1) / wide))
        if self.cubic:
            near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
            weights = np.where(x < 1, near, np.where(x < 2, far, 0))
        else:
            weights = np.maximum(1 - x, 0)
        weights = np.where(seen, weights, 0)
        return weights / weights.sum(1, keepdims=True)


@dataclass(frozen=True)
class CenterCrop:
    """Cut out the middle; what lies beyond the image is 0."""

    height: int
    width: int
    even: bool = field(default=False, repr=False)
    """Whether half a pixel is rounded to an even number, as torchvision does, and not down."""

    def __call__(self, image: ImageArray) -> Shaped[np.ndarray, "C h w"]:
        """Return the middle."""
        old, new = image.shape[1:], (self.height, self.width)
        margins = [had - has for had, has in zip(old, new, strict=True)]
        begin = [round(margin / 2) if self.even else margin // 2 for margin in margins]
        there = tuple(slice(max(b, 0), b + has) for b, has in zip(begin, new, strict=True))
        part = image[:, *there]
        if part.shape[1:] == new:
            return part
        cut = np.zeros((len(image), *new), image.dtype)
        top, left = (max(-b, 0) for b in begin)
        cut[:, top : top + part.shape[1], left : left + part.shape[2]] = part
        return cut


@dataclass(frozen=True)
class Rescale:
    """Multiply, as by 1/255."""

    factor: float

    def __call__(self, image: ImageArray) -> Float[np.ndarray, "C H W"]:
        """Return the products, rounded once."""
        return (image.astype(np.float64) * self.factor).astype(np.float32)


@dataclass(frozen=True)
class Offset:
    """Take 1 away, after values are scaled to be from 0 to 2."""

    def __call__(self, image: ImageArray) -> Float[np.ndarray, "C H W"]:
        """Return the differences."""
        return image - np.float32(1)


@dataclass(frozen=True)
class Normalize:
    """Take the mean away and divide by the standard deviation: of each channel, or one for all."""

    mean: tuple[float, ...] | float
    std: tuple[float, ...] | float

    def __call__(self, image: ImageArray) -> Float[np.ndarray, "C H W"]:
        """Return the quotients.

        Raises:
          ValueError: as many channels as there are no means for.
        """
        for name, value in (("image_mean", self.mean), ("image_std", self.std)):
            if isinstance(value, tuple) and len(value) != len(image):
                made = "; image.convert('RGB') has 3" if len(value) == 3 else ""
                raise ValueError(f"an image must have {len(value)} channels, as {name} has, got {len(image)}{made}")
        image = image if np.issubdtype(image.dtype, np.floating) else image.astype(np.float32)
        mean, std = (np.reshape(np.array(value, image.dtype), (-1, 1, 1)) for value in (self.mean, self.std))
        return (image - mean) / std


@dataclass(frozen=True)
class StackImages:
    """Images of one size, as they are."""

    def __call__(self, images: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return `pixel_values` [B, C, H, W].

        Raises:
          ValueError: images of several sizes.
        """
        sizes = sorted({image.shape for image in images})
        if len(sizes) > 1:
            raise ValueError(f"the images of a batch must be of one shape here, got {sizes[0]} and {sizes[-1]}")
        return {"pixel_values": np.stack(images).astype(np.float32)}


@dataclass(frozen=True)
class Pad:
    """Images in the upper left corner of zeros, all of one size."""

    size: tuple[int, int] | None = None
    """Height and width; those of the largest in the batch by default."""
    mask: bool = False
    """Whether a model is told which pixels are there."""

    def __call__(self, images: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return `pixel_values` [B, C, H, W] and perhaps `pixel_mask` [B, H, W].

        Raises:
          ValueError: an image that is larger than that.
        """
        largest = tuple(max(image.shape[axis] for image in images) for axis in (1, 2))
        height, width = self.size or largest
        if largest[0] > height or largest[1] > width:
            raise ValueError(f"images must fit pad_size, {height} × {width}, got {largest[0]} × {largest[1]}")
        padded = [np.pad(x, ((0, 0), (0, height - x.shape[1]), (0, width - x.shape[2]))) for x in images]
        mask = np.zeros((len(images), height, width), np.int32)
        for place, image in zip(mask, images, strict=True):
            place[: image.shape[1], : image.shape[2]] = 1
        return StackImages()(padded) | ({"pixel_mask": mask} if self.mask else {})


@dataclass(frozen=True)
class Patchify:
    """Images as patches in rows, of which the last ones are padding where an image has fewer."""

    patch: int
    most: int

    def __call__(self, images: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return `pixel_values` [B, P, F], `pixel_attention_mask` [B, P] and `spatial_shapes` [B, 2].

        Raises:
          ValueError: an image without a patch or with too many, or images of several kinds.
        """
        p, made = self.patch, []
        grids = [(image.shape[1] // p, image.shape[2] // p) for image in images]
        for image, (rows, columns) in zip(images, grids, strict=True):
            if not 1 <= rows * columns <= self.most:
                raise ValueError(
                    f"an image must have 1 to {self.most} patches of {p}×{p} pixels, got one of {rows}×{columns}"
                )
            cut = image[:, : rows * p, : columns * p].reshape(len(image), rows, p, columns, p)
            patches = cut.transpose(1, 3, 2, 4, 0).reshape(rows * columns, -1)
            made.append(np.pad(patches, ((0, self.most - len(patches)), (0, 0))))
        counts = np.array(grids).prod(1)
        return StackImages()(made) | {
            "pixel_attention_mask": (np.arange(self.most) < counts[:, None]).astype(np.int32),
            "spatial_shapes": np.array(grids, np.int32),
        }


@dataclass(frozen=True)
class PackPatches:
    """The patches of all images one after another, square by square, each image repeated as a video of few frames."""

    patch: int
    frames: int
    merge: int
    """Patches on each side of a square."""

    def __call__(self, images: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return `pixel_values` [Q, F] of all patches and `image_grid_thw` [N, 3] of the images.

        Raises:
          ValueError: an image that is not made of whole squares, or images of several kinds.
        """
        p, m, made, grids = self.patch, self.merge, [], []
        for image in images:
            channels, *sides = image.shape
            if any(side % (p * m) for side in sides):
                raise ValueError(
                    f"an image must have sides that are multiples of {p * m} pixels, got {sides[1]} × {sides[0]}"
                )
            rows, columns = (side // p for side in sides)
            cut = image.astype(np.float32).reshape(channels, rows // m, m, p, columns // m, m, p)
            cut = cut.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
            cut = np.broadcast_to(cut, (*cut.shape[:5], self.frames, p, p))
            made.append(cut.reshape(rows * columns, -1))
            grids.append((1, rows, columns))
        if len({part.shape[1] for part in made}) > 1:
            raise ValueError(f"images must have as many channels, got {sorted({len(image) for image in images})}")
        return {"pixel_values": np.concatenate(made), "image_grid_thw": np.array(grids, np.int32)}


@dataclass(frozen=True)
class Quantize:
    """Every pixel the number of the nearest colour (Chen et al. 2020, Generative Pretraining from Pixels)."""

    clusters: tuple[tuple[float, float, float], ...]

    def __call__(self, images: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return `input_ids` [B, H·W], row by row.

        Raises:
          ValueError: images that have not three channels, or are of several sizes.
        """
        if any(len(image) != 3 for image in images):
            raise ValueError(f"an image must have 3 channels to be given colours, got {[len(x) for x in images]}")
        clusters = np.array(self.clusters)
        images = StackImages()(images)["pixel_values"]
        pixels = np.moveaxis(images, 1, -1).reshape(len(images), -1, 3)
        squares = np.sum(np.square(clusters), axis=1)
        ids = [
            np.argmin(np.sum(np.square(rows), axis=1)[:, None] - 2 * (rows @ clusters.T) + squares, axis=1)
            for rows in pixels
        ]
        return {"input_ids": np.stack(ids).astype(np.int32)}


def _is_share(image: ImageArray) -> bool:
    """Return whether values are from 0 to 1 rather than bytes."""
    if image.dtype == np.uint8:
        return False
    low, high = image.min(), image.max()
    whole = bool(np.allclose(image, image.astype(int)))
    if low < 0 or high > (255 if whole else 1):
        raise ValueError(f"values must be whole and from 0 to 255, or from 0 to 1, got {low:.6g} to {high:.6g}")
    return not whole
