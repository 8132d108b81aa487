"""Questions over documents: passages are found, read, and the answer is given with its source.

Axes: B answers, P passages, S positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Int

from flax_transformer.data.text.passage import Passage
from flax_transformer.decode import Decoded, Greedy, greedy
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.call import visible
from flax_transformer.hub.generation_input import first_token, padded_length
from flax_transformer.hub.settings import make_settings
from flax_transformer.task.checkpoint import positions_of, tokenizer_of
from flax_transformer.task.hops import search_hops
from flax_transformer.task.question_answering import Answer, AnswerConfig, Conversation, answer
from flax_transformer.task.question_rewriting import rewrite_question
from flax_transformer.task.reranking import rerank
from flax_transformer.task.text_generation import TextGenerator, WriterConfig
from flax_transformer.task.text_index import By, Found, TextIndex, search_index

PROMPT = "question: {question} context: {context}"
"""What a generative reader is given of each passage, as T5 and fusion-in-decoder were trained."""


@frozen
class DocumentAnswerConfig:
    """How documents are read."""

    passages: int = 5
    """How many are read."""
    candidates: int = 50
    """How many a cross-encoder ranks anew, where there is one."""
    by: By = "both"
    """How they are found."""
    weight: float = 0.5
    """Of search by vectors, where both are fused."""
    hops: int = 1
    """How often is searched: after the first time by the question and what was found."""
    answers: int = 1
    """How many are given, by an extractive reader."""
    reading: AnswerConfig = AnswerConfig()
    """How an extractive reader chooses, and when there is no answer."""
    new_tokens: int = 32
    """Most tokens that a generative reader writes."""

    def __post_init__(self):
        least = min(self.passages, self.candidates, self.hops, self.answers, self.new_tokens)
        if least < 1:
            raise ValueError(f"passages, candidates, hops, answers and new_tokens must be at least 1, got {least}")


@dataclass(frozen=True)
class DocumentAnswer:
    """An answer and where it is from."""

    text: str
    """Empty where there is no answer."""
    probability: float | None
    """Among all candidates of all passages that were read; of what is generated, of its tokens; None: not known."""
    passage: Passage | None
    """That it is from, or, of what is generated, the first that was read."""
    start: int | None = None
    """Where it begins in the document, in characters; None where it is generated."""
    end: int | None = None

    @property
    def marked(self) -> str:
        """The passage with the answer between ** and **."""
        if self.passage is None or self.start is None or self.end is None:
            return "" if self.passage is None else self.passage.text
        first, last = self.start - self.passage.start, self.end - self.passage.start
        text = self.passage.text
        return f"{text[:first]}**{text[first:last]}**{text[last:]}"


@dataclass(frozen=True)
class DocumentReader:
    """`reader(question)` answers a question over an index; `reader.find(question)` gives the passages alone."""

    index: TextIndex
    reader: Pretrained
    """It finds spans (`question-answering`) or writes (`text2text-generation`, `text-generation`)."""
    retriever: Pretrained | None = None
    """The checkpoint of the index; None for a search by words."""
    ranker: Pretrained | None = None
    """A cross-encoder or ColBERT, which ranks what is found anew."""
    rewriter: Pretrained | None = None
    """A model that writes each question of a conversation so that it can be understood alone; without one, what was
    said before is put before it."""
    config: DocumentAnswerConfig = DocumentAnswerConfig()

    def __post_init__(self):
        if not self._kinds & {"question-answering", "text2text-generation", "text-generation"}:
            name = self.reader.config["architectures"][0]
            raise ValueError(f"to answer over documents takes a checkpoint that answers or writes, got a {name}")

    @property
    def _kinds(self) -> set[str]:
        return set(self.reader.architecture.uses)

    def asked(self, question: str, talk: Conversation) -> str:
        """Return a question so that it can be understood without the conversation that it goes on from."""
        return talk.question(question) if self.rewriter is None else rewrite_question(self.rewriter, question, talk)

    def find(self, question: str) -> list[Found]:
        """Find the passages that are to be read, the best first."""
        cfg = self.config
        top = cfg.passages if self.ranker is None else max(cfg.candidates, cfg.passages)
        found = search_hops(self._search, question, cfg.hops, -(-top // cfg.hops))
        found = found if self.ranker is None else rerank(self.ranker, question, found)
        return found[: cfg.passages]

    def __call__(self, question: str, talk: Conversation = Conversation()) -> list[DocumentAnswer]:
        """Answer a question, which may go on from earlier ones; the best answer first.

        Returns:
          At least one; empty text where nothing was found, or, with a threshold, nothing answers.

        Raises:
          ValueError: what `search_index` and `answer` refuse.
        """
        asked = self.asked(question, talk)
        passages = [each.passage for each in self.find(asked)]
        if not passages:
            return [DocumentAnswer("", None, None)]
        if "question-answering" in self._kinds:
            return read_passages(self.reader, asked, passages, self.config.reading)[: self.config.answers]
        if "text2text-generation" in self._kinds:
            return [fuse_passages(self.reader, asked, passages, self.config.new_tokens)]
        return [self._written(asked, passages)]

    def _search(self, question: str, top: int) -> list[Found]:
        return search_index(self.index, self.retriever, [question], top, self.config.by, self.config.weight)[0]

    def _written(self, question: str, passages: Sequence[Passage]) -> DocumentAnswer:
        """Let a decoder-only model go on after all passages and the question."""
        settings = (("max_new_tokens", self.config.new_tokens),)
        writer = TextGenerator(self.reader, WriterConfig(settings=settings, stop=("\n",)))
        context = "\n\n".join(each.text for each in passages)
        if tokenizer_of(self.reader).chat_templates:
            text = "".join(writer.reply(Conversation(), f"{context}\n\nAnswer in few words: {question}"))
        else:
            ((text,),) = writer([f"{context}\n\nQuestion: {question}\nAnswer:"])
        return DocumentAnswer(text.strip(), None, passages[0])


def read_passages(
    pretrained: Pretrained, question: str, passages: Sequence[Passage], config: AnswerConfig = AnswerConfig()
) -> list[DocumentAnswer]:
    """Find spans in all passages, ranked together: scores are normalised over all (Clark & Gardner 2018).

    With a threshold no answer comes first where in every passage it beats the best span by more than that.

    Raises:
      ValueError: what `answer` refuses.
    """
    answering: list[tuple[float, Answer, Passage]] = []
    others: list[tuple[float, Answer, Passage]] = []
    nothing = np.inf
    for passage in passages:
        found = answer(pretrained, question, passage.text, config, multiple=32)
        nothing = min([nothing, *(each.score for each in found if not each.text)])
        # A passage whose own verdict is that it has no answer gives none.
        kind = answering if found and found[0].text else others
        kind += [(each.score, each, passage) for each in found if each.text]
    kept = _distinct(answering)[: config.n_best]
    spans = kept or _distinct(others)[: config.n_best]
    scores = np.array([score for score, _, _ in spans] + ([nothing] if np.isfinite(nothing) else []))
    probabilities = scipy.special.softmax(scores).tolist() if len(scores) else []
    if not kept:
        return [DocumentAnswer("", probabilities[-1] if np.isfinite(nothing) else None, None)]
    return [
        DocumentAnswer(each.text, share, passage, passage.start + each.start, passage.start + each.end)
        for share, (_, each, passage) in zip(probabilities, kept, strict=False)
    ]


def _distinct(spans: Sequence[tuple[float, Answer, Passage]]) -> list[tuple[float, Answer, Passage]]:
    """Sort by score, and keep the best of what is the same characters of a document, in passages that overlap."""
    seen: set[tuple[str, int, int]] = set()
    kept = []
    for score, each, passage in sorted(spans, key=lambda span: -span[0]):
        place = (passage.document, passage.start + each.start, passage.start + each.end)
        if place not in seen:
            seen.add(place)
            kept.append((score, each, passage))
    return kept


def fuse_passages(
    pretrained: Pretrained, question: str, passages: Sequence[Passage], new_tokens: int = 32, prompt: str = PROMPT
) -> DocumentAnswer:
    """Write an answer from all passages at once: each is encoded by itself, the decoder attends to all of them (Izacard
    & Grave 2021, fusion-in-decoder).

    Args:
      prompt: what the encoder reads of each, with {question} and {context}; cut to the positions.

    Raises:
      ValueError: no passages.
    """
    if not passages:
        raise ValueError("to write an answer takes a passage at least, got none")
    tokenizer, room = tokenizer_of(pretrained), positions_of(pretrained.model.cfg)
    texts = [prompt.format(question=question, context=each.text) for each in passages]
    inputs = tokenizer(texts, max_length=room, truncate=room is not None)
    width = padded_length(inputs["input_ids"].shape[1])
    extra = ((0, 0), (0, (width if room is None else min(width, room)) - inputs["input_ids"].shape[1]))
    ids = np.pad(inputs["input_ids"], extra, constant_values=tokenizer.pad or 0)
    mask = np.pad(inputs["attention_mask"], extra)
    settings = make_settings(pretrained.config, pretrained.generation, {"max_new_tokens": new_tokens})
    marks = settings.config(new_tokens)
    config = Greedy(max_length=new_tokens, eos=marks.eos, pad=marks.pad)
    decoded = _fused(pretrained.decoder, ids, mask, np.array([first_token(settings)], np.int32), config)
    (text,) = tokenizer.decode([decoded.tokens[0, 0, : int(decoded.lengths[0, 0])].tolist()])
    return DocumentAnswer(text.strip(), float(np.exp(decoded.scores[0, 0])), passages[0])


@partial(jax.jit, static_argnames="config")
def _fused(
    model: Any, ids: Int[Array, "P S"], mask: Int[Array, "P S"], first: Int[Array, "1"], config: Greedy
) -> Decoded:
    memory = model.encode(ids, visible(mask))
    seen = visible(mask.reshape(1, -1))
    cache = model.init_cache(memory.reshape(1, -1, memory.shape[-1]), seen, config.max_length)
    return greedy(partial(type(model).step, model), cache, jnp.asarray(first), config)
