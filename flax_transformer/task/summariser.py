"""`open_summariser`: a run or any checkpoint that summarises documents, by writing or by choosing sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.record import FORMS, named_records, open_records
from flax_transformer.data.table import Table
from flax_transformer.data.text import Rows
from flax_transformer.data.text.annotated import PAIR_COLUMNS
from flax_transformer.data.text.document import Documents
from flax_transformer.data.text.plain import has_columns
from flax_transformer.data.text.summary import before_document
from flax_transformer.hub import Pretrained
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.task.checkpoint import open_checkpoint, positions_of, require_use, tokenizer_of
from flax_transformer.task.extraction import (
    CLASSES,
    Extracts,
    MarkedSentences,
    SentenceReader,
    position_logits,
    sentence_scores,
)
from flax_transformer.task.run import EXPORT, open_run
from flax_transformer.task.start import start_seq2seq
from flax_transformer.task.summarisation import Rouge, Summaries, Summariser, all_scores
from flax_transformer.task.text_generation import TextGenerator, WriterConfig
from flax_transformer.task.translator import Translator

MULTIPLE = 64
"""Rows are padded to one length, a multiple of so many tokens, as every length is a program to compile."""
BATCH = 8
"""Rows, or documents, that are read together."""
LONGEST = 512
"""Tokens of a document that a checkpoint without a limit of positions reads."""


@dataclass(frozen=True)
class Summary:
    """A summary of a document."""

    text: str
    """Sentences that were chosen are lines."""
    cut: bool = False
    """Whether the end of the document was left out, as it is longer than the model reads."""
    chosen: tuple[int, ...] = ()
    """Numbers of the sentences that were chosen."""


@dataclass(frozen=True, eq=False)
class Writer:
    """Writes summaries by an encoder-decoder of a run."""

    summariser: Summariser

    def __call__(self, documents: Sequence[str], query: str = "", sentences: int | None = None) -> list[Summary]:
        """Summarise documents; errors as `open_summariser`'s."""
        _check_written(documents, sentences)
        sources = [before_document(query, document) for document in documents]
        cut = self.summariser.cut(sources)
        whole = (self.summariser.prefix + source for source in sources)
        found = self.summariser(sources)
        return [
            Summary(each.text.strip(), len(read) < len(text))
            for each, read, text in zip(found, cut, whole, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class CheckpointWriter:
    """Writes summaries by the generation of a checkpoint that answers texts, as its own settings say."""

    pretrained: Pretrained
    prefix: str = ""
    settings: tuple[tuple[str, Any], ...] = ()

    def __call__(self, documents: Sequence[str], query: str = "", sentences: int | None = None) -> list[Summary]:
        """Summarise documents; errors as `open_summariser`'s."""
        _check_written(documents, sentences)
        tokenizer = tokenizer_of(self.pretrained, *documents)
        most = positions_of(self.pretrained.model.cfg) or LONGEST
        texts = [self.prefix + before_document(query, document) for document in documents]
        cut = [_fitted(tokenizer, text, most) for text in texts]
        write = TextGenerator(self.pretrained, WriterConfig(settings=self.settings))
        found = [each for first in range(0, len(cut), BATCH) for each in write(cut[first : first + BATCH])]
        return [
            Summary(best[0].strip(), len(read) < len(text)) for best, read, text in zip(found, cut, texts, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Chooser:
    """Chooses sentences by an encoder that scores them."""

    run: Any
    """Gives the logits of both classes at every position, from the inputs of a batch."""
    read: SentenceReader
    how: Extracts = Extracts()

    def __call__(self, documents: Sequence[str], query: str = "", sentences: int | None = None) -> list[Summary]:
        """Summarise documents; errors as `open_summariser`'s."""
        _check_documents(documents)
        parts, rows = self.read(Table({"document": list(documents), "query": [query] * len(documents)}))
        for number, each in enumerate(parts):
            if sentences is not None and not 1 <= sentences < len(each):
                raise ValueError(
                    f"a summary must have at least 1 sentence and fewer than its document, got sentences={sentences} "
                    f"of {len(each)} in document {number + 1}"
                )
        width = -(-max(len(row.tokens) for each in rows for row in each) // MULTIPLE) * MULTIPLE
        collate = Rows(length=min(width, self.read.length), pad=self.read.tokenizer.pad)
        scores = sentence_scores(self.run, rows, collate, BATCH)
        found = []
        for each, score in zip(parts, scores, strict=True):
            chosen = self.how.choose(score, each, query, sentences)
            found.append(Summary("\n".join(each[i] for i in chosen), chosen=tuple(chosen)))
        return found


def _check_documents(documents: Sequence[str]) -> None:
    empty = next((number for number, text in enumerate(documents, start=1) if not text.strip()), None)
    if empty is not None:
        raise ValueError(f"a document to summarise must not be empty, number {empty} is")


def _check_written(documents: Sequence[str], sentences: int | None) -> None:
    _check_documents(documents)
    if sentences is not None:
        raise ValueError(f"sentences are chosen by an extractive model, this one writes, got sentences={sentences}")


def _fitted(tokenizer: Any, text: str, most: int) -> str:
    """Cut a text at the end to so many tokens, marks included."""
    whole = tokenizer.engine.encode(text)
    if len(whole.ids) <= most:
        return text
    marks = sum(whole.special_tokens_mask)
    ends = [end for (_, end), mark in zip(whole.offsets, whole.special_tokens_mask, strict=True) if not mark]
    return text[: ends[most - marks - 1]]


def open_summariser(name: str, *, revision: str | None = None) -> Writer | CheckpointWriter | Chooser:
    """Open a run of `experiments/summarise.py`, or a checkpoint that answers texts or has an extractive run's classes.

    What is opened is called with documents, a query, and for an extractive model how many `sentences`.

    Raises:
      FolderError, CheckpointError, FileNotFoundError: what cannot be opened.
      ValueError: a checkpoint of another kind, or without a tokenizer. A call: an empty document, as many sentences as
        the document has or more, or sentences of a model that writes.
    """
    if summarises(Path(name)):
        return _open_run(Path(name))
    pretrained = open_checkpoint(name, revision=revision)
    if "token-classification" in pretrained.architecture.uses:
        return _chooser(pretrained, MarkedSentences(length=positions_of(pretrained.model.cfg) or LONGEST), Extracts())
    require_use(pretrained, "text2text-generation")
    tokenizer_of(pretrained)
    said = (pretrained.config.get("task_specific_params") or {}).get("summarization", {})
    known = "num_beams", "length_penalty", "max_length", "min_length", "early_stopping", "no_repeat_ngram_size"
    settings = tuple((name, said[name]) for name in known if name in said)
    return CheckpointWriter(pretrained, str(said.get("prefix", "")), settings)


def summarises(folder: Path) -> bool:
    """Return whether, by its config alone, for which nothing is imported, a folder is of a run that summarises."""
    evaluators = read_json(folder / CONFIG).get("evaluators") if (folder / CONFIG).is_file() else None
    return isinstance(evaluators, list) and any(
        isinstance(each, dict) and str(each.get("type")).split(":")[-1] in (Rouge.__name__, Extracts.__name__)
        for each in evaluators
    )


def _open_run(folder: Path) -> Writer | Chooser:
    run = open_run(folder)
    recipe, export = run.recipe, folder / EXPORT
    evaluator = next(each for each in recipe.evaluators if isinstance(each, Rouge | Extracts))
    if isinstance(evaluator, Extracts):
        return _chooser(open_checkpoint(str(folder)), recipe.examples, evaluator)
    tokenizer = start_seq2seq(str(export)) if run.tokenizer is None else run.tokenizer
    examples: Summaries = recipe.examples
    translator = Translator(run.model, tokenizer)
    return Writer(Summariser(translator, evaluator.search, examples.prefix, examples.source_length))


def _chooser(pretrained: Pretrained, examples: MarkedSentences, how: Extracts) -> Chooser:
    names = pretrained.config.get("id2label") or {}
    if tuple(names.get(str(i), names.get(i)) for i in range(len(CLASSES))) != CLASSES:
        raise ValueError(
            f"a checkpoint that chooses sentences has the classes {' and '.join(CLASSES)}, got {names!r:.80}"
        )
    reader = SentenceReader(tokenizer_of(pretrained), examples.length, examples.unit, examples.query)
    return Chooser(partial(position_logits, pretrained.model), reader, how)


def read_documents(name: str, data: Path, split: str | None = None) -> Table:
    """Read documents with summaries to measure by, with the fields of a run, or `document`, `summary` and `query`.

    Args:
      data: a file of JSON lines or of another form of records with names, or a folder of them.
      split: of a folder; test by default.

    Raises:
      FileNotFoundError, ValueError: as `Documents.read`.
    """
    said = read_json(Path(name) / CONFIG).get("data", {}) if summarises(Path(name)) else {}
    fields = {each: said[each] for each in ("source", "summary", "query") if isinstance(said.get(each), str)}
    documents = Documents(**fields, others=tuple(said.get("others") or ()))
    if not data.exists():
        raise FileNotFoundError(f"there is no file or folder {data}")
    if data.is_dir():
        return replace(documents, root=str(data)).read(split or "test")
    return documents.read_file(data)


def are_documents(data: Path) -> bool:
    """Return whether a file, or the first of what is in a folder, has records with names, but those of pairs."""
    paths = [path for _, path in named_records(data, FORMS[1:])] if data.is_dir() else [data]
    if not paths or not has_columns(paths[0]):
        return False
    records = open_records(paths[0])
    return not all(map(records.has, PAIR_COLUMNS[0]))


def measure_summaries(
    name: str, data: Path, split: str | None = None, *, revision: str | None = None
) -> dict[str, Any]:
    """Summarise documents and score the summaries: ROUGE with intervals, of several references the best too.

    Raises:
      FileNotFoundError, ValueError: as `open_summariser` and `read_documents`.
    """
    table = read_documents(name, data, split)
    summarise = open_summariser(name, revision=revision)
    found: list[Summary | None] = [None] * len(table)
    queries = np.array(table["query"], object)
    for query in dict.fromkeys(table["query"]):
        rows = np.flatnonzero(queries == query).tolist()
        for row, summary in zip(rows, summarise([table["document"][row] for row in rows], query), strict=True):
            found[row] = summary
    texts = [each.text for each in found if each is not None]
    _, scores = all_scores(texts, table)
    return {**scores, "documents": len(texts), "cut": sum(each.cut for each in found if each is not None)}
