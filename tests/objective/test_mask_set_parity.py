"""The loss of masks against transformers: matching, points where masks are least sure, every layer, gradients."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.mask2former import modeling_mask2former as published  # noqa: E402

from flax_transformer.objective import MaskSetLoss  # noqa: E402
from flax_transformer.ops.split_keys import split_keys  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("mask2former", "parity", "its loss and the gradient, at the same points"),
]

B, L, Q, E = 3, 3, 7, 4


class Answers:
    """A model whose answers are given."""

    def __init__(self, logits, masks):
        self.answers = SimpleNamespace(logits=logits, masks=masks)

    def hidden_states(self, *, key=None):
        return None

    def output(self, hidden, *, key=None):
        return self.answers


def batch_of(counts, size, random):
    """Draw segments in blocks, each of which has pixels: two without any, of one class, could be matched either way."""
    M = max(counts)
    there = np.arange(M) < np.array(counts)[:, None]
    blocks = [random.permutation(np.append(np.arange(n), random.integers(-1, n, 12 - n))) for n in counts]
    segments = np.stack(blocks).reshape(B, 3, 4).repeat(4, 1).repeat(5, 2)[:, : size[0], : size[1]]
    assert all({*range(n)} <= {*np.unique(each)} for n, each in zip(counts, segments, strict=True))
    labels = {
        "segments": jnp.asarray(segments, jnp.int32), "classes": jnp.asarray(random.integers(0, E, (B, M)), jnp.int32),
        "weights": jnp.asarray(there, jnp.float32),
    }  # fmt: skip
    return {"inputs": {}, "labels": labels, "weights": jnp.ones(B)}


def theirs(objective, batch, logits, masks, key, monkeypatch):
    """Compute what transformers does of the points that the objective draws, in the order in which it asks for them."""
    labels = batch["labels"]
    there = np.asarray(labels["weights"]) > 0
    drawn, order, layers = [], [], logits.shape[1] if objective.auxiliary else 1
    keys = split_keys(split_keys(key, 3)[2], layers)
    for i in [layers - 1, *range(layers - 1)]:
        points = objective.draw(keys[i], *there.shape)
        drawn += [np.asarray(each)[None] for each in points.match]
        drawn += [np.asarray(each) for each in (points.candidates, points.rest) if each.shape[2]]

    def rand(*shape, device=None):
        """Of all images the segments come in the order of the answers that they are matched with."""
        found = drawn.pop(0)
        found = (
            np.concatenate([each[at] for each, at in zip(found, order[-B:], strict=True)]) if found.ndim == 4 else found
        )
        assert found.shape == shape
        return torch.tensor(found)

    monkeypatch.setattr(torch, "rand", rand)
    config = transformers.Mask2FormerConfig(
        num_labels=E, no_object_weight=objective.no_object_weight, train_num_points=objective.points,
        oversample_ratio=objective.oversample, importance_sample_ratio=objective.importance,
        class_weight=objective.class_weight, mask_weight=objective.mask_weight, dice_weight=objective.dice_weight,
    )  # fmt: skip
    model = SimpleNamespace(
        weight_dict={
            "loss_cross_entropy": config.class_weight, "loss_mask": config.mask_weight, "loss_dice": config.dice_weight,
        }
    )  # fmt: skip
    model.criterion = published.Mask2FormerLoss(config, model.weight_dict)
    model.criterion.matcher.register_forward_hook(lambda *call: order.extend(each[1].numpy() for each in call[2]))
    given = [torch.tensor(np.asarray(each), requires_grad=True) for each in (logits, masks)]
    ids = torch.tensor(np.asarray(labels["segments"]))
    numbers = [torch.arange(int(each.sum())) for each in there]
    parts = published.Mask2FormerForUniversalSegmentation.get_loss_dict(
        model, given[1][:, -1], given[0][:, -1],
        [(row == number[:, None, None]).float() for row, number in zip(ids, numbers, strict=True)],
        [torch.tensor(np.asarray(row)[: len(number)]).long() for row, number in zip(
            labels["classes"], numbers, strict=True)],
        [{"masks_queries_logits": given[1][:, i], "class_queries_logits": given[0][:, i]}
         for i in range(layers - 1)] if objective.auxiliary else None,
    )  # fmt: skip
    loss = sum(parts.values())
    loss.backward()
    assert not drawn
    return float(loss.detach()), [each.grad.numpy() for each in given]


@pytest.mark.parametrize(
    ("options", "counts", "size", "grid"),
    [
        ({"points": 40}, (2, 5, 3), (12, 20), (6, 10)),
        ({"points": 33, "oversample": 2.5, "importance": 0.6, "no_object_weight": 0.4}, (1, 7, 7), (11, 17), (5, 3)),
        ({"points": 24, "auxiliary": False, "mask_weight": 3.0, "class_weight": 0.5}, (4, 1, 2), (9, 16), (4, 7)),
        ({"points": 16, "importance": 1.0, "dice_weight": 1.5}, (3, 3, 1), (12, 16), (12, 16)),
    ],
)
def test_the_loss_and_its_gradient_are_those_of_transformers(options, counts, size, grid, monkeypatch):
    random, objective, key = np.random.default_rng(0), MaskSetLoss(**options), jax.random.key(3)
    batch = batch_of(counts, size, random)
    logits = jnp.asarray(2 * random.normal(size=(B, L, Q, E + 1)), jnp.float32)
    masks = jnp.asarray(3 * random.normal(size=(B, L, Q, *grid)), jnp.float32)
    expected, slopes = theirs(objective, batch, logits, masks, key, monkeypatch)

    def loss(logits, masks):
        total, metrics = objective(Answers(logits, masks), batch, key=key)
        return total / metrics["count"]

    found, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(logits, masks)
    assert abs(float(found) - expected) <= 1e-5 * abs(expected)
    for ours, other in zip(gradients, slopes, strict=True):
        assert np.abs(other).max() > 1e-3
        np.testing.assert_allclose(ours, other, atol=1e-5 * np.abs(other).max())
