"""Attention weights of one sentence, with the tokens along both sides, and their figure.

Axes: L layers, N heads, T queries (rows), S keys (columns).
"""

import math
import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

FLAT = 1.05
"""Attention is flat where the largest weight of a query is at most so many times its smallest above 0."""
WIDEST = 11.0
"""Inches a figure has at most, unless one head needs more."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The weights of every layer and head, and the tokens along both sides.

    >>> AttentionMaps("cross", np.full((1, 2, 1, 2), 0.5), rows=("Hund",), columns=("a", "dog")).weights.shape
    (1, 2, 1, 2)
    """

    name: str
    weights: Float[np.ndarray, "L N T S"]
    rows: tuple[str, ...]
    """The T query tokens."""
    columns: tuple[str, ...]
    """The S key tokens."""
    caption: str = ""
    """What rows and columns are, in a sentence."""

    def __post_init__(self):
        if self.weights.ndim != 4 or self.weights.shape[2:] != (len(self.rows), len(self.columns)):
            raise ValueError(
                f"attention weights must be [layers, heads, rows, columns] with a token for each row and column, got "
                f"{self.weights.shape} with {len(self.rows)} and {len(self.columns)} tokens"
            )


def attention_figure(maps: AttentionMaps, *, layer: int = -1) -> Any:
    """Draw every head of a layer; colour is the square root of the weight, up to the largest of the layer.

    Returns:
      A `matplotlib.figure.Figure` that belongs to no window: a notebook shows it, `savefig` writes it.

    Raises:
      ValueError: when there is no such layer.

    >>> maps = AttentionMaps("cross", np.full((1, 2, 1, 2), 0.5), rows=("Hund",), columns=("a", "dog"))
    >>> [axes.get_title() for axes in attention_figure(maps).axes]
    ['head 1 (flat)', 'head 2 (flat)', '']
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    depth, heads, T, S = maps.weights.shape
    if not -depth <= layer < depth:
        raise ValueError(f"layer must be between 0 and {depth - 1}, or count from the end, got {layer}")
    layer %= depth
    labels = 0.07 * np.array([max(map(len, maps.rows)), max(map(len, maps.columns))]) + 0.15
    cell = float(np.clip(3.2 / max(T, S), 0.13, 0.32))
    width, height = cell * S + labels[0], cell * T + labels[1] + 0.25
    down = math.ceil(heads / max(1, int(WIDEST / width)))
    across = math.ceil(heads / down)
    figure = Figure(figsize=(max(across * width + 0.9, 4.5), down * height + 0.4), dpi=150, layout="constrained")
    top = float(maps.weights[layer].max()) or 1.0
    grid = figure.subplots(down, across, squeeze=False)
    for head, axes in enumerate(grid.flat):
        if head >= heads:
            axes.remove()
            continue
        image = axes.imshow(maps.weights[layer, head], cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=top))
        axes.set_title(f"head {head + 1}{' (flat)' if is_flat(maps.weights[layer, head]) else ''}", fontsize=9)
        axes.set_xticks(range(S), maps.columns, rotation=90)
        axes.set_yticks(range(T), maps.rows)
        axes.tick_params(labelsize=min(8, 60 * cell), length=0)
        for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            text.set_parse_math(False)  # a token may be "$"
        axes.spines[:].set_color("#c8ccd2")
    figure.suptitle(f"{_titled(maps.name)}, layer {layer + 1} of {depth}", fontsize=11)
    long = min(0.6 * figure.get_figheight(), 5.0)
    bar = {"shrink": long / figure.get_figheight(), "aspect": 8 * long, "pad": 0.01}
    figure.colorbar(image, ax=list(figure.axes), **bar).ax.tick_params(labelsize=8)
    return figure


def is_flat(weights: Float[np.ndarray, "*T S"]) -> bool:
    """Return whether every query gives all but the same weight to all that it attends to.

    >>> is_flat(np.array([[0.5, 0.5], [1.0, 0.0]])), is_flat(np.array([[0.6, 0.4], [0.5, 0.5]]))
    (True, False)
    """
    least = np.where(weights > 0, weights, np.inf).min(-1)
    return bool((weights.max(-1) <= FLAT * least).all())


def _titled(kind: str) -> str:
    """Spell a kind of attention: "encoder self-attention", "cross-attention, first"."""
    what, comma, rest = kind.partition(",")
    return f"{what}-attention{comma}{rest}"


def save_attention(maps: AttentionMaps, path: str | os.PathLike, *, layer: int = -1) -> None:
    """Write `attention_figure` as PNG, or what else the file's ending asks of matplotlib."""
    figure = attention_figure(maps, layer=layer)
    with warnings.catch_warnings():
        # matplotlib's font lacks some scripts; their tokens are drawn as boxes, and the page shows them right.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(path)
