"""What the explorer's page shows of one input without asking: the views that a file without a server holds."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_transformer.report.explore import write_explore_page
from flax_transformer.task.explore.case import make_case
from flax_transformer.task.explore.explorer import Explorer


def first_views(explorer: Explorer, text: str, file: Path | None = None) -> dict[str, Any]:
    """Return the first look at an input, under the request that it answers.

    Raises:
      ValueError: an input that the model does not read.
    """
    request = _begun(explorer, text, file)
    return {**request, "look": explorer.ask("look", request), **_beside(explorer, request, ("beside",))}


def all_views(explorer: Explorer, text: str, file: Path | None = None) -> dict[str, Any]:
    """Return every view of an input that there is; those that the model has not are left out."""
    request = _begun(explorer, text, file)
    views: dict[str, Any] = {**request, "look": explorer.ask("look", request)}
    answer = views["look"]["answer"]
    row = answer["first"] + len(answer["rows"]) - 1
    tops: list[list[Mapping[str, Any]]] = answer["after"]["tops"]
    best = tops[-1][0]["id"] if tops else 0
    for view, more in (
        ("lens", {}),
        ("tree", {}),
        ("effects", {"row": row}),
        ("attribute", {"row": row, "answer": best}),
    ):
        with contextlib.suppress(ValueError):  # of models that have none such
            views[view] = {**explorer.ask(view, {**request, **more}), "row": row, "answer": best}
    return {**views, **_beside(explorer, request, ("beside", "beside_lens"))}


def _beside(explorer: Explorer, request: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Any]:
    """Return views of the checkpoint that stands beside, where there is one, and of those the ones it has."""
    views: dict[str, Any] = {}
    for view in asked if explorer.beside is not None else ():
        with contextlib.suppress(ValueError) if view != "beside" else contextlib.nullcontext():
            views[view] = explorer.ask(view, request)
    return views


def _begun(explorer: Explorer, text: str, file: Path | None) -> dict[str, Any]:
    """Return a request that stands for a text and a file, of which the page is told the text."""
    asked = {"text": text}
    case = make_case(explorer.program.pretrained, text, file)
    explorer.keep(asked, case)
    if explorer.beside is not None:
        explorer.beside.keep(asked, case, file)
    return {"input": asked}


def write_page(explorer: Explorer, path: str | os.PathLike, text: str, file: Path | None = None) -> Path:
    """Write the page of one input that needs no server.

    Raises:
      ValueError: an input that the model does not read.
    """
    return write_explore_page(path, explorer.facts(), all_views(explorer, text, file))
