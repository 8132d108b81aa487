"""The Transformer's block: attention, cross-attention where asked for, feed-forward (Vaswani et al. 2017, §3.1)."""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import AttentionConfig, CrossAttentionConfig
from flax_transformer.nn.block import Sublayer, SublayersConfig
from flax_transformer.nn.experts import ExpertsConfig
from flax_transformer.nn.feedforward import FeedForwardConfig
from flax_transformer.nn.residual import ResidualConfig


@frozen
class TransformerBlockConfig(SublayersConfig):
    """A Transformer's block: its sublayers, and the residual around each; `transformer_block` writes it shorter.

    A subclass of a sublayer's config that builds another module puts that in its place.
    """

    attention: AttentionConfig
    """Self-attention."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around each sublayer."""
    cross: AttentionConfig | None = None
    """Attention to a memory, between self-attention and feed-forward; None: the block takes no memory. A
    `CrossAttentionConfig` where the memory is of another width, or may be missing."""
    feedforward_residual: ResidualConfig | None = None
    """Around the feed-forward layer; None: as around the others."""
    parallel: bool = False
    """Whether all sublayers see what the block is given, and not what those before them added (Wang & Komatsuzaki 2021,
    GPT-J); with norms before them, or one before the first, whose output those with norm_position="none" see too."""

    def __post_init__(self):
        super().__post_init__()
        if self.parallel and any(part.residual.norm_position == "post" for part in self.sublayers):
            raise ValueError("sublayers side by side have no norm after their sum, got norm_position='post'")

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """In the order in which they are applied."""
        return (
            Sublayer("attention", self.attention, self.residual),
            Sublayer("cross", self.cross, self.residual, of_memory=True),
            Sublayer("feedforward", self.feedforward, self.feedforward_residual or self.residual),
        )

    def resolved(self) -> "TransformerBlockConfig":
        """Spell out what None stands for, so that blocks that are the same are equal."""
        return replace(self, feedforward_residual=self.feedforward_residual or self.residual)


def transformer_block(*, cross: bool | Mapping[str, Any] = False, **options: Any) -> TransformerBlockConfig:
    """Make a block's config of what its parts are to be, by name.

    Args:
      cross: whether the block attends to a memory too, with a layer like that of its self-attention; or what a
        `CrossAttentionConfig` has besides, such as the width of the memory.
      options: fields of `AttentionConfig`, `FeedForwardConfig` (with `experts`: `ExpertsConfig`) and `ResidualConfig`.
        Each goes to every part that has a field of its name: `embed`, `bias`, `init_std` and `precision` are said once.

    Raises:
      ValueError: a name that no part has, or values that do not fit.

    >>> transformer_block(embed=64, heads=4, inner=256, norm_position="pre").residual.norm_position
    'pre'
    """
    feedforward = ExpertsConfig if "experts" in options else FeedForwardConfig
    kinds = {"attention": AttentionConfig, "feedforward": feedforward, "residual": ResidualConfig}
    known = {part: {field.name for field in fields(kind)} for part, kind in kinds.items()}
    if unknown := sorted(set(options).difference(*known.values())):
        raise ValueError(
            f"no part of a block has {', '.join(unknown)}; they have {sorted(set().union(*known.values()))}"
        )
    parts = {p: kind(**{n: v for n, v in options.items() if n in known[p]}) for p, kind in kinds.items()}
    layer = parts["attention"] if cross else None
    if isinstance(cross, Mapping):
        layer = CrossAttentionConfig.like(layer, **cross)
    return TransformerBlockConfig(**parts, cross=layer)


def _parameters() -> list[inspect.Parameter]:
    """Return `cross` and every field of the parts, once each; those without a default first."""
    first = inspect.signature(transformer_block).parameters["cross"]
    own = {field.name: field for kind in (ResidualConfig, FeedForwardConfig, AttentionConfig) for field in fields(kind)}
    own |= {field.name: field for field in fields(ExpertsConfig) if field.name not in own}
    empty = inspect.Parameter.empty
    usual = {name: empty if field.default is MISSING else field.default for name, field in own.items()}
    usual["experts"] = None
    more = [first.replace(name=name, default=usual[name], annotation=own[name].type) for name in own]
    return sorted([*more, first], key=lambda parameter: parameter.default is not empty)


transformer_block.__signature__ = inspect.Signature(_parameters(), return_annotation=TransformerBlockConfig)
