"""The command line, by what commands work on: `cli.run`, `cli.checkpoint`, `cli.image`, `cli.audio`.

Only those and what they import at their top is loaded for `--help`; a command imports what it needs when it runs.
"""

import sys

from flax_transformer import __version__
from flax_transformer.task.command import quietly


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0, or 1 after an error said in one sentence on standard error."""
    import tyro

    from flax_transformer.cli.audio import transcribe
    from flax_transformer.cli.bench import (
        bench,
        bench_attention,
        bench_data,
        bench_variants,
        explain_attention,
        presets,
        sharding,
    )
    from flax_transformer.cli.checkpoint import answer, convert, fill_mask, generate
    from flax_transformer.cli.classify import classify
    from flax_transformer.cli.compress import compress
    from flax_transformer.cli.documents import ask, choose, index
    from flax_transformer.cli.embed import embed
    from flax_transformer.cli.explore import explore
    from flax_transformer.cli.export import export
    from flax_transformer.cli.image import caption, detect, search, segment, translate_image
    from flax_transformer.cli.launch import launch
    from flax_transformer.cli.plan import plan
    from flax_transformer.cli.push import push
    from flax_transformer.cli.run import attention, compare, distil, evaluate, report, show, translate
    from flax_transformer.cli.summarise import summarise
    from flax_transformer.cli.trust import reads_runs

    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:2] in (["bench", "attention"], ["bench", "variants"], ["bench", "data"]):
        arguments[:2] = [f"bench-{arguments[1]}"]
    arguments = _joined(arguments)
    if arguments == ["--version"]:
        return print(f"flax-transformer {__version__}")
    app = tyro.extras.SubcommandApp()
    measures = (presets, sharding, bench, bench_attention, bench_variants, bench_data, explain_attention)
    runs = (translate, translate_image, summarise, evaluate, distil, show, *measures, report, compare, attention)
    texts = (generate, fill_mask, classify, embed, answer, index, ask, choose, search)
    checkpoints = (*texts, caption, detect, segment, transcribe, explore, convert, export, push)
    for command in (*runs, *checkpoints, compress, plan, launch):
        app.command(command if command in (*measures, plan, launch) else reads_runs(command))
    try:
        with quietly():
            about = "Transformers in JAX: use runs and checkpoints. --version says which version this is."
            app.cli(args=arguments, prog="flax-transformer", description=about)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
    except KeyboardInterrupt:
        sys.exit(130)


def _joined(arguments: list[str]) -> list[str]:
    """Write FILE.py NAME as FILE.py:NAME, so that other options may stand between it and what comes after --.

    >>> _joined(["launch", "wmt14.py", "base", "--on", "local", "--", "--train.steps", "3"])
    ['launch', 'wmt14.py:base', '--on', 'local', '--', '--train.steps', '3']
    """
    takes = ("launch", "plan", "bench", "bench-data", "explain-attention", "sharding")
    named = len(arguments) > 2 and arguments[0] in takes
    if named and arguments[1].endswith(".py") and not arguments[2].startswith("-"):
        return [arguments[0], f"{arguments[1]}:{arguments[2]}", *arguments[3:]]
    return arguments
