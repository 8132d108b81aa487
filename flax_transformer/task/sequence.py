"""Several kinds of source and target in one encoder-decoder: a tokenizer with marks, a mixture, a test of each kind.

Axes: B rows, S source positions, T target positions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from flax_transformer import hub
from flax_transformer.data import each_once, mixture, shuffled
from flax_transformer.data.examples import Transform
from flax_transformer.data.text import Pairs, Tokenizer
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.objective import TokenLoss
from flax_transformer.task.text import Shown, TextRun, Vocabulary, evaluate, stream
from flax_transformer.train.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How often each kind comes, relative to the others; 0 leaves it out. A subclass has a field for each."""

    def __post_init__(self):
        weights = asdict(self)
        if min(weights.values()) < 0 or not any(weights.values()):
            raise ValueError(f"weights must not be negative, nor all 0, got {weights}")

    def present(self) -> dict[str, float]:
        """Give the weights of the kinds that there are."""
        return {name: weight for name, weight in asdict(self).items() if weight}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of source and target: how often it comes, and how its examples are made."""

    weight: float
    """Its share in the training data, relative to the others'."""
    items: Mapping[str, Sequence[Any]]
    """Of `train`, `validation` and `test`."""
    transforms: tuple[Transform, ...]
    """From an item to `source` and `target`, token ids with their marks."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a finished model makes of a kind's test items."""

    sources: list[str]
    targets: list[str]
    hypotheses: list[str]
    loss: float
    """A target token."""

    @property
    def exact(self) -> list[bool]:
        """Tell which hypotheses are the target."""
        return [one == other for one, other in zip(self.hypotheses, self.targets, strict=True)]

    @property
    def exact_match(self) -> float:
        """Give the share of those, in percent."""
        return 100 * sum(self.exact) / len(self.exact)


def open_marked(
    vocabulary: Vocabulary, folder: RunFolder, texts: Iterable[str], *, added: Sequence[str], single: str
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


def sized(config: Seq2SeqConfig, vocab: int) -> Seq2SeqConfig:
    """Size a model's embeddings for a tokenizer."""
    source = config.source_embedding
    return replace(
        config,
        embedding=replace(config.embedding, vocab=vocab),
        source_embedding=None if source is None else replace(source, vocab=vocab),
    )


def narrowed(config: Seq2SeqConfig, *, embed: int, heads: int, hidden: int, depth: int) -> Seq2SeqConfig:
    """Make a small model of a preset: the same in kind, with heads of width D / N."""
    shape = {"embed": embed, "heads": heads, "head_width": None, "hidden": hidden}
    source = config.source_embedding
    return replace(
        config,
        embedding=replace(config.embedding, embed=embed),
        source_embedding=None if source is None else replace(source, embed=embed),
        encoder=replace(config.encoder, **shape),
        decoder=replace(config.decoder, **shape),
        encoder_depth=depth,
        decoder_depth=depth,
        output_scale=config.output_scale if config.output_scale == 1 else embed**-0.5,
    )


def sequence_run(
    kinds: Mapping[str, Kind],
    *,
    config: Seq2SeqConfig,
    architecture: str,
    tokenizer: Tokenizer,
    collate: Pairs,
    rows: int,
    seed: int,
    show: Callable[[dict[str, Restored]], Shown],
) -> TextRun:
    """Make the run of an encoder-decoder that learns several kinds at a time.

    Args:
      architecture: the class of `transformers` that the model is.
      rows: of a batch.
      seed: of the order of items, and of what transforms draw.
      show: what to say of the finished model.
    """
    for name, kind in kinds.items():
        counts = ", ".join(f"{len(items):,} {split}" for split, items in kind.items.items())
        print(f"{name}: {counts}, weight {kind.weight:g}", flush=True)
    print(f"{tokenizer.vocab_size:,} tokens in the vocabulary", flush=True)
    train = {
        name: shuffled(kind.items["train"], *kind.transforms, seed=seed + number)
        for number, (name, kind) in enumerate(kinds.items())
    }
    return TextRun(
        config=sized(config, tokenizer.vocab_size),
        architecture=architecture,
        tokenizer=tokenizer,
        objective=TokenLoss(chunk=512),
        batches=stream(mixture(train, {name: kind.weight for name, kind in kinds.items()}), collate, rows),
        validation=lambda: chain.from_iterable(_batches(kind, "validation", rows, collate) for kind in kinds.values()),
        show=lambda pretrained: show(
            {name: _restore(pretrained, kind, tokenizer, rows, collate) for name, kind in kinds.items()}
        ),
        fields={"decoder_start_token_id": collate.start},
    )


def _batches(kind: Kind, split: str, rows: int, collate: Pairs) -> Iterator[dict[str, np.ndarray]]:
    return each_once(kind.items[split], *kind.transforms, rows=rows, collate=collate)


def _restore(pretrained: hub.Pretrained, kind: Kind, tokenizer: Tokenizer, rows: int, collate: Pairs) -> Restored:
    """Let the model generate from every test source, greedily."""
    found: dict[str, list[str]] = {"sources": [], "targets": [], "hypotheses": []}
    for batch in _batches(kind, "test", rows, collate):
        positions = np.arange(collate.source_length)
        mask = positions < np.maximum(batch["inputs"]["lengths"], 1)[:, None]  # an empty row must attend to something
        written = pretrained.generate(
            batch["inputs"]["source"], mask.astype(np.int32), max_new_tokens=collate.target_length
        )
        real = batch["inputs"]["lengths"] > 0
        texts = {
            "sources": batch["inputs"]["source"],
            "targets": batch["labels"],
            "hypotheses": np.asarray(written)[:, 1:],
        }
        for name, ids in texts.items():
            found[name] += map(str.strip, tokenizer.decode(ids[real]))
    loss = evaluate(TokenLoss(chunk=512), pretrained.model, _batches(kind, "test", rows, collate))["loss"]
    return Restored(**found, loss=loss)


def sample_lines(name: str, restored: Restored, count: int) -> list[str]:
    """Show some test sources and what the model made of them; where that is wrong, also what it should be."""
    lines = ["", f"{name}:"] if count else []
    shown = zip(restored.sources, restored.targets, restored.hypotheses, restored.exact, strict=True)
    for source, target, hypothesis, right in list(shown)[:count]:
        lines += [f"  {source}", f"  {'=' if right else '→'} {hypothesis}"]
        lines += [] if right else [f"    expected: {target}"]
    return lines


def samples_of(restored: Mapping[str, Restored]) -> list[dict]:
    """List every test item as the run's samples."""
    return [
        {"kind": name, "source": source, "target": target, "hypothesis": hypothesis}
        for name, kind in restored.items()
        for source, target, hypothesis in zip(kind.sources, kind.targets, kind.hypotheses, strict=True)
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows under a header, the first column to the left and numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (header, *rows)
    ]
