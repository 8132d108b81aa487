"""Attention over a picture: which of its patches every head looks at, and what that comes to through the layers.

Axes: L layers, N heads, T tokens and patches that look, S those that are looked at, H W C pixels.
"""

import base64
import io
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8


class Tiling(NamedTuple):
    """Patches of a picture, from its upper left corner, and the tokens that come before them."""

    rows: int
    columns: int
    height: int
    """Of a patch, in pixels."""
    width: int
    tokens: tuple[str, ...] = ()
    """Names of what stands at no place of the picture."""

    @property
    def count(self) -> int:
        """How many tokens and patches there are."""
        return len(self.tokens) + self.rows * self.columns

    def merged(self, side: int) -> "Tiling":
        """Give as large patches as are so many rows and columns of these; at the edges they may be smaller."""
        rows, columns = -(-self.rows // side), -(-self.columns // side)
        return Tiling(rows, columns, side * self.height, side * self.width, self.tokens)


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """What every head of some layers looks at in a picture.

    >>> tiles = Tiling(1, 2, 8, 8, tokens=("class",))
    >>> ImageMaps("self", np.full((1, 2, 3, 3), 1 / 3), queries=tiles, keys=tiles).rollout().shape
    (1, 3, 3)
    """

    name: str
    weights: Float[np.ndarray, "L N T S"]
    queries: Tiling
    """What looks."""
    keys: Tiling
    """What is looked at."""

    def __post_init__(self):
        given, fits = self.weights.shape, (self.queries.count, self.keys.count)
        if len(given) != 4 or given[2:] != fits:
            raise ValueError(f"attention weights must be [layers, heads, {fits[0]}, {fits[1]}], got {given}")

    def rollout(self) -> Float[np.ndarray, "L T T"] | None:
        """Follow attention through the layers below, as Abnar and Zuidema 2020 (https://arxiv.org/abs/2005.00928) do.

        Heads are averaged, and half of what goes on is what was there before. None where those that look are not those
        that are looked at.
        """
        L, _, T = self.weights.shape[:3]
        if self.queries != self.keys:
            return None
        through, found = np.eye(T, dtype=np.float32), []
        for layer in range(L):
            through = (0.5 * self.weights[layer].mean(0) + 0.5 * np.eye(T, dtype=np.float32)) @ through
            found.append(through)
        return np.stack(found)

    def merged(self, side: int) -> "ImageMaps":
        """Make one patch of `side` rows and columns: what it looks at is their mean, what is looked at their sum."""
        if side == 1:
            return self
        weights = _pooled(self.weights, 3, self.keys, side, mean=False)
        weights = _pooled(weights, 2, self.queries, side, mean=True)
        return ImageMaps(self.name, weights, self.queries.merged(side), self.keys.merged(side))


@dataclass(frozen=True, eq=False)
class ImageAttention:
    """A picture, and what the heads of a model look at in it."""

    source: str
    """The picture's name."""
    pixels: UInt8[np.ndarray, "H W 3"]
    """As the model sees it."""
    maps: tuple[ImageMaps, ...]
    """Of every stack of layers."""
    output: str = ""
    """What the model makes of it, in words."""

    def layer(self, number: int) -> tuple[ImageMaps, int]:
        """Find a layer, counted from 1 through all stacks, or from -1 back.

        Raises:
          ValueError: when there is no such layer.
        """
        every = [(maps, layer) for maps in self.maps for layer in range(maps.weights.shape[0])]
        if not 1 <= abs(number) <= len(every):
            raise ValueError(f"layer must be between 1 and {len(every)}, or count from the end, got {number}")
        return every[number - (number > 0)]


def image_attention_figure(attention: ImageAttention, *, layer: int = -1, query: int | None = None) -> Any:
    """Draw every head of a layer over the picture, their mean, and rollout up to that layer.

    Each has its own scale: light is what a head looks at most.

    Args:
      layer: counted from 1 through all stacks, or from -1 back.
      query: who looks: a token, or after the tokens a patch. By default the first token, or the mean of all patches.

    Returns:
      A `matplotlib.figure.Figure` that belongs to no window.

    Raises:
      ValueError: when there is no such layer or query.
    """
    from matplotlib.figure import Figure

    maps, at = attention.layer(layer)
    every = range(maps.weights.shape[2])
    if query is not None and query not in every:
        raise ValueError(f"query must be between 0 and {len(every) - 1}, got {query}")
    who = ([0] if maps.queries.tokens else every) if query is None else [query]
    rows = [(f"head {n + 1}", weights) for n, weights in enumerate(maps.weights[at])]
    rows.append(("mean of heads", maps.weights[at].mean(0)))
    rollout = maps.rollout()
    rows += [] if rollout is None else [("rollout", rollout[at])]
    shown = [("picture", None), *((name, weights[list(who)].mean(0)) for name, weights in rows)]
    ratio = attention.pixels.shape[1] / attention.pixels.shape[0]
    wide = ratio if ratio > 2 else 1  # a film
    down = math.ceil(len(shown) / max(1, int(7 / wide)))
    across = math.ceil(len(shown) / down)
    figure = Figure(figsize=(1.75 * wide * across, 1.95 * down + 0.4), dpi=150, layout="constrained")
    for axes, (name, weights) in zip(figure.subplots(down, across, squeeze=False).flat, shown, strict=False):
        axes.imshow(attention.pixels if weights is None else spotlight(attention.pixels, weights, maps))
        axes.set_title(name, fontsize=9)
    for axes in figure.axes:
        axes.set_axis_off()
    name = "the mean of all patches" if query is None and not maps.queries.tokens else _name(maps.queries, who[0])
    figure.suptitle(f"{maps.name} attention, layer {at + 1} of {len(maps.weights)}, of {name}", fontsize=10)
    return figure


def spotlight(pixels: np.ndarray, weights: Float[np.ndarray, "S"], maps: ImageMaps) -> Float[np.ndarray, "H W 3"]:
    """Darken a picture but where there are weights; patches that are looked at most stay as they are."""
    keys, patches = maps.keys, weights[len(maps.keys.tokens) :]
    light = patches.reshape(keys.rows, keys.columns) / max(patches.max(), 1e-12)
    light = np.repeat(np.repeat(light, keys.height, 0), keys.width, 1)[: pixels.shape[0], : pixels.shape[1]]
    seen = np.zeros(pixels.shape[:2])
    seen[: light.shape[0], : light.shape[1]] = light
    return pixels / 255 * (0.12 + 0.88 * seen[..., None])


def _name(queries: Tiling, query: int) -> str:
    if query < len(queries.tokens):
        return f"the {queries.tokens[query].replace('_', ' ')}"
    row, column = divmod(query - len(queries.tokens), queries.columns)
    return f"the patch in row {row + 1}, column {column + 1}"


def _pooled(weights: np.ndarray, axis: int, tiles: Tiling, side: int, *, mean: bool) -> np.ndarray:
    """Add up, or average, squares of patches along one axis of attention weights."""
    if not tiles.rows * tiles.columns:
        return weights
    first, patches = np.split(weights, [len(tiles.tokens)], axis)
    shape = weights.shape
    patches = patches.reshape(*shape[:axis], tiles.rows, tiles.columns, *shape[axis + 1 :])
    for place, length in ((axis, tiles.rows), (axis + 1, tiles.columns)):
        begin = np.arange(0, length, side)
        patches = np.add.reduceat(patches, begin, axis=place)
        if mean:
            count = np.minimum(side, length - begin)
            patches = patches / count.reshape(-1, *[1] * (patches.ndim - place - 1)).astype(patches.dtype)
    return np.concatenate([first, patches.reshape(*shape[:axis], -1, *shape[axis + 1 :])], axis)


def packed(attention: ImageAttention, room: int) -> tuple[dict[str, Any], int]:
    """Make what a page holds of a picture's attention, with patches as much merged as it takes.

    Args:
      room: bytes that there are.

    Returns:
      The values, and how many rows and columns of patches were made one at most.
    """
    sides = [1] * len(attention.maps)
    sizes = [maps.merged(1).weights.size for maps in attention.maps]
    while sum(sizes) > room and max(sizes) > 1000:
        most = int(np.argmax(sizes))
        sides[most] += 1
        depth, heads = attention.maps[most].weights.shape[:2]
        queries, keys = (
            tiles.merged(sides[most]).count for tiles in (attention.maps[most].queries, attention.maps[most].keys)
        )
        sizes[most] = depth * heads * queries * keys
    maps = [_packed_maps(maps, side) for maps, side in zip(attention.maps, sides, strict=True)]
    height, width = attention.pixels.shape[:2]
    texts = {"source": attention.source, "output": attention.output}
    return {**texts, "picture": png(attention.pixels), "width": width, "height": height, "maps": maps}, max(sides)


def png(pixels: UInt8[np.ndarray, "H W 3"]) -> str:
    """Give a picture as a data URL."""
    import PIL.Image

    file = io.BytesIO()
    PIL.Image.fromarray(np.ascontiguousarray(pixels)).save(file, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _packed_maps(maps: ImageMaps, side: int) -> dict[str, Any]:
    """Pack weights as bytes: of the roots of their shares of the most that a query looks at anything."""
    small, rollout = maps.merged(side), maps.rollout()
    weights = small.weights
    if rollout is not None:
        through = ImageMaps(maps.name, rollout[:, None], maps.queries, maps.keys).merged(side)
        weights = np.concatenate([weights, through.weights], axis=1)
    most = weights.max(-1).astype("<f4")
    shares = np.sqrt(weights / np.maximum(most, np.finfo(np.float32).tiny)[..., None])
    return {
        "name": maps.name,
        "layers": weights.shape[0],
        "heads": maps.weights.shape[1],
        "rollout": rollout is not None,
        "queries": _packed_side(small.queries),
        "keys": _packed_side(small.keys),
        "most": base64.b64encode(most.tobytes()).decode(),
        "weights": base64.b64encode(np.round(255 * shares).astype(np.uint8).tobytes()).decode(),
    }


def _packed_side(tiles: Tiling) -> dict[str, Any]:
    return {**tiles._asdict(), "tokens": [token.replace("_", " ") for token in tiles.tokens]}
