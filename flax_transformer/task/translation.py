"""Translation: parallel text in, a trained encoder-decoder and its BLEU out."""

import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import jax
from flax import nnx

from flax_transformer.data.text import (
    BucketPlan,
    PairSource,
    Tokenized,
    Tokenizer,
    bucket_boundaries,
    eval_batches,
    load_tokenizer,
    pipeline,
    tokenize,
    train_byte_bpe,
    train_word_bpe,
)
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.objective import TokenLoss
from flax_transformer.report import read_run
from flax_transformer.task.experiment import Experiment, Task, write_samples
from flax_transformer.task.report import write_plain_report, write_report
from flax_transformer.task.score import Scores, score
from flax_transformer.task.text import evaluate
from flax_transformer.task.translator import Hypothesis, Search, Translator
from flax_transformer.train.checkpoint import CheckpointError, Checkpoints, average_models
from flax_transformer.train.folder import FolderError, RunFolder, read_config, read_experiment
from flax_transformer.train.metrics import Writer
from flax_transformer.train.progress import duration

VOCAB_MULTIPLE = 128
"""Embedding tables are rounded up to a multiple of this many rows, so that they split over devices."""

ROWS = 8
"""Batches are a multiple of this many rows, so that up to 8 devices or processes see the same ones."""


@runtime_checkable
class Corpus(Protocol):
    """Where sentence pairs come from."""

    def read(self, split: str) -> PairSource:
        """Give the pairs of `train`, `validation` or `test`."""


