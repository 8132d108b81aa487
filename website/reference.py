"""Which names stand on which page of the API reference, read from the source so that nothing has to be imported.

A room is a package; its page has a section for each of its files. A room with an index (the imports of its `__init__`)
shows what that exports, one without shows every name of its files. Configs are shown wherever they are, and so is
whatever an example, an experiment, a notebook or a guide imports.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from website import docstring

ROOT = Path(__file__).parent.parent
PACKAGE = "flax_transformer"
INDEX = """# Reference

Written from the docstrings. `import flax_transformer as ft` gives the rooms: `ft.nn.Block` needs no other import.

| room | what is in it |
| --- | --- |"""
HIDDEN = "cli", "hub.family"
"""Packages that are not for import: commands, and the tables of single families."""
LOOSE = "frozen.frozen", "order.Stack", "order.Layer", "order.Part"
"""What belongs to no room, shown on the page of rooms."""


class Name(NamedTuple):
    """Something that is shown."""

    room: str
    """The package whose page it is on, without the name of the whole: `data.text`."""
    module: str
    """Where it is defined."""
    name: str
    exported: bool
    """Whether it is imported from its room."""

    @property
    def path(self) -> str:
        """What its place on the page is called."""
        return f"{self.module}.{self.name}"


@functools.cache
def parsed(file: Path) -> ast.Module:
    """Parse a file once."""
    return ast.parse(file.read_text())


def module_of(file: Path) -> str:
    """Name a file's module."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def file_of(module: str) -> Path:
    """Find a module's file."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def rooms() -> list[str]:
    """List the packages that have a page."""
    found = (module_of(file).removeprefix(f"{PACKAGE}.") for file in sorted((ROOT / PACKAGE).glob("*/**/__init__.py")))
    return [room for room in found if room not in HIDDEN]


def exports(room: str) -> Iterator[Name]:
    """List what the index of a room imports for others, and the constants that it makes."""
    index = f"{PACKAGE}.{room}"
    tree = parsed(file_of(index))
    listed = next((ast.literal_eval(node.value) for node in tree.body if _assigned(node) == "__all__"), None)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                if (alias.name in listed if listed is not None else alias.asname) and not _is_module(node, alias):
                    yield Name(room, str(node.module), alias.name, True)
        elif (name := _assigned(node)) and name in (listed or ()):
            yield Name(room, index, name, True)


def _is_module(node: ast.ImportFrom, alias: ast.alias) -> bool:
    return file_of(f"{node.module}.{alias.name}").exists()


def _assigned(node: ast.stmt) -> str | None:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else 0
    return target.id if isinstance(target, ast.Name) else None


def files(room: str) -> list[Path]:
    """List the files of a room, without those of rooms within it."""
    return sorted(file_of(f"{PACKAGE}.{room}").parent.glob("*.py"))


def defined(file: Path) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """List the public functions and classes of a file."""
    for node in parsed(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def is_config(node: ast.stmt) -> bool:
    """Return whether a class is frozen."""
    return isinstance(node, ast.ClassDef) and "frozen" in map(ast.unparse, node.decorator_list)


@functools.cache
def used() -> frozenset[str]:
    """List what the pages and files that people read import from this package, by path."""
    sources = [code for page in ("README.md", "CONTRIBUTING.md", "docs/*.md") for code in _code(page)]
    for place in ("docs/examples", "experiments", "notebooks"):
        sources += [path.read_text() for path in (ROOT / place).glob("*.py")]
    found = set()
    for source in sources:
        for names, one in re.findall(r"^from (\S+) import (\([^)]*\)|[^(\n]*)", source, re.MULTILINE):
            if names.startswith(f"{PACKAGE}."):
                found |= {f"{names}.{name}" for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", one))}
    return frozenset(found)


def _code(pages: str) -> Iterator[str]:
    for page in sorted(ROOT.glob(pages)):
        yield from re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def names(room: str) -> list[Name]:
    """List what the page of a room shows, file by file in the order of the source."""
    exported = {(name.module, name.name): name for name in exports(room)}
    found = [name for name in exported.values() if name.module == f"{PACKAGE}.{room}"]
    own = set()
    for file in files(room):
        module = module_of(file)
        for node in defined(file):
            name = exported.get((module, node.name), Name(room, module, node.name, False))
            if name.exported or not exported or is_config(node) or name.path in used():
                found.append(name)
            own.add((module, node.name))
        constants = [name for key, name in exported.items() if key[0] == module and key not in own]
        found += [name for name in constants if name not in found]
    return found + [name for name in exported.values() if name not in found]


def first_words(module: str) -> str:
    """Return the docstring of a module, or nothing."""
    return docstring.rendered(ast.get_docstring(parsed(file_of(module))) or "", {})


def page(room: str) -> str:
    """Write the page of a room."""
    shown = names(room)
    lines = [f"# ft.{room} {{ #{PACKAGE}.{room} }}", "", first_words(f"{PACKAGE}.{room}"), ""]
    if any(name.exported for name in shown):
        lines += ["```python", f"from {PACKAGE}.{room} import …", "```", ""]
    for module in dict.fromkeys(name.module for name in shown):
        here = [name for name in shown if name.module == module]
        if module != f"{PACKAGE}.{room}":
            title = module.removeprefix(f"{PACKAGE}.{room}.").removeprefix(f"{PACKAGE}.")
            lines += [f"## {title}", "", first_words(module), ""]
        if inner := [name.name for name in here if not name.exported]:
            lines += ["```python", f"from {module} import {', '.join(inner)}", "```", ""]
        lines += [line for name in here for line in (_shown(name), "")]
    return "\n".join(lines)


def _shown(name: Name) -> str:
    """Have the docstring of a name rendered; of one that shares its statement with others, show the statement."""
    for node in parsed(file_of(name.module)).body:
        if isinstance(node, ast.Assign) and name.name in _targets(node) and _assigned(node) is None:
            return f"### {name.name} {{ #{name.path} }}\n\n```python\n{ast.unparse(node)}\n```"
    return f"::: {name.path}"


def _targets(node: ast.Assign) -> set[str]:
    return {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def index() -> str:
    """Write the page that lists the rooms."""
    says = {room: first_words(f"{PACKAGE}.{room}").partition("\n")[0] for room in rooms()}
    rows = [f"| [ft.{room}]({room}.md) | {words} |" for room, words in says.items()]
    return "\n".join([INDEX, *rows, "", *(f"::: {PACKAGE}.{name}" for name in LOOSE), ""])


@functools.cache
def labels() -> dict[str, str]:
    """Return the paths of what is shown by what texts call it: `Mask`, `ops.Mask`, `ft.ops.Mask`, all of its path."""
    shown = [name for room in rooms() for name in names(room)]
    found = {f"{start}.{room}": f"{PACKAGE}.{room}" for room in rooms() for start in ("ft", PACKAGE)}
    for name in shown:
        places = [name.path.removeprefix(f"{PACKAGE}."), *([f"{name.room}.{name.name}"] if name.exported else [])]
        found |= {f"{start}{place}": name.path for place in places for start in ("", "ft.", f"{PACKAGE}.")}
    alone = [name.name for name in shown]
    telling = (name for name in shown if alone.count(name.name) == 1 and (name.name[0].isupper() or "_" in name.name))
    return found | {name.name: name.path for name in telling}


_CODE = re.compile(r"<code>([\w.]+)((?:\([^<]*\))?)</code>")
_TAKEN = re.compile(r"(<a\b.*?</a>|<autoref\b.*?</autoref>|<h[1-6]\b.*?</h[1-6]>|<pre\b.*?</pre>)", re.DOTALL)


def linked(html: str) -> str:
    """Make links of the names in a page's text, where it has none."""

    def link(code: re.Match) -> str:
        path = labels().get(code[1])
        return f'<autoref identifier="{path}">{code[0]}</autoref>' if path else code[0]

    parts = _TAKEN.split(html)
    return "".join(part if place % 2 else _CODE.sub(link, part) for place, part in enumerate(parts))
