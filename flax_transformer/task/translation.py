"""Translation: BLEU of a test set, and `translate` with any checkpoint."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.convert import is_orbax
from flax_transformer.hub.file import CONFIG, read_json
from flax_transformer.hub.processor.language import between, languages, tokenizer_config
from flax_transformer.hub.settings import make_settings
from flax_transformer.listing import listed, short_path
from flax_transformer.metric.bleu import NO_BLEU, TranslationScores, score
from flax_transformer.report import TextAttention
from flax_transformer.task.attention import draw
from flax_transformer.task.checkpoint import open_checkpoint, require_use, tokenizer_of
from flax_transformer.task.command import program
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, compared
from flax_transformer.task.run import EXPORT, open_translator
from flax_transformer.task.text_generation import TextGenerator, WriterConfig
from flax_transformer.task.translator import Hypothesis, Rescored, Search, Translator
from flax_transformer.train import own_code
from flax_transformer.train.folder import FolderError
from flax_transformer.train.progress import duration

HEADLINES = {
    "bleu": ("BLEU", ""),
    "tokenized_bleu": ("tokenised BLEU", ""),
    "chrf": ("chrF", ""),
    "exact_match": ("exact match", " %"),
}


SHOWN = 3
"""Sentences whose attention a report shows."""


DRAWN = 40
"""Tokens a side that such a sentence has at most, so that its image fits a page."""


@frozen
class Translations(Evaluator):
    """Translate the test pairs and score them."""

    takes: ClassVar[type] = list
    draws: ClassVar[bool] = True

    search: Search = Search()
    headline: Literal["bleu", "tokenized_bleu", "exact_match"] = "bleu"
    """The score the run ends with."""
    count: int = 10
    """Translations shown at the end."""

    @property
    def metric(self) -> str:
        """The score the run ends with."""
        return self.headline

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        translator = Translator(finished.model, finished.opened.tokenizer)
        pairs = finished.opened.held
        sources, targets = ([pair[side] for pair in pairs] for side in ("source", "target"))
        scores, hypotheses, seconds = evaluate_corpus(translator, sources, targets, self.search)
        samples = [_sample(pair, hypothesis) for pair, hypothesis in zip(pairs, hypotheses, strict=True)]
        root, shown = finished.folder.root, shlex.quote(short_path(finished.folder.root))
        ours = finished.pretrained is not None  # else commands do not know the model
        trust = " --trust" if (root / own_code.FILE).is_file() else ""
        return Shown(
            metrics={**scores.metrics(), "sentences_per_second": len(pairs) / seconds},
            samples=samples,
            lines=tuple(self._summary(samples, scores, seconds)),
            last=(
                "try next:",
                f"  echo {shlex.quote(samples[0]['source'])} | {program()} translate {shown}{trust}",
                f"  {program()} show {shown}",
            )
            * ours,
        )

    def preview(self, data: Any, model: Any, tokenizer: Any) -> tuple[list[dict], str]:
        """Translate some test pairs by the newest checkpoint."""
        test = data.read("test")
        pairs = [test[i] for i in range(0, len(test), max(len(test) // self.count, 1))][: self.count]
        hypotheses = [best[0] for best in Translator(model, tokenizer)([pair["source"] for pair in pairs], self.search)]
        samples = [_sample(pair, hypothesis) for pair, hypothesis in zip(pairs, hypotheses, strict=True)]
        return samples, f"The samples are by the newest checkpoint, {len(pairs)} of {len(test):,} test sentences."

    def notes(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return why there is no BLEU where there is none."""
        return [] if "bleu" in metrics else [f"{NO_BLEU}."]

    def text_attention(
        self, model: Any, tokenizer: Any, samples: Sequence[dict]
    ) -> tuple[list[TextAttention], list[str]]:
        """Draw the attention of a few samples, evenly spread over those that fit; say so where none can be drawn."""
        translator = Translator(model, tokenizer)
        fitting = [
            sample
            for sample in samples
            if has_tokens(sample)
            and 0 < len(sample["tokens"]) <= DRAWN
            and isinstance(sample.get("source"), str)
            and len(tokenizer.encode([sample["source"]])[0]) < DRAWN
        ]
        if samples and not fitting:
            return [], [f"No attention is shown: no sample has at most {DRAWN} tokens on both sides."]
        every = max(len(fitting) // SHOWN, 1)
        try:
            return [draw(translator, s["source"], s["tokens"]) for s in fitting[::every][:SHOWN]], []
        except ValueError as error:
            return [], [f"No attention is shown: {error}."]

    def _summary(self, samples: list[dict], scores: TranslationScores, seconds: float) -> Iterator[str]:
        known = scores.metrics()
        shown = self.headline if self.headline in known else "chrf"
        name, unit = HEADLINES[shown]
        yield ""
        for sample in samples[:: max(len(samples) // self.count, 1)][: self.count]:
            yield from compared(sample["source"], sample["hypothesis"], sample["target"])
        yield ""
        headline = f"{name} {known[shown]:.1f}{unit}"
        yield f"{headline} on {len(samples):,} test sentences ({duration(seconds)})"
        if self.headline not in (shown, "exact_match"):
            yield NO_BLEU
        elif self.headline != "exact_match":
            parts = [f"BLEU {scores.bleu:.2f} ({scores.signature})"] if "bleu" in known else []
            parts += [f"chrF {scores.chrf:.1f}"]
            parts += [f"tokenised BLEU {scores.tokenized_bleu:.2f}"] if "tokenized_bleu" in known else []
            yield ", ".join(parts)


def evaluate_corpus(
    translator: Translator | Rescored, sources: list[str], references: list[str], search: Search
) -> tuple[TranslationScores, list[Hypothesis], float]:
    """Translate and score a corpus; also give the seconds it took, compilation included."""
    began = time.monotonic()
    hypotheses = [best[0] for best in translator(sources, search)]
    seconds = time.monotonic() - began
    return score([hypothesis.text for hypothesis in hypotheses], references), hypotheses, seconds


def has_tokens(sample: dict) -> bool:
    """Return whether a sample lists its tokens."""
    tokens = sample.get("tokens")
    return isinstance(tokens, list | tuple) and all(isinstance(token, str) for token in tokens)


def _sample(pair: dict[str, str], hypothesis: Hypothesis) -> dict:
    return {**pair, "hypothesis": hypothesis.text, **{k: v for k, v in asdict(hypothesis).items() if k != "text"}}


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
        require_use(self.pretrained, "text2text-generation")
        tokenizer_of(self.pretrained)

    def __call__(self, texts: Sequence[str], search: Search | None = None) -> list[list[Hypothesis]]:
        """Translate sentences, each of which gets `n_best` hypotheses; an empty one gets empty translations."""
        search = self.search() if search is None else search
        said = {**(self.settings or {}), "num_beams": search.beams, "num_return_sequences": search.n_best}
        said["cache"] = search.cache
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
        chosen = make_settings(self.pretrained.config, self.pretrained.generation, self.settings or {})
        first = chosen.bos_token_id if chosen.decoder_start_token_id is None else chosen.decoder_start_token_id
        start = np.full((len(ids), 1), first, ids.dtype)
        read = np.concatenate([start, ids[:, :-1]], axis=1)
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        logits = self.pretrained(**given, decoder_input_ids=read).logits.astype(np.float32)
        each = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), ids[..., None], axis=-1)[..., 0]
        real[:, 0] &= chosen.forced_bos_token_id is None  # of which there is no choice
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
      source: language of the sentences, as en, for such a config, or for a tokenizer with tokens of languages, as
        en_XX of mBART, eng_Latn of NLLB.
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
    require_use(pretrained, "text2text-generation")
    if known := languages(tokenizer_of(pretrained)):
        before, (pretrained, settings) = prefix or "", _between(pretrained, known, source, target)
    else:
        before, settings = _task(pretrained, source, target) if prefix is None else (prefix, {})
    translator = CheckpointTranslator(pretrained, before, settings)
    return translator, translator.search()


def translates(folder: Path) -> bool:
    """Return whether, by its config alone, for which nothing is imported, a folder is of a run that translates."""
    evaluators = read_json(folder / CONFIG).get("evaluators") if (folder / CONFIG).is_file() else None
    return isinstance(evaluators, list) and any(
        isinstance(each, dict) and str(each.get("type")).endswith(":Translations") for each in evaluators
    )


def _between(
    pretrained: Pretrained, known: Mapping[str, str], source: str | None, target: str | None
) -> tuple[Pretrained, dict[str, Any]]:
    """Mark texts by the tokens that a tokenizer has for two languages; give the settings that make it write one.

    Args:
      known: tokens of languages by code.
      source, target: None: as the checkpoint says, if it does.

    Raises:
      ValueError: a language that there is no token for, or none, where the checkpoint says none.
    """
    tokenizer, ids = pretrained.tokenizer, {}
    for code, token in known.items():
        ids[tokenizer.convert_tokens_to_ids(token)] = code
    chosen = make_settings(pretrained.config, pretrained.generation, {})
    begun = chosen.forced_bos_token_id, chosen.decoder_start_token_id
    own = next((ids[token] for token in begun if token in ids), None)
    if source is None and target is None and own is not None:
        return pretrained, {}
    config = tokenizer_config(tokenizer)
    source, goal = source or config.get("src_lang"), target or own or config.get("tgt_lang")
    if source is None or goal is None:
        raise ValueError(
            f"the checkpoint translates between {listed(known, 20)}: give two of them as --source-lang and "
            f"--target-lang, got {source or 'no source'} to {goal or 'no target'}"
        )
    marked = between(tokenizer, source, goal, pretrained.config)
    forced = {} if target is None and own else {"forced_bos_token_id": marked.convert_tokens_to_ids(known[goal])}
    return replace(pretrained, tokenizer=marked), forced


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
