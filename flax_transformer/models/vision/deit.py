"""DeiT: a ViT that learns from a teacher too, by a token and a head of its own (Touvron et al. 2020,
https://arxiv.org/abs/2012.12877).

Axes: B batch, T tokens and patches, D width, E classes.
"""

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, ClassifierConfig, Head, head_of
from flax_transformer.models.vision.vit import FLOAT32, ViTConfig, vit_encoder
from flax_transformer.nn import Precision


@frozen
class DistilledConfig(ClassifierConfig):
    """A ViT with a class token and a distillation token, and the same head on each."""

    backbone: ViTConfig
    """The vision Transformer that has a distillation token beside its class token."""

    def __post_init__(self):
        if self.backbone.tokens[:2] != ("class_token", "distillation_token"):
            raise ValueError(
                f"a distilled model has a class_token and a distillation_token first, got {self.backbone.tokens}"
            )

    def build(self, rngs: nnx.Rngs) -> "Distilled":
        """Make the model."""
        return Distilled(self, rngs=rngs)


class Distilled(Classifier):
    """Scores of classes twice, by the labels and by the teacher; their mean is the model's answer."""

    layer_order = (*Classifier.layer_order, "distillation_head")

    def __init__(self, cfg: DistilledConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.distillation_head = Head(cfg.head, rngs=rngs)

    def both(self, hidden: Float[Array, "*B T D"]) -> tuple[Float[Array, "*B E"], Float[Array, "*B E"]]:
        """Score the classes by the class token, which learns from labels, and by that which learns from a teacher."""
        return self.head(hidden), self.distillation_head(hidden[..., 1:, :])

    def output(self, hidden: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B E"]:
        """Score the classes: the mean of both heads."""
        by_label, by_teacher = self.both(hidden)
        return (by_label + by_teacher) / 2


def _deit(size: str, classes: int, image: int, dropout: float, precision: Precision) -> DistilledConfig:
    tokens = ("class_token", "distillation_token")
    backbone = vit_encoder(size, 16, image=image, tokens=tokens, dropout=dropout, precision=precision)
    return DistilledConfig(backbone=backbone, head=head_of(backbone, outputs=classes, pool="first"))


def deit_tiny_distilled(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> DistilledConfig:
    """Return DeiT-Ti with distillation: 12 layers, D=192, 5.9 M parameters."""
    return _deit("tiny", classes, image, dropout, precision)


def deit_small_distilled(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> DistilledConfig:
    """Return DeiT-S with distillation: 12 layers, D=384, 22.4 M parameters."""
    return _deit("small", classes, image, dropout, precision)


def deit_base_distilled(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> DistilledConfig:
    """Return DeiT-B with distillation: 12 layers, D=768, 87.3 M parameters."""
    return _deit("base", classes, image, dropout, precision)
