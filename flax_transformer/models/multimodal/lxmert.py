"""LXMERT: an encoder of a text, one of the regions that a detector found in an image, and blocks in which they look at
each other (Tan & Bansal 2019, https://arxiv.org/abs/1908.07490).

Axes: B batch, T tokens, R regions, S = T + R, F width of a region's features, D width.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.answer_head import AnswerScores, answering
from flax_transformer.models.encoder import Encoder, EncoderConfig, MaskedLM, MaskedLMConfig
from flax_transformer.models.protocol import Described
from flax_transformer.models.text.bert import bert_base_uncased
from flax_transformer.nn import Precision, TransformerBlockConfig, Trunk, TrunkConfig, make_norm
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import Linear, initializer
from flax_transformer.nn.module import Module
from flax_transformer.nn.residual import Residual, ResidualConfig
from flax_transformer.ops import Mask, activation, dropout, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class CrossBlockConfig:
    """A block in which two sides look at each other, and then each at itself."""

    block: TransformerBlockConfig
    """Of either side: self-attention and feed-forward, each side's own."""

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.block.embed

    @property
    def residual(self) -> ResidualConfig:
        """Around each sublayer."""
        return self.block.residual

    def build(self, rngs: nnx.Rngs) -> "CrossBlock":
        """Make the block."""
        return CrossBlock(self, rngs=rngs)


