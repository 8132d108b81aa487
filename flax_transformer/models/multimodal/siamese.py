"""The Siamese encoder: one tower for both halves of a pair, as images of the same thing (Bromley et al. 1993; Chen et
al. 2020, https://arxiv.org/abs/2002.05709).

With a head of every position, the vectors of all positions side by side are one: halves are then compared place by
place, as drawings of the same layout are.

Axes: B pairs, H W height and width in pixels, C channels, E width of the common space.
"""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, ClassifierConfig
from flax_transformer.models.multimodal.towers import Embedded, Matcher, MatcherConfig, unit
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class SiameseConfig(MatcherConfig):
    """A tower, whose head gives vectors."""

    tower: ClassifierConfig
    """An encoder of images, and a head."""

    def build(self, rngs: nnx.Rngs) -> "Siamese":
        """Make the model."""
        return Siamese(self, rngs=rngs)


class Siamese(Matcher):
    """`model.output(model.hidden_states(images=…, others=…))` scores every image with every other."""

    layer_order = (Part("tower"), "log_scale", "bias")

    use = "retrieval"

    @classmethod
    def example_batch(cls, config: SiameseConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B pairs."""
        make = module_of(config.tower.backbone).example_batch
        images = make(config.tower.backbone, 2 * rows, length)["inputs"]["images"]
        return {"inputs": {"images": images[:rows], "others": images[rows:]}}

    @classmethod
    def describe_batch(cls, config: SiameseConfig, batch: dict[str, Any]) -> Described:
        """Count B pairs."""
        rows, height, width, _ = batch["inputs"]["images"].shape
        return Described({"rows": rows, "height": height, "width": width}, rows, "pairs")

    def __init__(self, cfg: SiameseConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.tower = Classifier(cfg.tower, rngs=rngs)
        self.init_scale(cfg.scale, cfg.bias, cfg.tower.head)

    def embed(self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B E"]:
        """Embed images; `key` is for dropout."""
        keys = split_keys(key)
        vectors = self.tower.head(self.tower.hidden_states(images, key=keys[0]), key=keys[1])
        if self.tower.cfg.head.pool == "every":
            vectors = vectors.reshape(*vectors.shape[:-2], -1)
        return unit(vectors)

    def hidden_states(
        self,
        *,
        images: Float[Array, "*B H W C"] | None = None,
        others: Float[Array, "*B H W C"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Embedded:
        """Embed what there is of both halves; `key` is for dropout."""
        keys = split_keys(key)
        sides = zip((images, others), keys, strict=True)
        return Embedded(*(None if side is None else self.embed(side, key=each) for side, each in sides))
