"""Classifying sentences: an encoder and a head on its first token, from nothing or from a checkpoint."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flax_transformer import hub
from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Example
from flax_transformer.data.text import Rows
from flax_transformer.data.text.plain import Labelled, LabelledText, standard_library
from flax_transformer.hub.file import CONFIG, find_folder, read_json
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.encoder import EncoderConfig, with_head
from flax_transformer.objective import LabelLoss
from flax_transformer.task.experiment import Experiment, Task
from flax_transformer.task.text import Shown, TextRun, Vocabulary, evaluate, stream
from flax_transformer.train.folder import RunFolder

ARCHITECTURE = "BertForSequenceClassification"
HEAD = (r"^classifier", r"^pre_classifier", r"pooler")
"""Tensors that a pretrained encoder may lack, and a classifier has."""

_BLOCK_STRING = re.compile(r'("""|\'\'\').*?\1', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Sentences(LabelledText):
    """Labelled sentences of a folder, or lines of the standard library if `root` is empty: code (0) or comment (1)."""

    root: str = ""
    names: tuple[str, ...] = ()
    """What the classes are called, in the order of `labels`; as the labels by default."""

    def __post_init__(self):
        super().__post_init__()
        if self.names and len(self.names) != len(self.labels):
            raise ValueError(f"names must be as many as labels, got {self.names} for {self.labels}")

    @property
    def called(self) -> tuple[str, ...]:
        """Give the classes' names."""
        return self.names or (self.labels if self.root else ("code", "comment"))

    def read(self, split: str) -> Labelled:
        """Read the `train`, `validation` or `test` sentences."""
        return super().read(split) if self.root else code_or_comment(split)


