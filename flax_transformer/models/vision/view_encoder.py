"""An encoder of images with what learning from views puts on top of it: a projector, and perhaps a predictor.

Only the encoder is of use afterwards, and is what a run exports.

Axes: B rows, V views of a row, H W height and width in pixels, C channels, T tokens and patches, D width, E outputs.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.preset import abstract, module_of
from flax_transformer.models.protocol import Described
from flax_transformer.nn import Precision, make_norm
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear, axes_metadata
from flax_transformer.nn.module import Module
from flax_transformer.ops import activation, widen
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.norm import unit
from flax_transformer.order import Part


@frozen
class ProjectorConfig:
    """Layers on the vector of an image: SimCLR's projector, BYOL's predictor, DINO's head, or one layer."""

    embed: int
    """D, the width of what they are given."""
    outputs: int
    """E, the width of what they give."""
    hidden: int = 256
    """The width between layers."""
    layers: int = 2
    """How many linear layers there are."""
    norm: Literal["batch", "layer", "none"] = "batch"
    """After each but the last: by the statistics of the batch, each view by itself, by those of a row, or none."""
    last_norm: bool = False
    """Whether the last layer ends in a norm too, without factors of its own."""
    groups: int = 1
    """Equal parts of the batch that each have their own statistics, as those of several devices."""
    activation: str = "relu"
    """Between layers."""
    prototypes: int = 0
    """Of how many vectors of length 1 the cosines with the output are given in its place (DINO); 0: of none."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "outputs", "hidden", "layers", "groups")
        check_at_least(self, 0, "prototypes")
        activation(self.activation)

    @property
    def width(self) -> int:
        """How wide what it gives is."""
        return self.prototypes or self.outputs

    def build(self, rngs: nnx.Rngs) -> "Projector":
        """Make the layers."""
        return Projector(self, rngs=rngs)


class BatchStandardise(Module):
    """Normalise every channel by the statistics of the batch, in evaluation too; nothing is carried along.

    Heads that are thrown away after training need no running statistics. Every other axis than the first has statistics
    of its own, so that two views of a row are normalised each among its own.

    Args:
      channels: C.
      groups: equal parts of the batch, each with its own statistics.
      affine: whether a factor and a bias are learned.
    """

    def __init__(self, channels: int, *, groups: int = 1, affine: bool = True, eps: float = 1e-5):
        self.groups, self.eps = groups, eps
        if affine:
            self.scale = nnx.Param(jnp.ones(channels), **axes_metadata((None,)))
            self.bias = nnx.Param(jnp.zeros(channels), **axes_metadata((None,)))

    def __call__(self, x: Float[Array, "B *V C"], real: Bool[Array, " B"] | None = None) -> Float[Array, "B *V C"]:
        """Normalise; rows that are not `real` have no part in the statistics.

        Raises:
          ValueError: rows that make no equal groups.
        """
        rows = len(x)
        if rows % self.groups:
            raise ValueError(f"groups must have equal parts of the batch, got {rows} rows in {self.groups} groups")
        y = widen(x).reshape(self.groups, -1, *x.shape[1:])
        weights = jnp.ones(rows, y.dtype) if real is None else real.astype(y.dtype)
        weights = weights.reshape(self.groups, -1, *(1,) * (x.ndim - 1))
        count = jnp.maximum(weights.sum(1, keepdims=True), 1.0)
        y = y - (y * weights).sum(1, keepdims=True) / count
        variance = (jnp.square(y) * weights).sum(1, keepdims=True) / count
        y = (y * jax.lax.rsqrt(variance + self.eps)).reshape(x.shape)
        return (y * self.scale[...] + self.bias[...] if hasattr(self, "scale") else y).astype(x.dtype)


class Projector(Module):
    """Linear layers with norms and activations between them."""

    def __init__(self, cfg: ProjectorConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        widths = (cfg.embed, *(cfg.hidden,) * (cfg.layers - 1), cfg.outputs)
        for number, (inputs, outputs) in enumerate(pairwise(widths), 1):
            last = number == cfg.layers
            bias = cfg.norm != "batch" if not last else not cfg.last_norm
            layer = Linear(inputs, outputs, use_bias=bias, rngs=rngs, **cfg.precision.dtypes)
            setattr(self, f"layer{number}", layer)
            if cfg.norm == "batch" and (not last or cfg.last_norm):
                setattr(self, f"layer{number}_norm", BatchStandardise(outputs, groups=cfg.groups, affine=not last))
            elif cfg.norm == "layer" and (not last or cfg.last_norm):
                norm = make_norm("layer", outputs, eps=1e-6, precision=cfg.precision, rngs=rngs)
                setattr(self, f"layer{number}_norm", norm)
        if cfg.prototypes:
            kinds = cfg.precision.dtypes
            values = nnx.initializers.normal(0.02)(rngs.params(), (cfg.outputs, cfg.prototypes), kinds["param_dtype"])
            self.prototypes = nnx.Param(values, **axes_metadata(("embed", None)))

    def __call__(self, x: Float[Array, "B *V D"], real: Bool[Array, " B"] | None = None) -> Float[Array, "B *V E"]:
        """Project, in float32 or more; rows that are not `real` have no part in statistics of the batch."""
        cfg = self.cfg
        for number in range(1, cfg.layers + 1):
            x = getattr(self, f"layer{number}")(x)
            norm = getattr(self, f"layer{number}_norm", None)
            if norm is not None:
                x = norm(x, real) if cfg.norm == "batch" else norm(x)
            x = activation(cfg.activation)(x) if number < cfg.layers else x
        x = widen(x)
        if not cfg.prototypes:
            return x
        kind = cfg.precision.dtypes["dtype"]
        rows, prototypes = unit(x).astype(kind), unit(self.prototypes[...].T).astype(kind)
        return jnp.einsum("...d,ed->...e", rows, prototypes, preferred_element_type=at_least_float32(kind))


@frozen
class ViewEncoderConfig:
    """An encoder of images, a projector, and perhaps a predictor."""

    encoder: Any
    """The config of a `ViT`, or of another model that gives hidden states of images."""
    projector: ProjectorConfig
    """On the vector of an image."""
    predictor: ProjectorConfig | None = None
    """On what the projector gives, of methods whose teacher has none (BYOL, MoCo v3)."""
    patch_projector: ProjectorConfig | None = None
    """On the hidden states of patches (iBOT); None: the projector is for patches too."""
    pool: Literal["first", "mean"] = "first"
    """The vector of an image: the class token, or the mean of the patches."""

    def __post_init__(self):
        check_fields(self)
        if self.predictor is not None and self.predictor.embed != self.projector.width:
            raise ValueError(
                f"a predictor is on top of the projector, of width {self.projector.width}, got {self.predictor.embed}"
            )
        if self.patch_projector is not None and self.patch_projector.width != self.projector.width:
            raise ValueError(
                f"both projectors must have one width, got {self.projector.width} and {self.patch_projector.width}"
            )

    def build(self, rngs: nnx.Rngs) -> "ViewEncoder":
        """Make the model."""
        return ViewEncoder(self, rngs=rngs)


class ViewEncoder(Module):
    """`model.project(model.hidden_states(images))`: what objectives of views compare."""

    layer_order = (Part("encoder"), "projector", "patch_projector", "predictor")

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: ViewEncoderConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the encoder's."""
        batch = module_of(config.encoder).example_batch(config.encoder, rows)
        return {"inputs": batch["inputs"], "weights": np.ones(rows, np.float32)}

    @classmethod
    def describe_batch(cls, config: ViewEncoderConfig, batch: dict[str, Any]) -> Described:
        """Count B images."""
        return module_of(config.encoder).describe_batch(config.encoder, batch)

    def __init__(self, cfg: ViewEncoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.encoder = cfg.encoder.build(rngs)
        self.projector = cfg.projector.build(rngs)
        for name in ("predictor", "patch_projector"):
            if (part := getattr(cfg, name)) is not None:
                setattr(self, name, part.build(rngs))

    @property
    def width(self) -> int:
        """How wide what the projector gives is."""
        return self.cfg.projector.width

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, masked: Bool[Array, "*#B P"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:  # fmt: skip
        """Encode images; `masked` patches are replaced by the encoder's mask token."""
        given = {} if masked is None else {"masked": masked}
        return self.encoder.hidden_states(images, **given, key=key)

    def features(self, hidden: Float[Array, "*B T D"]) -> Float[Array, "*B D"]:
        """Return the vector of each image."""
        return hidden[..., 0, :] if self.cfg.pool == "first" else widen(self.patches(hidden)).mean(axis=-2)

    def patches(self, hidden: Float[Array, "*B T D"]) -> Float[Array, "*B P D"]:
        """Return the hidden states of patches, without those of tokens."""
        return hidden[..., len(getattr(self.cfg.encoder, "tokens", ())) :, :]

    def project(self, vectors: Float[Array, "B *V D"], real: Bool[Array, " B"] | None = None) -> Float[Array, "B *V E"]:
        """Project the vectors of images, of one or several views of each row."""
        return self.projector(vectors, real)

    def predict(self, z: Float[Array, "B *V E"], real: Bool[Array, " B"] | None = None) -> Float[Array, "B *V E"]:
        """Predict what another view is projected to; without a predictor it is what is given."""
        return self.predictor(z, real) if hasattr(self, "predictor") else z

    def project_patches(self, patches: Float[Array, "B *V D"]) -> Float[Array, "B *V E"]:
        """Project the hidden states of patches."""
        return (self.patch_projector if hasattr(self, "patch_projector") else self.projector)(patches)

    def output(self, hidden: Float[Array, "B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "B E"]:
        """Project images from their hidden states: scores, where the projector's outputs are classes."""
        return self.project(self.features(hidden))

    def exported(self) -> Classifier:
        """Return the encoder alone, without a mask token, as the model without a head that checkpoints are of."""
        cfg = self.cfg.encoder
        cfg = replace(cfg, mask_token=False) if getattr(cfg, "mask_token", False) else cfg
        model = abstract(with_head(cfg, outputs=0, pool="first"))
        for name in vars(model.backbone):
            if name != "cfg" and not name.startswith("_"):
                setattr(model.backbone, name, getattr(self.encoder, name))
        return model
