"""Latent attention: one function in two forms, what its cache holds, and experts that are chosen in groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import (
    FeedForward,
    GroupRouterConfig,
    LatentAttention,
    LatentAttentionConfig,
    Rotary,
    SharedExperts,
    SharedExpertsConfig,
    cache_bytes,
    quantize_cache,
    with_fields,
)
from flax_transformer.ops import Mask, YarnScaling, capture
from flax_transformer.ops.token_choice import choose_in_groups

pytestmark = pytest.mark.proves("attention", "latent: absorbed as expanded, gradients too, the cache by its numbers")

CFG = LatentAttentionConfig(
    embed=24, heads=3, head_width=5, latent=13, rotary_width=4, query_latent=9, value_head=7, rotary=Rotary(),
    bias=False, init_std=0.4,
)  # fmt: skip
YARN = Rotary(base=100.0, frequencies=YarnScaling(factor=4.0, original_length=4))
KINDS = {
    "as published": CFG,
    "whole queries, halves, biases": with_fields(CFG, query_latent=None, interleaved=False, bias=True),
    "wide values, YaRN": with_fields(CFG, value_head=16, rotary=YARN, mscale=0.7),
    "no positions, one head": with_fields(CFG, rotary=None, heads=1),
}
X = jax.random.normal(jax.random.key(1), (2, 6, 24))


def make(cfg):
    """Make a layer whose norms and biases say something."""
    layer = cfg.build(nnx.Rngs(0))
    leaves, shape = jax.tree.flatten(layer)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    moved = [x + 0.3 * jax.random.normal(k, x.shape) if x.ndim == 1 else x for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(shape, moved)


def at_once(layer, x):
    return layer(x, mask=Mask(causal=True))


def by_steps(layer, x, prompt=2):
    """Read a prompt, then a token at a time."""
    y, cache = layer.extend(x[:, :prompt], layer.init_cache(len(x), x.shape[1]))
    found = [y]
    for t in range(prompt, x.shape[1]):
        y, cache = layer.extend(x[:, t : t + 1], cache)
        found.append(y)
    return jnp.concatenate(found, axis=1)


def naive(layer, x):
    """Compute what the paper's equations 37 to 47 say, a head and a query at a time."""
    cfg, kernel = layer.cfg, lambda name: np.asarray(getattr(layer, name).kernel[...], np.float64)
    x = np.asarray(x, np.float64)
    bias = lambda name: 0.0 if getattr(layer, name).bias is None else np.asarray(getattr(layer, name).bias[...])  # noqa: E731

    def norm(y, name):
        return (
            y / np.sqrt((y**2).mean(-1, keepdims=True) + cfg.latent_norm) * np.asarray(getattr(layer, name).scale[...])
        )

    def turn(y):
        if cfg.rotary is None:
            return y
        R = cfg.rotary_width
        speed = np.asarray(cfg.rotary.frequencies(R, cfg.rotary.base), np.float64)
        swell = getattr(cfg.rotary.frequencies, "amplitude", 1.0)
        made = np.empty_like(y)
        for t in range(y.shape[-2]):
            for i in range(R // 2):
                a, b = (2 * i, 2 * i + 1) if cfg.interleaved else (i, i + R // 2)
                c, s = np.cos(t * speed[i]) * swell, np.sin(t * speed[i]) * swell
                made[..., t, a] = y[..., t, a] * c - y[..., t, b] * s
                made[..., t, b] = y[..., t, b] * c + y[..., t, a] * s
        return made

    low = x if cfg.query_latent is None else norm(x @ kernel("query_down") + bias("query_down"), "query_norm")
    both = x @ kernel("latent") + bias("latent")
    latent, shared = norm(both[..., : cfg.latent], "latent_norm"), turn(both[..., cfg.latent :])
    scale = 1 / np.sqrt(cfg.width + cfg.rotary_width)
    if cfg.mscale:
        scale *= (0.1 * cfg.mscale * np.log(cfg.rotary.frequencies.factor) + 1) ** 2
    y = np.zeros((*x.shape[:2], cfg.embed))
    for n in range(cfg.heads):
        q = low @ kernel("query")[:, n]
        k, v = latent @ kernel("key")[:, n], latent @ kernel("value")[:, n]
        scores = q[..., : cfg.width] @ np.swapaxes(k, 1, 2) + turn(q[..., cfg.width :]) @ np.swapaxes(shared, 1, 2)
        scores = np.where(np.tri(x.shape[1], dtype=bool), scores * scale, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y += weights / weights.sum(-1, keepdims=True) @ v @ kernel("out")[n]
    return y + bias("out")


@pytest.mark.rotates
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_the_paper_says(kind):
    layer = make(KINDS[kind])
    expected = naive(layer, X)
    np.testing.assert_allclose(at_once(layer, X), expected, atol=3e-6 * np.abs(expected).max())


@pytest.mark.rotates
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_absorbed_and_equal_the_expanded_form_with_all_gradients(kind):
    layer, weights = make(KINDS[kind]), jnp.sin(jnp.arange(X.size)).reshape(X.shape)
    assert layer.cfg.absorbs(1, 6)
    assert not layer.cfg.absorbs(6, 6)

    def both(run):
        def loss(layer, x):
            y = run(layer, x)
            return jnp.sum(y * weights), y

        (_, y), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(layer, X)
        return y, gradients

    for one, other in zip(*(jax.tree.leaves(both(run)) for run in (by_steps, at_once)), strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6 * float(jnp.abs(other).max()))


def test_the_form_is_that_of_fewer_products():
    """V3's: a hundred queries are absorbed where 4,096 positions are remembered, and a thousand are not."""
    cfg = LatentAttentionConfig(embed=7168, heads=128, head_width=128, latent=512, rotary_width=64)
    assert [cfg.absorbs(T, 4096) for T in (1, 100, 1000, 4096)] == [True, True, False, False]
    assert not cfg.absorbs(64, 64)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_cache_is_latents_and_rotary_keys_alone(batch):
    cache = make(CFG).init_cache(batch, 10)
    assert cache_bytes(cache) == 4 * batch * 10 * (CFG.latent + CFG.rotary_width)
    assert sum(leaf.size for leaf in jax.tree.leaves(cache) if leaf.ndim) == batch * 10 * (13 + 4)
    assert cache_bytes(quantize_cache(cache, "int8")) == batch * 10 * (13 + 4 + 2 * 4)


@pytest.mark.rotates
def test_a_cache_of_int8_is_near():
    layer = make(CFG)
    _, cache = layer.extend(X[:, :5], layer.init_cache(2, 6))
    plain, _ = layer.extend(X[:, 5:], cache)
    few, after = layer.extend(X[:, 5:], quantize_cache(cache, "int8"))
    assert after.value.qvalue.dtype == jnp.int8
    assert 0 < float(jnp.linalg.norm(few - plain)) < 0.02 * float(jnp.linalg.norm(plain))


@pytest.mark.rotates
@pytest.mark.parametrize("beams", [1, 3])
def test_hypotheses_share_a_prompt(beams):
    """Each goes on from the prompt alone, as rows that have the prompt each do."""
    layer = make(CFG)
    _, cache = layer.extend(X[:, :3], layer.init_cache(2, 3))
    next_ = jax.random.normal(jax.random.key(5), (2 * beams, 2, 24))
    forked = cache.fork(beams, 5)
    found = []
    for t in range(2):
        y, forked = layer.extend(next_[:, t : t + 1], forked, positions=jnp.full((1, 1), 3 + t))
        found.append(y)
    whole = jnp.concatenate([jnp.repeat(X[:, :3], beams, axis=0), next_], axis=1)
    np.testing.assert_allclose(jnp.concatenate(found, 1), at_once(layer, whole)[:, 3:], atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"kv_heads": 1}, "keys of all N=3 heads are made of one latent, .* got K=1"),
        ({"qk_norm": 1e-6}, "have no norm of their own, got K=3, qk_norm=1e-06"),
        ({"rotary_width": 3}, "an even head width, got H=3"),
        ({"latent": 0}, "latent must be at least 1, got 0"),
        ({"mscale": 1.0}, "mscale is of rotary frequencies that a factor slows, got mscale=1.0"),
    ],
)
def test_what_cannot_be_is_refused(fields, match):
    with pytest.raises(ValueError, match=match):
        with_fields(CFG, **fields)


