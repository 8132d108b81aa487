"""What the heads of an encoder of videos look at, laid out over a film: the frames of a video side by side.

Axes: L layers, N heads, T S tokens and patches, P patches of a frame, I times, R C rows and columns of patches.
"""

import numpy as np
from jaxtyping import Float, Int

from flax_transformer.models.patch_attention import LARGEST, PatchAttention, Tiles
from flax_transformer.nn import Grid


def over_frames(
    name: str,
    weights: Float[np.ndarray, "L N T T"] | None,
    numbers: Int[np.ndarray, "I R C"],
    size: tuple[int, int],
    tokens: tuple[str, ...],
) -> PatchAttention:
    """Lay weights out over a film, row by row through all times.

    Args:
      weights: None where they would be too many.
      numbers: of the patches, in the order in which weights have them, after the tokens.
      size: height and width of a patch, in pixels.
      tokens: names of what stands at no place.
    """
    times, rows, columns = numbers.shape
    tiles = Tiles(Grid(rows, times * columns), size, tokens)
    order = np.concatenate([np.arange(len(tokens)), len(tokens) + numbers.swapaxes(0, 1).ravel()])
    laid = None if weights is None or len(order) ** 2 > LARGEST else weights[:, :, order[:, None], order]
    return PatchAttention(name, laid, tiles, tiles)


def over_times(
    weights: Float[np.ndarray, "L N T T"],
    numbers: Int[np.ndarray, "I R C"],
    size: tuple[int, int],
    tokens: tuple[str, ...],
) -> PatchAttention:
    """Return how much tokens and times look at tokens and times: the mean of what looks, the sum of what is looked at.

    Arguments as `over_frames`'s.

    >>> over_times(np.full((1, 1, 4, 4), 0.25), np.arange(4).reshape(2, 1, 2), (1, 1), ()).weights[0, 0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    times, rows, columns = numbers.shape
    member = np.zeros((len(tokens) + numbers.size, len(tokens) + times), np.float32)
    member[np.arange(len(tokens)), np.arange(len(tokens))] = 1
    member[len(tokens) + numbers.ravel(), np.repeat(len(tokens) + np.arange(times), rows * columns)] = 1
    looked = np.einsum("ta,lnts,sb->lnab", member / member.sum(0), weights, member, optimize=True)
    tiles = Tiles(Grid(1, times), (rows * size[0], columns * size[1]), tokens)
    return PatchAttention("times", looked, tiles, tiles)


def time_alone(weights: Float[np.ndarray, "L P N I I"]) -> Float[np.ndarray, "L N T T"]:
    """Spread attention over the times of each place, which is all that a patch sees; the token sees itself.

    >>> time_alone(np.ones((1, 2, 1, 1, 1)))[0, 0].tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    L, P, N, times, _ = weights.shape
    full = np.zeros((L, N, 1 + P * times, 1 + P * times), np.float32)
    at = 1 + np.arange(P * times).reshape(P, times)
    full[:, :, at[:, :, None], at[:, None, :]] = weights.swapaxes(1, 2)
    full[:, :, 0, 0] = 1
    return full


def space_alone(weights: Float[np.ndarray, "L I N S S"]) -> Float[np.ndarray, "L N T T"]:
    """Spread attention over the places of each time and the token, which looks at all times alike.

    >>> space_alone(np.full((1, 2, 1, 2, 2), 0.5))[0, 0].tolist()
    [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]
    """
    L, times, N, S, _ = weights.shape
    full = np.zeros((L, N, 1 + (S - 1) * times, 1 + (S - 1) * times), np.float32)
    at, weights = 1 + np.arange((S - 1) * times).reshape(S - 1, times).T, weights.swapaxes(1, 2)
    full[:, :, at[:, :, None], at[:, None, :]] = weights[..., 1:, 1:]
    full[:, :, at, 0] = weights[..., 1:, 0]
    full[:, :, 0, at] = weights[..., 0, 1:] / times
    full[:, :, 0, 0] = weights[..., 0, 0].mean(-1)
    return full
