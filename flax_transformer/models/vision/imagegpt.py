"""ImageGPT: a decoder of images, pixel by pixel, each one of 512 colours (Chen et al. 2020, "Generative Pretraining
from Pixels").

A GPT-2 with RMSNorm and quick GELU, an output layer of its own, and one token more than colours, which begins an image
and is never written.
"""

import math
from collections.abc import Sequence

import numpy as np

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.patch_attention import LARGEST, PatchAttention, Tiles, by_stack
from flax_transformer.nn import EmbeddingConfig, Grid, Precision, transformer_block

FLOAT32 = Precision()


def imagegpt(
    embed: int,
    heads: int,
    depth: int,
    *,
    colours: int = 512,
    image: int = 32,
    dropout: float = 0.1,
    precision: Precision = FLOAT32,
) -> CausalConfig:
    """Return an ImageGPT of any size.

    Args:
      image: height and width of the images.
    """
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=colours + 1, embed=embed, position="learned", types="token", max_length=image * image, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, norm="rms", norm_position="pre", activation="quick_gelu",
            dropout=dropout, attention_dropout=dropout, init_std=0.02, residual_init_std=0.02 / math.sqrt(2 * depth),
            precision=precision,
        ),
        depth=depth,
        tied_output=False,
        outputs=colours,
    )  # fmt: skip


def over_pixels(depth: int, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
    """Lay out what `ops.capture(f, "attention_weights")` gives of one image [height, width] over its pixels."""
    (weights,) = by_stack(found, (depth,))
    pixels = Tiles(Grid(height, width), (1, 1))
    return [PatchAttention("self", weights[:, 0] if weights[0, 0, 0].size <= LARGEST else None, pixels, pixels)]


def imagegpt_small(*, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return iGPT-S: 24 layers, D=512, 76 M parameters."""
    return imagegpt(512, 8, 24, dropout=dropout, precision=precision)


def imagegpt_medium(*, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return iGPT-M: 36 layers, D=1024, 455 M parameters."""
    return imagegpt(1024, 8, 36, dropout=dropout, precision=precision)


def imagegpt_large(*, dropout: float = 0.1, precision: Precision = FLOAT32) -> CausalConfig:
    """Return iGPT-L: 48 layers, D=1536, 1.4 G parameters."""
    return imagegpt(1536, 16, 48, dropout=dropout, precision=precision)