class CrossBlock(Module):
    """Hidden states of a text and of regions after them: one attention with which both look across, then two blocks."""

    def __init__(self, cfg: CrossBlockConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.cross, self.cross_residual = cfg.block.attention.build(rngs), Residual(cfg.residual, rngs=rngs)
        self.text, self.regions = cfg.block.build(rngs), cfg.block.build(rngs)

    def __call__(
        self,
        x: Float[Array, "*B S D"],
        *,
        mask: Mask,
        text: Mask,
        regions: Mask,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Apply the block.

        Args:
          mask: what is seen across: of a token regions alone, of a region tokens.
          text: which tokens are seen, and how many there are.
          regions: which regions are.
          drop_path: how often a row does without a sublayer.
          key: for dropout; None means none.
        """
        keys = split_keys(key, 3)
        x = checkpoint_name(x, "hidden_states")
        x = self.cross_residual(x, partial(self.cross, mask=mask), key=keys[0], drop_path=drop_path)
        first, second = x[..., : (T := text.dense.shape[-1]), :], x[..., T:, :]
        first = self.text(first, mask=text, drop_path=drop_path, key=keys[1])
        second = self.regions(second, mask=regions, drop_path=drop_path, key=keys[2])
        return jnp.concatenate([first, second], axis=-2)


@frozen
class LxmertConfig(EncoderConfig):
    """An encoder of texts, which the trunk is of, one of regions, and blocks that join them, all of one width."""

    region_depth: int = 5
    """Blocks of regions alone."""
    cross_depth: int = 5
    """Blocks that join them."""
    features: int = 2_048
    """F."""
    box_values: int = 4
    """Numbers that say where a region is."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "region_depth", "cross_depth", "features", "box_values")

    def build(self, rngs: nnx.Rngs) -> "Lxmert":
        """Make the encoder."""
        return Lxmert(self, rngs=rngs)

    def stack(self, block: Any, depth: int) -> TrunkConfig:
        """Return a stack that runs as the text's does."""
        return TrunkConfig(block=block, depth=depth, unroll=self.unroll, remat=self.remat, drop_path=self.drop_path)


class Lxmert(Encoder):
    """Hidden states of tokens, then of regions."""

    layer_order = ("embedding", "regions", Part("trunk", "region_trunk"), Part("cross_trunk"))

    @classmethod
    def example_batch(cls, config: LxmertConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B rows of T tokens, each with a label, and of as many regions."""
        batch = super().example_batch(config, rows, length)
        draw, count = np.random.default_rng(0), batch["labels"].shape[1]
        found = {
            "features": draw.standard_normal((rows, count, config.features), dtype=np.float32),
            "boxes": draw.random((rows, count, config.box_values), dtype=np.float32),
        }
        return {**batch, "inputs": {**batch["inputs"], **found}}

    @classmethod
    def describe_batch(cls, config: LxmertConfig, batch: dict[str, Any]) -> Described:
        """Count B pairs of a text and an image's regions."""
        (rows, length), regions = (batch["inputs"][name].shape for name in ("tokens", "features"))
        return Described({"rows": rows, "length": length, "regions": regions[-2]}, rows, "pairs")

    def __init__(self, cfg: LxmertConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.regions = RegionEmbedding(cfg, rngs=rngs)
        self.region_trunk = Trunk(cfg.stack(cfg.block, cfg.region_depth), rngs=rngs)
        self.cross_trunk = Trunk(cfg.stack(CrossBlockConfig(block=cfg.block), cfg.cross_depth), rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        features: Float[Array, "*B R F"],
        boxes: Float[Array, "*B R _"],
        visible: Bool[Array, "*#B T"] | None = None,
        seen: Bool[Array, "*#B R"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Encode texts and the regions of their images.

        Args:
          features: of regions, as a detector gives them.
          boxes: where they are, as shares of the image.
          visible: which tokens are no padding; all by default.
          seen: which regions are none; all by default.
          types: of the tokens, as an `Encoder` takes them.
          positions: of the tokens; 0, 1, … by default.
          key: for dropout; None means none.

        Raises:
          ValueError: regions of another width.
        """
        check_hidden(features, self.cfg.features, "features")
        check_hidden(boxes, self.cfg.box_values, "boxes")
        keys = split_keys(key, 5)
        sides = (tokens.shape, visible), (features.shape[:-1], seen)
        text, regions = (
            jnp.ones(shape, bool) if each is None else jnp.broadcast_to(each, shape) for shape, each in sides
        )
        own = {name: Mask(dense=each[..., None, None, :]) for name, each in (("text", text), ("regions", regions))}
        first = self.embedding(tokens, positions=positions, types=types, key=keys[0])
        first = self.trunk(first, mask=own["text"], key=keys[1])
        second = self.regions(features, boxes, key=keys[2])
        second = self.region_trunk(second, mask=own["regions"], key=keys[3])
        side = jnp.arange(text.shape[-1] + regions.shape[-1]) < text.shape[-1]
        across = Mask(dense=(side[:, None] != side) & jnp.concatenate([text, regions], -1)[..., None, None, :])
        x = jnp.concatenate([first, second], axis=-2)
        return self.cross_trunk(constrain(x, "batch", "length", None), mask=across, key=keys[4], **own)

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        features: Float[Array, "*B R F"],
        boxes: Float[Array, "*B R _"],
        lengths: Int[Array, "*B"] | None = None,
        seen: Bool[Array, "*#B R"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call.

        Args:
          lengths: of the rows of tokens; what comes after is padding, which nobody sees.
        """
        visible = None if lengths is None else jnp.arange(tokens.shape[-1]) < lengths[..., None]
        return self(tokens, features=features, boxes=boxes, visible=visible, seen=seen, types=types, key=key)

    def real(
        self,
        tokens: Int[Array, "*B T"],
        *,
        features: Float[Array, "*B R F"],
        boxes: Float[Array, "*B R _"],
        lengths: Int[Array, "*B"] | None = None,
        seen: Bool[Array, "*#B R"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
    ) -> Bool[Array, "*B S"] | None:
        """Return which positions of the output are no padding, of tokens or of regions."""
        if lengths is None and seen is None:
            return None
        T = tokens.shape[-1]
        text = jnp.ones(tokens.shape, bool) if lengths is None else jnp.arange(T) < lengths[..., None]
        regions = jnp.broadcast_to(True if seen is None else seen, (*tokens.shape[:-1], features.shape[-2]))
        return jnp.concatenate([text, regions], axis=-1)


class RegionEmbedding(Module):
    """What a region is and where it is, each made D wide and normalised; the mean of both."""

    def __init__(self, cfg: LxmertConfig, *, rngs: nnx.Rngs):
        like = cfg.block.feedforward
        self.cfg = cfg
        for name, width in (("feature", cfg.features), ("place", cfg.box_values)):
            layer = Linear(
                width, like.embed, axes=(None, "embed"), kernel_init=initializer(like), rngs=rngs,
                **like.precision.dtypes,
            )  # fmt: skip
            setattr(self, name, layer)
            setattr(self, f"{name}_norm", cfg.block.residual.make_norm(rngs))

    def __call__(
        self, features: Float[Array, "*B R F"], boxes: Float[Array, "*B R _"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B R D"]:
        """Embed regions; `key` is for dropout."""
        x = (self.feature_norm(self.feature(features)) + self.place_norm(self.place(boxes))) / 2
        x = dropout(x.astype(self.cfg.block.residual.precision.residual), self.cfg.embedding.dropout, key)
        return constrain(x, "batch", "length", None)


@frozen
class LxmertPretrainingConfig(MaskedLMConfig):
    """LXMERT as it is pre-trained: it guesses tokens, whether a text is of its image, answers, and masked regions."""

    next_sentence: bool = True
    """Whether it predicts that a text belongs to its image; always, as published."""
    answers: int = 9_500
    """Answers to questions, of which it predicts one."""
    objects: int = 1_600
    """Kinds of what a region may show."""
    attributes: int = 400
    """Kinds of how it may be."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "answers", "objects", "attributes")
        if not isinstance(self.encoder, LxmertConfig) or not self.next_sentence:
            raise ValueError("LXMERT is pre-trained with an encoder of its own and guesses what belongs together")

    def build(self, rngs: nnx.Rngs) -> "LxmertPretraining":
        """Make the model."""
        return LxmertPretraining(self, rngs=rngs)


class LxmertPretraining(MaskedLM):
    """All heads: `output` gives tokens, `sentence` what belongs together, `answer` and `predict_regions` the rest."""

    layer_order = (
        *MaskedLM.layer_order, "answers", "region_dense", "region_norm", "objects", "attributes", "features",
    )  # fmt: skip

    def __init__(self, cfg: LxmertPretrainingConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        like, residual = cfg.encoder.block.feedforward, cfg.encoder.block.residual
        make = partial(Linear, like.embed, kernel_init=initializer(like), rngs=rngs, **like.precision.dtypes)
        self.answers = AnswerScores(answers_of(cfg.encoder, cfg.answers).head, rngs=rngs)
        self.region_dense = make(like.embed)
        self.region_norm = make_norm(
            residual.norm, like.embed, eps=residual.norm_eps, precision=residual.precision, rngs=rngs
        )
        self.objects, self.attributes = make(cfg.objects), make(cfg.attributes)
        self.features = make(cfg.encoder.features)

    def answer(self, hidden: Float[Array, "*B S D"]) -> Float[Array, "*B E"]:
        """Score answers from hidden states."""
        return self.answers(self.sentence.pool(hidden))

    def predict_regions(self, hidden: Float[Array, "*B R D"]) -> dict[str, Float[Array, "*B R _"]]:
        """Score what regions show and how it is, and give their features, from their hidden states."""
        x = self.region_norm(activation(self.cfg.resolved_activation)(self.region_dense(hidden)))
        return {name: widen(getattr(self, name)(x)) for name in ("objects", "attributes", "features")}


def answers_of(encoder: LxmertConfig, answers: int) -> Any:
    """Put LXMERT's head of answers on an encoder: a `ClassifierConfig`."""
    return answering(encoder, answers, norm_last=True, eps=encoder.block.residual.norm_eps)


def lxmert_encoder(*, dropout: float = 0.1, precision: Precision = FLOAT32, **sizes: int) -> Any:
    """Return the encoder, an `LxmertConfig`: BERT's of 9 layers, 5 of regions and 5 that join them.

    Args:
      sizes: other fields of `LxmertConfig`.
    """
    bert = bert_base_uncased(dropout=dropout, precision=precision).encoder
    return LxmertConfig(embedding=bert.embedding, block=bert.block, **{"depth": 9, **sizes})


def lxmert_base_uncased(*, dropout: float = 0.1, precision: Precision = FLOAT32) -> LxmertPretrainingConfig:
    """Return LXMERT as it is pre-trained: 9 + 5 + 5 layers, D=768, 207.9 M parameters and 20.1 M of its heads."""
    return LxmertPretrainingConfig(encoder=lxmert_encoder(dropout=dropout, precision=precision))
