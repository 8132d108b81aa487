"""Corpora as configs: a frozen value whose `read(split)` gives sentence pairs."""

from flax_transformer.data.text.numbers import numbers
from flax_transformer.data.text.pair import PairSource
from flax_transformer.data.text.parallel import ParallelText
from flax_transformer.data.text.tfds import tfds_pairs
from flax_transformer.frozen import frozen


@frozen
class Numbers:
    """Number words, English to German; the pairs of the three splits are disjoint."""

    train: int = 20_000
    validation: int = 1_000
    test: int = 1_000
    seed: int = 0

    def read(self, split: str) -> PairSource:
        """Draw the pairs of a split."""
        return numbers(getattr(self, split), seed=self.seed, split=split)


@frozen
class TextCorpus(ParallelText):
    """Parallel text: the files of a folder, or a TFDS data set when `tfds` names one.

    `train`, `validation` and `test` are file names without the language, or splits of the data set.
    """

    root: str = ""
    tfds: str = ""
    data_dir: str | None = None
    """Where TFDS keeps its data; its own default if None."""

    def __post_init__(self):
        super().__post_init__()
        if self.tfds and self.root:
            raise ValueError(f"give data.root or data.tfds, not both, got {self.root!r} and {self.tfds!r}")

    def read(self, split: str) -> PairSource:
        """Open the pairs of a split."""
        if self.tfds:
            return tfds_pairs(
                self.tfds, getattr(self, split), source=self.source, target=self.target, data_dir=self.data_dir
            )
        if not self.root:
            raise ValueError("no data: give --data.root FOLDER with parallel text, or --data.tfds NAME")
        return super().read(split)
