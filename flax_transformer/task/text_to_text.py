"""Encoder-decoders that learn several kinds of source and target: a tokenizer with marks, a mixture, a test of each.

Axes: B rows, S source positions, T target positions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import numpy as np

from flax_transformer.data import each_once, mixture, shuffled
from flax_transformer.data.examples import Arrays, Transform
from flax_transformer.data.text import Pairs, Tokenizer
from flax_transformer.frozen import frozen
from flax_transformer.task.evaluator import Finished, compared, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, stream
from flax_transformer.task.seq2seq_tokenizer import Seq2SeqTokenizer
from flax_transformer.task.spec import Spec
from flax_transformer.train.folder import RunFolder


@frozen
class Weights:
    """How often each kind comes, relative to the others; 0 leaves it out. A subclass has a field for each."""

    def __post_init__(self):
        weights = asdict(self)
        if min(weights.values()) < 0 or not any(weights.values()):
            raise ValueError(f"weights must not be negative, nor all 0, got {weights}")

    def present(self) -> dict[str, float]:
        """Return the weights of the kinds that there are."""
        return {name: weight for name, weight in asdict(self).items() if weight}


@frozen
class PairKind:
    """One kind of source and target: how often it comes, and how its examples are made."""

    weight: float
    """Its share in the training data, relative to the others'."""
    items: Mapping[str, Sequence[Any]]
    """Of `train`, `validation` and `test`."""
    transforms: tuple[Transform, ...]
    """From an item to `source` and `target`, token ids with their marks."""


@frozen
class HeldKinds:
    """Held-out examples of several kinds."""

    kinds: Mapping[str, PairKind]
    collate: Pairs
    rows: int
    tokenizer: Tokenizer | Seq2SeqTokenizer

    def batches(self, name: str, split: str) -> Iterator[Arrays]:
        """Return the batches of one kind."""
        kind = self.kinds[name]
        return each_once(kind.items[split], *kind.transforms, rows=self.rows, collate=self.collate)

    def all_batches(self, split: str) -> Iterator[Arrays]:
        """Return the batches of every kind, one after the other."""
        return chain.from_iterable(self.batches(name, split) for name in self.kinds)


def open_marked(
    vocabulary: VocabularyConfig, folder: RunFolder, texts: Iterable[str], *, added: Sequence[str], single: str
) -> Tokenizer:
    """Load the run's tokenizer, or learn it, with tokens of its own for some texts.

    Bytes are read as if every text began with a space, so that a word is the same wherever it stands.

    Args:
      added: texts that become the last tokens of the vocabulary wherever they stand, as `<mask>` does.
      single: the marks around a text that the exported checkpoint adds, as `<s> $A </s>`.
    """
    import tokenizers

    bare = vocabulary.open(folder, texts)
    inner = tokenizers.Tokenizer.from_str(bare.json())
    inner.add_tokens([tokenizers.AddedToken(text, special=False, normalized=False) for text in added])
    if vocabulary.unit == "byte":
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    marks = [(mark, inner.token_to_id(mark)) for mark in single.split() if mark != "$A"]
    inner.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=marks)
    tokenizer = replace(bare, inner=inner)
    tokenizer.save(folder.tokenizer)
    return tokenizer


def open_kinds(
    kinds: Mapping[str, PairKind], tokenizer: Tokenizer | Seq2SeqTokenizer, collate: Pairs, rows: int, context: Context
) -> Opened:
    """Mix kinds into batches of `rows` rows; held out are `HeldKinds`."""
    length = max(collate.source_length, collate.target_length)
    for name, kind in kinds.items():
        counts = ", ".join(f"{len(items):,} {split}" for split, items in kind.items.items())
        print(f"{name}: {counts}, weight {kind.weight:g}", flush=True)
    print(f"{tokenizer.vocab_size:,} tokens in the vocabulary", flush=True)
    train = {
        name: shuffled(kind.items["train"], *kind.transforms, seed=context.seed + number)
        for number, (name, kind) in enumerate(kinds.items())
    }
    held = HeldKinds(kinds=kinds, collate=collate, rows=context.held_rows(rows), tokenizer=tokenizer)
    return Opened(
        tokenizer=tokenizer,
        spec=Spec(uses=("text2text-generation",), vocab=tokenizer.vocab_size, length=length if context.init else None),
        batches=stream(mixture(train, {name: kind.weight for name, kind in kinds.items()}), collate, rows),
        validation=lambda: held.all_batches("validation"),
        test=lambda: held.all_batches("test"),
        held=held,
        **tokenizer.published if context.init else {"fields": {"decoder_start_token_id": collate.start}},
    )


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
    """Generate from every test source, greedily; held out are `HeldKinds`."""
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


def samples_of(restored: Mapping[str, Restored]) -> list[dict]:
    """List every test item as the run's samples."""
    return [
        {"kind": name, "source": source, "target": target, "hypothesis": hypothesis}
        for name, kind in restored.items()
        for source, target, hypothesis in zip(kind.sources, kind.targets, kind.hypotheses, strict=True)
    ]
