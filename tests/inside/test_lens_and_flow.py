"""Lenses are the head applied by hand; rollout, flow, norms, CKA and head scores are the papers' formulas."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from flax_transformer.inside import (
    agreement,
    attention_flow,
    attention_targets,
    cka_of_layers,
    debiased_cka,
    fit_tuned_lens,
    head_table,
    integrated_gradients,
    linear_cka,
    logit_lens,
    name_heads,
    new_translators,
    occlusion,
    rollout,
    shapley_values,
    starting_at,
    stream,
    tuned_lens,
    value_weighted_norms,
)
from flax_transformer.ops import capture, capture_all
from tests.inside.test_intervene import TOKENS, run, small

pytestmark = pytest.mark.proves("inside", "lenses, attributions, rollout, flow, norms, head scores, CKA")
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def model():
    return small()


def attention(L, N, T, causal=False):
    weights = RANDOM.random((L, N, T, T)).astype(np.float32) ** 3
    weights = np.tril(weights) if causal else weights
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.rotates
def test_the_logit_lens_is_the_head_applied_by_hand(model):
    found = jax.jit(logit_lens(run))(model, TOKENS)
    (states,) = capture(run, "hidden_states")(model, TOKENS)[1]
    for layer, state in enumerate(states):
        by_hand = model.output(model.trunk.norm(state)).logits()
        np.testing.assert_allclose(found[layer], by_hand, atol=1e-5)
    np.testing.assert_allclose(found[3], run(model, TOKENS), atol=1e-5)


def test_a_tuned_lens_begins_as_the_logit_lens_and_comes_closer_to_the_end(model):
    apart = lambda tokens: (tokens,)  # noqa: E731
    translators = new_translators(run, model, TOKENS)
    np.testing.assert_allclose(tuned_lens(run)(translators, model, TOKENS), logit_lens(run)(model, TOKENS), atol=1e-6)
    batches = [apart(jnp.asarray(RANDOM.integers(0, 11, (8, 6)))) for _ in range(40)]
    fitted, losses = fit_tuned_lens(run, batches, model)
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert fitted["kernel"].shape == (4, 16, 16)


@pytest.mark.rotates
def test_integrated_gradients_are_complete(model):
    (embedded,) = capture(run, "token_embedding")(model, TOKENS)[1]
    f = lambda x: jax.nn.log_softmax(starting_at(run, "token_embedding")(x, model, TOKENS))[0, -1, 3]  # noqa: E731
    found = jax.jit(lambda x: integrated_gradients(f, x, steps=50))(embedded)
    assert abs(float(found.error)) <= 1e-3
    np.testing.assert_allclose(found.values.sum(), f(embedded) - f(jnp.zeros_like(embedded)), atol=1e-3)


def test_shapley_values_over_all_orders_are_those_of_the_formula():
    weights = jnp.asarray(RANDOM.normal(size=(4, 4)))
    f = lambda x: jnp.tanh(x @ weights @ x) + x[0]  # noqa: E731
    x, base = np.array([0.5, -1.0, 0.3, 0.8]), np.array([0.1, 0.0, -0.2, 0.0])
    orders = np.array([*itertools.permutations(range(4))])
    found = shapley_values(f, x, np.arange(4), orders, base)
    expected = np.zeros(4)
    for order in orders:
        now = base.copy()
        for i in order:
            before = float(f(jnp.asarray(now)))
            now[i] = x[i]
            expected[i] += (float(f(jnp.asarray(now))) - before) / len(orders)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert float(found.sum()) == pytest.approx(float(f(jnp.asarray(x)) - f(jnp.asarray(base))), abs=1e-5)
    alone = [float(f(jnp.asarray(x))) - float(f(jnp.asarray(np.where(np.arange(4) == i, base, x)))) for i in range(4)]
    np.testing.assert_allclose(occlusion(f, x, np.arange(4), base, count=4), alone, atol=1e-5)


def test_agreement_is_the_rank_correlation():
    from scipy.stats import spearmanr

    both = RANDOM.normal(size=(2, 9)).round(1)
    assert agreement(dict(zip("ab", both, strict=True)))[0, 1] == pytest.approx(spearmanr(*both).statistic)


def test_rollout_is_the_product_of_mixed_layers():
    weights = attention(3, 2, 5)
    mixed = 0.5 * weights.mean(1) + 0.5 * np.eye(5)
    np.testing.assert_allclose(rollout(weights)[2], mixed[2] @ mixed[1] @ mixed[0], atol=1e-6)
    np.testing.assert_allclose(rollout(weights).sum(-1), 1, atol=1e-5)


def test_flow_is_the_largest_by_linear_programming():
    weights = attention(2, 2, 3)
    mixed, T = 0.5 * weights.mean(1) + 0.5 * np.eye(3), 3
    edges = [(layer, i, j) for layer in range(2) for i in range(T) for j in range(T)]
    capacity = [mixed[edge] for edge in edges]
    expected = np.zeros((T, T))
    for top, bottom in itertools.product(range(T), repeat=2):
        held = []
        for layer, node in itertools.product(range(3), range(T)):
            if (layer, node) not in ((2, top), (0, bottom)):  # what flows in flows out
                held.append([(e[0], e[2]) == (layer, node) for e in edges])
                held[-1] = np.array(held[-1], float) - [(e[0] + 1, e[1]) == (layer, node) for e in edges]
        cost = -np.array([(e[0] + 1, e[1]) == (2, top) for e in edges], float)
        best = linprog(cost, A_eq=np.array(held), b_eq=np.zeros(len(held)), bounds=[(0, c) for c in capacity])
        expected[top, bottom] = -best.fun
    np.testing.assert_allclose(attention_flow(weights), expected / expected.sum(-1, keepdims=True), atol=1e-5)


def test_norms_are_those_of_what_is_moved(model):
    names = ("attention_weights", "value", "out_kernel")
    values = capture_all(run, names.__contains__)(model, TOKENS)[1]
    weights, v, out = (np.asarray(values[name][0]) for name in names)
    found = value_weighted_norms(weights, v, out)
    moved = np.einsum("lbnts,lbsnh,lnhd->lbntsd", weights, v, out)
    np.testing.assert_allclose(found, np.linalg.norm(moved, axis=-1), atol=1e-6)


def test_cka_is_that_of_centred_gram_matrices():
    x, y = RANDOM.normal(size=(12, 5)), RANDOM.normal(size=(12, 7))
    centre = np.eye(12) - 1 / 12
    hsic = lambda a, b: np.trace(centre @ a @ a.T @ centre @ b @ b.T)  # noqa: E731
    expected = hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))
    assert float(linear_cka(jnp.asarray(x), jnp.asarray(y))) == pytest.approx(expected, rel=1e-4)


def test_a_layer_is_like_itself_turned(model):
    states = stream(run, model, jnp.asarray(RANDOM.integers(0, 11, (8, 6))))[1].reshape(4, 48, 16)
    turn = np.linalg.qr(RANDOM.normal(size=(16, 16)))[0]
    found = cka_of_layers(states, 3 * states @ turn)
    np.testing.assert_allclose(np.diagonal(found), 1, atol=1e-4)
    assert (np.asarray(found) <= 1 + 1e-4).all()


def test_debiased_cka_is_the_sum_over_different_examples():
    """The unbiased estimate of HSIC is a U-statistic: here over all quadruples, one by one."""
    x, y = RANDOM.normal(size=(6, 4)), RANDOM.normal(size=(6, 3))

    def hsic(a, b):
        k, o, found = a @ a.T, b @ b.T, []
        for i, j, q, r in itertools.permutations(range(6), 4):
            found.append(k[i, j] * (o[i, j] + o[q, r] - 2 * o[i, q]))
        return np.mean(found)

    expected = hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))
    assert float(debiased_cka(jnp.asarray(x), jnp.asarray(y))) == pytest.approx(expected, rel=1e-3)
    assert np.isnan(debiased_cka(jnp.asarray(x[:3]), jnp.asarray(y[:3])))


@pytest.mark.rotates
@settings(max_examples=20, deadline=None)
@given(st.integers(4, 9), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_debiased_cka_knows_no_turn_scale_or_order(n, D, E, seed):
    rng = np.random.default_rng(seed)
    x, y, turn = rng.normal(size=(n, D)), rng.normal(size=(n, E)), np.linalg.qr(rng.normal(size=(D, D)))[0]
    found, order = float(debiased_cka(jnp.asarray(x), jnp.asarray(y))), rng.permutation(n)
    other = float(debiased_cka(jnp.asarray(7 * (x @ turn)[order] + 1), jnp.asarray(y[order])))
    assert np.isnan(found) == np.isnan(other)
    assert np.isnan(found) or other == pytest.approx(found, abs=2e-2 * max(1, abs(found)))


def test_debiased_cka_is_about_nothing_where_plain_cka_is_about_all():
    pairs = RANDOM.normal(size=(60, 2, 8, 64))
    debiased, plain = (
        np.mean([float(f(*map(jnp.asarray, pair))) for pair in pairs]) for f in (debiased_cka, linear_cka)
    )
    assert abs(debiased) < 0.1
    assert plain > 0.8


def test_a_head_that_writes_nothing_is_not_named():
    ids = RANDOM.integers(0, 5, (2, 6))
    targets = attention_targets(ids)
    weights = np.broadcast_to(np.eye(6, k=-1), (1, 2, 3, 6, 6)).astype(np.float32)
    norms = weights * np.array([2.0, 1e-4, 1.0])[:, None, None]
    table = head_table(weights, targets, norms)
    np.testing.assert_allclose(table["written"], [[1, 5e-5, 0.5]], rtol=1e-5)
    assert name_heads(table, 0.8).keys() == {(0, 0), (0, 2)}
    assert name_heads(head_table(weights, targets), 0.8).keys() == {(0, 0), (0, 1), (0, 2)}


@pytest.mark.parametrize("kind", ["previous", "induction", "duplicate", "first", "delimiter", "offset +2"])
def test_a_head_that_looks_at_one_kind_alone_is_named(kind):
    ids = RANDOM.integers(0, 5, (3, 9))
    targets = attention_targets(ids, delimiters=(2,))
    weights = np.stack([np.full((3, 9, 9), 1 / 9), targets[kind] / np.maximum(targets[kind].sum(-1, keepdims=True), 1)])
    table = head_table(weights[:, :, None].astype(np.float32), targets)
    assert name_heads(table, 0.99) == {(1, 0): (kind, 1.0)}
    assert table["rank"][0, 0] == 1


@pytest.mark.rotates
def test_padding_is_no_target():
    targets = attention_targets(np.array([[1, 1, 1, 0]]), seen=np.array([[False, True, True, False]]))
    assert targets["first"][0].tolist() == [[False] * 4, *[[False, True, False, False]] * 2, [False] * 4]
    assert targets["previous"].sum() == 1
