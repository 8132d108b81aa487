"""Exercises made by rule, told apart by the words that a source begins with, as T5 is trained."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from flax_transformer.data.examples import Chain, Transform
from flax_transformer.data.split import SPLITS
from flax_transformer.data.synthetic import counting_texts, exercises
from flax_transformer.data.text import Blocks, Pairs, SpanCorruption, TextToText, Tokenizer
from flax_transformer.data.text.plain import encode_documents
from flax_transformer.frozen import frozen
from flax_transformer.task.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows
from flax_transformer.task.seq2seq_tokenizer import Seq2SeqTokenizer
from flax_transformer.task.text_to_text import (
    HeldKinds,
    PairKind,
    Weights,
    open_kinds,
    open_marked,
    restore,
    sample_lines,
    samples_of,
)
from flax_transformer.text_table import align

PREFIXES = {
    "translate": "translate English to German: ",
    "spell": "spell: ",
    "write": "write in digits: ",
    "add": "add: ",
    "sort": "sort: ",
    "reverse": "reverse: ",
}
"""What the sources of a task begin with; gaps need no words, their marks are told by themselves."""


SENTINELS = 10
"""Gaps that a text may have: `<extra_id_0>` to `<extra_id_9>`."""


COUNTINGS = 6_000
"""Countings to train on, of the 7,200 or so that there are."""


@frozen
class ExerciseMix(Weights):
    """How often each task comes, relative to the others; 0 leaves it out."""

    translate: float = 1.0
    spell: float = 1.0
    write: float = 1.0
    add: float = 2.0
    sort: float = 1.0
    reverse: float = 1.0
    fill: float = 1.0
    """Spans are cut out of countings, as T5 is pretrained."""


@frozen
class Amount:
    """Exercises of each task."""

    train: int = 20_000
    """Countings are fewer, for there are no more."""
    validation: int = 100
    test: int = 200

    def read(self, name: str, split: str, seed: int) -> list[Any]:
        """Make the exercises of one task, pairs or texts to fill, for one split."""
        count = getattr(self, split)
        if name == "fill":
            return counting_texts(min(count, COUNTINGS), seed=seed, split=split)
        return list(exercises(name, count, seed=seed, split=split))


@frozen
class ExerciseTexts:
    """Mix exercises of several tasks, each text to text."""

    mix: ExerciseMix = ExerciseMix()
    vocabulary: VocabularyConfig = VocabularyConfig(size=460)
    rows: int = 64
    """Examples a batch."""

    def __post_init__(self):
        check_rows(self.rows, 1)

    def open(self, data: Amount, context: Context) -> Opened:
        """Make exercises, learn or load the tokenizer, mix the tasks; held out are `HeldKinds`."""
        weights = self.mix.present()
        made = {name: {split: data.read(name, split, context.seed) for split in SPLITS} for name in weights}
        tokenizer = context.seq2seq() or open_marked(
            self.vocabulary, context.folder, chain.from_iterable(_texts(name, made[name]["train"]) for name in made),
            added=[f"<extra_id_{number}>" for number in reversed(range(SENTINELS))], single="$A </s>",
        )  # fmt: skip
        sentinel = gap_of(tokenizer, context.init) if "fill" in weights else 0
        kinds = {name: _kind(name, weight, made[name], tokenizer, sentinel) for name, weight in weights.items()}
        lengths = [_longest(items, kind.transforms) for kind in kinds.values() for items in kind.items.values()]
        source, target = (8 * -(-max(side) // 8) for side in zip(*lengths, strict=True))
        start = tokenizer.bos if context.init else tokenizer.pad
        collate = Pairs(source_length=source, target_length=target, start=start, pad=tokenizer.pad)
        return open_kinds(kinds, tokenizer, collate, self.rows, context)


def _texts(name: str, items: list[Any]) -> Iterable[str]:
    if name == "fill":
        return items
    return (text for pair in items for text in (PREFIXES[name] + pair["source"], pair["target"]))


def gap_of(tokenizer: Tokenizer | Seq2SeqTokenizer, name: str) -> int:
    """Find the token of the first gap, before which those of the others stand.

    Raises:
      ValueError: a checkpoint's tokenizer without them.
    """
    found = [tokenizer.inner.token_to_id(f"<extra_id_{number}>") for number in range(SENTINELS)]
    if None in found or found != list(range(found[0], found[0] - SENTINELS, -1)):
        raise ValueError(
            f"gaps are marked by <extra_id_0> to <extra_id_{SENTINELS - 1}>, each before the last one in the "
            f"vocabulary, the tokenizer of {name} has no such tokens; --mix.fill 0 leaves gaps out"
        )
    return found[0]


def _kind(
    name: str, weight: float, data: Mapping[str, Any], tokenizer: Tokenizer | Seq2SeqTokenizer, sentinel: int
) -> PairKind:
    if name != "fill":
        return PairKind(weight=weight, items=data, transforms=(TextToText(tokenizer=tokenizer, prefix=PREFIXES[name]),))
    documents = {split: encode_documents(texts, tokenizer) for split, texts in data.items()}
    corrupt = SpanCorruption(sentinel=sentinel, eos=tokenizer.eos, sentinels=SENTINELS)
    whole = max(int(each.lengths.max()) for each in documents.values())
    return PairKind(
        weight=weight,
        items={split: Blocks(documents=each, length=whole, least=2) for split, each in documents.items()},
        transforms=(corrupt,),
    )


def _longest(items: Sequence[Any], transforms: Sequence[Transform]) -> tuple[int, int]:
    """Find the most tokens of a source and of a target; how many an item has does not depend on what is drawn."""
    make, rng = Chain(tuple(transforms)), np.random.default_rng(0)
    examples = (make(items[number], rng) for number in range(len(items)))
    sources, targets = zip(*((len(each["source"]), len(each["target"])) for each in examples), strict=True)
    return max(sources), max(targets)


@frozen
class Answers(Evaluator):
    """Count the test exercises of each task that are answered exactly."""

    takes: ClassVar[type] = HeldKinds
    exported: ClassVar[bool] = True
    metric: ClassVar[str] = "exact_match"

    count: int = 2
    """Test exercises of each task shown on the terminal."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        restored = restore(finished)
        lines = [line for name, kind in restored.items() for line in sample_lines(name, kind, self.count)]
        rows = [
            (name, f"{len(kind.exact):,}", f"{kind.exact_match:.1f} %", f"{kind.loss:.4f}")
            for name, kind in restored.items()
        ]
        mean = sum(kind.exact_match for kind in restored.values()) / len(restored)
        losses = {f"loss_{name}": kind.loss for name, kind in restored.items()}
        matches = {f"exact_match_{name}": kind.exact_match for name, kind in restored.items()}
        return Shown(
            metrics={"exact_match": mean, **matches, **losses},
            samples=samples_of(restored),
            lines=(
                *lines, "", align([("task", "tests", "exact match", "loss a token"), *rows], "lr"), "",
                f"exact match {mean:.1f} %, the mean of {len(restored)} tasks",
            ),
        )  # fmt: skip
