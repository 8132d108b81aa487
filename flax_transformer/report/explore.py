"""The explorer's page: a model's views, asked of a server on this machine, or all in the page itself."""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from flax_transformer.atomic import write_file
from flax_transformer.report.page import page_of

SCRIPTS = (
    "widget.js",
    "attention.js",
    "explore_map.js",
    "explore_view.js",
    "explore_beside.js",
    "explore_tree.js",
    "explore.js",
)
"""The last one draws the page."""


def explore_page(
    facts: Mapping[str, Any], views: Mapping[str, Any] | None = None, *, served: bool, kernel: bool = False
) -> str:
    """Make the page.

    Args:
      facts: what the model is called and reads.
      views: what was asked already, by view, with the `request` it answers; all that a page without a server shows.
      served: whether the page can ask.
      kernel: whether it asks the page around it, by messages, and not the server that gave it.
    """
    page = page_of({"facts": facts, "views": views or {}, "served": served, "kernel": kernel}, SCRIPTS)
    style = resources.files("flax_transformer.report").joinpath("explore.css").read_text(encoding="utf-8")
    page = page.replace("</style>", f"{style}</style>", 1)
    if served and not kernel:
        page = page.replace("default-src 'none';", "default-src 'none'; connect-src 'self';", 1)
    return page


def write_explore_page(path: str | os.PathLike, facts: Mapping[str, Any], views: Mapping[str, Any]) -> Path:
    """Write the page that needs no server; the file appears whole or not at all."""
    return write_file(path, explore_page(facts, views, served=False))
