"""Captioners: how near what they say of the test images is to what people say."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from flax_transformer.decode import Beam, Greedy, PowerPenalty
from flax_transformer.frozen import frozen
from flax_transformer.report.sample import save_image
from flax_transformer.task.caption_score import caption_scores
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.translator import beginning, decode_batch, ready, room_of
from flax_transformer.text_table import align

SHUFFLED = "shuffled_"


@frozen
class Captions(Evaluator):
    """Write captions of the test images, which are `HeldCaptions`, and score them by what people said; and once more
    by what they said of other images, which is what a model gets that does not look.
    """

    metric: ClassVar[str] = "cider"

    beams: int = 4
    """Hypotheses kept at each step; 1 is greedy."""
    length_penalty: float = 1.0
    """Exponent of the length that a hypothesis' log-probability is divided by."""
    count: int = 24
    """Images kept for the report, evenly spread."""

    def __post_init__(self):
        if min(self.beams, self.count) < 1:
            raise ValueError(f"beams and count must be at least 1, got {self.beams} and {self.count}")

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held = finished.opened.held
        written, others = list(self._written(finished)), np.roll(np.arange(len(held.captions)), 1)
        scores = {
            **caption_scores(written, held.captions),
            **{f"{SHUFFLED}{name}": value for name, value in caption_scores(
                written, [held.captions[i] for i in others]).items()},
        }  # fmt: skip
        names = [name for name in scores if not name.startswith(SHUFFLED)]
        rows = [("pictures", *names)] + [
            (title, *(f"{scores[before + name]:.2f}" for name in names))
            for title, before in (("their own", ""), ("others'", SHUFFLED))
        ]
        shown = np.unique(np.linspace(0, len(written) - 1, min(self.count, len(written)), dtype=int)).tolist()
        return Shown(
            metrics={**tested(finished.objective, finished.model, finished.opened.test()), **scores},
            samples=[self._sample(finished, number, written[number]) for number in shown],
            lines=("", align(rows, "l" + "r" * len(names)), f"captions of {len(written):,} test images"),
        )

    def _written(self, finished: Finished) -> Iterator[str]:
        """Write a caption of each test image."""
        held, tokenizer, model = finished.opened.held, finished.opened.tokenizer, ready(finished.model)
        room = room_of(model, tokenizer)
        longest = held.length if room is None else min(held.length, room)
        ends = {"max_length": longest, "eos": tokenizer.eos, "pad": tokenizer.pad}
        config = Greedy(**ends)
        if self.beams > 1:
            config = Beam(**ends, beams=self.beams, length_penalty=PowerPenalty(alpha=self.length_penalty))
        decode = partial(decode_batch, model, lengths=None, config=config)
        for batch in held.batches():
            source = batch["inputs"]["source"]
            found = decode(source, **beginning(tokenizer, len(source)))
            texts = tokenizer.decode(np.asarray(found.best.tokens))
            real = batch["weights"].any(axis=1)
            yield from (text.strip() for text, there in zip(texts, real, strict=True) if there)

    def _sample(self, finished: Finished, number: int, written: str) -> dict[str, str]:
        held = finished.opened.held
        return {
            "picture": save_image(finished.folder.root, str(number), held.show(number)),
            "source": held.name(number),
            "hypothesis": written,
            "caption": "references: " + " · ".join(held.captions[number]),
        }
