"""What a model is made of: parameters by module with shape, logical axes, count and bytes, as text and as HTML."""

import contextlib
import html
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import yaml

from flax_transformer.frozen import frozen
from flax_transformer.ops import Mask
from flax_transformer.parallel import path_name, tree_axes
from flax_transformer.text_table import align

# `nnx.tabulate` writes what modules are given as YAML, which else refuses a mask without arrays.
yaml.SafeDumper.add_multi_representer(Mask, lambda dumper, mask: dumper.represent_str(repr(mask)))


@frozen
class SummaryRow:
    """A parameter, or a module with the sum of what it holds."""

    name: str
    """Within the module around it."""
    level: int
    """How many modules are around it."""
    shape: tuple[int, ...] | None = None
    """None for a module."""
    axes: tuple[str | None, ...] = ()
    """Logical axes from the sharding table; none where it has no rule."""
    dtypes: tuple[str, ...]
    count: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Summary:
    """A table of parameters: text in a terminal, modules to open and close in a notebook."""

    rows: tuple[SummaryRow, ...]
    """The whole first, then every module followed by what is in it."""

    def __repr__(self) -> str:
        whole, *parts = self.rows
        cells = [("  " * (row.level - 1) + row.name, *self._cells(row)) for row in (*parts, whole)]
        return align(cells, "llrrrl")

    def _repr_html_(self) -> str:
        parts, opened = [], 0
        for row, after in zip(self.rows, (*self.rows[1:], None), strict=True):
            parts.append("</details>" * (opened - row.level))
            opened = min(opened, row.level)
            holds = after is not None and after.level > row.level
            details = "<details>" if row.level else '<details open="">'
            head, foot = (f"{details}<summary>", "</summary>") if holds else ("<div>", "</div>")
            parts.append(head + self._spans(row) + foot)
            opened += holds
        return f'{_STYLE}<div class="ft-summary">{"".join(parts)}{"</details>" * opened}</div>'

    def _spans(self, row: SummaryRow) -> str:
        shape, count, size_, share, axes = self._cells(row)
        name = f'<b style="padding-left:{1.2 * row.level}em">{html.escape(row.name)}</b>'
        bar = f'<i style="width:{self._share(row):.1f}%"></i>{share}'
        # The spaces keep columns apart where styles are stripped, as on code hosts.
        return "".join(f"<span>{cell} </span>" for cell in (name, shape, count, size_, bar, axes))

    def _cells(self, row: SummaryRow) -> tuple[str, ...]:
        shape = ", ".join(row.dtypes) if row.shape is None else "×".join(map(str, row.shape)) or "scalar"
        axes = " ".join(axis or "–" for axis in row.axes)
        return shape, f"{row.count:,}", size(row.bytes), f"{self._share(row):.1f} %", axes

    def _share(self, row: SummaryRow) -> float:
        return 100 * row.count / max(self.rows[0].count, 1)


def summary(tree: Any) -> Summary:
    """List the parameters of a model, or the leaves of any other pytree, by module.

    Args:
      tree: of arrays, or of shapes as `nnx.eval_shape` makes them, which costs no memory.

    >>> from flax import nnx
    >>> from flax_transformer.nn import FeedForward, FeedForwardConfig
    >>> cfg = FeedForwardConfig(embed=256, inner=1024)
    >>> summary(nnx.eval_shape(lambda: FeedForward(cfg, rngs=nnx.Rngs(0))))
    down      float32   262,400  1.05 MB   49.9 %
      bias    256           256  1.02 kB    0.0 %  –
      kernel  1024×256  262,144  1.05 MB   49.9 %  inner embed
    up        float32   263,168  1.05 MB   50.1 %
      bias    1024        1,024   4.1 kB    0.2 %  inner
      kernel  256×1024  262,144  1.05 MB   49.9 %  embed inner
    total     float32   525,568   2.1 MB  100.0 %
    """
    root: dict = {}
    axes = _axes(tree)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        *modules, name = path_name(path).split(".")
        inside = root
        for module in modules:
            inside = inside.setdefault(module, {})
        bytes_ = leaf.size * leaf.dtype.itemsize
        inside[name] = SummaryRow(
            name=name, level=0, shape=leaf.shape, axes=axes.get(path_name(path), ()), dtypes=(str(leaf.dtype),),
            count=leaf.size, bytes=bytes_,
        )  # fmt: skip
    return Summary(tuple(_rows("total", root, 0)))


def size(count: int) -> str:
    """Spell bytes.

    >>> size(512), size(9_800_000), size(999_999)
    ('512 B', '9.8 MB', '1 MB')
    """
    power = next(p for p in range(5) if count < 999.5 * 1000**p or p == 4)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _rows(name: str, inside: dict | SummaryRow, level: int) -> Iterator[SummaryRow]:
    """Yield a module and all in it; below the top, one of parameters alone is told by their names: `query.kernel`."""
    if isinstance(inside, SummaryRow):
        yield replace(inside, name=name, level=level)
        return
    parts = dict(inside)
    for module, held in inside.items():
        if level and isinstance(held, dict) and all(isinstance(part, SummaryRow) for part in held.values()):
            del parts[module]
            parts |= {f"{module}.{key}": part for key, part in held.items()}
    below = [list(_rows(key, part, level + 1)) for key, part in parts.items()]
    tops = [rows[0] for rows in below]
    yield SummaryRow(
        name=name, level=level, dtypes=tuple(sorted({dtype for row in tops for dtype in row.dtypes})),
        count=sum(row.count for row in tops), bytes=sum(row.bytes for row in tops),
    )  # fmt: skip
    for rows in below:
        yield from rows


def _axes(tree: Any) -> dict[str, tuple[str | None, ...]]:
    """Return the axes of the parts of a tree, each by itself where they cannot be told of all of it."""
    try:
        return tree_axes(tree)
    except ValueError:  # a model of one's own, before its rules are written
        found: dict[str, tuple[str | None, ...]] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            with contextlib.suppress(ValueError):
                found |= tree_axes({path_name(path): leaf})
        return found


# Colours are the page's own, so that it reads in light and dark alike.
_STYLE = """<style>
.ft-summary { font: 0.9em/1.6 ui-monospace, Menlo, Consolas, monospace; overflow-x: auto; color: inherit }
.ft-summary div, .ft-summary summary { display: grid; white-space: nowrap; min-width: 64em;
  grid-template-columns: minmax(17em, 2fr) 9em 8em 6em 8em minmax(14em, 1fr) }
.ft-summary summary { cursor: pointer }
.ft-summary summary:hover, .ft-summary div:hover { background: rgb(127 127 127 / 15%) }
.ft-summary b { font-weight: normal }
.ft-summary summary b { font-weight: 600 }
.ft-summary summary b::before { content: "▸ "; opacity: 0.6 }
.ft-summary details[open] > summary b::before { content: "▾ " }
.ft-summary span:nth-child(n + 3) { text-align: right }
.ft-summary span:nth-child(5) { position: relative; margin-left: 1em }
.ft-summary span:last-child { text-align: left; padding-left: 1.5em }
.ft-summary i { position: absolute; left: 0; top: 15%; height: 70%; background: rgb(76 139 245 / 40%) }
</style>"""
