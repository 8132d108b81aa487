"""DPR's reader: an encoder that scores the ends of an answer, and how relevant the passage is that it reads (Karpukhin
et al. 2020, https://arxiv.org/abs/2004.04906).

Axes: B passages, T positions, D width.
"""

from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, ClassifierConfig, HeadConfig, head_of
from flax_transformer.models.padded import Padded, split_padded
from flax_transformer.order import Part


@frozen
class PassageReaderConfig(ClassifierConfig):
    """An encoder, a head of spans, and one of relevance."""

    relevance: HeadConfig
    """Of the first position, with one output."""

    def build(self, rngs: nnx.Rngs) -> "PassageReader":
        """Make the model."""
        return PassageReader(self, rngs=rngs)


def passage_reader(encoder: object) -> PassageReaderConfig:
    """Put both heads on an encoder, with its width, start and precision."""
    return PassageReaderConfig(
        backbone=encoder, head=head_of(encoder, outputs=2), relevance=head_of(encoder, outputs=1, pool="first")
    )


class PassageReader(Classifier):
    """`model.output(model.hidden_states(tokens, …))` are scores of an answer's first and last token, as objectives of
    spans take them, `model.relevance(hidden)` those of passages."""

    layer_order = (Part("backbone"), "head", "relevance_head")

    use = "question-answering"

    def __init__(self, cfg: PassageReaderConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.relevance_head = cfg.relevance.build(rngs)

    def relevance(self, hidden: Float[Array, "*B T D"] | Padded) -> Float[Array, " *B"]:
        """Score passages, from the encoder's hidden states of a question and each."""
        return self.relevance_head(split_padded(hidden)[0])[..., 0]
