"""Attention over an image: the weights of every head as colours over its patches, and rollout through the layers.

Axes: L layers, N heads, T query tokens and patches, S key tokens and patches, P patches, H W C pixels.
"""

import base64
import io
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from flax_transformer.report.attention import FLAT

MEAN = "mean of heads"
Scale = Literal["min-max", "absolute"]
"""Range of the colours: from the smallest to the largest weight of each map, or from 0 to the largest of all."""
OPACITY = 0.65
"""Of colours over the grey image."""
COLOURS = np.array([
    (68, 1, 84), (72, 24, 106), (71, 45, 123), (66, 64, 134), (59, 82, 139), (51, 99, 141), (44, 114, 142),
    (38, 130, 142), (33, 145, 140), (31, 160, 136), (40, 174, 128), (63, 188, 115), (94, 201, 98), (132, 212, 75),
    (173, 220, 48), (216, 226, 25), (253, 231, 37),
])  # fmt: skip
"""Viridis, a perceptually uniform colormap (Smith and van der Walt 2015, CC0), from low to high at even steps."""


class Tiling(NamedTuple):
    """Patches of an image, from its upper left corner, and the tokens that come before them."""

    rows: int
    columns: int
    height: int
    """Of a patch, in pixels."""
    width: int
    tokens: tuple[str, ...] = ()
    """Names of what has no position in the image."""

    @property
    def count(self) -> int:
        """How many tokens and patches there are."""
        return len(self.tokens) + self.rows * self.columns

    def merged(self, side: int) -> "Tiling":
        """Return as large patches as are so many rows and columns of these; at the edges they may be smaller."""
        rows, columns = -(-self.rows // side), -(-self.columns // side)
        return Tiling(rows, columns, side * self.height, side * self.width, self.tokens)


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """Attention weights of every head of a stack of layers, over tokens and patches of an image.

    >>> tiles = Tiling(1, 2, 8, 8, tokens=("class",))
    >>> ImageMaps("self", np.full((1, 2, 3, 3), 1 / 3), queries=tiles, keys=tiles).rollout().shape
    (1, 3, 3)
    """

    name: str
    weights: Float[np.ndarray, "L N T S"]
    queries: Tiling
    """Rows of the weights."""
    keys: Tiling
    """Columns of the weights."""

    def __post_init__(self):
        given, fits = self.weights.shape, (self.queries.count, self.keys.count)
        if len(given) != 4 or given[2:] != fits:
            raise ValueError(f"attention weights must be [layers, heads, {fits[0]}, {fits[1]}], got {given}")

    def uniform(self) -> Float[np.ndarray, "L T S"]:
        """Return the weights of queries that attend alike to all that they attend to at all in any head.

        That is 1/S for each key but where heads are causal or have windows.
        """
        seen = (self.weights > 0).any(1)
        return seen / np.maximum(seen.sum(-1, keepdims=True), 1, dtype=np.float32)

    def rollout(self) -> Float[np.ndarray, "L T T"] | None:
        """Follow attention through the layers below, as Abnar and Zuidema 2020 (https://arxiv.org/abs/2005.00928) do.

        Heads are averaged, and the residual connection counts half. None where queries and keys are not the same.
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
        """Merge `side` rows and columns of patches into one: the mean of their queries, the sum of their keys."""
        if side == 1:
            return self
        weights = _pooled(self.weights, 3, self.keys, side, mean=False)
        weights = _pooled(weights, 2, self.queries, side, mean=True)
        return ImageMaps(self.name, weights, self.queries.merged(side), self.keys.merged(side))


@dataclass(frozen=True, eq=False)
class ImageAttention:
    """An image, and the attention weights of a model over it."""

    source: str
    """Name of the image."""
    pixels: UInt8[np.ndarray, "H W 3"]
    """As the model sees it."""
    maps: tuple[ImageMaps, ...]
    """Of every stack of layers."""
    output: str = ""
    """The model's prediction, in words."""

    def layer(self, number: int) -> tuple[ImageMaps, int]:
        """Find a layer, counted from 1 through all stacks, or from -1 back.

        Raises:
          ValueError: when there is no such layer.
        """
        every = [(maps, layer) for maps in self.maps for layer in range(maps.weights.shape[0])]
        if not 1 <= abs(number) <= len(every):
            raise ValueError(f"layer must be between 1 and {len(every)}, or count from the end, got {number}")
        return every[number - (number > 0)]


def image_attention_figure(
    attention: ImageAttention, *, layer: int = -1, query: int | None = None, scale: Scale = "min-max"
) -> Any:
    """Draw every head of a layer over the image, their mean, and rollout up to that layer.

    Each panel says its largest weight of a patch, and the uniform one beside it.

    Args:
      layer: counted from 1 through all stacks, or from -1 back.
      query: a token, or after the tokens a patch. By default the first token, or the mean of all patches.
      scale: colours from each panel's smallest to its largest weight, or of all panels from 0 to the largest of any
        head.

    Returns:
      A `matplotlib.figure.Figure` that belongs to no window.

    Raises:
      ValueError: when there is no such layer or query.
    """
    from matplotlib.figure import Figure

    maps, at = attention.layer(layer)
    panels, who = _panels(maps, at, query)
    top = max(float(weights.max()) for name, weights, _ in panels if name != "rollout")
    ratio = attention.pixels.shape[1] / attention.pixels.shape[0]
    wide = ratio if ratio > 2 else 1  # a film
    down = math.ceil((len(panels) + 1) / max(1, int(7 / wide)))
    across = math.ceil((len(panels) + 1) / down)
    size = max(1.75 * wide * across, 5.4), 2.05 * down + 0.55
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    axes[0].imshow(attention.pixels)
    axes[0].set_title("image", fontsize=7)
    for each, (name, weights, uniform) in zip(axes[1:], panels, strict=False):
        drawn = _ends(weights, scale, top)
        each.imshow(overlay(attention.pixels, weights, maps.keys, *drawn))
        each.set_title(f"{name}{' (flat)' if flat_over(weights) else ''}\n{extent(weights, uniform)}", fontsize=7)
    for each in axes:
        each.set_axis_off()
    stack = "" if maps.name == "self" else f"{maps.name}: "
    rule = "colours: each panel from its smallest to its largest weight"
    if scale == "absolute":
        rule = f"colours: all panels from 0 to {top:.3g}"
    figure.suptitle(
        f"{stack}attention of {who} to patches, layer {at + 1} of {len(maps.weights)}\n{rule}", fontsize=9,
        parse_math=False,
    )  # fmt: skip
    _colorbar(figure, axes, ("min", "max") if scale == "min-max" else ("0", f"{top:.3g}"))
    return figure


def flat_over(patches: Float[np.ndarray, "P"]) -> bool:
    """Return whether patches have all but the same weight, whose differences are then not drawn."""
    return float(patches.max()) <= FLAT * float(patches.min())


def extent(patches: Float[np.ndarray, "P"], uniform: float) -> str:
    """Spell the largest weight of a patch, and the one that each key would have if all had the same.

    >>> extent(np.array([0.041, 0.001]), 1 / 64)
    'max 0.041 · uniform 0.0156'
    """
    return f"max {patches.max():.3g} · uniform {uniform:.3g}"


def overlay(
    pixels: UInt8[np.ndarray, "H W 3"], patches: Float[np.ndarray, "P"], keys: Tiling, low: float, high: float
) -> Float[np.ndarray, "H W 3"]:
    """Lay the colours of weights, from `low` to `high`, over the grey image, which stays where there is no patch."""
    grey = np.repeat(greyed(pixels)[..., None], 3, axis=2)
    share = np.clip((patches - low) / (high - low), 0, 1) if high > low else np.full(len(patches), 0.5)
    steps = np.linspace(0, 1, len(COLOURS))
    colours = np.stack([np.interp(share, steps, channel) for channel in COLOURS.T], -1) / 255
    colours = colours.reshape(keys.rows, keys.columns, 3)
    colours = np.repeat(np.repeat(colours, keys.height, 0), keys.width, 1)[: grey.shape[0], : grey.shape[1]]
    seen = grey[: colours.shape[0], : colours.shape[1]]
    seen[:] = (1 - OPACITY) * seen + OPACITY * colours
    return grey


def greyed(pixels: UInt8[np.ndarray, "H W 3"]) -> Float[np.ndarray, "H W"]:
    """Return the luminance of an image between 0.25 and 0.85, so that dark and pale images show below colours, too."""
    luminance = pixels @ np.array([0.299, 0.587, 0.114]) / 255
    low, high = np.percentile(luminance, (1, 99))
    return 0.25 + 0.6 * np.clip((luminance - low) / max(high - low, 1 / 16), 0, 1)


def mean_overlay(attention: ImageAttention) -> tuple[Float[np.ndarray, "H W 3"], str]:
    """Return the image under the mean of the last layer's heads, and its extent: of the first token, or all patches."""
    maps, at = attention.layer(-1)
    (_, weights, uniform) = next(panel for panel in _panels(maps, at, None)[0] if panel[0] == MEAN)
    flat = "flat: " if flat_over(weights) else ""
    return overlay(attention.pixels, weights, maps.keys, *_ends(weights, "min-max", 1.0)), flat + extent(
        weights, uniform
    )


def _panels(maps: ImageMaps, at: int, query: int | None) -> tuple[list[tuple[str, np.ndarray, float]], str]:
    """Return name, weights of the patches and uniform weight of each head, the mean and rollout; and the query's name.

    Raises:
      ValueError: when there is no such query.
    """
    every = range(maps.weights.shape[2])
    if query is not None and query not in every:
        raise ValueError(f"query must be between 0 and {len(every) - 1}, got {query}")
    who = list([0] if maps.queries.tokens else every) if query is None else [query]
    rows = [(f"head {n + 1}", weights) for n, weights in enumerate(maps.weights[at])]
    rows.append((MEAN, maps.weights[at].mean(0)))
    first, rollout = len(maps.keys.tokens), maps.rollout()
    own = maps.uniform()[at]
    panels = [(name, weights, own) for name, weights in rows]
    if rollout is not None:
        panels.append(("rollout", rollout[at], ImageMaps("", rollout[:, None], maps.queries, maps.keys).uniform()[at]))
    panels = [
        (name, weights[who].mean(0)[first:], float(even[who].mean(0)[first:].max())) for name, weights, even in panels
    ]
    name = "all patches (mean)" if query is None and not maps.queries.tokens else _name(maps.queries, who[0])
    return panels, name


def _ends(patches: np.ndarray, scale: Scale, top: float) -> tuple[float, float]:
    """Return the weights of the lowest and the highest colour; the same twice where attention is flat."""
    if scale == "absolute":
        return 0.0, top
    return (0.0, 0.0) if flat_over(patches) else (float(patches.min()), float(patches.max()))


def _colorbar(figure: Any, axes: list[Any], ends: tuple[str, str]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    steps, fine = np.linspace(0, 1, len(COLOURS)), np.linspace(0, 1, 256)
    colours = ListedColormap(np.stack([np.interp(fine, steps, channel) for channel in COLOURS.T], -1) / 255)
    bar = figure.colorbar(ScalarMappable(cmap=colours), ax=axes, shrink=0.7, aspect=25, pad=0.01)
    bar.set_ticks([0, 1], labels=ends)
    bar.ax.tick_params(labelsize=8)


def _name(queries: Tiling, query: int) -> str:
    if query < len(queries.tokens):
        return _spoken(queries.tokens[query])
    row, column = divmod(query - len(queries.tokens), queries.columns)
    return f"the patch in row {row + 1}, column {column + 1}"


def _spoken(token: str) -> str:
    """Spell the name of a model's own token in words; those of a text and what was found stay as they are."""
    return f"the {token.replace('_', ' ')}" if token.endswith("_token") else token


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
    """Return what a page holds of the attention over an image, with patches merged as much as the room asks for.

    Args:
      room: bytes for weights.

    Returns:
      The values, and how many rows and columns of patches were merged into one at most.
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
    grey = np.round(255 * greyed(attention.pixels)).astype(np.uint8)
    texts = {"source": attention.source, "output": attention.output}
    urls = {"picture": png(attention.pixels), "grey": png(grey)}
    return {**texts, **urls, "width": width, "height": height, "maps": maps}, max(sides)


def png(pixels: UInt8[np.ndarray, "H W *C"]) -> str:
    """Return an image as a data URL."""
    import PIL.Image

    file = io.BytesIO()
    PIL.Image.fromarray(np.ascontiguousarray(pixels)).save(file, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _packed_maps(maps: ImageMaps, side: int) -> dict[str, Any]:
    """Pack weights as bytes: of each query's from the smallest to the largest, tokens and patches apart."""
    small, rollout = maps.merged(side), maps.rollout()
    weights, columns = small.weights, [maps.weights]
    if rollout is not None:
        columns.append(rollout[:, None])
        weights = np.concatenate([weights, ImageMaps("", columns[1], maps.queries, maps.keys).merged(side).weights], 1)
    uniform = np.concatenate(
        [_uniform_patch(ImageMaps("", each, maps.queries, maps.keys), side) for each in columns], 1
    )
    codes, ranges = [], []
    for part in np.split(weights, [len(small.keys.tokens)], axis=-1):
        if part.shape[-1]:
            low, high = part.min(-1).astype("<f4"), part.max(-1).astype("<f4")
            span = np.maximum(high - low, np.finfo(np.float32).tiny)
            codes.append(np.round(255 * ((part - low[..., None]) / span[..., None])).astype(np.uint8))
            ranges += [low, high]
    return {
        "name": maps.name,
        "layers": weights.shape[0],
        "heads": maps.weights.shape[1],
        "rollout": rollout is not None,
        "queries": _packed_side(small.queries),
        "keys": _packed_side(small.keys),
        "uniform": base64.b64encode(uniform.astype("<f4").tobytes()).decode(),
        "ranges": base64.b64encode(np.stack(ranges, -1).tobytes()).decode(),
        "weights": base64.b64encode(np.concatenate(codes, -1).tobytes()).decode(),
    }


def _uniform_patch(maps: ImageMaps, side: int) -> Float[np.ndarray, "L 1 T"]:
    """Return the uniform weight of a patch, merged or not, for each query."""
    even = ImageMaps("", maps.uniform()[:, None], maps.queries, maps.keys).merged(side)
    return even.weights[..., len(maps.keys.tokens) :].max(-1)


def _packed_side(tiles: Tiling) -> dict[str, Any]:
    return {**tiles._asdict(), "tokens": [_spoken(token) for token in tiles.tokens]}
