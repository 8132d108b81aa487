"""The command `explore`: see inside a model, on a page that this machine serves to itself, or in one file."""

from pathlib import Path

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder


def explore(
    checkpoint: Folder,
    /,
    input: str | None = None,
    file: Path | None = None,
    beside: Folder | None = None,
    output: Path | None = None,
    port: int = 0,
    host: str = "127.0.0.1",
    revision: str | None = None,
) -> None:
    """See inside a model: attention, attributions, the logit lens, and what changes when parts are switched off.

    Prints the address of a page that this machine alone can open, and serves it until interrupted; with --output
    writes one file that needs no server.

    Args:
      checkpoint: Run folder, Hugging Face folder or hub id.
      input: Text that is shown first; with --output the one that is shown.
      file: Image, recording, video or .npz of a model's inputs that is shown.
      beside: Another checkpoint of the same task and tokenizer that is given the same and shown beside it.
      output: Page to write instead of serving.
      port: Port to serve on; any that is free by default.
      host: Loopback address to serve on.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.explore.explorer import open_explorer
    from flax_transformer.task.explore.page import first_views, write_page

    keep_programs()
    if output is not None and input is None and file is None:
        raise ValueError("a page without a server shows an --input or a --file, got neither")
    if output is None:
        from flax_transformer.task.explore.server import check_loopback, serve

        check_loopback(host)
    explorer = open_explorer(checkpoint, revision, beside)
    if output is not None:
        print(write_page(explorer, output, input or "", file))
        return
    explorer.first = first_views(explorer, input or "", file) if input is not None or file is not None else {}
    serve(explorer, host=host, port=port, say=lambda address: print(address, flush=True))
