"""BigBird (Zaheer et al. 2020, https://arxiv.org/abs/2007.14062): a BERT that sees few blocks of a long text.

A preset is the model that is pre-trained on masked tokens and next sentences; as for BERT, published sizes are those of
`with_head(preset.encoder, outputs=0, pool="first", dense="tanh")` too, the encoder with a pooler.
Axes: B batch, T positions, N heads, D width, L layers; W blocks, M = W − 2 of which see R drawn blocks each.
"""

from dataclasses import replace
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.encoder import Encoder, EncoderConfig, MaskedLMConfig
from flax_transformer.models.head import ClassifierConfig
from flax_transformer.models.text.global_attention import keys_seen
from flax_transformer.nn import (
    Attention,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    PerLayer,
    Precision,
    Residual,
    ResidualConfig,
    transformer_block,
)
from flax_transformer.nn.config import check_at_least, check_fields, check_rates
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, dropout
from flax_transformer.ops.attention.block_sparse import block_sparse_attention, draw_blocks, least_blocks
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class BlockSparseConfig(AttentionConfig):
    """Attention to the first and last block, to those beside one's own and to some drawn at random."""

    sparse: bool = True
    """False: attention to everything, whatever the length (`attention_type="original_full"`)."""
    block_size: int = 64
    """C, positions of a block."""
    random_blocks: int = 3
    """R, drawn blocks. Texts of 5 + 2R blocks or fewer are attended to in full."""
    drawn: Literal["training", "always"] = "training"
    """When blocks are drawn. The published models see drawn blocks in training alone, which a call with a `key` is, and
    else the first block so many times more."""

    takes = "mask", "drawn"
    function = "attention in blocks"

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "block_size")
        check_at_least(self, 0, "random_blocks")
        if self.rotary is not None or self.qk_norm is not None or self.resolved_kv_heads != self.heads:
            raise ValueError("attention in blocks has no rotary positions, norms of queries or shared heads, got some")

    def is_sparse(self, length: int) -> bool:
        """Return whether a text is long enough for blocks."""
        return self.sparse and length > (least_blocks(self.random_blocks) - 1) * self.block_size

    def build(self, rngs: nnx.Rngs) -> "BlockSparseAttention":
        """Make the layer."""
        return BlockSparseAttention(self, rngs=rngs)


class BlockSparseAttention(Attention):
    """Self-attention of long texts; in blocks no attention weight is dropped, as published."""

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        mask: Mask | None = None,
        drawn: Int[Array, "N M R"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend.

        Args:
          mask: which keys are padding; nothing else.
          drawn: blocks that inner blocks see besides; the first by default.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or a mask of another kind.
        """
        self._check(x)
        cfg, (*lead, T, _) = self.cfg, x.shape
        if not cfg.is_sparse(T):
            return super().__call__(x, mask=mask, key=key)
        visible = keys_seen(mask, (*lead, T))
        if drawn is None:
            drawn = jnp.zeros((cfg.heads, -(-T // cfg.block_size) - 2, cfg.random_blocks), jnp.int32)
        y = block_sparse_attention(
            self.query(x), self.key(x), self.value(x), drawn, visible, block=cfg.block_size, scale=cfg.scale
        )
        y = jnp.where(visible[..., None, None], y, 0)  # what is padding itself sees nothing
        return self.out(constrain(y, "batch", "length", "heads", None))

    def init_cache(self, *args: object, **options: object) -> None:
        """Refuse: there is no cache for blocks of which the last is global."""
        raise ValueError("attention in blocks sees what comes later, so it has no cache")

    extend = init_cache


@frozen
class BigBirdConfig(EncoderConfig):
    """An encoder of long texts; its block's attention is a `BlockSparseConfig`."""

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.block.attention, BlockSparseConfig):
            raise ValueError(
                f"a BigBird's attention must be a BlockSparseConfig, got {type(self.block.attention).__name__}"
            )

    def build(self, rngs: nnx.Rngs) -> "BigBird":
        """Make the encoder."""
        return BigBird(self, rngs=rngs)


