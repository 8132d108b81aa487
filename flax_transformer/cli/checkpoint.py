"""Commands on checkpoints: `generate | fill-mask | answer | convert`.

CHECKPOINT is a Hugging Face folder, a hub id, an Orbax folder, or the run folder of an experiment.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flax_transformer.cli.mesh import Mesh, open_mesh
from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, put, read_lines, read_passage

Text = Annotated[str | None, tyro.conf.Positional]
Texts = Annotated[tuple[str, ...], tyro.conf.Positional]
Dtype = Literal["float32", "bfloat16", "float16"] | None
BATCH = 16
"""Prompts that are written on together."""


@dataclass(frozen=True)
class Writing:
    """How to write; what is not given is the checkpoint's own setting."""

    max_new_tokens: int | None = None
    """New tokens at most; where the checkpoint does not say either, 100 or as many as fit into its positions."""
    min_new_tokens: int | None = None
    """New tokens before the text may end."""
    num_beams: int | None = None
    """Hypotheses of beam search; 1 for none."""
    length_penalty: float | None = None
    """Exponent of the length that scores of beam search are divided by."""
    temperature: float | None = None
    """Sample with logits divided by this; without it and the next two the most probable token is taken."""
    top_k: int | None = None
    """Sample from that many tokens."""
    top_p: float | None = None
    """Sample from the fewest tokens that have this probability together."""
    repetition_penalty: float | None = None
    """Above 1: tokens seen before become less likely."""
    no_repeat_ngram_size: int | None = None
    """Sequences of that many tokens occur only once."""
    num_return_sequences: int | None = None
    """Texts for each prompt."""
    prompt_lookup_num_tokens: int | None = None
    """Tokens that are proposed at a time from what followed the last ones before, and checked at once."""
    num_assistant_tokens: int | None = None
    """Tokens that --assistant proposes at a time; 5 by default."""
    cache: Literal["int8", "float8_e4m3fn"] | None = None
    """What keys and values of earlier tokens are rounded to."""


@dataclass(frozen=True)
class Images:
    """How to generate images, of a checkpoint that does."""

    images: int | None = None
    """Images to generate, in place of text."""
    output: Path = Path("images.png")
    """File for them: a grid in a .png, or an array in a .npy, as of latents."""
    classes: Annotated[tuple[str, ...], tyro.conf.arg(name="class")] = ()
    """Number or name of the class; of several, images take turns."""
    guidance: float | None = None
    """Scale of guidance towards the class; 1, no guidance, by default."""
    steps: int | None = None
    """Calls of the model; 50 by default."""


