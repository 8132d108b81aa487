"""Language models: the loss of held-out text, and how they go on from it."""

import math
from typing import ClassVar

import jax
import numpy as np

from flax_transformer.frozen import frozen
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown


@frozen
class TextLoss(Evaluator):
    """Measure the loss of held-out text a token, and in bits a character, which other tokenizers can be compared by.

    Held out is a `HeldText`.
    """

    metric: ClassVar[str] = "loss"
    better: ClassVar[str] = "lower"

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held = finished.opened.held
        metrics = tested(finished.objective, finished.model, finished.opened.test())
        loss = metrics["loss"]
        metrics["bits_per_character"] = loss * len(held.windows.tokens) / held.characters / math.log(2)
        line = f"validation loss {loss:.4f} a token, {metrics['bits_per_character']:.3f} bits a character"
        if finished.before:
            metrics["loss_before"] = finished.before["loss"]
            line = f"validation loss {finished.before['loss']:.4f} before, {loss:.4f} after"
        return Shown(metrics=metrics, lines=("", line))


@frozen
class Continuations(Evaluator):
    """Let a language model go on from pieces of held-out text, which is a `HeldText`."""

    exported: ClassVar[bool] = True

    count: int = 3
    """Pieces."""
    temperature: float = 0.8
    """Of what is drawn."""

    def __post_init__(self):
        if self.count < 1 or self.temperature <= 0:
            raise ValueError(f"count must be at least 1, temperature above 0, got {self.count}, {self.temperature}")

    def __call__(self, finished: Finished) -> Shown:
        """Write."""
        windows, pretrained = finished.opened.held.windows, finished.pretrained
        prompt = max(min(32, windows.length // 2), 1)
        starts = np.linspace(0, len(windows) - 1, self.count, dtype=int)
        ids = np.stack([windows[int(start)]["tokens"][:prompt] for start in starts])
        options = {"temperature": self.temperature, "top_k": 0, "max_new_tokens": windows.length - prompt + 1}
        key = jax.random.key(finished.seed)
        written = np.asarray(pretrained.generate(ids, do_sample=True, key=key, **options))[:, prompt:]
        pairs = list(zip(pretrained.tokenizer.decode(ids), pretrained.tokenizer.decode(written), strict=True))
        lines = [
            line
            for before, after in pairs
            for line in ("", f"  {before!r} →", *(f"    {line}" for line in after.splitlines()))
        ]
        return Shown(samples=[{"source": before, "hypothesis": after} for before, after in pairs], lines=lines)
