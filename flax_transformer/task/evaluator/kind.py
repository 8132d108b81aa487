"""Encoder-decoders that learn several kinds of source and target: what they make of each kind's test items."""

from collections.abc import Iterable, Mapping

import numpy as np

from flax_transformer.frozen import frozen
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Finished


@frozen
class Restored:
    """What a finished model makes of a kind's test items."""

    sources: list[str]
    targets: list[str]
    hypotheses: list[str]
    loss: float
    """A target token."""

    @property
    def exact(self) -> list[bool]:
        """Return which hypotheses are the target."""
        return [one == other for one, other in zip(self.hypotheses, self.targets, strict=True)]

    @property
    def exact_match(self) -> float:
        """Return the share of those, in percent."""
        return 100 * sum(self.exact) / len(self.exact)


def restore(finished: Finished) -> dict[str, Restored]:
    """Let the model generate from every test source, greedily; held out are `Kinds`."""
    return {name: _restore(finished, name) for name in finished.opened.held.kinds}


def _restore(finished: Finished, name: str) -> Restored:
    held, pretrained = finished.opened.held, finished.pretrained
    tokenizer, collate = held.tokenizer, held.collate
    found: dict[str, list[str]] = {"sources": [], "targets": [], "hypotheses": []}
    for batch in held.batches(name, "test"):
        source, lengths = batch["inputs"]["source"], batch["inputs"]["lengths"]
        positions = np.arange(collate.source_length)
        mask = positions < np.maximum(lengths, 1)[:, None]  # an empty row must attend to something
        written = pretrained.generate(source, mask.astype(np.int32), max_new_tokens=collate.target_length)
        texts = {"sources": source, "targets": batch["labels"], "hypotheses": np.asarray(written)[:, 1:]}
        for which, ids in texts.items():
            found[which] += map(str.strip, tokenizer.decode(ids[lengths > 0]))
    loss = tested(finished.objective, pretrained.model, held.batches(name, "test"))["loss"]
    return Restored(**found, loss=loss)


def sample_lines(name: str, restored: Restored, count: int) -> list[str]:
    """Show some test sources and what the model made of them; where that is wrong, also what it should be."""
    lines = ["", f"{name}:"] if count else []
    shown = list(zip(restored.sources, restored.hypotheses, restored.targets, strict=True))
    return lines + [line for each in shown[:count] for line in compared(*each)]


def compared(source: str, hypothesis: str, target: str) -> Iterable[str]:
    """Show one source and what came of it; where that is wrong, also what it should be."""
    yield f"  {source}"
    yield f"  {'=' if hypothesis == target else '→'} {hypothesis}"
    if hypothesis != target:
        yield f"    expected: {target}"


def samples_of(restored: Mapping[str, Restored]) -> list[dict]:
    """List every test item as the run's samples."""
    return [
        {"kind": name, "source": source, "target": target, "hypothesis": hypothesis}
        for name, kind in restored.items()
        for source, target, hypothesis in zip(kind.sources, kind.targets, kind.hypotheses, strict=True)
    ]
