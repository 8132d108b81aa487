"""The loss of texts over all ways of laying them along a recording, and its gradient, against torch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import CTCLoss
from tests.objective.test_ctc import Scores, batch, draw

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.parity, pytest.mark.proves("wav2vec2", "train", "the CTC loss, gradients too")]


@pytest.mark.parametrize("blank", [0, 4])
def test_loss_and_gradient_are_those_of_torch(blank):
    logits = draw(3, 12, 5)
    labels = np.random.default_rng(1).integers(0, 4, (3, 6)) + (blank == 0)
    counts, lengths = np.array([6, 3, 1]), np.array([24, 21, 9])
    given = batch(logits, labels, np.arange(6) < counts[:, None], lengths)
    ours = lambda scores: CTCLoss(blank=blank)(  # noqa: E731
        Scores(), {**given, "inputs": {**given["inputs"], "scores": scores}}
    )[0]
    loss, slope = jax.value_and_grad(ours)(jnp.asarray(logits))
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        theirs.log_softmax(-1).swapaxes(0, 1), torch.tensor(labels), torch.tensor(lengths // 2), torch.tensor(counts),
        blank=blank, reduction="sum", zero_infinity=True,
    )  # fmt: skip
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(slope, theirs.grad, atol=1e-5)
