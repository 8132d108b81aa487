"""Denoising: an encoder-decoder that restores damaged text, as BART is pretrained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flax_transformer.data.text import (
    Blocks,
    DeleteTokens,
    Denoise,
    Infill,
    MaskTokens,
    Pairs,
    PermuteSentences,
    Rotate,
    Tokenizer,
)
from flax_transformer.data.text.denoise import Noise
from flax_transformer.data.text.exercise import sums
from flax_transformer.data.text.numbers import SPLITS
from flax_transformer.data.text.plain import PlainText, encode_documents
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.task.experiment import Experiment, Task
from flax_transformer.task.score import score
from flax_transformer.task.sequence import (
    Kind,
    Restored,
    Weights,
    open_marked,
    sample_lines,
    samples_of,
    sequence_run,
    table,
)
from flax_transformer.task.text import Shown, Vocabulary
from flax_transformer.train.folder import RunFolder

MASK = "<mask>"
ENDS = ".?!"
"""What a sentence ends with."""

SLACK = 8
"""Tokens by which a damaged text may be longer than the whole: one in 20 spans is empty and only adds its mask, so
that more than these in one text have a chance of about 1 in 20^8."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Texts to damage: the lines of a file, or sums in words, made by rule, if `text` is empty."""

    text: str = ""
    holdout: float = 0.02
    """Share of a file's characters, its last, that is not for training; half of their lines are the test."""
    train: int = 20_000
    """Texts made by rule."""
    validation: int = 100
    """Texts at most, of a file too."""
    test: int = 100

    def __post_init__(self):
        if min(self.train, self.validation, self.test) < 1:
            raise ValueError(
                f"each split needs a text, got train={self.train}, validation={self.validation}, test={self.test}"
            )

    def read(self, seed: int) -> dict[str, list[str]]:
        """Read the texts of every split."""
        if not self.text:
            return {split: sums(getattr(self, split), seed=seed, split=split) for split in SPLITS}
        file = PlainText(text=self.text, holdout=self.holdout)
        train, held = ([line for text in file.read(s) for line in _lines(text)] for s in ("train", "validation"))
        if not train or len(held) < 2:
            raise ValueError(
                f"{self.text} must have a line to train on and two to test by, got {len(train)} and {len(held)}; "
                f"holdout is {self.holdout}"
            )
        return {"train": train, "validation": held[::2][: self.validation], "test": held[1::2][: self.test]}


@dataclass(frozen=True, kw_only=True)
class Mix(Weights):
    """How often each damage comes, relative to the others; 0 leaves it out."""

    infill: float = 1.0
    """Spans of Poisson length, 30 % of all tokens, become one mask each."""
    mask: float = 1.0
    """15 % of tokens become a mask each."""
    delete: float = 1.0
    """15 % of tokens are gone without a trace."""
    permute: float = 1.0
    """Sentences in another order."""
    rotate: float = 1.0
    """The text begins anywhere, and what was before comes at the end."""
    bart: float = 1.0
    """Sentences in another order, and then spans masked: what BART was pretrained by."""


@dataclass(frozen=True, kw_only=True)
class Denoising(Experiment):
    """Train one BART to restore text from several kinds of damage, and test it on each."""

    model: Seq2SeqConfig
    """The vocabulary size is the tokenizer's, whatever stands here."""
    data: Lines = Lines()
    mix: Mix = Mix()
    vocabulary: Vocabulary = Vocabulary(size=340)
    rows: int = 48
    """Texts a batch."""
    length: int = 36
    """Tokens a text, marks included; longer ones are cut."""
    samples: int = 1
    """Test texts of each damage shown at the end."""

    def __post_init__(self):
        super().__post_init__()
        table = self.model.embedding
        if self.rows < 1 or self.length < 4:
            raise ValueError(f"rows must be at least 1 and length 4, got {self.rows} and {self.length}")
        if table.position == "learned" and self.length + SLACK > table.max_length:
            raise ValueError(f"damaged texts need {self.length} + {SLACK} positions, the model has {table.max_length}")

    def task(self, folder: RunFolder) -> Task:
        """Read the texts, learn or load the tokenizer, mix the damages."""
        data = self.data.read(self.train.seed)
        tokenizer = open_marked(self.vocabulary, folder, data["train"], added=[MASK], single="<s> $A </s>")
        room = self.length - 2
        items = {
            split: Blocks(documents=encode_documents(texts, tokenizer), length=room) for split, texts in data.items()
        }
        marks = {"begin": (tokenizer.bos,), "end": (tokenizer.eos,)}
        noises = _noises(tokenizer)
        kinds = {
            name: Kind(weight=weight, items=items, transforms=(Denoise(noises=noises[name], **marks),))
            for name, weight in self.mix.present().items()
        }
        return sequence_run(
            kinds, config=self.model, architecture="BartForConditionalGeneration", tokenizer=tokenizer,
            collate=Pairs(
                source_length=self.length + SLACK, target_length=self.length, start=tokenizer.eos, pad=tokenizer.pad
            ),
            rows=self.rows, show=self._show, seed=self.train.seed,
        ).task(folder)  # fmt: skip

    def _show(self, restored: Mapping[str, Restored]) -> Shown:
        lines = [line for name, kind in restored.items() for line in sample_lines(name, kind, self.samples)]
        metrics: dict[str, float] = {}
        rows = []
        for name, kind in restored.items():
            copied = score([source.replace(MASK, "") for source in kind.sources], kind.targets)
            found = score(kind.hypotheses, kind.targets)
            metrics |= {
                f"loss_{name}": kind.loss, f"exact_match_{name}": found.exact_match, f"chrf_{name}": found.chrf,
                f"copied_exact_match_{name}": copied.exact_match, f"copied_chrf_{name}": copied.chrf,
            }  # fmt: skip
            shares = (f"{copied.exact_match:.1f} %", f"{found.exact_match:.1f} %")
            rows.append((name, *shares, f"{copied.chrf:.1f}", f"{found.chrf:.1f}", f"{kind.loss:.4f}"))
        means = {
            name: sum(metrics[f"{name}_{kind}"] for kind in restored) / len(restored)
            for name in ("exact_match", "chrf", "copied_exact_match", "copied_chrf")
        }
        header = ("damage", "exact: untouched", "restored", "chrF: untouched", "restored", "loss a token")
        headline = (
            f"{means['exact_match']:.1f} % of texts restored exactly (untouched: {means['copied_exact_match']:.1f} %)"
            f", chrF {means['chrf']:.1f} (untouched: {means['copied_chrf']:.1f})"
        )
        return Shown(
            metrics={**means, **metrics},
            samples=samples_of(restored),
            lines=(*lines, "", *table(header, rows), "", headline),
        )


def _noises(tokenizer: Tokenizer) -> dict[str, tuple[Noise, ...]]:
    mask = tokenizer.vocab_size - 1
    ends = dict.fromkeys(ids[-1] for ids in tokenizer.encode([f"a{end}" for end in ENDS]))
    infill, permute = Infill(mask=mask), PermuteSentences(ends=tuple(id for id in ends if id != tokenizer.unk))
    return {
        "infill": (infill,),
        "mask": (MaskTokens(mask=mask),),
        "delete": (DeleteTokens(),),
        "permute": (permute,),
        "rotate": (Rotate(),),
        "bart": (permute, infill),
    }


def _lines(text: str) -> Iterator[str]:
    return (line for line in map(str.strip, text.splitlines()) if line)
