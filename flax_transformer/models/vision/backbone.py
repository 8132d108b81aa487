"""Feature maps of any network of images, for what detects and segments: what its stages give, on their grids.

A network has `stage_states(images)`: what goes into the first stage, or layer, and what each gives; as a grid
[*B, I, J, D], or as tokens and patches [*B, T, D].

Axes: B images, H W height and width, C channels, I J those of a feature map, T tokens and patches, D width.
"""

from typing import Any

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.nn import Precision, make_norm
from flax_transformer.nn.batch_norm import Normalise, by_running
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.order import Part


@frozen
class BackboneConfig:
    """A network of images, and which of its feature maps are given."""

    backbone: Any
    """The config of a network with `stage_states`."""
    stages: tuple[int, ...]
    """Numbers of the maps, from 0, what goes into the first stage."""
    widths: tuple[int, ...] = ()
    """D of each map, where each has a norm of its own; (): none has."""
    norm_eps: float = 1e-5
    """Epsilon of these norms."""
    end_norm: bool = False
    """Whether the norm at the end of the network's stack is applied to every map."""
    grids: bool = True
    """Whether patches are given as grids, without tokens; else as they are."""
    neck: Any = None
    """Config of what makes other maps of these, as a `FourSizesConfig`; None: they are given as they are."""
    precision: Precision = Precision()
    """Types of the norms."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 0, "norm_eps")
        if not self.stages or min(self.stages) < 0 or [*self.stages] != sorted({*self.stages}):
            raise ValueError(f"stages must be numbers from 0, in order and each once, got {self.stages}")
        if self.widths and len(self.widths) != len(self.stages):
            raise ValueError(f"each map needs a width, got {self.widths} of stages {self.stages}")
        if self.neck is not None and not self.grids:
            raise ValueError("a neck is of maps that are grids, got grids=False")

    def build(self, rngs: nnx.Rngs) -> "Backbone":
        """Make the model."""
        return Backbone(self, rngs=rngs)


class Backbone(Module):
    """Feature maps of images; `ops.capture(f, "stage_states")` gives those of all stages, without norms."""

    use = "feature-maps"

    @property
    def layer_order(self) -> tuple[Any, ...]:
        """The network, norms on top, and what makes other maps of them."""
        return Part("backbone"), *(f"norm{stage}" for stage in self.cfg.stages), "neck"

    @classmethod
    def example_batch(cls, config: BackboneConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the network's."""
        return module_of(config.backbone).example_batch(config.backbone, rows, length)

    @classmethod
    def describe_batch(cls, config: BackboneConfig, batch: dict[str, Any]) -> Described:
        """Count B images."""
        return ReadsImages.describe_batch(config.backbone, batch)

    def __init__(self, cfg: BackboneConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.backbone = cfg.backbone.build(rngs)
        for stage, width in zip(cfg.stages, cfg.widths, strict=False):
            norm = make_norm("layer", width, eps=cfg.norm_eps, precision=cfg.precision, rngs=rngs)
            setattr(self, f"norm{stage}", norm)
        if cfg.neck is not None:
            self.neck = cfg.neck.build(rngs)

    def __call__(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "..."], ...]:
        """Return the chosen feature maps, each [*B, I, J, D], or [*B, T, D] where they are no grids.

        Raises:
          ValueError: a stage that the network has not.
        """
        return self.maps(images, by_running, key=key)[0]

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "..."], ...]:
        """Compute the feature maps from the inputs of a batch; arguments as in a call."""
        return self(images, key=key)

    def maps(
        self, images: Float[Array, "*B H W C"], by: Normalise, *, key: PRNGKeyArray | None = None
    ) -> tuple[tuple[Float[Array, "..."], ...], dict[str, Any]]:
        """Return these and new statistics, by what the batch norms of the neck are to do; those of the network stay."""
        cfg = self.cfg
        states = [checkpoint_name(each, "stage_states") for each in self.backbone.stage_states(images, key=key)]
        if cfg.stages[-1] >= len(states):
            raise ValueError(f"stages must be below {len(states)}, got {cfg.stages}")
        maps = tuple(self._map(stage, states[stage], images) for stage in cfg.stages)
        if cfg.neck is None:
            return maps, {}
        maps, statistics = self.neck(maps, by)
        return maps, {"neck": statistics}

    def _map(self, stage: int, x: Array, images: Array) -> Array:
        x = getattr(self, f"norm{stage}")(x) if self.cfg.widths else x
        x = self.backbone.trunk.norm(x) if self.cfg.end_norm else x
        if not self.cfg.grids or x.ndim == images.ndim:
            return x
        grid = self.backbone.cfg.patches.grid_of(*images.shape[-3:-1])
        return x[..., len(self.backbone.cfg.tokens) :, :].reshape(*x.shape[:-2], *grid, x.shape[-1])
