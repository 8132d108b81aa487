"""Commands on documents: `index`, `choose`, and `ask`, of documents and of images."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, put, read_lines
from flax_transformer.cli.unreadable import Refused

By = Literal["vectors", "words", "both"]
Paths = Annotated[tuple[Path, ...], tyro.conf.Positional]
Asked = Annotated[tuple[str, ...], tyro.conf.Positional]


def index(
    checkpoint: Folder,
    documents: Paths,
    /,
    output: Path = Path("index"),
    tokens: int | None = None,
    overlap: int | None = None,
    kind: Literal["float32", "int8"] = "float32",
    pooling: Literal["mean", "first", "last"] | None = None,
    revision: str | None = None,
) -> None:
    """Write an index of documents: their passages, and a vector of each, for `search` and `ask`.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder, of a model that embeds texts.
      documents: Files of text, folders of them, or files of JSON lines with an id and a text each.
      output: Folder to write, new, empty, or an index.
      tokens: Most tokens of a passage; 128, or as many as the model reads, by default.
      overlap: Tokens that neighbouring passages share; a quarter of them by default.
      kind: Numbers of the vectors kept; int8 takes a quarter of the memory.
      pooling: How the states of tokens become one, as `embed` has it.
      revision: Branch, tag or commit of a hub id.
    """
    import sys

    from flax_transformer.data.text.passage import read_documents
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.text_index import TextIndexConfig, index_documents, usual_passages

    keep_programs()
    pretrained = open_checkpoint(checkpoint, revision=revision)
    config = TextIndexConfig(passages=usual_passages(pretrained, tokens, overlap), kind=kind, pooling=pooling)

    def progress(done: int, whole: int) -> None:
        print(f"{done:,} of {whole:,} passages", file=sys.stderr, flush=True)

    with Refused() as refuse:
        made = index_documents(
            pretrained, read_documents(documents, refuse), config, name=checkpoint, progress=progress
        )
        made.save(output)
        names = len({each.document for each in made.passages})
        print(f"{output}: {len(made.passages):,} passages of {names:,} documents, {made.vectors.shape[1]} {kind} each")


@dataclass(frozen=True)
class Finding:
    """How passages are found for a question over documents."""

    retriever: str | None = None
    """The checkpoint that embeds questions and passages; by default that of the index, and without an index documents
    are searched by words."""
    ranker: str | None = None
    """A cross-encoder or ColBERT, which ranks what is found anew."""
    rewriter: str | None = None
    """A model that writes each question so that it can be understood without those before it; by default these are put
    before it."""
    by: By | None = None
    """Search by vectors, words (BM25) or both; both by default where there are vectors."""
    weight: float = 0.5
    """Of vectors, from 0 to 1, where both are searched; words have the rest."""
    passages: int = 5
    """How many are read for an answer."""
    hops: int = 1
    """How often is searched; after the first time by the question and what was found, so that a passage may lead to the
    next."""


def ask(
    checkpoint: Folder,
    asked: Asked = (),
    /,
    documents: Path | None = None,
    finding: Annotated[Finding, tyro.conf.arg(name="")] = Finding(),
    top: int | None = None,
    no_answer_threshold: float | None = None,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Answer questions about an image, or over documents.

    Of an image: probability and answer, separated by a tab, the most probable first. Over documents: probability,
    answer and source, by characters, and below it the passage with the answer between ** and **.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder, of a model that answers questions about images; with
        --documents of one that finds answers in passages, or writes.
      asked: The file of an image and questions about it, each alone; with --documents questions that go on from each
        other, or none, and then every line of standard input is one.
      documents: An index that `index` wrote, or documents as it reads them.
      finding: How passages are found.
      top: Answers of each question at most: five of an image, one over documents by default.
      no_answer_threshold: How much better than the best span no answer must score to be chosen; without it there
        always is an answer.
      jsonl: Print a JSON object for each question instead.
      revision: Branch, tag or commit of a hub id.
    """
    if top is not None and top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    keep_programs()
    if documents is None:
        return _ask_image(checkpoint, asked, top or 5, revision, jsonl=jsonl)
    from flax_transformer.task.question_answering import AnswerConfig, Conversation

    reading = AnswerConfig(threshold=no_answer_threshold)
    answers_of = _reader(checkpoint, documents, finding, revision, answers=top or 1, reading=reading)
    talk = Conversation(keep=1 if answers_of.rewriter is None else None)
    for question in asked or [line for line in read_lines() if line.strip()]:
        alone = answers_of.asked(question, talk)
        answers = answers_of(alone)
        lines = [line for each in answers for line in _lines(each)]
        said = [] if answers_of.rewriter is None else [f"({alone})"]
        record = {"question": question, "asked": alone, "answers": list(map(asdict, answers))}
        put(record, *said, *lines, jsonl=jsonl)
        talk = talk.add(question, answers[0].text)


