"""The explorer's page in a notebook: what it asks is answered by the kernel, over the widget's messages."""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from flax_transformer.hub import Pretrained
from flax_transformer.report.explore import explore_page
from flax_transformer.task.explore.beside import put_beside
from flax_transformer.task.explore.explorer import Explorer
from flax_transformer.task.explore.page import first_views
from flax_transformer.task.explore.server import answered

HEIGHT = 720
"""Of the frame, in pixels."""


def widget(
    pretrained: Pretrained,
    text: str = "",
    *,
    file: Path | None = None,
    beside: Pretrained | None = None,
    names: tuple[str, str] = ("", ""),
    height: int = HEIGHT,
) -> Any:
    """Make a widget that shows a checkpoint's explorer: the last line of a cell displays it.

    It is the page of `flax-transformer explore`, with no server: the kernel answers.

    Args:
      text, file: what is shown first; without either the page waits for a text.
      beside: another checkpoint of the same task and tokenizer.
      names: what the page calls the two.
      height: of the frame, in pixels.

    Raises:
      ValueError: without anywidget, an input that the model does not read, or checkpoints that do not go together.
    """
    made = _widget_class()
    explorer = Explorer(pretrained, names[0] or pretrained.config["architectures"][0])
    if beside is not None:
        put_beside(explorer, Explorer(beside, names[1] or beside.config["architectures"][0]))
    if text or file is not None:
        explorer.first = first_views(explorer, text, file)
    return made(explorer, height=height)


@cache
def _widget_class() -> Any:
    """Define the widget when it is first wanted, so that nobody else needs anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ValueError("a widget is shown by anywidget: pip install 'flax-transformer[widget]'") from error

    class ExplorerWidget(anywidget.AnyWidget):
        """A page, and who answers it."""

        _esm = resources.files("flax_transformer.report").joinpath("explore_widget.js").read_text(encoding="utf-8")
        page = traitlets.Unicode().tag(sync=True)
        title = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)

        def __init__(self, explorer: Explorer, **traits: Any):
            page = explore_page(explorer.facts(), explorer.first, served=True, kernel=True)
            super().__init__(page=page, title=f"{explorer.name}: explorer", **traits)
            self.explorer = explorer
            self.on_msg(self._answer)

        def _answer(self, _: Any, content: Any, buffers: Any) -> None:
            """Answer a message `{"id", "view", "request"}` by `{"id", "status", "text"}`."""
            if isinstance(content, dict) and isinstance(content.get("view"), str):
                status, text = answered(self.explorer, content["view"], content.get("request"))
                self.send({"id": content.get("id"), "status": status, "text": text})

    return ExplorerWidget
