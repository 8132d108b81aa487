"""Any checkpoint that writes in answer to a source, as a translator.

Axes: B pairs, T target positions, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.convert import is_orbax
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.listing import listed
from flax_transformer.task.run import EXPORT, open_translator
from flax_transformer.task.translator import Hypothesis, Search, Translator
from flax_transformer.task.use.checkpoint import open_checkpoint
from flax_transformer.task.use.require import require_use, tokenizer_of
from flax_transformer.task.use.write import TextGenerator, WriterConfig
from flax_transformer.train.folder import FolderError

TASK = "translation_"
"""What the name of a translation begins with, in the `task_specific_params` of a T5's config.json: `…en_to_de`."""
KNOWN = "num_beams", "length_penalty", "max_length", "min_length", "early_stopping", "no_repeat_ngram_size"
"""Settings of such a task that are followed."""
BATCH = 16
"""Sentences that are translated together."""


@dataclass(frozen=True, eq=False)
class CheckpointTranslator:
    """`translator(texts, search)` as a `Translator`'s, by the generation of a checkpoint that answers texts."""

    pretrained: Pretrained
    prefix: str = ""
    """Put before every sentence, as a T5 is told what to do."""
    settings: Mapping[str, Any] | None = None
    """Of generation, where the search says nothing."""

    def __post_init__(self):
        require_use(self.pretrained, "respond")
        tokenizer_of(self.pretrained)

    def __call__(self, texts: Sequence[str], search: Search | None = None) -> list[list[Hypothesis]]:
        """Translate sentences, each of which gets `n_best` hypotheses; an empty one gets empty translations."""
        search = self.search() if search is None else search
        said = {**(self.settings or {}), "num_beams": search.beams, "num_return_sequences": search.n_best}
        said |= {"length_penalty": search.length_penalty} if search.beams > 1 else {}
        said["do_sample"] = False
        writer = TextGenerator(self.pretrained, WriterConfig(settings=tuple(said.items())))
        found = [[Hypothesis("", 0.0, (), ())] * search.n_best for _ in texts]
        rows = [at for at, text in enumerate(texts) if text.strip()]
        rows.sort(key=lambda at: -len(texts[at]))
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            sources = [self.prefix + texts[at] for at in part]
            written = writer(sources)
            scores = self._scores(sources, written, search)
            for at, several, their in zip(part, written, scores, strict=True):
                found[at] = [
                    Hypothesis(text.strip(), score, (), ()) for text, score in zip(several, their, strict=True)
                ]
        return found

    def search(self) -> Search:
        """Return the search that the checkpoint's own settings ask for."""
        chosen = TextGenerator(self.pretrained, WriterConfig(settings=tuple((self.settings or {}).items()))).chosen
        return Search(beams=chosen.num_beams, length_penalty=chosen.length_penalty, batch=BATCH)

    def _scores(self, sources: list[str], written: list[list[str]], search: Search) -> list[list[float]]:
        """Compute the log-probability of each text, its end included, divided by its length as the search says."""
        pairs = [(source, text) for source, several in zip(sources, written, strict=True) for text in several]
        tokenizer = tokenizer_of(self.pretrained)
        inputs = tokenizer([source for source, _ in pairs])
        target = (tokenizer.target or tokenizer)([text for _, text in pairs])
        ids, real = np.asarray(target["input_ids"]), np.asarray(target["attention_mask"]) > 0
        start = np.full((len(ids), 1), self.pretrained.config.integer("decoder_start_token_id"), ids.dtype)
        read = np.concatenate([start, ids[:, :-1]], axis=1)
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        logits = self.pretrained(**given, decoder_input_ids=read).logits.astype(np.float32)
        each = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), ids[..., None], axis=-1)[..., 0]
        lengths = real.sum(1)
        scores = (each * real).sum(1) / [search.divisor(int(length)) for length in lengths]
        return [row.tolist() for row in scores.reshape(len(sources), -1)]


def open_any_translator(
    name: str, *, prefix: str | None = None, source: str | None = None, target: str | None = None
) -> tuple[Translator | CheckpointTranslator, Search]:
    """Open a run that translates, or any checkpoint that answers texts, and how it searches.

    Args:
      name: run folder, or what `open_checkpoint` opens.
      prefix: put before every sentence; by default what a T5's config.json says of the two languages.
      source: language of the sentences, as en, for such a config.
      target: language to translate into.

    Raises:
      FolderError, CheckpointError, FileNotFoundError: what cannot be opened.
      ValueError: a checkpoint of another kind, without a tokenizer, or one that does not know the languages.
    """
    if translates(Path(name)):
        if prefix is not None or source is not None or target is not None:
            raise ValueError(f"a prefix and languages are told to a checkpoint, {name} is a run, which knows its own")
        return open_translator(name)
    folder = Path(name)
    if (
        folder.is_dir()
        and not is_orbax(folder)
        and not any((folder / each / CONFIG).is_file() for each in ("", EXPORT))
    ):
        raise FolderError(f"{name} is neither a run folder nor a checkpoint: it has no {CONFIG}")
    pretrained = open_checkpoint(name)
    require_use(pretrained, "respond")
    before, settings = _task(pretrained, source, target) if prefix is None else (prefix, {})
    translator = CheckpointTranslator(pretrained, before, settings)
    return translator, translator.search()


def translates(folder: Path) -> bool:
    """Tell by its config alone, for which nothing is imported, whether a folder is of a run that translates."""
    evaluators = read_json(folder / CONFIG).get("evaluators") if (folder / CONFIG).is_file() else None
    return isinstance(evaluators, list) and any(
        isinstance(each, dict) and str(each.get("type")).endswith(":Translations") for each in evaluators
    )


def _task(pretrained: Pretrained, source: str | None, target: str | None) -> tuple[str, dict[str, Any]]:
    """Find the prefix and the settings that a config has for a pair of languages."""
    tasks = pretrained.config.get("task_specific_params")
    tasks = {name.removeprefix(TASK): each for name, each in tasks.items() if name.startswith(TASK)} if tasks else {}
    if source is None and target is None and not tasks:
        return "", {}
    wanted = f"{source}_to_{target}"
    if source is None and target is None and len(tasks) == 1:
        (wanted,) = tasks
    if wanted not in tasks:
        known = listed([name.replace("_to_", " to ") for name in tasks])
        raise ValueError(
            f"the checkpoint's config.json says how to translate from {known}: give these as --source-lang and "
            f"--target-lang, or a --prefix of your own; got {source or 'no source'} to {target or 'no target'}"
        )
    said = tasks[wanted]
    return str(said.get("prefix", "")), {name: said[name] for name in KNOWN if name in said}
