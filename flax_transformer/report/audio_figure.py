"""The spectrum of a recording, and below it the weights or probabilities of a model over time: one figure.

Axes: C mel bins, I frames, R rows (tokens, letters), S positions of the model.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

INCHES, DOTS = (7.0, 150)
"""Of an image's width, and pixels an inch."""


def audio_figure(
    frames: Float[np.ndarray, "C I"],
    seconds: float,
    rows: Sequence[str] = (),
    probabilities: Float[np.ndarray, "R S"] | None = None,
    title: str = "",
) -> Any:
    """Draw the spectrum of a recording over time, and below it the weights of each row over time.

    Args:
      frames: log-mel.
      seconds: how long frames and positions are together.
      rows: names of the rows.
      probabilities: weights or probabilities, between 0 and 1; the darkest is the largest, which the title says.
      title: what the weights are.

    Returns:
      A `matplotlib.figure.Figure` that belongs to no window.

    Raises:
      ValueError: not a row of weights for each name.
    """
    from matplotlib.figure import Figure

    count = 0 if probabilities is None else len(probabilities)
    if count != len(rows):
        raise ValueError(f"there must be a row of weights for each name, got {count} and {len(rows)}")
    below = 0.16 * max(len(rows), 5) + 0.2 if rows else 0.0
    figure = Figure(figsize=(INCHES, 1.3 + below), dpi=DOTS, layout="constrained")
    heights = {"height_ratios": [1.3, below]} if rows else {}
    axes = np.atleast_1d(figure.subplots(2 if rows else 1, 1, sharex=True, **heights))
    axes[0].imshow(frames, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, len(frames)))
    axes[0].set_ylabel("mel bins", fontsize=7)
    if rows:
        axes[1].imshow(
            probabilities, aspect="auto", cmap="Blues", vmin=0, vmax=max(float(probabilities.max()), 1e-6),
            interpolation="nearest", extent=(0, seconds, len(rows), 0),
        )  # fmt: skip
        axes[1].set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=7)
        for label in axes[1].get_yticklabels():
            label.set_parse_math(False)  # a token may be "$"
        axes[1].set_title(f"{title}, darkest {float(probabilities.max()):.3g}", fontsize=8)
    axes[-1].set_xlabel("seconds", fontsize=7)
    for each in axes:
        each.tick_params(labelsize=7, length=2)
        each.spines[:].set_color("#c8ccd2")
    return figure


def spectrum_image(frames: Float[np.ndarray, "C I"]) -> UInt8[np.ndarray, "H W"]:
    """Draw a log-mel spectrum, a few grey pixels a frame and bin, low tones at the bottom."""
    low, high = float(frames.min()), float(frames.max())
    grey = np.round(255 * (frames[::-1] - low) / max(high - low, 1e-6)).astype(np.uint8)
    return np.repeat(np.repeat(grey, 2, axis=0), 2, axis=1)


def pixels_of(figure: Any) -> UInt8[np.ndarray, "H W 3"]:
    """Draw a figure of matplotlib's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