@dataclass(frozen=True, kw_only=True)
class BPE:
    """Byte-pair encoding, joint over both languages."""

    unit: Literal["word", "byte"] = "byte"
    """word: characters of words in text that is already tokenised; byte: lossless on any text."""
    merges: int = 10_000

    def __post_init__(self):
        if self.merges < 0:
            raise ValueError(f"merges must not be negative, got {self.merges}")

    def train(self, pairs: PairSource) -> Tokenizer:
        """Learn from both sides of the pairs."""
        texts = (pairs[i][side] for side in ("source", "target") for i in range(len(pairs)))
        if self.unit == "word":
            return train_word_bpe(texts, merges=self.merges)
        return train_byte_bpe(texts, vocab_size=260 + self.merges)


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How pairs become batches of few fixed shapes."""

    tokens: int = 8_192
    """Padded tokens a batch, counted on the longer side."""
    buckets: int = 8
    """Lengths there are batches of; each is compiled once."""
    max_tokens: int = 128
    """Longer pairs are left out of training, with a count."""

    def __post_init__(self):
        if self.buckets < 1 or self.max_tokens < 2 or self.tokens < self.max_tokens:
            raise ValueError(
                f"batches need at least 1 bucket and room for the longest pair, got buckets={self.buckets}, "
                f"tokens={self.tokens}, max_tokens={self.max_tokens}"
            )


@dataclass(frozen=True, kw_only=True)
class Translation(Experiment):
    """Train an encoder-decoder on parallel text and test it by beam search."""

    model: Seq2SeqConfig
    """The vocabulary size is the tokenizer's, whatever stands here."""
    data: Any
    """A `Corpus`: a frozen dataclass with `read(split)`."""
    bpe: BPE = BPE()
    batch: Batching = Batching()
    label_smoothing: float = 0.1
    loss_chunk: int = 512
    """Target tokens whose logits exist at a time; more may be faster on an accelerator, and take more memory."""
    search: Search = Search()
    headline: Literal["bleu", "tokenized_bleu", "exact_match"] = "bleu"
    """The score the run ends with."""
    samples: int = 10
    """Translations shown at the end."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")

    @property
    def objective(self) -> TokenLoss:
        """What is minimised."""
        return TokenLoss(label_smoothing=self.label_smoothing, chunk=self.loss_chunk)

    def build(self, vocab: int) -> Seq2SeqConfig:
        """Size the model's embeddings for a tokenizer of `vocab` tokens."""
        size = {"vocab": vocab, "multiple": VOCAB_MULTIPLE}
        source = self.model.source_embedding
        return replace(
            self.model,
            embedding=replace(self.model.embedding, **size),
            source_embedding=None if source is None else replace(source, **size),
        )

    def task(self, folder: RunFolder) -> Task:
        """Read the corpus, learn or load the tokenizer, lay out the batches."""
        try:
            corpus = {split: self.data.read(split) for split in ("train", "validation", "test")}
        except RuntimeError as error:  # a data set that exists, but not here
            raise ValueError(str(error)) from error
        for split, pairs in corpus.items():
            skipped = ", ".join(f"{n:,} {why}" for why, n in getattr(pairs, "skipped", {}).items())
            print(f"{split}: {len(pairs):,} pairs{f' (left out: {skipped})' if skipped else ''}", flush=True)
        if folder.tokenizer.exists():
            tokenizer = load_tokenizer(folder.tokenizer)
        else:
            tokenizer = self.bpe.train(corpus["train"])
            tokenizer.save(folder.tokenizer)
        train = self._fitting(tokenize(corpus["train"], tokenizer), "train")
        validation = self._fitting(tokenize(corpus["validation"], tokenizer), "validation")
        rows = math.lcm(ROWS, self.mesh_rows() * self.train.accumulate)
        boundaries = bucket_boundaries(train.lengths, self.batch.buckets)
        plan = BucketPlan(
            train.lengths, tokens=self.batch.tokens, boundaries=boundaries, seed=self.train.seed, multiple=rows
        )
        print(
            f"{tokenizer.vocab_size:,} tokens in the vocabulary, {plan.batches_per_epoch:,} batches an epoch, "
            f"lengths {', '.join(map(str, boundaries))}, {100 * plan.padding:.0f} % padding",
            flush=True,
        )
        config = self.build(tokenizer.vocab_size)
        return Task(
            init=lambda key: Seq2Seq(config, rngs=nnx.Rngs(key)),
            objective=self.objective,
            batches=pipeline(plan, train, process_index=jax.process_index(), process_count=jax.process_count()),
            evaluate=lambda model, step: self._validate(model, validation),
            finish=lambda model, writer: self._finish(Translator(model, tokenizer), corpus["test"], folder, writer),
        )

    def mesh_rows(self) -> int:
        """Count the parts the mesh splits a batch into."""
        fixed = math.prod(size for size in self.mesh.sizes() if size > 0)
        sizes = (jax.device_count() // fixed if size == -1 else size for size in (self.mesh.data, self.mesh.fsdp))
        return math.prod(sizes)

    def _fitting(self, pairs: Tokenized, split: str) -> Tokenized:
        kept = pairs.within(self.batch.max_tokens)
        if len(kept) < len(pairs):
            print(f"{split}: {len(pairs) - len(kept):,} pairs of more than {self.batch.max_tokens} tokens left out")
        if not len(kept):
            raise ValueError(f"no {split} pair has at most max_tokens={self.batch.max_tokens} tokens")
        return kept

    def _validate(self, model: Seq2Seq, pairs: Tokenized) -> dict[str, float]:
        """Measure the loss as it is trained on, and the perplexity, on all validation pairs."""
        boundaries = bucket_boundaries(pairs.lengths, self.batch.buckets)
        batches = eval_batches(pairs, tokens=self.batch.tokens, boundaries=boundaries)
        return evaluate(self.objective, model, (batch for _, batch in batches))

    def _finish(self, translator: Translator, test: PairSource, folder: RunFolder, writer: Writer) -> None:
        """Translate the test set, score it, and show what came out."""
        if jax.process_index() != 0:
            return
        pairs = [test[i] for i in range(len(test))]
        scores, hypotheses, seconds = evaluate_corpus(
            translator, [p["source"] for p in pairs], [p["target"] for p in pairs], self.search
        )
        writer.write(self.train.steps, "test", {**scores.metrics(), "sentences_per_second": len(pairs) / seconds})
        samples = [_sample(pair, hypothesis) for pair, hypothesis in zip(pairs, hypotheses, strict=True)]
        write_samples(folder, samples)
        write_report(folder, translator)
        for line in _summary(self, folder, samples, scores, seconds):
            print(line, flush=True)


def evaluate_corpus(
    translator: Translator, sources: list[str], references: list[str], search: Search
) -> tuple[Scores, list[Hypothesis], float]:
    """Translate and score a corpus; also give the seconds it took, compilation included."""
    began = time.monotonic()
    hypotheses = [best[0] for best in translator(sources, search)]
    seconds = time.monotonic() - began
    return score([hypothesis.text for hypothesis in hypotheses], references), hypotheses, seconds


def _sample(pair: dict[str, str], hypothesis: Hypothesis) -> dict:
    return {**pair, "hypothesis": hypothesis.text, **{k: v for k, v in asdict(hypothesis).items() if k != "text"}}


HEADLINES = {
    "bleu": ("BLEU", ""),
    "tokenized_bleu": ("tokenised BLEU", ""),
    "exact_match": ("exact match", " %"),
}


def _summary(
    experiment: Translation, folder: RunFolder, samples: list[dict], scores: Scores, seconds: float
) -> Iterator[str]:
    name, unit = HEADLINES[experiment.headline]
    headline = f"{name} {getattr(scores, experiment.headline):.1f}{unit}"
    yield ""
    for sample in samples[:: max(len(samples) // experiment.samples, 1)][: experiment.samples]:
        right = sample["hypothesis"] == sample["target"]
        yield f"  {sample['source']}"
        yield f"  {'=' if right else '→'} {sample['hypothesis']}"
        if not right:
            yield f"    expected: {sample['target']}"
    yield ""
    yield f"{headline} on {len(samples):,} test sentences ({duration(seconds)})"
    if experiment.headline != "exact_match":
        bleu = f"BLEU {scores.bleu:.2f} ({scores.signature})"
        yield f"{bleu}, chrF {scores.chrf:.1f}, tokenised BLEU {scores.tokenized_bleu:.2f}"
    yield ""
    yield f"run folder: {folder.root}"
    yield f"report: {folder.report}"
    yield "try next:"
    yield f"  echo '{samples[0]['source']}' | {_program()} translate {folder.root}"
    yield f"  {_program()} show {folder.root}"


def _program() -> str:
    """Name the command line as a shell here finds it: an environment that is not activated needs the path."""
    beside = Path(sys.executable).parent / "flax-transformer"
    found = shutil.which("flax-transformer")
    return "flax-transformer" if found and Path(found) == beside else os.path.relpath(beside)


def load_translator(workdir: str) -> tuple[Translator, Translation]:
    """Open a finished or running translation run.

    Raises:
      FolderError: when the folder is no translation run, or has no checkpoint yet.
      CheckpointError: when the checkpoint cannot be read.
    """
    folder = RunFolder(Path(workdir))
    experiment = read_experiment(folder)
    if not isinstance(experiment, Translation):
        raise FolderError(f"{workdir} is not a translation run, but one of {type(experiment).__name__}")
    if not folder.tokenizer.is_file():
        raise FolderError(f"{workdir} has no tokenizer.json; was the run stopped before it began?")
    tokenizer = load_tokenizer(folder.tokenizer)
    config = experiment.build(tokenizer.vocab_size)
    model = nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))
    with Checkpoints(folder.checkpoints, keep=None) as checkpoints:
        steps = checkpoints.steps()[-experiment.train.average :]
        if not steps:
            raise FolderError(f"{workdir} has no checkpoint yet")
        if experiment.train.ema:
            model = checkpoints.restore({"ema": model})[0]["ema"]
        else:
            model = average_models(checkpoints, model, steps)
    return Translator(model, tokenizer), experiment


def remake_report(workdir: str) -> Path:
    """Write report.html of a run as it stands: finished or not, of translation or of anything else.

    A translation run that has not finished gets samples translated on the spot by its newest checkpoint.

    Raises:
      FolderError: when it is no run folder.
      OSError: when the page cannot be written.
    """
    folder = RunFolder(Path(workdir))
    read_config(folder)
    try:
        experiment = read_experiment(folder)
    except FolderError:  # of a program that is not here; its numbers can be shown all the same
        return write_plain_report(folder)
    if not isinstance(experiment, Translation):
        return write_plain_report(folder)
    try:
        translator, _ = load_translator(workdir)
    except (FolderError, CheckpointError, ValueError) as error:
        return write_plain_report(folder, [f"There are no samples and no pictures of attention: {error}."])
    if read_run(folder).samples:
        return write_report(folder, translator)
    try:
        test = experiment.data.read("test")
    except (ValueError, RuntimeError, OSError) as error:
        return write_report(folder, translator, notes=[f"There are no samples: {error}."])
    pairs = [test[i] for i in range(0, len(test), max(len(test) // experiment.samples, 1))][: experiment.samples]
    hypotheses = [best[0] for best in translator([pair["source"] for pair in pairs], experiment.search)]
    samples = [_sample(pair, hypothesis) for pair, hypothesis in zip(pairs, hypotheses, strict=True)]
    return write_report(
        folder,
        translator,
        samples,
        [f"The samples are by the newest checkpoint, {len(pairs)} of {len(test):,} test sentences."],
    )
