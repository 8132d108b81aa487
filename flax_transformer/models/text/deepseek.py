"""DeepSeek-V2 and V3 (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434, https://arxiv.org/abs/2412.19437): Llama's
decoder with multi-head latent attention, and experts in the place of all but the first feed-forward layers.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.models.text.dense_first import DenseFirstConfig
from flax_transformer.nn import (
    EmbeddingConfig,
    FeedForwardConfig,
    GroupRouterConfig,
    LatentAttentionConfig,
    Precision,
    ResidualConfig,
    Rotary,
    SharedExpertsConfig,
    TransformerBlockConfig,
    with_fields,
)
from flax_transformer.ops import YarnScaling

FLOAT32 = Precision()
YARN = YarnScaling(factor=40.0, original_length=4096, scale=1.0)
"""Positions of V2 and V3: 40 times as many as at first, sines and cosines as they were."""


def deepseek_v3(vocab: int = 129_280, *, precision: Precision = FLOAT32) -> DenseFirstConfig:
    """Return DeepSeek-V3: 61 layers, D=7168, 671.0 B parameters, of which a token uses 37 B; no layer of multi-token
    prediction.
    """
    common: dict[str, Any] = {"embed": 7168, "init_std": 0.02, "precision": precision}
    gated = {"activation": "silu", "gated": True, "bias": False}
    block = TransformerBlockConfig(
        attention=LatentAttentionConfig(
            heads=128, head_width=128, latent=512, rotary_width=64, query_latent=1536, value_head=128, bias=False,
            out_bias=False, rotary=Rotary(frequencies=YARN), mscale=1.0, **common,
        ),
        feedforward=SharedExpertsConfig(
            inner=2048, experts=256, active=8, shared=1, router=GroupRouterConfig(groups=8, kept=4, routed_scale=2.5),
            **gated, **common,
        ),
        residual=ResidualConfig(embed=7168, norm="rms", norm_eps=1e-6, norm_position="pre", precision=precision),
    )  # fmt: skip
    return DenseFirstConfig(
        embedding=EmbeddingConfig(vocab=vocab, position="none", max_length=163_840, scaled=False, **common),
        block=block, depth=58, dense=FeedForwardConfig(inner=18_432, **gated, **common), dense_depth=3,
        tied_output=False,
    )  # fmt: skip


def deepseek_v2(vocab: int = 102_400, *, precision: Precision = FLOAT32) -> DenseFirstConfig:
    """Return DeepSeek-V2: 60 layers, D=5120, 235.7 B parameters, of which a token uses 21 B."""
    router = GroupRouterConfig(score="softmax", correction=False, groups=8, kept=3, best=1, routed_scale=16.0)
    sizes = {"embed": 5120, "experts": 160, "active": 6, "shared": 2, "depth": 59, "dense_depth": 1, "mscale": 0.707}
    v3 = deepseek_v3(vocab, precision=precision)
    return _with_inner(with_fields(v3, router=router, normalized=False, **sizes), 1536, 12_288)


def deepseek_v2_lite(vocab: int = 102_400, *, precision: Precision = FLOAT32) -> DenseFirstConfig:
    """Return DeepSeek-V2-Lite: 27 layers, D=2048, 15.7 B parameters, of which a token uses 2.4 B."""
    sizes = {"embed": 2048, "heads": 16, "query_latent": None, "experts": 64, "depth": 26}
    router = GroupRouterConfig(score="softmax", correction=False, best=1)
    return _with_inner(with_fields(deepseek_v2(vocab, precision=precision), router=router, **sizes), 1408, 10_944)


def _with_inner(config: DenseFirstConfig, expert: int, dense: int) -> DenseFirstConfig:
    """Return a config whose experts and dense layers have these widths."""
    return replace(config, block=with_fields(config.block, inner=expert), dense=replace(config.dense, inner=dense))
