"""Translators: scores of the test set by beam search, samples with their tokens, and what heads look at."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Literal

from flax_transformer.frozen import frozen
from flax_transformer.listing import short_path
from flax_transformer.report import Picture
from flax_transformer.task.attention import draw
from flax_transformer.task.command import program
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.evaluator.kind import compared
from flax_transformer.task.rescore import Rescored
from flax_transformer.task.translation_score import NO_BLEU, TranslationScores, score
from flax_transformer.task.translator import Hypothesis, Search, Translator
from flax_transformer.train import own_code
from flax_transformer.train.progress import duration

HEADLINES = {
    "bleu": ("BLEU", ""),
    "tokenized_bleu": ("tokenised BLEU", ""),
    "chrf": ("chrF", ""),
    "exact_match": ("exact match", " %"),
}

PICTURES = 3
"""Sentences whose attention a report shows."""

DRAWN = 40
"""Tokens a side that such a sentence has at most, so that its image fits a page."""


@frozen
class Translations(Evaluator):
    """Translate the test pairs and score them."""

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
        """Say why there is no BLEU where there is none."""
        return [] if "bleu" in metrics else [f"{NO_BLEU}."]

    def pictures(self, model: Any, tokenizer: Any, samples: Sequence[dict]) -> tuple[list[Picture], list[str]]:
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
        every = max(len(fitting) // PICTURES, 1)
        try:
            return [draw(translator, s["source"], s["tokens"]) for s in fitting[::every][:PICTURES]], []
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
