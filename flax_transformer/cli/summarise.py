"""The command `summarise`, for files of text."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, put, read_lines
from flax_transformer.cli.unreadable import Refused

Files = Annotated[tuple[str, ...], tyro.conf.Positional]


def summarise(
    checkpoint: Folder,
    files: Files = (),
    /,
    query: str = "",
    sentences: int | None = None,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Summarise documents, each a file of text: by sentences chosen from it, or by a text that is written.

    What of a document is longer than a model that writes can read is left out at its end, which is said on standard
    error; a model that chooses reads all of it. Of several files each gets a line.

    Args:
      checkpoint: Run folder of experiments/summarise.py, or a Hugging Face folder or hub id of a model that answers
        texts (BART, T5) or that an extractive run has exported.
      files: Files of text, one document each; without them standard input is one.
      query: A question that the summary is to answer, read before the document.
      sentences: Sentences to choose, fewer than the document has; of an extractive model alone. The run's by default.
      jsonl: Print a JSON object for each instead: file, summary, the numbers of chosen sentences, whether it was cut.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.data.text.passage import read_document
    from flax_transformer.task.summariser import open_summariser

    keep_programs()
    with Refused() as refuse:
        documents = {}
        for name in files:
            try:
                documents[name] = read_document(Path(name))
            except (ValueError, OSError) as error:
                refuse(name, error)
        if not files:
            documents["standard input"] = "\n".join(read_lines())
        if not documents:
            return
        run = open_summariser(checkpoint, revision=revision)
        for name, text in documents.items():
            try:
                (found,) = run([text], query, sentences)
            except ValueError as error:
                refuse(name, error)
                continue
            if found.cut:
                print(f"note: {name} is longer than the model reads, its end is left out", file=sys.stderr, flush=True)
            record = {"file": name, "summary": found.text, "chosen": [*found.chosen], "cut": found.cut}
            line = found.text if len(documents) == 1 else f"{name}\t{' '.join(found.text.split())}"
            put(record, line, jsonl=jsonl)
