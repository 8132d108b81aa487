"""Commands on recordings: `transcribe`.

CHECKPOINT is a Hugging Face folder, a hub id, or an Orbax folder.
"""

from dataclasses import asdict
from functools import partial
from typing import Annotated

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, put, read_lines
from flax_transformer.cli.unreadable import Refused

Files = Annotated[tuple[str, ...], tyro.conf.Positional]


def transcribe(
    checkpoint: Folder,
    files: Files = (),
    /,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
    jsonl: bool = False,
    num_beams: int = 1,
    revision: str | None = None,
) -> None:
    """Write down what is said: a line for each file, its name and a tab before it where there are several.

    Args:
      checkpoint: Hugging Face folder, hub id, or Orbax folder.
      files: Recordings, of any length and rate; without them every line of standard input names one.
      language: Spoken language, such as de; by default the most probable one.
      task: transcribe, or translate into English; the checkpoint's own by default.
      timestamps: Print a line for each piece instead: start and end in seconds, and text, separated by tabs.
      jsonl: Print a JSON object for each file instead: file, text, and segments where times are asked for.
      num_beams: Hypotheses of beam search; 1 for none.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.audio_classification import read_audio
    from flax_transformer.task.checkpoint import open_checkpoint, read_several
    from flax_transformer.task.speech_recognition import transcribe as run

    keep_programs()
    names = list(files) or read_lines()
    if not names:
        return
    pretrained = open_checkpoint(checkpoint, revision=revision)
    how = {"language": language, "task": task, "timestamps": timestamps, "num_beams": num_beams}
    run(pretrained, [], **how)  # refuses what cannot write speech down
    with Refused() as refuse:
        for (name,), audio in read_several(names, partial(read_audio, pretrained), refuse, rows=1):
            (found,) = run(pretrained, audio, **how)
            head = f"{name}\t" if len(names) > 1 else ""
            lines = [f"{head}{_line(found.text)}"]
            if timestamps:
                lines = [f"{head}{each.start:.2f}\t{each.end:.2f}\t{_line(each.text)}" for each in found.segments]
            put({"file": name, **asdict(found)}, *lines, jsonl=jsonl)


def _line(text: str) -> str:
    return " ".join(text.split())
