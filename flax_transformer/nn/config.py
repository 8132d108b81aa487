"""What a block is made of: one frozen value, hashable, validated at the door."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp

from flax_transformer.ops import activation, attention, rotary_frequencies


def check_fields(config: Any) -> None:
    """Raise ValueError where a field of a frozen config is not what its annotation says; ranges are its own business.

    >>> check_fields(Precision())
    """
    for name, hint in _hints(type(config)).items():
        value = getattr(config, name)
        if not _fits(value, hint):
            raise ValueError(f"{name} must be {_rule(hint)}, got {value!r}")


def check_at_least(config: Any, least: int, *names: str) -> None:
    """Raise ValueError where a field, unless it is None, is below `least`."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return callable(value) if hint is Callable else hint is Any or isinstance(value, hint)


def _rule(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_rule, get_args(hint)))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a name", Callable: "a function"}
    return words.get(hint, "None" if hint is type(None) else f"a {hint.__name__}")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number formats: what layers compute in, and what parameters are kept in.

    Softmax, normalisation statistics, logits and losses are float32, or more, whatever stands here.
    """

    compute: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    params: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    wide_residual: bool = False
    """Where layers compute in float16, keep the residual stream in float32, and the feed-forward layer that writes to
    it; for models with numbers that float16 has no room for (T5)."""

    def __post_init__(self):
        check_fields(self)
        if "float64" in (self.compute, self.params) and not jax.config.jax_enable_x64:
            raise ValueError(f"float64 needs jax.config.update('jax_enable_x64', True), got {self}")

    @property
    def residual(self) -> str:
        """What the residual stream is kept in."""
        return "float32" if self.wide_residual and self.compute == "float16" else self.compute


def with_precision(config: Any, **kinds: str | bool) -> Any:
    """Change fields of every `Precision` that a config has, at any depth.

    >>> with_precision(Precision(), compute="bfloat16")
    Precision(compute='bfloat16', params='float32', wide_residual=False)
    """
    if isinstance(config, Precision):
        return replace(config, **kinds)
    if not is_dataclass(config) or isinstance(config, type):
        return config
    names = [field.name for field in fields(config) if field.init]
    return replace(config, **{name: with_precision(getattr(config, name), **kinds) for name in names})


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions (Su et al. 2021): the base of the frequencies and, optionally, other frequencies outright."""

    base: float = 10_000.0
    frequencies: Callable = rotary_frequencies
    """`frequencies(width, base) -> [width / 2]`: a module-level function, `LinearScaling(…)` or `Llama3Scaling(…)`."""

    def __post_init__(self):
        check_fields(self)
        if self.base <= 0:
            raise ValueError(f"the base of rotary frequencies must be above 0, got {self.base}")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """A Transformer block: attention, optionally cross-attention, and a feed-forward layer, each with its residual.

    The defaults are those of the 2017 paper; every later family is a choice of these values.
    """

    embed: int
    """D, the width of the residual stream."""
    heads: int
    """N, query heads."""
    hidden: int
    """F, the width inside the feed-forward layer."""
    kv_heads: int | None = None
    """K, key/value heads; fewer than `heads` is grouped-query attention. None: as many as `heads`."""
    head_width: int | None = None
    """H; None: D / N."""
    cross: bool = False
    """Whether the block attends to a memory between self-attention and feed-forward."""
    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post"] = "post"
    norm_eps: float = 1e-5
    activation: str | Callable = "relu"
    """A name, or any module-level function of an array."""
    gated: bool = False
    """Gated feed-forward (Shazeer 2020): activation(gate(x)) * up(x)."""
    bias: bool = True
    """Biases of the linear layers."""
    qkv_bias: bool | None = None
    """Biases of query, key and value; None: as `bias`."""
    out_bias: bool | None = None
    """Bias of attention's output layer; None: as `bias`."""
    qk_norm: bool = False
    """RMSNorm over the width of every query and key head."""
    scale: float | None = None
    """What query-key products are multiplied by; None: 1 / sqrt(H)."""
    rotary: Rotary | None = None
    dropout: float = 0.0
    """On each sublayer's output, before the residual is added."""
    out_dropout: float | None = None
    """On attention's output, before the residual is added; None: as `dropout`."""
    attention_dropout: float = 0.0
    """On attention probabilities."""
    activation_dropout: float = 0.0
    """Inside the feed-forward layer, after the activation."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: Xavier's."""
    residual_init_std: float | None = None
    """That of the layers that write to the residual stream; None: as `init_std`."""
    attend: Callable = attention
    """Any module-level function with the signature of `ops.attention`."""
    precision: Precision = Precision()

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "heads", "hidden", "kv_heads", "head_width")
        check_at_least(self, 0, "norm_eps", "init_std", "residual_init_std")
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")
        if self.head_width is None and self.embed % self.heads:
            raise ValueError(f"heads must divide the model width, got D={self.embed}, N={self.heads}")
        if self.heads % self.resolved_kv_heads:
            raise ValueError(
                f"query heads must be a multiple of kv heads, got N={self.heads}, K={self.resolved_kv_heads}"
            )
        if self.rotary is not None and self.width % 2:
            raise ValueError(f"rotary positions need an even head width, got H={self.width}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if not 0 <= self.resolved_out_dropout < 1:
            raise ValueError(f"out_dropout must be in [0, 1), got {self.out_dropout}")
        activation(self.activation)

    @property
    def resolved_kv_heads(self) -> int:
        """K, resolved."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def resolved_out_dropout(self) -> float:
        """Dropout on attention's output, resolved."""
        return self.dropout if self.out_dropout is None else self.out_dropout

    @property
    def width(self) -> int:
        """H, resolved."""
        return self.embed // self.heads if self.head_width is None else self.head_width

    def resolved(self) -> "BlockConfig":
        """Spell out what None stands for, so that blocks that are the same are equal."""
        given = lambda value, default: default if value is None else value  # noqa: E731
        return replace(
            self,
            kv_heads=self.resolved_kv_heads,
            head_width=self.width,
            qkv_bias=given(self.qkv_bias, self.bias),
            out_bias=given(self.out_bias, self.bias),
            scale=given(self.scale, 1 / math.sqrt(self.width)),
        )

    @property
    def dtypes(self) -> dict:
        """`dtype` and `param_dtype` as Flax's layers take them."""
        return {"dtype": jnp.dtype(self.precision.compute), "param_dtype": jnp.dtype(self.precision.params)}
