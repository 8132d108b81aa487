"""A discriminator of what an encoder that is not trained says of images: small heads on several of its layers.

Source: Projected GANs (Sauer et al. 2021, https://arxiv.org/abs/2111.01007); with a Vision Transformer that has learned
without labels, a head for each of some layers and a number for each token, StyleGAN-T (Sauer et al. 2023,
https://arxiv.org/abs/2301.09515, §3.2).
Axes: B batch, T tokens of the encoder, D its width, W width of a head, L layers that have one.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.nn import Precision, Trunk, TrunkConfig
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import make_norm
from flax_transformer.nn.table import make_table
from flax_transformer.order import Part

HEADS = tuple(f"head{number}" for number in range(64))


@frozen
class FeatureDiscriminatorConfig:
    """A head on each of some layers of an encoder, which says of every token how real it is."""

    trunk: TrunkConfig
    """The blocks of each head, whose width is W."""
    embed: int = 128
    """D."""
    layers: tuple[int, ...] = (1, 2, 3, 4)
    """After which layers of the encoder there is a head: 0 is what the first one is given."""
    classes: int = 1
    """Classes of the images."""
    conditional: bool = True
    """Whether images are judged as of a class."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "classes")
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise ValueError(f"layers must be numbers from 0 on in rising order, at least one, got {self.layers}")
        if self.layers[-1] >= len(HEADS):
            raise ValueError(f"layers must be below {len(HEADS)}, got {self.layers[-1]}")

    @property
    def precision(self) -> Precision:
        """Types of parameters and of what is computed."""
        return self.trunk.block.residual.precision

    def build(self, rngs: nnx.Rngs) -> "FeatureDiscriminator":
        """Make the discriminator."""
        return FeatureDiscriminator(self, rngs=rngs)


class FeatureHead(Module):
    """Hidden states in, a number for each token out."""

    layer_order = ("norm", "project", Part("trunk"), "classes", "output")

    def __init__(self, cfg: FeatureDiscriminatorConfig, *, rngs: nnx.Rngs):
        kinds, width = cfg.precision.dtypes, cfg.trunk.block.embed
        self.norm = make_norm("layer", cfg.embed, eps=1e-6, precision=cfg.precision, rngs=rngs)
        self.project = Linear(cfg.embed, width, rngs=rngs, **kinds)
        self.trunk = Trunk(cfg.trunk, rngs=rngs)
        if cfg.conditional:
            self.classes = make_table(rngs, cfg.classes, width, cfg.precision)
        self.output = Linear(width, 1, rngs=rngs, **kinds)

    def __call__(self, x: Float[Array, "B T D"], labels: Int[Array, "B"] | None) -> Float[Array, "B T"]:
        """Judge every token."""
        x = self.trunk(self.project(self.norm(x)))
        logits = self.output(x)[..., 0].astype(jnp.float32)
        if labels is not None:
            logits = logits + jnp.einsum("btw,bw->bt", x, self.classes[...][labels]).astype(jnp.float32)
        return logits


class FeatureDiscriminator(Module):
    """Hidden states of an encoder and classes in, a number for each layer's every token out: the greater, the more
    real.
    """

    layer_order = (Part(*HEADS),)

    def __init__(self, cfg: FeatureDiscriminatorConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        for layer in cfg.layers:
            setattr(self, f"head{layer}", FeatureHead(cfg, rngs=rngs))

    def __call__(
        self, states: Sequence[Float[Array, "B T D"]], labels: Int[Array, "B"] | None = None
    ) -> Float[Array, "B LT"]:
        """Judge images.

        Args:
          states: what the encoder's first layer is given, and what every layer gives (`stage_states`).
          labels: the numbers of their classes, which a discriminator that is not conditional does not look at.

        Raises:
          ValueError: none for one that is; fewer layers than it has heads on.
        """
        cfg = self.cfg
        if cfg.conditional and labels is None:
            raise ValueError("a conditional discriminator must be told the classes, got none")
        if len(states) <= cfg.layers[-1]:
            raise ValueError(f"the encoder must have the layers {cfg.layers}, got one of {len(states) - 1}")
        labels = labels if cfg.conditional else None
        found = [getattr(self, f"head{layer}")(states[layer], labels) for layer in cfg.layers]
        return jnp.concatenate(found, axis=1)