@pytest.mark.rotates
def test_values_of_heads_can_be_captured():
    layer = make(CFG)
    for name, shape in {"value": (2, 6, 3, 7), "key": (2, 6, 3, 9), "latent": (2, 6, 1, 13)}.items():
        assert [each.shape for each in capture(at_once, name)(layer, X)[1]] == [shape]


def test_a_memory_is_refused():
    with pytest.raises(ValueError, match="latent attention is of a sequence to itself, got a memory"):
        make(CFG)(X, X)
    assert isinstance(CFG.build(nnx.Rngs(0)), LatentAttention)


EXPERTS = SharedExpertsConfig(
    embed=8, inner=6, experts=6, active=2, shared=2, activation="silu", gated=True, bias=False, init_std=0.5,
    router=GroupRouterConfig(groups=3, kept=2, best=2, routed_scale=1.5),
)  # fmt: skip


def experts_by_hand(layer, x):
    """Do it token by token."""
    cfg, how = layer.cfg, layer.cfg.router
    logits = np.asarray(x @ layer.router.kernel[...], np.float64)
    scores = 1 / (1 + np.exp(-logits))
    if how.score == "softmax":
        scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    ranked = scores + (np.asarray(layer.correction[...]) if how.correction else 0)
    made = [jax.tree.map(lambda leaf, e=e: leaf[e], layer.experts)(x) for e in range(cfg.experts)]
    y = np.array(layer.shared(x), np.float64)
    size = cfg.experts // how.groups
    for at in np.ndindex(x.shape[:-1]):
        worth = [np.sort(ranked[at][g * size : (g + 1) * size])[-how.best :].sum() for g in range(how.groups)]
        kept = np.argsort(worth)[-how.kept :]
        open_ = [e for e in range(cfg.experts) if e // size in kept]
        best = sorted(open_, key=lambda e: -ranked[at][e])[: cfg.active]
        total = sum(scores[at][e] for e in best) if cfg.normalized else 1
        for e in best:
            y[at] += how.routed_scale * scores[at][e] / total * np.asarray(made[e])[at]
    return y


ROUTERS = {
    "v3": {},
    "v2": {"normalized": False, "score": "softmax", "correction": False, "best": 1},
    "one group": {"groups": 1, "kept": 1, "active": 4},
}


def make_experts(**fields):
    layer = with_fields(EXPERTS, **fields).build(nnx.Rngs(0))
    if layer.cfg.router.correction:
        layer.correction = nnx.Param(0.4 * jax.random.normal(jax.random.key(7), (6,)))
    return layer


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ROUTERS)
def test_each_token_is_what_its_experts_and_the_shared_ones_make_of_it(kind):
    layer, x = make_experts(**ROUTERS[kind]), jax.random.normal(jax.random.key(3), (2, 9, 8))
    np.testing.assert_allclose(layer(x), experts_by_hand(layer, x), atol=1e-5)
    roomy = make_experts(**ROUTERS[kind], capacity=6.0)
    np.testing.assert_allclose(roomy(x), layer(x), atol=1e-5)
    assert isinstance(layer, SharedExperts)
    assert isinstance(layer.shared, FeedForward)
    assert layer.shared.up.kernel.shape == (8, 12)


