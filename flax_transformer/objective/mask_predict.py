"""What conditional masked language models are trained on (Ghazvininejad et al. 2019,
https://arxiv.org/abs/1904.09324, section 2): masked tokens of a target, and how long it is.

Axes: B rows, T positions, E lengths there are, with 0.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.objective.objective import Batch, Loss
from flax_transformer.objective.token import TokenLoss
from flax_transformer.ops import cross_entropy
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.train.mean import Mean


@frozen
class MaskPredictLoss(TokenLoss):
    """Sum the cross-entropy of the masked tokens of targets, and of the targets' lengths.

    The batch is that of any encoder-decoder: `labels` end with an end mark, which is left out, as lengths say where a
    target ends; the start token, first in the inputs' `target`, stands for what is masked. With a key 1 to N of a
    row's N tokens are masked, each number as often, at random places; without one all are, as in the first pass of
    decoding. Both sums are divided by the masked tokens in the end; `length_loss` is reported as the mean over rows.

    The model gives `encode(source, lengths, key=)`, `length_scores(memory)` [B, E] and `decode(target, memory, lengths,
    target_lengths=, key=)`.
    """

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "perplexity": "lower", "length_loss": "lower"}

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch."""
        model = own_tables(model)
        hidden, masked, lengths = self.predicted(model, batch, key)
        total, count, _ = self.scores(model, hidden, masked)
        return total + lengths.total, {"count": count, "length_loss": lengths}

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum the loss of the first pass; `plain`, without smoothing, is what perplexity is made of."""
        model = own_tables(model)
        hidden, masked, lengths = self.predicted(model, batch, None)
        total, count, _ = self.scores(model, hidden, masked)
        plain = TokenLoss(chunk=self.chunk).scores(model, hidden, masked)[0]
        return {"loss": total + lengths.total, "plain": plain, "count": count, "length_loss": lengths}

    def predicted(self, model: Any, batch: Batch, key: jax.Array | None) -> tuple[Array, Batch, Mean]:
        """Mask targets and read them.

        Returns:
          Hidden states; the labels with weights where they are masked; the loss of lengths, a mean over rows.

        Raises:
          ValueError: rows of more tokens than the model knows lengths.
        """
        inputs, labels = batch["inputs"], batch["labels"]
        keys = split_keys(key, 3)
        counts = jnp.maximum((batch["weights"] > 0).sum(axis=-1) - 1, 0)
        masked = draw_masks(counts, labels.shape[1], keys[0])
        memory = model.encode(inputs["source"], inputs.get("lengths"), key=keys[1])
        scores, present = model.length_scores(memory), (counts > 0).astype(jnp.float32)
        if labels.shape[1] > scores.shape[-1]:
            raise ValueError(
                f"a target must not be longer than the lengths that are predicted, got rows of {labels.shape[1] - 1} "
                f"tokens, lengths up to {scores.shape[-1] - 1}"
            )
        target = jnp.where(masked, inputs["target"][:, :1], labels)
        hidden = model.decode(target, memory, inputs.get("lengths"), target_lengths=counts, key=keys[2])
        lengths = Mean(*cross_entropy(scores, counts, present))
        return hidden, {"labels": labels, "weights": masked.astype(jnp.float32)}, lengths


def draw_masks(counts: Int[Array, "B"], length: int, key: PRNGKeyArray | None) -> Bool[Array, "B {length}"]:
    """Choose which tokens of each row are masked: any number of its first `counts`, at least one; all without a key.

    >>> draw_masks(jnp.array([2, 0]), 3, None).astype(int).tolist()
    [[1, 1, 0], [0, 0, 0]]
    """
    real = jnp.arange(length) < counts[:, None]
    if key is None:
        return real
    keys = jax.random.split(key)
    many = 1 + jnp.floor(jax.random.uniform(keys[0], counts.shape) * counts).astype(jnp.int32)
    order = jnp.where(real, jax.random.uniform(keys[1], real.shape), 2.0)
    rank = jnp.argsort(jnp.argsort(order, axis=-1), axis=-1)
    return real & (rank < many[:, None])
