"""Pre-training an encoder: hidden tokens, and whether one stretch of text follows another (Devlin et al. 2019).

Axes: B rows, T positions, M hidden tokens a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer import hub
from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Arrays
from flax_transformer.data.text import Blocks, MaskedLM, NextSentence, Rows, Tokenizer, bounds, ragged
from flax_transformer.data.text.plain import PlainText, read_text
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.objective import MaskedLoss
from flax_transformer.ops import Mask
from flax_transformer.task.experiment import Experiment, Task
from flax_transformer.task.text import Shown, TextRun, Vocabulary, evaluate, stream
from flax_transformer.train.folder import RunFolder

DOCUMENT = 50
"""Most lines of a document; longer texts are several."""


@dataclass(frozen=True, kw_only=True)
class Corpus(PlainText):
    """Running text, whose lines follow each other, or files of sentences that do not."""

    sentences: tuple[str, ...] = ()
    """Files of one sentence a line, up to a tab if there is one; in place of running text."""

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
            found = [line.partition("\t")[0].strip() for line in read_text(path).splitlines()]
            found = [line for line in found if line]
            cut = int(len(found) * (1 - self.holdout))
            documents += [[line] for line in (found[:cut] if split == "train" else found[cut:])]
        return documents


@dataclass(frozen=True, kw_only=True)
class HiddenRows:
    """Lay out rows as `Rows` does, with the hidden tokens of each at its first places: so many a row are predicted.

    `places` [B, M] says where they are; `labels` and `weights` become [B, M].

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
            raise ValueError(f"a row may hide at most {self.most} tokens, got {counts.max()}")
        places = np.argsort(-batch["weights"], axis=1, kind="stable")[:, : self.most].astype(np.int32)
        chosen = {name: np.take_along_axis(batch[name], places, axis=1) for name in ("labels", "weights")}
        return {**batch, **chosen, "places": places}


