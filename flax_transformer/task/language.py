"""Language modelling: running text in, a decoder-only model and what it writes out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from flax_transformer import hub
from flax_transformer.data import Tokenizer
from flax_transformer.data.objective import Rows, Windows, each_once, shuffled
from flax_transformer.data.text import PlainText, encode_documents
from flax_transformer.models.causal import CausalConfig
from flax_transformer.task.experiment import Experiment, Task
from flax_transformer.task.objective import causal_loss
from flax_transformer.task.text import Shown, Vocabulary, evaluate, stream, text_task
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
        characters = sum(map(len, documents["validation"]))
        return text_task(
            folder,
            config=replace(self.model, embedding=replace(self.model.embedding, vocab=tokenizer.vocab_size)),
            architecture="GPT2LMHeadModel",
            tokenizer=tokenizer,
            objective=causal_loss,
            batches=stream(shuffled(train, seed=self.train.seed), collate, self.rows),
            validation=partial(each_once, held, rows=max(self.rows, 32), collate=collate),
            show=partial(self._show, held, collate, characters, tokenizer),
        )

    def _show(
        self, held: Windows, collate: Rows, characters: int, tokenizer: Tokenizer, pretrained: hub.Pretrained
    ) -> Shown:
        loss = evaluate(causal_loss, pretrained.model, each_once(held, rows=32, collate=collate))["loss"]
        bits = loss * len(held.tokens) / characters / math.log(2)
        texts = self._samples(held, tokenizer, pretrained)
        lines = [line for prompt, text in texts for line in ("", f"  {prompt!r} →", *_indented(text))]
        return Shown(
            metrics={"loss": loss, "perplexity": math.exp(min(loss, 100)), "bits_per_character": bits},
            samples=[{"source": prompt, "hypothesis": text} for prompt, text in texts],
            lines=(*lines, "", f"validation loss {loss:.4f} a token, {bits:.3f} bits a character"),
        )

    def _samples(self, held: Windows, tokenizer: Tokenizer, pretrained: hub.Pretrained) -> list[tuple[str, str]]:
        prompt = max(min(32, self.length // 2), 1)
        starts = np.linspace(0, len(held) - 1, self.samples, dtype=int)
        ids = np.stack([held[int(start)]["tokens"][:prompt] for start in starts]) if self.samples else np.zeros((0, 1))
        if not len(ids):
            return []
        written = np.asarray(
            pretrained.generate(
                ids, do_sample=True, temperature=0.8, top_k=0, max_new_tokens=self.length - prompt + 1,
                key=jax.random.key(self.train.seed),
            )
        )  # fmt: skip
        return list(zip(tokenizer.decode(ids), tokenizer.decode(written[:, prompt:]), strict=True))


def _indented(text: str) -> Sequence[str]:
    return [f"    {line}" for line in text.splitlines()]
