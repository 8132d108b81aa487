"""The Python files that a run's own types come from: remembered by the run, imported only with permission.

A config names types and functions of this package; those of an experiment file of the user's are named too, as
`__main__:Mine`. To rebuild such an experiment its file must be imported, which runs it. Whoever can write a run folder
can name any file there, so nothing is imported unless the person who reads the run has agreed.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flax_transformer.atomic import write_file
from flax_transformer.listing import listed, short_path
from flax_transformer.train.config import modules_in, parse_object

FILE = "code.json"
"""File of a run's folder with the Python files of its own types: path and SHA-256."""


@dataclass(frozen=True)
class ImportRequest:
    """What is to be imported to read a run; as a string, a sentence without its end."""

    run: Path
    files: tuple[Path, ...]
    changed: tuple[Path, ...]
    """Those of the files that are not what they were when the run was made."""
    folders: tuple[Path, ...]
    """Where they look for modules of their own, besides the folders they are in."""

    def __str__(self) -> str:
        note = " (which has changed since the run was made)"
        files = [f"{short_path(each)}{note if each in self.changed else ''}" for each in self.files]
        beside = f" with modules from {listed(list(map(short_path, self.folders)))}"
        rule = f"to read the run {short_path(self.run)}, {listed(files)} must be imported, which runs it"
        return f"{rule}{beside if self.folders else ''}"


Permit = Callable[[ImportRequest], bool]
"""`permit(request)` tells whether the files may be imported."""

PERMIT: ContextVar[Permit] = ContextVar("PERMIT", default=lambda request: False)


class Untrusted(RuntimeError):
    """A run is made of Python files that nobody has permitted to import; the message names them."""


@contextlib.contextmanager
def permitting(permit: Permit) -> Iterator[None]:
    """Allow runs read within this context to import their own files where `permit` agrees."""
    token = PERMIT.set(permit)
    try:
        yield
    finally:
        PERMIT.reset(token)


def remember_code(root: Path, config: Any, packages: tuple[str, ...]) -> None:
    """Write into a run's folder which files outside `packages` the JSON config of its experiment names.

    What is defined in no file, as in a notebook, is not remembered.
    """
    path = root / FILE
    names = modules_in(config, packages)
    found = {name: _described(sys.modules[name]) for name in names if getattr(sys.modules.get(name), "__file__", None)}
    if not found:
        path.unlink(missing_ok=True)
        return
    write_file(path, json.dumps({"modules": found, "path": _folders()}, indent=2) + "\n")


def own_modules(root: Path, config: Any, packages: tuple[str, ...]) -> Mapping[str, ModuleType]:
    """Import the files that a run's config needs besides `packages`, if the reader permits it; by the names it uses.

    Raises:
      Untrusted: they may not be imported; says which they are.
      ValueError: a damaged record, or files that are missing or cannot be imported.
    """
    record = root / FILE
    names = modules_in(config, packages)
    if not names or not record.is_file():
        return {}  # what the config names is then refused by `from_json`
    known, folders = _read(record)
    files = {name: known[name] for name in names if name in known}
    if gone := [short_path(each["file"]) for each in files.values() if not Path(each["file"]).is_file()]:
        raise ValueError(f"{short_path(root)} was made by {listed(gone)}, which is not there any more")
    if not files:
        return {}
    request = _request(root, files, folders)
    if not PERMIT.get()(request):
        raise Untrusted(str(request))
    with _findable([str(Path(each["file"]).parent) for each in files.values()] + folders):
        return {name: _import(name, each) for name, each in files.items()}


def load_file(path: Path, name: str) -> ModuleType:
    """Run a Python file as a module called `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _described(module: ModuleType) -> dict[str, str]:
    """Return where a module is, what its file holds, and by which name it is imported: "" for a script."""
    file = Path(module.__file__).resolve()
    spec = getattr(module, "__spec__", None)
    name = "" if module.__name__ == "__main__" and spec is None else spec.name if spec else module.__name__
    return {"file": str(file), "sha256": _digest(file), "name": name}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _folders() -> list[str]:
    """List where modules are looked for here, besides those of Python and its packages."""
    installed = {
        Path(each).resolve() for each in (*sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix)
    }
    folders = [Path(each or ".").resolve() for each in sys.path]
    own = [each for each in folders if each.is_dir() and not installed & {each, *each.parents}]
    return list(dict.fromkeys(map(str, own)))


def _read(record: Path) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Read what `remember_code` wrote.

    Raises:
      ValueError: a damaged file.
    """
    data = parse_object(record.read_bytes(), record)
    modules, folders = data.get("modules"), data.get("path")
    fields = {"file", "sha256", "name"}
    valid = isinstance(modules, dict) and all(
        isinstance(each, dict) and each.keys() == fields and all(isinstance(value, str) for value in each.values())
        for each in modules.values()
    )
    if not valid or not isinstance(folders, list) or not all(isinstance(each, str) for each in folders):
        raise ValueError(f"{record} must say the file, sha256 and name of each module, and a list of folders as path")
    return modules, folders


def _request(root: Path, files: Mapping[str, Mapping[str, str]], folders: list[str]) -> ImportRequest:
    paths = tuple(Path(each["file"]) for each in files.values())
    changed = tuple(Path(each["file"]) for each in files.values() if _digest(Path(each["file"])) != each["sha256"])
    beside = {path.parent for path in paths}
    return ImportRequest(root, paths, changed, tuple(Path(each) for each in folders if Path(each) not in beside))


@contextlib.contextmanager
def _findable(folders: list[str]) -> Iterator[None]:
    """Search some folders for modules too, after all others."""
    added = [each for each in dict.fromkeys(folders) if each not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for each in added:
            sys.path.remove(each)


def _import(name: str, known: Mapping[str, str]) -> ModuleType:
    file = Path(known["file"])
    own = f"_run_{hashlib.sha256(known['file'].encode()).hexdigest()[:12]}_{file.stem}"
    try:
        loaded = sys.modules.get(own) if not known["name"] else importlib.import_module(known["name"])
        module = loaded or load_file(file, own)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{short_path(file)} cannot be imported: {type(error).__name__}: {error}"[:500]) from error
    if not getattr(module, "__file__", None) or Path(module.__file__).resolve() != file:
        raise ValueError(f"{known['name']} is another module here than {short_path(file)}, which the run was made by")
    return module