@dataclass(frozen=True, kw_only=True)
class Pretrain(Experiment):
    """Train an encoder to guess hidden tokens, and next sentences where lines follow each other."""

    model: EncoderConfig
    """The vocabulary size is the tokenizer's, whatever stands here."""
    data: Corpus = Corpus()
    vocabulary: Vocabulary = Vocabulary()
    rows: int = 32
    """A batch."""
    length: int = 128
    """Tokens a row."""
    share: float = 0.15
    """Of the tokens, to be guessed."""
    validated: int = 1_000
    """Most rows of an evaluation, evenly spread over validation text."""
    samples: int = 5
    """Validation sentences with a hidden token shown at the end."""

    def __post_init__(self):
        super().__post_init__()
        if min(self.rows, self.length, self.validated) < 1:
            raise ValueError(
                f"rows, length and validated must be at least 1, got {self.rows}, {self.length}, {self.validated}"
            )
        if not 0 < self.share < 1:
            raise ValueError(f"share must be in (0, 1), got {self.share}")
        table = self.model.embedding
        if table.position == "learned" and self.length > table.max_length:
            raise ValueError(
                f"rows must not be longer than the positions, got length={self.length}, {table.max_length} positions"
            )

    def task(self, folder: RunFolder) -> Task:
        """Read the text, learn or load the tokenizer, hide tokens."""
        lines = {split: self.data.lines(split) for split in ("train", "validation")}
        words = (line for document in lines["train"] for line in document)
        tokenizer = self.vocabulary.open(folder, words).with_mask()
        for split, documents in lines.items():
            print(f"{split}: {sum(map(len, documents)):,} lines in {len(documents):,} documents", flush=True)
        print(f"{tokenizer.vocab_size:,} tokens in the vocabulary", flush=True)
        (train, *steps), (held, *held_steps) = (self._items(lines[split], tokenizer) for split in lines)
        spread = np.linspace(0, len(held) - 1, min(self.validated, len(held)), dtype=int)
        held = [held[int(place)] for place in spread]
        follow = not self.data.sentences
        special = (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk)
        hide = MaskedLM(vocab_size=tokenizer.vocab_size, mask=tokenizer.mask, special=special, share=self.share)
        collate = HiddenRows(
            rows=Rows(length=self.length, pad=tokenizer.pad), most=max(1, round(self.share * self.length))
        )
        validation = partial(each_once, held, *held_steps, hide, rows=self.rows, collate=collate)
        encoder = replace(self.model, embedding=replace(self.model.embedding, vocab=tokenizer.vocab_size))
        return TextRun(
            config=MaskedLMConfig(encoder=encoder, next_sentence=follow),
            architecture="BertForPreTraining" if follow else "BertForMaskedLM",
            tokenizer=HubTokenizer.of_encoder(tokenizer),
            objective=MaskedLoss(),
            batches=stream(shuffled(train, *steps, hide, seed=self.train.seed), collate, self.rows),
            validation=validation,
            show=partial(self._show, validation, [line for document in lines["validation"] for line in document]),
        ).task(folder)

    def _items(self, documents: list[list[str]], tokenizer: Tokenizer) -> tuple[Any, ...]:
        """Give what examples are made of, and the transforms that make them."""
        encoded = [[line for line in tokenizer.encode(document) if line] for document in documents]
        if self.data.sentences:
            rows = ragged([line for document in encoded for line in document])
            return (Blocks(documents=rows, length=self.length, begin=(tokenizer.bos,), end=(tokenizer.eos,)),)
        sentences, ends = bounds([document for document in encoded if document])
        pairs = NextSentence(
            sentences=sentences, documents=ends, length=self.length, cls=tokenizer.bos, sep=tokenizer.eos
        )
        return pairs.starts, pairs

    def _show(self, validation: Any, lines: list[str], pretrained: hub.Pretrained) -> Shown:
        metrics = evaluate(MaskedLoss(), pretrained.model, validation())
        texts = [line for line in lines if len(line.split()) > 4] or lines
        places = np.linspace(0, len(texts) - 1, self.samples, dtype=int)
        samples = [fill(pretrained, texts[int(place)], self.length) for place in places]
        said = [f"loss {metrics.get('masked_loss', metrics['loss']):.3f} a hidden token",
                f"{100 * metrics['masked_accuracy']:.1f} % of them guessed"]  # fmt: skip
        if "sentence_accuracy" in metrics:
            said.append(f"{100 * metrics['sentence_accuracy']:.1f} % of next sentences told from others")
        shown = [line for each in samples for line in ("", f"  {each['source']}", f"    {each['hypothesis']}")]
        return Shown(metrics=metrics, samples=samples, lines=(*shown, "", f"validation: {', '.join(said)}"))


def fill(pretrained: hub.Pretrained, text: str, length: int, top: int = 3) -> dict[str, str]:
    """Hide one token in the middle of a text and let the model guess it.

    Returns:
      The text with its hidden token as `source`, the best guesses as `hypothesis`, the token as `target`.
    """
    tokenizer, model = pretrained.tokenizer, pretrained.model
    ids = tokenizer([text], max_length=length, truncate=True)["input_ids"][0].tolist()
    special = (tokenizer.pad, tokenizer.cls, tokenizer.sep)
    open_ = [place for place, id in enumerate(ids) if id not in special]
    # The longest token of the middle third says more than a comma would.
    middle = open_[len(open_) // 3 : -(-2 * len(open_) // 3)] or open_
    place = max(middle, key=lambda i: len(tokenizer.decode([[ids[i]]])[0]))
    hidden = np.full((1, length), tokenizer.pad, np.int32)
    hidden[0, : len(ids)] = [*ids[:place], tokenizer.mask, *ids[place + 1 :]]
    logits = model(jnp.asarray(hidden), mask=Mask(lengths=jnp.array([len(ids)])))[0, place]
    chances = np.asarray(jax.nn.softmax(logits))
    spell = lambda id: tokenizer.decode([[int(id)]])[0].strip()  # noqa: E731
    guesses = [f"{spell(id)!r} {chances[id]:.2f}" for id in np.argsort(-chances)[:top]]
    source = tokenizer.decode(hidden[:, 1 : len(ids) - 1], skip_special_tokens=False)[0]
    target = spell(ids[place])
    return {"source": source, "target": target, "hypothesis": f"{', '.join(guesses)} (was {target!r})"}
