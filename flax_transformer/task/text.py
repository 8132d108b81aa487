"""What all experiments on text share: a tokenizer, a stream, an evaluation, and a checkpoint that anyone can open."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
from flax import nnx

from flax_transformer import hub
from flax_transformer.data import Examples, ExampleStream
from flax_transformer.data.examples import Collate
from flax_transformer.data.text import Tokenizer, load_tokenizer, train_byte_bpe
from flax_transformer.data.text.plain import train_characters
from flax_transformer.hub.convert import describe
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.preset import module_of
from flax_transformer.objective import Objective
from flax_transformer.task.experiment import Task, write_samples
from flax_transformer.task.report import write_text_report
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.metrics import Writer
from flax_transformer.train.share import fill_rows

EXPORT = "export"
"""Folder inside a run's that holds the finished model as a Hugging Face checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a token is: a character, or a piece found by byte-pair encoding."""

    unit: Literal["character", "byte"] = "byte"
    """byte: merges of bytes, lossless on any text."""
    size: int = 8_192
    """Tokens, special ones included, of byte-pair encoding."""

    def open(self, folder: RunFolder, texts: Iterable[str]) -> Tokenizer:
        """Load the run's tokenizer, or learn it from texts and keep it."""
        if folder.tokenizer.exists():
            return load_tokenizer(folder.tokenizer)
        made = train_characters(texts) if self.unit == "character" else train_byte_bpe(texts, vocab_size=self.size)
        made.save(folder.tokenizer)
        return made


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a finished model is shown by: metrics of the test, samples for the report, lines for the terminal."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[dict] = ()
    lines: Sequence[str] = ()


def stream(examples: Examples, collate: Collate, rows: int) -> ExampleStream:
    """Give this process its rows of endless batches."""
    return ExampleStream(
        examples, collate, rows=rows, process_index=jax.process_index(), process_count=jax.process_count()
    )


def evaluate(objective: Objective, model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Average an objective and its metrics over batches, without dropout.

    Args:
      objective: a module-level function, so that it is compiled once.
    """
    sums = [_sums(objective, model, fill_rows(batch)) for batch in batches]
    total = {name: sum(float(each[name]) for each in sums) for name in sums[0]}
    count = max(total.pop("count"), 1.0)
    return objective.summary({name: value / count for name, value in total.items()})


@partial(jax.jit, static_argnums=0)
def _sums(objective: Objective, model: Any, batch: Any) -> dict[str, jax.Array]:
    return objective.held_out(model, batch)


@dataclass(frozen=True, kw_only=True)
class TextRun:
    """What an experiment makes of its text, and what comes of the finished model.

    That is saved to `export` in the run's folder, as a checkpoint that `transformers` opens too.
    """

    config: Any
    """Of the model."""
    architecture: str
    """The class of `transformers` that the model is."""
    tokenizer: Tokenizer | HubTokenizer
    objective: Objective
    """A module-level function, or a `partial` of one that is made once."""
    batches: ExampleStream
    validation: Callable[[], Iterable[Any]]
    """Gives the batches that validation metrics are averaged over."""
    show: Callable[[hub.Pretrained], Shown]
    """Tests the finished model."""
    model: Any = None
    """What training begins from; a new model of the config by default."""
    merge: Callable[[Any], Any] | None = None
    """Makes the model that is exported of the one that was trained; None: they are one."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the checkpoint's config.json, besides special tokens and what the model is."""

    def task(self, folder: RunFolder) -> Task:
        """Make what training needs, and say in the run's folder what its checkpoints are of."""
        init = lambda key: module_of(self.config)(self.config, rngs=nnx.Rngs(key))  # noqa: E731
        if jax.process_index() == 0 and self.merge is None:
            describe(self.export(nnx.eval_shape(init, jax.random.key(0))), folder.root / EXPORT)
        return Task(
            init=init,
            objective=self.objective,
            batches=self.batches,
            evaluate=lambda model, step: evaluate(self.objective, model, self.validation()),
            finish=partial(self._finish, folder),
            model=self.model,
        )

    def export(self, model: Any) -> hub.Pretrained:
        """Give a trained model its place among the checkpoints."""
        own = self.tokenizer if isinstance(self.tokenizer, HubTokenizer) else HubTokenizer.of(self.tokenizer)
        tokens = {f"{role}_token_id": getattr(own, role) for role in ("pad", "bos", "eos")}
        model = model if self.merge is None else self.merge(model)
        return hub.wrap(model, self.architecture, tokenizer=own, **{**tokens, **self.fields})

    def _finish(self, folder: RunFolder, model: Any, writer: Writer) -> None:
        if jax.process_index() != 0:
            return
        pretrained = self.export(model)
        hub.save(pretrained, folder.root / EXPORT)
        shown = self.show(pretrained)
        writer.write(_last_step(folder), "test", dict(shown.metrics))
        write_samples(folder, list(shown.samples))
        report = write_text_report(folder)
        for line in (*shown.lines, "", f"checkpoint: {folder.root / EXPORT}", f"report: {report}"):
            print(line, flush=True)


def _last_step(folder: RunFolder) -> int:
    """Find the step of a run's newest record."""
    steps = [json.loads(line)["step"] for line in Path(folder.metrics).read_text().splitlines()]
    return max(steps, default=0)