def _reader(checkpoint: str, documents: Path, finding: Finding, revision: str | None, **how):
    """Open what answers over documents."""
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.document_answer import DocumentAnswerConfig, DocumentReader

    reader = open_checkpoint(checkpoint, revision=revision)
    found, embedder = _opened(reader, documents, finding.retriever)
    config = DocumentAnswerConfig(
        passages=finding.passages, hops=finding.hops, by=finding.by or ("both" if found.model else "words"),
        weight=finding.weight, **how,
    )  # fmt: skip
    names = finding.ranker, finding.rewriter
    judge, writer = (None if name is None else open_checkpoint(name) for name in names)
    return DocumentReader(found, reader, embedder, judge, writer, config)


def _lines(each) -> list[str]:
    """Write an answer for people."""
    if each.passage is None or not each.text:
        return ["(no answer)"]
    probability = "" if each.probability is None else f"{each.probability:.4f}\t"
    place = "" if each.start is None else f":{each.start}-{each.end}"
    return [f"{probability}{each.text}\t{each.passage.document}{place}", f"  {' '.join(each.marked.split())}"]


def _opened(reader, documents: Path, retriever: str | None):
    """Open an index, or make one of documents, and the checkpoint that it is searched by."""
    from flax_transformer.data.text.passage import read_documents
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.text_index import (
        SAID,
        TextIndexConfig,
        index_documents,
        load_index,
        passages_of,
        usual_passages,
        words_index,
    )

    if (documents / SAID).is_file():
        found = load_index(documents)
        name = retriever or found.name
        return found, open_checkpoint(name) if name else None
    with Refused() as refuse:
        read = list(read_documents([documents], refuse))
        if retriever is None:
            return words_index(passages_of(reader, read)), None
        embedder = open_checkpoint(retriever)
        config = TextIndexConfig(passages=usual_passages(embedder))
        return index_documents(embedder, read, config, name=retriever), embedder


def _ask_image(checkpoint: str, asked: tuple[str, ...], top: int, revision: str | None, *, jsonl: bool) -> None:
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.visual_question_answering import ask as run

    if len(asked) < 2:
        raise ValueError(
            f"ask takes the file of an image and questions, or questions and --documents, got {len(asked)} of them"
        )
    image, *questions = asked
    found = run(open_checkpoint(checkpoint, revision=revision), Path(image), questions)
    for question, answers in zip(questions, found, strict=True):
        title = [question] if len(questions) > 1 else []
        lines = [f"{each.probability:.4f}\t{each.name}" for each in answers[:top]]
        record = {"file": image, "question": question, "answers": list(map(asdict, answers[:top]))}
        put(record, *title, *lines, jsonl=jsonl)


def choose(
    checkpoint: Folder,
    answers: Asked,
    /,
    question: str = "",
    context: str | None = None,
    file: Path | None = None,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Choose among answers to a question about a text: probability and answer, the most probable first.

    Args:
      checkpoint: Hugging Face folder, hub id, or run folder, of a model for multiple choice.
      answers: Two or more.
      question: What is asked, where the text does not say.
      context: The text, or a dialogue.
      file: The file that holds it.
      jsonl: Print a JSON object instead.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.cli.read import read_passage
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.multiple_choice import choose_answer

    keep_programs()
    text = read_passage(context, file)
    found = choose_answer(open_checkpoint(checkpoint, revision=revision), text, question, answers)
    lines = [f"{each.probability:.4f}\t{each.name}" for each in found]
    put({"question": question, "answers": list(map(asdict, found))}, *lines, jsonl=jsonl)
