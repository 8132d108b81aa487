"""Masked language models: how many masked tokens they guess, and some of them."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer import hub
from flax_transformer.frozen import frozen
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown


@frozen
class Guesses(Evaluator):
    """Measure what the model is trained on, and let it guess one token of some held-out lines."""

    exported: ClassVar[bool] = True
    metric: ClassVar[str] = "masked_accuracy"

    count: int = 5
    """Lines shown."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        lines, pretrained = finished.opened.held, finished.pretrained
        metrics = tested(finished.objective, pretrained.model, finished.opened.test())
        length = next(iter(finished.opened.test()))["inputs"]["tokens"].shape[1]
        texts = [line for line in lines if len(line.split()) > 4] or lines
        places = np.linspace(0, len(texts) - 1, self.count, dtype=int)
        samples = [fill(pretrained, texts[int(place)], length) for place in places]
        said = [f"loss {metrics.get('masked_loss', metrics['loss']):.3f} a masked token",
                f"{100 * metrics['masked_accuracy']:.1f} % of them guessed"]  # fmt: skip
        if "sentence_accuracy" in metrics:
            said.append(f"{100 * metrics['sentence_accuracy']:.1f} % of next sentences told from others")
        shown = [line for each in samples for line in ("", f"  {each['source']}", f"    {each['hypothesis']}")]
        return Shown(metrics=metrics, samples=samples, lines=(*shown, "", f"validation: {', '.join(said)}"))


def fill(pretrained: hub.Pretrained, text: str, length: int, top: int = 3) -> dict[str, str]:
    """Mask one token in the middle of a text and let the model guess it.

    Returns:
      The text with its masked token as `source`, the best guesses as `hypothesis`, the token as `target`.
    """
    tokenizer, model = pretrained.tokenizer, pretrained.model
    ids = tokenizer([text], max_length=length, truncate=True)["input_ids"][0].tolist()
    special = (tokenizer.pad, tokenizer.cls, tokenizer.sep)
    open_ = [place for place, id in enumerate(ids) if id not in special]
    # The longest token of the middle third says more than a comma would.
    middle = open_[len(open_) // 3 : -(-2 * len(open_) // 3)] or open_
    place = max(middle, key=lambda i: len(tokenizer.decode([[ids[i]]])[0]))
    masked = np.full((1, length), tokenizer.pad, np.int32)
    masked[0, : len(ids)] = [*ids[:place], tokenizer.mask, *ids[place + 1 :]]
    hidden = model.hidden_states(jnp.asarray(masked), lengths=jnp.array([len(ids)]))
    probabilities = np.asarray(jax.nn.softmax(model.output(hidden).logits()[0, place]))

    def spell(id: Any) -> str:
        return tokenizer.decode([[int(id)]])[0].strip()

    guesses = [f"{spell(id)!r} {probabilities[id]:.2f}" for id in np.argsort(-probabilities)[:top]]
    source = tokenizer.decode(masked[:, 1 : len(ids) - 1], skip_special_tokens=False)[0]
    target = spell(ids[place])
    return {"source": source, "target": target, "hypothesis": f"{', '.join(guesses)} (was {target!r})"}
