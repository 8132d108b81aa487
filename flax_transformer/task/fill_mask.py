"""Masked language modelling: examples of masked texts, accuracy at masks, `fill_mask`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer import hub
from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Arrays
from flax_transformer.data.text import Blocks, MLMMasking, NextSentence, Rows, Tokenizer, ragged, sentence_bounds
from flax_transformer.data.text.plain import PlainText, has_columns, read_column, read_text
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.checkpoint import require_use, tokenizer_of
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows, stream
from flax_transformer.task.spec import Spec

DOCUMENT = 50
"""Most lines of a document; longer texts are several."""


@frozen
class TextLines(PlainText):
    """Running text, whose lines follow each other, or files of sentences that do not."""

    sentences: tuple[str, ...] = ()
    """Files of one sentence a line, up to a tab if there is one, or one a record; in place of running text."""

    def lines(self, split: str) -> list[list[str]]:
        """Read the documents of `train` or `validation`, each a list of lines that are not blank.

        A document of running text is at most `DOCUMENT` lines of one file; a sentence is one by itself. Of every file
        of sentences, the last `holdout` is for validation.
        """
        if not self.sentences:
            texts = ([line.rstrip() for line in text.splitlines() if line.strip()] for text in self.read(split))
            return [text[i : i + DOCUMENT] for text in texts for i in range(0, len(text), DOCUMENT)]
        documents = []
        for path in self.sentences:
            found = [line for line in self._sentences(path) if line]
            cut = int(len(found) * (1 - self.holdout))
            documents += [[line] for line in (found[:cut] if split == "train" else found[cut:])]
        return documents

    def _sentences(self, path: str) -> list[str]:
        if has_columns(path):
            return [" ".join(text.split()) for text in read_column(path, self.column)]
        return [line.partition("\t")[0].strip() for line in read_text(path).splitlines()]


@frozen
class MaskedRows:
    """Lay out rows as `Rows` does, with the masked tokens of each at its first places: so many a row are predicted.

    `positions` [B, M] says where they are; `labels` and `weights` become [B, M].

    Raises:
      ValueError: a row with more of them.
    """

    rows: Rows
    most: int
    """M."""

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        batch = self.rows(examples)
        counts = (batch["weights"] > 0).sum(axis=1)
        if counts.max() > self.most:
            raise ValueError(f"a row may have at most {self.most} masked tokens, got {counts.max()}")
        positions = np.argsort(-batch["weights"], axis=1, kind="stable")[:, : self.most].astype(np.int32)
        chosen = {name: np.take_along_axis(batch[name], positions, axis=1) for name in ("labels", "weights")}
        return {**batch, **chosen, "positions": positions}


@frozen
class MaskedTexts:
    """Mask tokens of running text, and pair sentences where lines follow each other."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new encoder; one that begins with a checkpoint has the checkpoint's."""
    rows: int = 32
    """A batch."""
    length: int = 128
    """Tokens a row."""
    share: float = 0.15
    """Of the tokens, to be guessed."""
    validated: int = 1_000
    """Most rows of an evaluation, evenly spread over validation text."""

    def __post_init__(self):
        check_rows(self.rows, self.length)
        if self.validated < 1:
            raise ValueError(f"validated must be at least 1 row, got {self.validated}")
        if not 0 < self.share < 1:
            raise ValueError(f"share must be in (0, 1), got {self.share}")

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: TextLines, context: Context) -> Opened:
        """Read the text, learn or load the tokenizer, mask tokens; held out are the lines of validation text."""
        lines = {split: data.lines(split) for split in ("train", "validation")}
        words = (line for document in lines["train"] for line in document)
        bare = context.tokenizer or self.vocabulary.open(context.folder, words).with_mask()
        tokenizer = masking_tokenizer(bare, context.init) if context.init else HubTokenizer.of_encoder(bare)
        for split, documents in lines.items():
            print(f"{split}: {sum(map(len, documents)):,} lines in {len(documents):,} documents", flush=True)
        print(f"{tokenizer.vocab_size:,} tokens in the vocabulary", flush=True)
        follow = not data.sentences and (not context.init or "next-sentence-prediction" in context.uses)
        encoded = {split: _encoded(documents, bare) for split, documents in lines.items()}
        (train, *steps), (held, *held_steps) = (self._items(encoded[split], tokenizer, follow) for split in lines)
        spread = np.linspace(0, len(held) - 1, min(self.validated, len(held)), dtype=int)
        held = [held[int(place)] for place in spread]
        marks = (tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.unk)
        special = tuple(mark for mark in marks if mark is not None)
        hide = MLMMasking(vocab_size=tokenizer.vocab_size, mask=tokenizer.mask, special=special, share=self.share)
        most = max(1, round(self.share * self.length))
        collate = MaskedRows(rows=Rows(length=self.length, pad=tokenizer.pad), most=most)
        validation = partial(each_once, held, *held_steps, hide, rows=context.held_rows(self.rows), collate=collate)
        uses = ("fill-mask", "next-sentence-prediction") if follow else ("fill-mask",)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=uses, vocab=tokenizer.vocab_size, next_sentence=follow),
            batches=stream(shuffled(train, *steps, hide, seed=context.seed), collate, self.rows),
            validation=validation,
            test=validation,
            held=[line for document in lines["validation"] for line in document],
        )

    def _items(self, encoded: list[list[list[int]]], tokenizer: HubTokenizer, follow: bool) -> tuple[Any, ...]:
        """Return what examples are made of, and the transforms that make them."""
        if not follow:  # a document fills as many rows as it needs
            rows = ragged([[*chain.from_iterable(document)] for document in encoded if document])
            return (Blocks(documents=rows, length=self.length, begin=(tokenizer.cls,), end=(tokenizer.sep,)),)
        documents = [document for document in encoded if document]
        if len(documents) < 2:
            raise ValueError(
                f"next sentences take texts of two documents at least, of {DOCUMENT} lines each or a file's last, got "
                f"{len(documents)}; a longer text has more"
            )
        sentences, ends = sentence_bounds(documents)
        pairs = NextSentence(
            sentences=sentences, documents=ends, length=self.length, cls=tokenizer.cls, sep=tokenizer.sep
        )
        return pairs.starts, pairs


