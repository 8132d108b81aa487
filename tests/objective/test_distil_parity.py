"""Distillation against torch, as DeiT's own training computes it: hard, soft, its gradient."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import DistilLoss

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.parity, pytest.mark.proves("deit", "parity", "distillation, gradients too")]


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(("rows", "classes", "temperature"), [(5, 4, 1.0), (3, 11, 2.5), (8, 2, 20.0)])
def test_losses_and_gradients_equal_torch(kind, rows, classes, temperature):
    rng = np.random.default_rng(rows)
    first, second, teacher = (rng.standard_normal((rows, classes)).astype(np.float32) * 3 for _ in range(3))
    labels = rng.integers(classes, size=rows)

    def ours(first, second):
        model = SimpleNamespace(hidden_states=lambda key: None, both=lambda hidden: (first, second))
        batch = {
            "inputs": {},
            "labels": jnp.asarray(labels),
            "weights": jnp.ones(rows),
            "teacher": {"logits": jnp.asarray(teacher)},
        }
        loss, metrics = DistilLoss(kind=kind, weight=0.4, temperature=temperature, label_smoothing=0.1)(model, batch)
        return loss / metrics["count"]

    heads = [torch.tensor(each, requires_grad=True) for each in (first, second)]
    functional, answers = torch.nn.functional, torch.tensor(teacher)
    taught = functional.cross_entropy(heads[1], answers.argmax(-1))
    if kind == "soft":
        scores = (functional.log_softmax(each / temperature, dim=-1) for each in (heads[1], answers))
        taught = functional.kl_div(*scores, reduction="batchmean", log_target=True) * temperature**2
    loss = 0.6 * functional.cross_entropy(heads[0], torch.tensor(labels), label_smoothing=0.1) + 0.4 * taught
    loss.backward()
    value, gradients = jax.value_and_grad(ours, (0, 1))(jnp.asarray(first), jnp.asarray(second))
    np.testing.assert_allclose(value, loss.item(), rtol=1e-5)
    for got, head in zip(gradients, heads, strict=True):
        np.testing.assert_allclose(got, head.grad, rtol=1e-4, atol=1e-6)
