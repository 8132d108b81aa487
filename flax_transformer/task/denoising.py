"""Texts to be restored from several kinds of damage, as BART is pretrained."""

from collections.abc import Iterator
from typing import ClassVar

from flax_transformer.data.split import SPLITS
from flax_transformer.data.synthetic import sums
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
from flax_transformer.data.text.plain import PlainText, encode_documents
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.metric.bleu import score
from flax_transformer.task.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows
from flax_transformer.task.text_to_text import (
    HeldKinds,
    PairKind,
    Restored,
    Weights,
    open_kinds,
    open_marked,
    restore,
    sample_lines,
    samples_of,
)
from flax_transformer.text_table import align

MASK = "<mask>"


ENDS = ".?!"
"""What a sentence ends with."""


SLACK = 8
"""Tokens by which a damaged text may be longer than the whole: one in 20 spans is empty and only adds its mask, so
that more than these in one text have a chance of about 1 in 20^8."""


@frozen
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


@frozen
class DamageMix(Weights):
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


@frozen
class DamagedTexts:
    """Damage texts in several ways; the target is the whole text."""

    mix: DamageMix = DamageMix()
    vocabulary: VocabularyConfig = VocabularyConfig(size=340)
    rows: int = 48
    """Texts a batch."""
    length: int = 36
    """Tokens a text, marks included; longer ones are cut."""

    def __post_init__(self):
        check_rows(self.rows, self.length, 4)

    @property
    def positions(self) -> int:
        """How many positions a model must have: a damaged text may be longer than the whole."""
        return self.length + SLACK

    def open(self, data: Lines, context: Context) -> Opened:
        """Read the texts, learn or load the tokenizer, mix the damages; held out are `HeldKinds`."""
        texts = data.read(context.seed)
        known = context.seq2seq()
        tokenizer = known or open_marked(
            self.vocabulary, context.folder, texts["train"], added=[MASK], single="<s> $A </s>"
        )
        bare = tokenizer if known is None else known.hub
        if bare.bos is None:
            raise ValueError(f"damaged texts begin with a mark, as BART's do, the tokenizer of {context.init} has none")
        mask = tokenizer.vocab_size - 1 if known is None else known.hub.mask
        if mask is None:
            raise ValueError(f"damage takes a mask token, the tokenizer of {context.init} has none")
        room = self.length - 2
        items = {split: Blocks(documents=encode_documents(each, bare), length=room) for split, each in texts.items()}
        marks = {"begin": (bare.bos,), "end": (tokenizer.eos,)}
        noises = _noises(bare, mask)
        kinds = {
            name: PairKind(weight=weight, items=items, transforms=(Denoise(noises=noises[name], **marks),))
            for name, weight in self.mix.present().items()
        }
        start = tokenizer.eos if known is None else known.bos
        collate = Pairs(source_length=self.positions, target_length=self.length, start=start, pad=tokenizer.pad)
        return open_kinds(kinds, tokenizer, collate, self.rows, context)


def _noises(tokenizer: Tokenizer | HubTokenizer, mask: int) -> dict[str, tuple[Noise, ...]]:
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


@frozen
class Restorations(Evaluator):
    """Score the test texts of each damage: those restored exactly, and chrF."""

    takes: ClassVar[type] = HeldKinds
    exported: ClassVar[bool] = True
    metric: ClassVar[str] = "exact_match"

    count: int = 1
    """Test texts of each damage shown on the terminal."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        return self.show(restore(finished))

    def show(self, restored: dict[str, Restored]) -> Shown:
        """Return how well texts were restored."""
        lines = [line for name, kind in restored.items() for line in sample_lines(name, kind, self.count)]
        metrics: dict[str, float] = {}
        rows = []
        for name, kind in restored.items():
            copied = score([source.replace(MASK, "") for source in kind.sources], kind.targets)
            found = score(kind.hypotheses, kind.targets)
            metrics |= {
                f"loss_{name}": kind.loss, f"exact_match_{name}": found.exact_match, f"chrf_{name}": found.chrf,
                f"copied_exact_match_{name}": copied.exact_match, f"copied_chrf_{name}": copied.chrf,
            }  # fmt: skip
            rates = (f"{copied.exact_match:.1f} %", f"{found.exact_match:.1f} %")
            rows.append((name, *rates, f"{copied.chrf:.1f}", f"{found.chrf:.1f}", f"{kind.loss:.4f}"))
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
            lines=(*lines, "", align([header, *rows], "lr"), "", headline),
        )