def code_or_comment(split: str, size: int = 10_000) -> Labelled:
    """Draw lines of the standard library, half of them code (0), half comments (1) without their marks.

    All lines differ and have three words or more; of `size`, 80 % are for training and 10 % each for validation and
    test. Which lines there are depends on the version of Python.
    """
    kinds: tuple[dict[str, None], ...] = {}, {}
    for document in standard_library():
        for line in _BLOCK_STRING.sub("", document).splitlines():
            comment = line.lstrip().startswith("#")
            text = line.strip(" \t#")
            if len(re.findall(r"\w+", text)) > 2:
                kinds[comment][text] = None
    draw = random.Random(0)
    found = [(text, label) for label, lines in enumerate(kinds) for text in draw.sample(list(lines), size // 2)]
    draw.shuffle(found)
    cuts = {"train": (0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1)}
    begin, end = (round(size * share) for share in cuts[split])
    texts, labels = zip(*found[begin:end], strict=True)
    return Labelled(texts, labels)


@dataclass(frozen=True, kw_only=True)
class HideWords:
    """Put the mask in place of each token with a probability, so that no single word decides (word dropout)."""

    share: float
    mask: int
    special: tuple[int, ...]

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Hide tokens of one example."""
        tokens = example["tokens"]
        hidden = (rng.random(len(tokens)) < self.share) & ~np.isin(tokens, self.special)
        return {**example, "tokens": np.where(hidden, self.mask, tokens).astype(np.int32)}


@dataclass(frozen=True, kw_only=True)
class ClassifyText(Experiment):
    """Train an encoder to tell the classes of sentences."""

    model: EncoderConfig
    """Of a new encoder; of one that `init` gives, only its rates of dropout. The vocabulary size is the tokenizer's."""
    init: str = ""
    """Checkpoint whose encoder and tokenizer to begin with, a folder or hub id; a new encoder if empty."""
    data: Sentences = Sentences()
    vocabulary: Vocabulary = Vocabulary()
    """Of a new encoder."""
    dropout: float = 0.1
    """Before the output layer."""
    hide: float = 0.0
    """Share of tokens hidden in training."""
    rows: int = 64
    """Sentences a batch."""
    length: int = 64
    """Most tokens of a sentence; longer ones are cut."""
    samples: int = 6
    """Test sentences shown at the end."""

    def __post_init__(self):
        super().__post_init__()
        if self.rows < 1 or self.length < 3:
            raise ValueError(f"rows must be at least 1 and length 3, got {self.rows} and {self.length}")
        if not 0 <= self.hide < 1:
            raise ValueError(f"hide must be in [0, 1), got {self.hide}")
        table = self.model.embedding
        if not self.init and table.position == "learned" and self.length > table.max_length:
            raise ValueError(
                f"rows must not be longer than the positions, got length={self.length}, {table.max_length} positions"
            )

    def task(self, folder: RunFolder) -> Task:
        """Read the sentences, and make or load tokenizer and encoder."""
        data = {split: self.data.read(split) for split in ("train", "validation", "test")}
        known = self._pretrained() if self.init else None
        tokenizer = known.tokenizer if known else self._tokenizer(folder, data["train"].texts)
        if tokenizer is None or None in (tokenizer.cls, tokenizer.sep):
            raise ValueError(f"an encoder's tokenizer has [CLS] and [SEP], that of {self.init} lacks them")
        if self.hide and tokenizer.mask is None:
            raise ValueError(f"hide needs a mask token, the tokenizer of {self.init} has none")
        items = {split: _items(each, tokenizer, self.length) for split, each in data.items()}
        for split, each in items.items():
            print(f"{split}: {len(each):,} sentences, {sum(len(item['tokens']) for item in each):,} tokens", flush=True)
        names = dict(enumerate(self.data.called))
        encoder = replace(self.model, embedding=replace(self.model.embedding, vocab=tokenizer.vocab_size))
        new = with_head(encoder, outputs=len(names), pool="first", dense="tanh", dropout=self.dropout)
        special = (tokenizer.pad, tokenizer.cls, tokenizer.sep)
        hidden = (HideWords(share=self.hide, mask=tokenizer.mask, special=special),) if self.hide else ()
        collate = Rows(length=self.length, pad=tokenizer.pad)
        held = {split: partial(each_once, items[split], rows=128, collate=collate) for split in ("validation", "test")}
        return TextRun(
            config=known.model.cfg if known else new,
            architecture=known.config["architectures"][0] if known else ARCHITECTURE,
            tokenizer=tokenizer,
            objective=LabelLoss(),
            batches=stream(shuffled(items["train"], *hidden, seed=self.train.seed), collate, self.rows),
            validation=held["validation"],
            show=partial(self._show, held["test"], data["test"]),
            model=known.model if known else None,
            fields={
                "id2label": {str(number): name for number, name in names.items()},
                "label2id": {name: number for number, name in names.items()},
                "classifier_dropout": self.dropout,
            },
        ).task(folder)

    def _tokenizer(self, folder: RunFolder, texts: Sequence[str]) -> HubTokenizer:
        return HubTokenizer.of_encoder(self.vocabulary.open(folder, texts).with_mask())

    def _pretrained(self) -> hub.Pretrained:
        """Load the encoder of `init` with a new head, and with this experiment's rates of dropout."""
        config = read_json(find_folder(self.init) / CONFIG)
        block = self.model.block
        rates = {
            "hidden_dropout_prob": block.dropout, "attention_probs_dropout_prob": block.attention_dropout,
            "dropout": block.dropout, "attention_dropout": block.attention_dropout,
        }  # fmt: skip
        changed = {name: rate for name, rate in rates.items() if name in config}
        changed |= dict.fromkeys(("classifier_dropout", "seq_classif_dropout"), self.dropout)
        changed |= {"num_labels": len(self.data.labels), "id2label": None}
        names = config.get("architectures") or (None,)
        kind = names[0] and re.sub(r"(For[A-Z]\w+|Model)$", "ForSequenceClassification", names[0])
        return hub.load(
            self.init,
            dtype="float32",
            lenient=hub.Lenient(architecture=kind, config=changed, initialise=HEAD, seed=self.train.seed),
        )

    def _show(self, batches: Any, test: Labelled, pretrained: hub.Pretrained) -> Shown:
        metrics = evaluate(LabelLoss(), pretrained.model, batches())
        chances = np.concatenate([_chances(pretrained.model, batch) for batch in batches()])
        names = self.data.called
        samples = [
            {"source": test.texts[i], "target": names[test.labels[i]], "hypothesis": names[row.argmax()],
             "score": float(row.max())}
            for i, row in enumerate(chances)
        ]  # fmt: skip
        wide = max(map(len, names))
        lines = [
            f"  {'✓' if each['hypothesis'] == each['target'] else '✗'} {each['hypothesis']:{wide}} {each['score']:.2f}"
            f"  {each['source'][:90]}"
            for each in samples[: self.samples]
        ]
        headline = f"test accuracy {100 * metrics['accuracy']:.2f} % on {len(samples):,} sentences"
        return Shown(metrics=metrics, samples=samples[:100], lines=("", *lines, "", headline))


def _items(data: Labelled, tokenizer: HubTokenizer, length: int) -> list[Example]:
    inputs = tokenizer(list(data.texts), max_length=length, truncate=True, side="right")
    ends = inputs["attention_mask"].sum(axis=1)
    rows = zip(inputs["input_ids"], ends, data.labels, strict=True)
    return [{"tokens": ids[:end], "labels": label} for ids, end, label in rows]


def _chances(model: Any, batch: Any) -> Float[np.ndarray, "B E"]:
    """Give each class's probability, of the rows that have tokens."""
    rows = batch["inputs"]["lengths"] > 0
    return np.asarray(_probabilities(model, batch))[rows]


@jax.jit
def _probabilities(model: Any, batch: Any) -> Float[jax.Array, "B E"]:
    return jax.nn.softmax(model.output(model.hidden_states(**batch["inputs"])))