class BigBird(Encoder):
    """Hidden states of tokens that see a few blocks of the text, the same number however long it is.

    A mask says which tokens are padding, and nothing else; a `key` is a sign of training, in which blocks are drawn.
    """

    def _enter(
        self, tokens: Array, mask: Mask | None, types: Array | None, positions: Array | None, key: PRNGKeyArray | None
    ) -> tuple[Array, dict[str, Any]]:
        x, given = super()._enter(tokens, mask, types, positions, key)
        del given["positions"]  # which nothing but the embedding has a use for
        attention = self.cfg.block.attention
        if attention.is_sparse(tokens.shape[-1]) and (key is not None or attention.drawn == "always"):
            given["drawn"] = PerLayer(jnp.asarray(self.draw(tokens.shape[-1])))
        return x, given

    def draw(self, length: int) -> Int[np.ndarray, "L N M R"]:
        """Draw the blocks that each layer sees besides: for one length always the same."""
        attention = self.cfg.block.attention
        size = attention.block_size
        length += -length % size
        layers = [
            draw_blocks(
                length, block=size, count=attention.random_blocks, heads=attention.heads,
                max_length=self.cfg.embedding.max_length, seed=layer,
            )
            for layer in range(self.cfg.depth)
        ]  # fmt: skip
        return np.stack(layers)


@frozen
class SpanHeadConfig:
    """What scores each token as either end of an answer: a feed-forward layer with its residual, and a linear one."""

    feedforward: FeedForwardConfig
    """The layer between the hidden states and the scores."""
    residual: ResidualConfig
    """Around that layer."""
    outputs: int = 2
    """Scores of a token: of the first and of the last of an answer."""
    dropout: float = 0.0
    """Before the feed-forward layer."""
    pool = "every"

    def __post_init__(self):
        check_fields(self)
        check_rates(self, "dropout")

    def build(self, rngs: nnx.Rngs) -> "SpanHead":
        """Make the head."""
        return SpanHead(self, rngs=rngs)


class SpanHead(Module):
    """Hidden states in, two scores of each out."""

    def __init__(self, cfg: SpanHeadConfig, *, rngs: nnx.Rngs):
        kinds = {
            "dtype": at_least_float32(cfg.residual.precision.compute),
            "param_dtype": cfg.residual.precision.dtypes["param_dtype"],
        }
        self.cfg = cfg
        self.feedforward = cfg.feedforward.build(rngs)
        self.residual = Residual(cfg.residual, rngs=rngs)
        self.output = Linear(cfg.residual.embed, cfg.outputs, rngs=rngs, **kinds)

    def __call__(
        self, hidden: Float[Array, "*B T D"], last: Int[Array, "*B"] | None = None, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T E"]:
        """Score; `last`, which other heads have a use for, changes nothing."""
        keys = split_keys(key)
        y = self.feedforward(dropout(hidden, self.cfg.dropout, keys[0]))
        return self.output(self.residual.add(hidden, y, key=keys[1]))


def span_head(encoder: EncoderConfig) -> ClassifierConfig:
    """Put the head of BigBirdForQuestionAnswering on an encoder: its layers are like those of the encoder's blocks."""
    block = encoder.block
    head = SpanHeadConfig(feedforward=block.feedforward, residual=block.residual, dropout=block.residual.dropout)
    return ClassifierConfig(backbone=encoder, head=head)


def _big_bird(
    vocab: int, *, embed: int, heads: int, depth: int, dropout: float, precision: Precision
) -> MaskedLMConfig:
    plain = transformer_block(
        embed=embed, heads=heads, inner=4 * embed, norm_eps=1e-12, activation="gelu_tanh", dropout=dropout,
        attention_dropout=dropout, init_std=0.02, precision=precision,
    )  # fmt: skip
    encoder = BigBirdConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=4096, types=2, norm=1e-12, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=replace(plain, attention=BlockSparseConfig.like(plain.attention)),
        depth=depth,
    )  # fmt: skip
    return MaskedLMConfig(encoder=encoder, next_sentence=True)


def bigbird_roberta_base(
    vocab: int = 50_358, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> MaskedLMConfig:
    """Return BigBird base: 12 layers, D=768, 4096 positions, 127 M parameters with its pooler."""
    return _big_bird(vocab, embed=768, heads=12, depth=12, dropout=dropout, precision=precision)


def bigbird_roberta_large(
    vocab: int = 50_358, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> MaskedLMConfig:
    """Return BigBird large: 24 layers, D=1024, 4096 positions, 359 M parameters with its pooler."""
    return _big_bird(vocab, embed=1024, heads=16, depth=24, dropout=dropout, precision=precision)
