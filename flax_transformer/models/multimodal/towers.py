"""Two towers: texts and images, each encoded by itself, in one space where what belongs together is close.

CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020) and SigLIP (Zhai et al. 2023,
https://arxiv.org/abs/2303.15343) are choices of its config.

Axes: B texts or images, T positions, H W height and width in pixels, C channels, E width of the common space.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, ClassifierConfig
from flax_transformer.models.patch_attention import PatchAttention
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain


@frozen
class MatcherConfig:
    """What is learned beside the towers."""

    scale: float = 1 / 0.07
    """What cosines are multiplied by, to begin with; it is learned, as its logarithm."""
    bias: float | None = None
    """What is then added, to begin with, and learned (SigLIP); None: nothing."""

    def __post_init__(self):
        check_fields(self)
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")


@frozen
class TwoTowersConfig(MatcherConfig):
    """A tower of texts and one of images, whose heads give vectors of one width."""

    text: ClassifierConfig
    """An encoder or decoder of tokens, and a head of one position."""
    vision: ClassifierConfig
    """An encoder of images, and a head."""

    def __post_init__(self):
        super().__post_init__()
        widths = {side: getattr(self, side).head.width for side in ("text", "vision")}
        if len(set(widths.values())) > 1:
            raise ValueError(f"both towers must give vectors of one width, got {widths}")

    def build(self, rngs: nnx.Rngs) -> "TwoTowers":
        """Make the model."""
        return TwoTowers(self, rngs=rngs)


class Embedded(NamedTuple):
    """Vectors of length 1, of either side; None where there is nothing of it."""

    first: Float[Array, "*B E"] | None
    """Of texts."""
    second: Float[Array, "*B E"] | None
    """Of images."""


class Matcher(Module):
    """What scores pairs by cosines, times a scale that is learned as its logarithm."""

    def init_scale(self, scale: float, bias: float | None, like: Any) -> None:
        """Make what cosines are multiplied by, and what is then added, of the kind of a head's parameters."""
        kind = like.precision.dtypes["param_dtype"]
        self.log_scale = nnx.Param(jnp.log(jnp.asarray(scale, kind)))
        if bias is not None:
            self.bias = nnx.Param(jnp.asarray(bias, kind))

    def output(self, embedded: Embedded, *, limit: float | None = None) -> Float[Array, "B B"]:
        """Score every first half [rows] with every second [columns].

        Args:
          limit: the most that cosines are multiplied by; the scale still gets its gradient there.
        """
        log_scale = widen(self.log_scale[...])
        if limit is not None:
            log_scale += jax.lax.stop_gradient(jnp.minimum(log_scale, jnp.log(limit)) - log_scale)
        first, second = (constrain(side, "batch", None) for side in embedded)
        scores = jnp.exp(log_scale) * (first @ second.T)
        return constrain(scores + widen(self.bias[...]) if hasattr(self, "bias") else scores, "batch", None)


class TwoTowers(Matcher):
    """`model.output(model.hidden_states(tokens=…, images=…))` scores every text with every image."""

    layer_order = (Part("text", "vision"), "log_scale", "bias")

    use = "retrieval"

    @classmethod
    def example_batch(cls, config: TwoTowersConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B texts and their images."""
        parts = (
            module_of(side.backbone).example_batch(side.backbone, rows, each)["inputs"]
            for side, each in (
                (config.text, length or config.text.backbone.embedding.max_length),
                (config.vision, None),
            )
        )
        return {"inputs": {name: value for part in parts for name, value in part.items()}}

    @classmethod
    def describe_batch(cls, config: TwoTowersConfig, batch: dict[str, Any]) -> Described:
        """Count B pairs."""
        rows, length = batch["inputs"]["tokens"].shape
        images = module_of(config.vision.backbone).describe_batch(config.vision.backbone, batch)
        return Described({**images.sizes, "rows": rows, "length": length}, rows, "pairs")

    def __init__(self, cfg: TwoTowersConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.text, self.vision = Classifier(cfg.text, rngs=rngs), Classifier(cfg.vision, rngs=rngs)
        self.init_scale(cfg.scale, cfg.bias, cfg.text.head)

    def embed_text(
        self,
        tokens: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B E"]:
        """Embed texts.

        Args:
          lengths: of the rows; what comes after is padding. A head that looks at the last token looks at the last of
            these.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        given = {} if lengths is None else {"lengths": lengths}
        hidden = self.text.hidden_states(tokens, **given, key=keys[0])
        return unit(self.text.head(hidden, None if lengths is None else lengths - 1, key=keys[1]))

    def embed_images(
        self, images: Float[Array, "*B H W C"] | None = None, *, key: PRNGKeyArray | None = None, **patches: Array
    ) -> Float[Array, "*B E"]:
        """Embed images; `key` is for dropout. An encoder of patches is given these in place of images, by name."""
        keys, given = split_keys(key), () if images is None else (images,)
        return unit(self.vision.head(self.vision.hidden_states(*given, **patches, key=keys[0]), key=keys[1]))

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one image alone over its patches."""
        return self.vision.backbone.over_patches(found, height, width)

    def hidden_states(
        self,
        *,
        tokens: Int[Array, "*B T"] | None = None,
        images: Float[Array, "*B H W C"] | None = None,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
        **patches: Array,
    ) -> Embedded:
        """Embed what there is of texts and images; arguments as `embed_text`'s and `embed_images`'s."""
        keys = split_keys(key)
        return Embedded(
            None if tokens is None else self.embed_text(tokens, lengths=lengths, key=keys[0]),
            self.embed_images(images, **patches, key=keys[1]) if patches or images is not None else None,
        )


def unit(x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
    """Return vectors of length 1, in float32 or more."""
    x = constrain(widen(x), "batch", None)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)
