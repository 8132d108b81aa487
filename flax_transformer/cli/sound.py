"""Commands on sounds: `transcribe`.

CHECKPOINT is a Hugging Face folder, a hub id, or an Orbax folder.
"""

import json
from dataclasses import asdict
from typing import Annotated

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, read_lines

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
      files: Sounds, of any length and rate; without them every line of standard input names one.
      language: Spoken language, such as de; by default the most probable one.
      task: transcribe, or translate into English; the checkpoint's own by default.
      timestamps: Print a line for each piece instead: start and end in seconds, and text, separated by tabs.
      jsonl: Print a JSON object for each file instead: file, text, and segments where times are asked for.
      num_beams: Hypotheses of beam search; 1 for none.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.use import open_checkpoint
    from flax_transformer.task.use import transcribe as run

    keep_programs()
    names = list(files) or read_lines()
    if not names:
        return
    pretrained = open_checkpoint(checkpoint, revision=revision)
    for name in names:
        (found,) = run(
            pretrained, [name], language=language, task=task, timestamps=timestamps, num_beams=num_beams
        )  # fmt: skip
        head = f"{name}\t" if len(names) > 1 else ""
        if jsonl:
            print(json.dumps({"file": name, **asdict(found)}, ensure_ascii=False), flush=True)
        elif timestamps:
            for each in found.segments:
                print(f"{head}{each.start:.2f}\t{each.end:.2f}\t{_line(each.text)}", flush=True)
        else:
            print(f"{head}{_line(found.text)}", flush=True)


def _line(text: str) -> str:
    return " ".join(text.split())
