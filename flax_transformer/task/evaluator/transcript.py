"""Models of speech: how many words and letters of the test are wrong, and when a model hears each.

Axes: B sounds, S positions, N tokens, V vocabulary, R rows of an image.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from flax_transformer.data.examples import Example
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.ctc import collapse
from flax_transformer.objective.objective import present_rows
from flax_transformer.ops import Mask
from flax_transformer.report.audio_figure import pixels_of, sound_figure
from flax_transformer.report.sample import save_audio, save_image
from flax_transformer.task.attention import attention_weights, spell
from flax_transformer.task.edit_distance import letter_edits, word_edits
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.evaluator.kind import compared
from flax_transformer.task.example.audio import spectra
from flax_transformer.task.translator import Search, beginning, decode_batch, ready, room_of

WIDEST = 1050
"""Pixels of a sample's image."""


@frozen
class Transcripts(Evaluator):
    """Write down what is said in the test sounds, which are `HeldSounds`, and count what is wrong."""

    metric: ClassVar[str] = "wer"
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    search: Search | None = None
    """How an encoder-decoder looks for the best text; None: the best letter of every position (CTC)."""
    count: int = 6
    """Sounds shown on the terminal."""
    images_kept: int = 12
    """Sounds that the report shows, half of them wrong where so many are."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened = finished.opened
        metrics = tested(finished.objective, finished.model, opened.test())
        hypotheses = list(self.heard(finished))
        items = opened.held.items
        examples = [items[index] for index in range(len(items))]
        references = [each["text"] for each in examples]
        words, letters = word_edits(references, hypotheses), letter_edits(references, hypotheses)
        same = [one == other for one, other in zip(references, hypotheses, strict=True)]
        metrics |= {"wer": 100 * words.rate, "cer": 100 * letters.rate, "exact_match": 100 * sum(same) / len(same)}
        chosen = self._chosen(same)
        samples = [
            {
                **self._drawn(finished, index), "source": examples[index]["name"], "target": references[index],
                "hypothesis": hypotheses[index],
            }
            for index in chosen
        ]  # fmt: skip
        shown = [
            line for i in chosen[: self.count] for line in compared(examples[i]["name"], hypotheses[i], references[i])
        ]
        headline = (
            f"word error rate {metrics['wer']:.2f} % ({words.substitutions} substituted, {words.deletions} left out, "
            f"{words.insertions} put in of {words.length:,} words), letters {metrics['cer']:.2f} %, "
            f"{metrics['exact_match']:.1f} % of {len(same):,} sounds without an error"
        )
        return Shown(metrics=metrics, samples=samples, lines=("", *shown, "", headline))

    def heard(self, finished: Finished) -> Iterator[str]:
        """Return what the model writes of each test sound."""
        opened, tokenizer = finished.opened, finished.opened.tokenizer
        model = finished.model if self.search is None else ready(finished.model)
        for batch in opened.test():
            present = np.asarray(present_rows(batch))
            if self.search is None:
                best, counts = jax.device_get(_best(model, batch["inputs"]))
                blank = finished.objective.blank
                rows = [collapse(row[:count], blank) for row, count in zip(best, counts, strict=True)]
                texts = [tokenizer.decode(row) if row else "" for row in rows]
            else:
                source, longest = batch["inputs"]["source"], batch["labels"].shape[1]
                longest = room_of(model, tokenizer) if hasattr(tokenizer, "prompt") else longest
                config = self.search.within(longest, tokenizer)
                found = decode_batch(model, source, None, config=config, **beginning(tokenizer, len(source)))
                texts = tokenizer.decode(np.asarray(found.tokens)[:, 0])
            yield from (text.strip() for text, there in zip(texts, present, strict=True) if there)

    def _chosen(self, same: Sequence[bool]) -> list[int]:
        """Choose sounds to keep: wrong ones, at most half, and others."""
        wrong = [index for index, right in enumerate(same) if not right][: self.images_kept // 2]
        others = [index for index, right in enumerate(same) if right][: self.images_kept - len(wrong)]
        return [*wrong, *others]

    def _drawn(self, finished: Finished, index: int) -> dict[str, Any]:
        """Draw what the model hears of a sound over time; give what a sample has of it."""
        held, root = finished.opened.held, finished.folder.root
        example = held[index]
        sound = held.items[index]["sound"]
        rate, ends = held.processor.rate, len(example["samples"])
        show = self._letters if self.search is None else self._attention
        frames = spectra(rate, -(-ends // rate), 64)(example["samples"])["input_features"][0]
        names, shares, seconds, title = show(finished, example)
        steps = round(seconds * 100)
        frames = np.pad(frames, ((0, 0), (0, max(steps - frames.shape[1], 0))), constant_values=frames.min())[:, :steps]
        picture = pixels_of(sound_figure(frames, seconds, names, shares, title))
        return {
            "picture": save_image(root, str(index), picture, WIDEST),
            "sound": save_audio(root, str(index), sound.samples, sound.rate),
            "wide": True,
        }

    def _letters(self, finished: Finished, example: Example) -> tuple[list[str], np.ndarray, float, str]:
        """Return the probability of each letter that is written, and of the blank, at every position."""
        samples = example["samples"][None]
        inputs = {"samples": samples, "lengths": np.array([samples.shape[1]], np.int32)}
        shares = np.asarray(_shares(finished.model, inputs))[0]
        blank = finished.objective.blank
        tokens = list(dict.fromkeys(collapse(shares.argmax(axis=1), blank)))
        names = [*finished.opened.tokenizer.tokens(tokens), "blank"]
        rate = finished.opened.held.processor.rate
        return names, shares[:, [*tokens, blank]].T, samples.shape[1] / rate, "probability of each letter"

    def _attention(self, finished: Finished, example: Example) -> tuple[list[str], np.ndarray, float, str]:
        """Return what each token that is written looks at, in the mean of the last layer's heads."""
        tokenizer, frames = finished.opened.tokenizer, example["frames"][None]
        config = self.search.within(room_of(finished.model, tokenizer), tokenizer)
        found = decode_batch(ready(finished.model), frames, None, config=config, **beginning(tokenizer, 1))
        tokens = np.asarray(found.tokens)[0, 0, : int(np.asarray(found.lengths)[0, 0])].tolist()
        read = np.array([[*getattr(tokenizer, "prompt", (tokenizer.bos,)), *tokens[:-1]]], np.int32)
        weights = attention_weights(finished.model, frames, None, read)[-1][-1, 0].mean(axis=0)
        return list(spell(tokenizer, tokens)), weights[-len(tokens) :], frames.shape[1] / 100, "cross-attention"


@jax.jit
def _shares(model: Any, inputs: dict[str, jax.Array]) -> Float[jax.Array, "B S V"]:
    """Return the probability of every token at every position."""
    return jax.nn.softmax(model.output(model.hidden_states(**inputs)))


@jax.jit
def _best(model: Any, inputs: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return the best token of every position, and how many positions there are."""
    scores = model.output(model.hidden_states(**inputs))
    lengths = model.memory_mask(Mask(lengths=inputs["lengths"])).lengths
    return scores.argmax(axis=-1), jnp.maximum(lengths, 0)