def generate(
    checkpoint: Folder,
    prompt: Text = None,
    /,
    how: Annotated[Writing, tyro.conf.arg(name="")] = Writing(),
    pixels: Annotated[Images, tyro.conf.arg(name="")] = Images(),
    mesh: Mesh = Mesh(),
    assistant: str | None = None,
    stop: tuple[str, ...] = (),
    seed: int = 0,
    stream: bool = True,
    chat: bool = False,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Continue a prompt, or answer it with an encoder-decoder, as it is written, on a terminal; or generate --images.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      prompt: Text to go on from; without it every line of standard input is one, and every text printed as one line.
      how: Settings.
      pixels: Settings of images.
      mesh: Devices to spread the model over, by the sharding table; the first device by default.
      assistant: Smaller checkpoint with the same tokenizer, which proposes tokens that are then checked at once.
      stop: Texts at which to stop.
      seed: Of sampling.
      stream: Whether to print a text while it is written, where output is a terminal.
      chat: Talk: every line of standard input is a message; the model reads what was said, by its chat template if any.
      jsonl: Print a JSON object for each prompt instead: prompt and texts.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.text_generation import TextGenerator, WriterConfig

    keep_programs()
    if pixels != Images():
        if mesh != Mesh():
            raise ValueError("--mesh is for text, images are generated on one device")
        return _draw(checkpoint, prompt, how, pixels, seed, revision)
    if prompt is not None and not prompt.strip():
        raise ValueError("a prompt must not be empty")
    settings = {name: value for name, value in asdict(how).items() if value is not None}
    settings["do_sample"] = any(name in settings for name in ("temperature", "top_k", "top_p"))
    if chat and (prompt is not None or jsonl or assistant):
        what = "a prompt" if prompt is not None else "--jsonl" if jsonl else "--assistant"
        raise ValueError(f"a chat is for people, line by line, got {what} too")
    lines = read_lines() if prompt is None and not chat else []
    config = WriterConfig(settings=tuple(settings.items()), stop=stop, seed=seed)
    devices, context = open_mesh(mesh)
    opened = open_checkpoint(checkpoint, revision=revision, mesh=devices)
    writer = TextGenerator(opened, config, assistant and open_checkpoint(assistant, mesh=devices))
    with context:
        if chat:
            _chat(writer)
        elif prompt is None:
            _write_lines(writer, lines, jsonl)
        else:
            _write(writer, prompt, stream, jsonl)


def _write_lines(writer, lines: list[str], jsonl: bool) -> None:
    """Write on from each line."""
    for i in range(0, len(lines), BATCH):
        part = lines[i : i + BATCH]
        for line, texts in zip(part, writer(part, first=i), strict=True):
            whole = [line + text if writer.continues else text for text in texts]
            put({"prompt": line, "texts": whole}, *map(_one_line, whole), jsonl=jsonl)


def _write(writer, prompt: str, stream: bool, jsonl: bool) -> None:
    """Write on from one prompt, piece by piece if that may be."""
    pieces = stream and not (jsonl or writer.at_once or writer.chosen.num_return_sequences > 1)
    if pieces and sys.stdout.isatty():
        _print_pieces(writer.stream(prompt), prompt if writer.continues else "")
    else:
        whole = [prompt + text if writer.continues else text for text in writer([prompt])[0]]
        put({"prompt": prompt, "texts": whole}, *whole, jsonl=jsonl)


def _draw(checkpoint: str, prompt: str | None, how: Writing, pixels: Images, seed: int, revision: str | None) -> None:
    """Generate images, and print the file that they are in."""
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.draw_images import (
        Drawing,
        are_latents,
        check_output,
        decode_latents,
        draw_by_run,
        draw_images,
        open_autoencoder,
        write_images,
    )

    if pixels.images is None:
        raise ValueError("how many images are to be generated is said by --images")
    said = {name for name, value in asdict(how).items() if value is not None} - {"temperature"}
    if prompt is not None or said:
        raise ValueError(
            f"images are generated without text, got {'a prompt' if not said else ', '.join(sorted(said))}"
        )
    drawing = Drawing(
        count=pixels.images, classes=pixels.classes, guidance=pixels.guidance, steps=pixels.steps, seed=seed,
        temperature=1.0 if how.temperature is None else how.temperature,
    )  # fmt: skip
    check_output(pixels.output)
    images = draw_by_run(checkpoint, drawing)
    if images is None:
        images = draw_images(open_checkpoint(checkpoint, revision=revision), drawing)
        if are_latents(images) and (autoencoder := open_autoencoder(checkpoint, revision=revision)) is not None:
            images = decode_latents(autoencoder, images)
    write_images(images, pixels.output)
    print(pixels.output)


def _chat(writer) -> None:
    from flax_transformer.task.question_answering import Conversation

    talk, terminal = Conversation(), sys.stdin.isatty()
    while True:
        print("> " if terminal else "", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            break
        if message := line.strip():
            talk = talk.add(message, _print_pieces(writer.reply(talk, message)).strip())


def _print_pieces(pieces, said: str = "") -> str:
    """Print a text as it comes; give all of it."""
    print(said, end="", flush=True)
    for piece in pieces:
        said += piece
        print(piece, end="", flush=True)
    print()
    return said


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n") if "\n" in text else text


def fill_mask(
    checkpoint: Folder,
    text: Annotated[str, tyro.conf.Positional],
    /,
    top: int = 5,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Guess the masked tokens of a text: probability, token and filled text, separated by tabs.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      text: Text with the tokenizer's mask token, such as <mask> or [MASK].
      top: Guesses for each mask.
      jsonl: Print a JSON object for each mask instead: its number and guesses.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.fill_mask import fill_mask as run

    keep_programs()
    guesses = run(open_checkpoint(checkpoint, revision=revision), text, top)
    for i, mask in enumerate(guesses):
        title = [f"{'' if i == 0 else chr(10)}mask {i + 1}"] if len(guesses) > 1 else []
        lines = [f"{prediction.probability:.4f}\t{prediction.token}\t{prediction.text}" for prediction in mask]
        put({"mask": i + 1, "guesses": list(map(asdict, mask))}, *title, *lines, jsonl=jsonl)


def answer(
    checkpoint: Folder,
    /,
    question: str | None = None,
    context: str | None = None,
    file: Path | None = None,
    n_best: int = 1,
    max_answer_length: int = 30,
    no_answer_threshold: float | None = None,
    stride: int | None = None,
    jsonl: bool = False,
) -> None:
    """Answer questions by spans of a passage.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      question: What is asked; without it every line of standard input is a question that follows up on those before.
      context: The passage.
      file: The file that holds the passage.
      n_best: Answers printed; more than one are printed as probability, score and text, separated by tabs.
      max_answer_length: Most tokens of an answer.
      no_answer_threshold: How much better than the best span no answer must score to be chosen; without it there
        always is an answer.
      stride: Tokens that windows over a long passage share.
      jsonl: Print a JSON object for each question instead: question and answers.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.question_answering import AnswerConfig, Conversation
    from flax_transformer.task.question_answering import answer as run

    keep_programs()
    passage = read_passage(context, file)
    if n_best < 1:
        raise ValueError(f"n-best must be at least 1, got {n_best}")
    options = AnswerConfig(n_best=max(n_best, 20), max_answer_length=max_answer_length, threshold=no_answer_threshold)
    questions = [line for line in read_lines() if line.strip()] if question is None else [question]
    pretrained, talk = open_checkpoint(checkpoint), Conversation()
    for asked in questions:
        answers = run(pretrained, talk.question(asked), passage, options, stride=stride)
        lines = [
            (f"{found.probability:.4f}\t{found.score:.4f}\t" if n_best > 1 else "") + (found.text or "(no answer)")
            for found in answers[:n_best]
        ]
        put({"question": asked, "answers": list(map(asdict, answers[:n_best]))}, *lines, jsonl=jsonl)
        talk = talk.add(asked, answers[0].text if answers else "")


def convert(
    source: Folder,
    destination: Folder,
    /,
    dtype: Dtype = None,
    step: int | None = None,
    revision: str | None = None,
) -> None:
    """Write a run or an Orbax folder as a Hugging Face folder, or a Hugging Face folder as an Orbax folder.

    Args:
      source: Run folder, Orbax folder, Hugging Face folder or hub id.
      destination: Folder to write to, new or empty.
      dtype: Number format of the parameters written; the source's own by default, and then nothing is lost.
      step: Checkpoint of a run; the finished model, or the newest checkpoint, by default.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import convert as run

    made = run(source, destination, dtype=dtype, step=step, revision=revision)
    print(f"{destination}: {made}")