def _encoded(documents: list[list[str]], tokenizer: Tokenizer | HubTokenizer) -> list[list[list[int]]]:
    return [[line for line in tokenizer.encode(document) if line] for document in documents]


def masking_tokenizer(known: HubTokenizer, name: str) -> HubTokenizer:
    """Return a tokenizer that has all that masking takes.

    Raises:
      ValueError: a checkpoint's that has no [CLS], [SEP], padding or mask.
    """
    if missing := [role for role in ("cls", "sep", "pad", "mask") if getattr(known, role) is None]:
        raise ValueError(
            f"masked tokens take a tokenizer with marks, padding and a mask, that of {name} lacks "
            f"{', '.join(f'{role}_token' for role in missing)}"
        )
    return known


@frozen
class Guesses(Evaluator):
    """Measure what the model is trained on, and let it guess one token of some held-out lines."""

    takes: ClassVar[type] = list
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
        positions = np.linspace(0, len(texts) - 1, self.count, dtype=int)
        samples = [fill(pretrained, texts[int(place)], length) for place in positions]
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


@dataclass(frozen=True)
class FilledToken:
    """A token for a mask, how probable it is, and the text with it in place."""

    token: str
    probability: float
    text: str


def fill_mask(pretrained: Pretrained, text: str, top: int = 5) -> list[list[FilledToken]]:
    """Guess the masked tokens of a text.

    Args:
      pretrained: a masked language model.
      text: has the tokenizer's mask token once or more.
      top: guesses for each mask.

    Returns:
      For each mask, by itself, the likeliest tokens, the best first.

    Raises:
      ValueError: a checkpoint of another kind, a text without a mask, or one longer than the positions.
    """
    require_use(pretrained, "fill-mask")
    tokenizer = tokenizer_of(pretrained, text)
    if tokenizer.mask is None:
        raise ValueError("to fill in masks takes a mask token, the checkpoint's tokenizer has none")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    inputs = tokenizer([text])
    ids = inputs["input_ids"][0]
    positions = np.flatnonzero(ids == tokenizer.mask)
    if not len(positions):
        raise ValueError(f"the text must have the mask token {tokenizer.tokens([tokenizer.mask])[0]}, got {text!r}")
    output = pretrained(**inputs)
    logits = output.prediction_logits if output.logits is None else output.logits
    probabilities = np.asarray(jax.nn.softmax(logits[0, positions].astype(np.float32)))
    hidden = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.cls, tokenizer.sep}
    guesses = []
    for place, share in zip(positions, probabilities, strict=True):
        found = []
        for token in np.argsort(-share, kind="stable")[:top]:
            filled = [int(id) for id in np.where(np.arange(len(ids)) == place, token, ids)]
            kept = [id for i, id in enumerate(filled) if i == place or id not in hidden]
            (said,) = tokenizer.decode([kept], skip_special_tokens=False)
            (piece,) = tokenizer.decode([[int(token)]], skip_special_tokens=False)
            found.append(FilledToken(piece.strip() or piece, float(share[token]), said.strip()))
        guesses.append(found)
    return guesses
