"""Losses of DistilBERT, TinyBERT and MiniLM against torch, as their papers and training scripts compute them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import (
    AttentionRelations,
    AttentionScoreError,
    CosineEmbedding,
    HiddenStateError,
)
from flax_transformer.objective.distil import soft_targets
from flax_transformer.objective.layer_term import BothLayers

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("distillation of texts", "every loss by NumPy and PyTorch, gradients too"),
]

B, T, N, H, D, W = 4, 6, 3, 8, 24, 40
RNG = np.random.default_rng(0)
LENGTHS = np.array([6, 3, 5, 1])
REAL = np.arange(T) < LENGTHS[:, None]


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32)


OWN = {"hidden_states": drawn(3, B, T, D), "query": drawn(2, B, T, N, H), "key": drawn(2, B, T, N, H),
       "value": drawn(2, B, T, N, H)}  # fmt: skip
THEIRS = {name: drawn(*each.shape) for name, each in OWN.items()}


def both(own, project=lambda x: x, theirs=THEIRS):
    teacher = {name: {str(i): jnp.asarray(each[i]) for i in range(len(each))} for name, each in theirs.items()}
    return BothLayers(student=own, teacher=teacher, real=jnp.asarray(REAL), project=project)


def check(term, reference, names):
    """Compare a term and its gradient by some values with torch's."""
    ours = {name: jnp.asarray(each) for name, each in OWN.items()}
    value, gradient = jax.value_and_grad(lambda own: term(both(own)).value())(ours)
    own = {name: torch.tensor(each, requires_grad=True) for name, each in OWN.items()}
    loss = reference(own, {name: torch.tensor(each) for name, each in THEIRS.items()})
    loss.backward()
    np.testing.assert_allclose(value, loss.item(), rtol=2e-5)
    for name in names:
        np.testing.assert_allclose(gradient[name], own[name].grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_soft_targets_are_torchs_divergence(temperature):
    scores, teacher = 3 * drawn(10, 50), 3 * drawn(10, 50)
    divergence = torch.nn.KLDivLoss(reduction="batchmean")
    other = torch.tensor(scores, requires_grad=True)
    logs = functional.log_softmax(other / temperature, dim=-1)
    loss = divergence(logs, functional.softmax(torch.tensor(teacher) / temperature, dim=-1)) * temperature**2
    loss.backward()
    f = lambda x: soft_targets(x, jnp.asarray(teacher), jnp.ones(10), temperature) / 10  # noqa: E731
    value, gradient = jax.value_and_grad(f)(jnp.asarray(scores))
    np.testing.assert_allclose(value, loss.item(), rtol=1e-4)
    np.testing.assert_allclose(gradient, other.grad, rtol=1e-4, atol=1e-6)


def test_the_cosine_is_torchs_cosine_embedding_loss():
    def reference(own, theirs):
        one, other = own["hidden_states"][-1][REAL], theirs["hidden_states"][-1][REAL]
        return torch.nn.CosineEmbeddingLoss(reduction="mean")(one, other, torch.ones(len(one)))

    check(CosineEmbedding(layers=((-1, 2),)), reference, ["hidden_states"])


def test_hidden_states_are_tinyberts_through_a_matrix():
    """L_hidn = MSE(H_S W_h, H_T), equation 8."""
    matrix, wide = drawn(D, W), drawn(3, B, T, W)
    layers = ((0, 0), (1, 1), (2, 2))

    def ours(own, matrix):
        theirs = {**THEIRS, "hidden_states": wide}
        return HiddenStateError(layers=layers)(both({"hidden_states": own}, lambda x: x @ matrix, theirs)).value()

    value, gradients = jax.value_and_grad(ours, (0, 1))(jnp.asarray(OWN["hidden_states"]), jnp.asarray(matrix))
    own, weight = torch.tensor(OWN["hidden_states"], requires_grad=True), torch.tensor(matrix, requires_grad=True)
    mse = torch.nn.MSELoss()
    loss = sum(mse((own[i] @ weight)[REAL], torch.tensor(wide[i])[REAL]) for i in range(3))
    loss.backward()
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    for got, expected in zip(gradients, (own.grad, weight.grad), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-6)


def scores(q, k):
    return torch.einsum("btnh,bsnh->bnts", q, k) / H**0.5


def test_attention_scores_are_tinyberts():
    """L_attn = 1/h Σ MSE(A_i^S, A_i^T) of scores before the softmax, equation 7."""
    pairs = torch.tensor(REAL[:, None, :, None] & REAL[:, None, None, :]).expand(B, N, T, T)

    def reference(own, theirs):
        one, other = (scores(each["query"][1], each["key"][1])[pairs] for each in (own, theirs))
        return torch.nn.MSELoss()(one, other)

    check(AttentionScoreError(layers=((1, 1),)), reference, ["query", "key"])


def divergence(one, other):
    """1 / (A |x|) Σ_a Σ_t KL(R^T ‖ R^S) over positions that are there."""
    hidden = torch.tensor(~REAL)[:, None, None, :]
    logs = functional.log_softmax(one.masked_fill(hidden, torch.finfo(torch.float32).min), dim=-1)
    target = functional.softmax(other.masked_fill(hidden, torch.finfo(torch.float32).min), dim=-1)
    each = functional.kl_div(logs, target, reduction="none").sum(-1)
    return each.mean(1)[torch.tensor(REAL)].mean()


def test_relations_of_the_last_layer_are_minilms():
    """L = L_AT + L_VR, equations 3 to 5."""

    def reference(own, theirs):
        attention = divergence(*(scores(each["query"][-1], each["key"][-1]) for each in (own, theirs)))
        return attention + divergence(*(scores(each["value"][-1], each["value"][-1]) for each in (own, theirs)))

    check(AttentionRelations(layers=((-1, 1),)), reference, ["query", "key", "value"])


def test_relations_of_other_heads_are_minilmv2s():
    """Queries, keys and values side by side, cut into relation heads, equation 5."""
    heads = 4

    def relation(x):
        cut = x.reshape(B, T, heads, N * H // heads).transpose(1, 2)
        return cut @ cut.transpose(-1, -2) / cut.shape[-1] ** 0.5

    def reference(own, theirs):
        names = ("query", "key", "value")
        return sum(divergence(*(relation(each[name][-1]) for each in (own, theirs))) for name in names)

    relations = ("query-query", "key-key", "value-value")
    check(AttentionRelations(layers=((-1, 1),), relations=relations, heads=heads), reference, ["query", "key", "value"])
