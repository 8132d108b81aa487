"""Language modelling: running text in, a decoder-only model and what it writes out."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from flax_transformer import hub
from flax_transformer.data import each_once, shuffled
from flax_transformer.data.text import Rows, Windows
from flax_transformer.data.text.plain import PlainText, encode_documents
from flax_transformer.models.causal import CausalConfig
from flax_transformer.objective import TokenLoss
from flax_transformer.task.experiment import Experiment, Task
from flax_transformer.task.text import Shown, TextRun, Vocabulary, evaluate, stream
from flax_transformer.train.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Experiment):
    """Train a decoder-only model to tell the next token of running text."""

    model: CausalConfig
    """The vocabulary size is the tokenizer's, whatever stands here."""
    data: PlainText = PlainText()
    vocabulary: Vocabulary = Vocabulary()
    rows: int = 32
    """Windows a batch."""
    length: int = 256
    """Tokens a window."""
    samples: int = 3
    """Continuations of validation text shown at the end."""

    def __post_init__(self):
        super().__post_init__()
        table = self.model.embedding
        if self.rows < 1 or self.length < 1:
            raise ValueError(f"rows and length must be at least 1, got {self.rows} and {self.length}")
        if table.position == "learned" and self.length > table.max_length:
            raise ValueError(
                f"windows must not be longer than the positions, got length={self.length}, {table.max_length} positions"
            )

    def task(self, folder: RunFolder) -> Task:
        """Read the text, learn or load the tokenizer, cut windows."""
        documents = {split: self.data.read(split) for split in ("train", "validation")}
        tokenizer = self.vocabulary.open(folder, documents["train"])
        tokens = {split: encode_documents(texts, tokenizer).flat for split, texts in documents.items()}
        for split, texts in documents.items():
            print(f"{split}: {sum(map(len, texts)):,} characters, {len(tokens[split]):,} tokens", flush=True)
        print(f"{tokenizer.vocab_size:,} tokens in the vocabulary", flush=True)
        train = Windows(tokens=tokens["train"], length=self.length)
        held = Windows(tokens=tokens["validation"], length=self.length, stride=self.length)
        collate = Rows(length=self.length, pad=tokenizer.pad)
        validation = partial(each_once, held, rows=max(self.rows, 32), collate=collate)
        return TextRun(
            config=replace(self.model, embedding=replace(self.model.embedding, vocab=tokenizer.vocab_size)),
            architecture="GPT2LMHeadModel",
            tokenizer=tokenizer,
            objective=TokenLoss(),
            batches=stream(shuffled(train, seed=self.train.seed), collate, self.rows),
            validation=validation,
            show=partial(self._show, validation, held, sum(map(len, documents["validation"]))),
        ).task(folder)

    def _show(self, validation: Any, held: Windows, characters: int, pretrained: hub.Pretrained) -> Shown:
        loss = evaluate(TokenLoss(), pretrained.model, validation())["loss"]
        bits = loss * len(held.tokens) / characters / math.log(2)
        samples, lines = continuations(pretrained, held, self.samples, self.train.seed)
        return Shown(
            metrics={"loss": loss, "perplexity": math.exp(min(loss, 100)), "bits_per_character": bits},
            samples=samples,
            lines=(*lines, "", f"validation loss {loss:.4f} a token, {bits:.3f} bits a character"),
        )


def continuations(
    pretrained: hub.Pretrained, held: Windows, count: int, seed: int
) -> tuple[list[dict[str, str]], list[str]]:
    """Let a language model go on from pieces of held-out text, drawing at temperature 0.8.

    Returns:
      Samples as the report shows them, and lines for the terminal.
    """
    if not count:
        return [], []
    prompt = max(min(32, held.length // 2), 1)
    starts = np.linspace(0, len(held) - 1, count, dtype=int)
    ids = np.stack([held[int(start)]["tokens"][:prompt] for start in starts])
    options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "max_new_tokens": held.length - prompt + 1}
    written = np.asarray(pretrained.generate(ids, **options, key=jax.random.key(seed)))[:, prompt:]
    pairs = list(zip(pretrained.tokenizer.decode(ids), pretrained.tokenizer.decode(written), strict=True))
    lines = [
        line
        for before, after in pairs
        for line in ("", f"  {before!r} →", *(f"    {line}" for line in after.splitlines()))
    ]
    return [{"source": before, "hypothesis": after} for before, after in pairs], lines