@pytest.mark.rotates
def test_the_correction_chooses_and_does_not_weigh():
    layer, x = make_experts(), jax.random.normal(jax.random.key(3), (2, 9, 8))
    gradient = jax.grad(lambda layer: jnp.sum(layer(x) ** 2))(layer)
    assert not np.any(gradient.correction[...])
    assert float(jnp.abs(gradient.router.kernel[...]).max()) > 1e-3
    other = make_experts()
    other.correction = nnx.Param(layer.correction[...] + 3.0)  # of all alike: nobody is chosen otherwise
    np.testing.assert_allclose(other(x), layer(x), atol=1e-6)
    other.correction = nnx.Param(layer.correction[...].at[0].add(3.0))
    assert float(jnp.abs(other(x) - layer(x)).max()) > 0.01


@pytest.mark.rotates
def test_balance_is_even_where_scores_are():
    layer, x = make_experts(routed_scale=1.0), jax.random.normal(jax.random.key(3), (2, 9, 8))
    layer.router.kernel = nnx.Param(jnp.zeros((8, 6)))
    np.testing.assert_allclose(layer.observe(x)[1]["balance"], 2.0, rtol=1e-6)


def test_groups_that_are_not_kept_have_no_experts():
    scores = jax.random.normal(jax.random.key(0), (50, 12))
    chosen = choose_in_groups(scores, 5, groups=4, kept=2, best=2)
    assert all(
        len(set(row // 3)) == 2 and len(set(row)) == 5 for row in np.asarray(chosen).tolist() for row in [np.array(row)]
    )


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"groups": 4}, "groups must divide the experts, .* got E=6, groups=4, kept=2, best=2"),
        ({"kept": 4}, "some be kept, .* kept=4"),
        ({"best": 3}, "the best be in one, .* best=3"),
        ({"active": 5}, "1 to 4 experts, those of 2 groups, got 5"),
        ({"shared": 0}, "shared must be at least 1, got 0"),
    ],
)
def test_groups_that_cannot_be_are_refused(fields, match):
    with pytest.raises(ValueError, match=match):
        with_fields(EXPERTS, **fields)
