"""The code of a run as one archive: the experiment file and, from a source checkout, the library.

The same files give the same bytes, so that workers know by its digest whether they have installed it.
"""

import hashlib
import io
import lzma
import subprocess
import tarfile
from importlib import metadata
from pathlib import Path, PurePosixPath

from flax_transformer.frozen import frozen

LIBRARY = ("flax_transformer", "pyproject.toml", "README.md", "LICENSE")
"""What of a checkout is needed to install it."""

LIMIT = 32 * 2**20
"""Bytes of code beyond which something else than code must be among it."""

NEVER = {".git", "runs", "data", "__pycache__", ".venv"}
"""Folders that are never sent, even where git would list them; `flax_transformer/data` is code."""


@frozen
class Package:
    """Code to send."""

    content: bytes
    """A tar archive, compressed by xz: a ConfigMap has room for little."""
    files: int
    experiment: str
    """Path of the experiment file inside of it."""
    requirement: str
    """What pip installs, in the folder it is unpacked to."""

    @property
    def digest(self) -> str:
        """What changes when the code does."""
        return hashlib.sha256(self.content + self.requirement.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.files} files, {len(self.content) / 1e3:,.0f} kB compressed; installed by pip: {self.requirement}"


def pack(experiment: Path, library: Path | None = None) -> Package:
    """Pack an experiment with the Python files of its folder, and the library as it is here.

    Of a folder in git, what git knows or would add; else the experiment file alone. The library is packed from a source
    checkout; installed otherwise, it is named by its version.

    Args:
      library: Folder that holds `flax_transformer`; that of this module by default.

    Raises:
      ValueError: when there is no such experiment file, git does not know the library's checkout, or what would be
        sent is too large to be code.
    """
    if experiment.suffix != ".py" or not experiment.is_file():
        raise ValueError(f"an experiment must be a Python file, there is none at {experiment}")
    experiment = experiment.resolve()
    root = (library or Path(__file__).parent.parent.parent).resolve()
    files: dict[str, Path] = {}
    requirement = f"flax-transformer[tpu]=={metadata.version('flax-transformer')}"
    project = root / "pyproject.toml"
    if project.is_file() and "flax-transformer" in project.read_text():
        files |= {name: root / name for name in _listed(root, LIBRARY)}
        if not files:
            raise ValueError(f"git must list the library's files in {root}, to send them; see git -C {root} status")
        requirement = ".[tpu]"
    inside = root in experiment.parents and requirement == ".[tpu]"
    base, prefix = (root, PurePosixPath()) if inside else (experiment.parent, PurePosixPath("experiment"))
    beside = [name for name in _listed(experiment.parent, (":(glob)**/*.py",)) if name.endswith(".py")]
    for name in {*beside, experiment.name}:
        path = experiment.parent / name
        files[str(prefix / path.relative_to(base).as_posix())] = path
    content = _archive(files)
    if len(content) > LIMIT:
        raise ValueError(f"the code to send must be at most {LIMIT:,} bytes, got {len(content):,} from {base}")
    return Package(
        content=content,
        files=len(files),
        experiment=str(prefix / experiment.relative_to(base).as_posix()),
        requirement=requirement,
    )


def _listed(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    """List the files of a folder that git tracks or would add; none outside of git."""
    command = [
        "git",
        "-C",
        str(folder),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        *patterns,
    ]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        return []
    names = [name for name in listed if name and not NEVER & {*_outside_of_library(name)}]
    return [name for name in names if (folder / name).is_file() and not (folder / name).is_symlink()]


def _outside_of_library(name: str) -> tuple[str, ...]:
    """Return the folders of a path, but those inside the library."""
    parts = PurePosixPath(name).parts[:-1]
    return () if parts[:1] == ("flax_transformer",) else parts


def _archive(files: dict[str, Path]) -> bytes:
    packed = io.BytesIO()
    with (
        lzma.LZMAFile(packed, mode="wb", preset=9) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in sorted(files):
            content = files[name].read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
