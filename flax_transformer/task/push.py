"""A checkpoint's folder sent to the hub."""

from pathlib import Path
from typing import NamedTuple

from flax_transformer.hub.file import CONFIG, PICKLES
from flax_transformer.task.model_card import CARD
from flax_transformer.task.run import EXPORT
from flax_transformer.train.folder import RunFolder

SENT = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.spm", "*.vocab", CARD)
"""What a checkpoint is made of: no checkpoints of training, no metrics, nothing that could be code."""


class Sending(NamedTuple):
    """What would be sent."""

    folder: Path
    files: tuple[tuple[str, int], ...]
    """Names within the folder, and bytes."""


def plan_push(name: str | Path) -> Sending:
    """Find the files of a run's finished model, or of a checkpoint's folder.

    Raises:
      ValueError: no folder of a checkpoint, a run without a finished model, or weights that can run code when opened.
    """
    root = Path(name)
    folder = root / EXPORT if RunFolder(root).checkpoints.is_dir() or (root / EXPORT).is_dir() else root
    if not (folder / CONFIG).is_file() and not (folder / "modules.json").is_file():
        raise ValueError(f"what is pushed is a checkpoint's folder or a run that exports one, got {root}")
    if not any(folder.rglob("*.safetensors")):
        raise ValueError(f"a checkpoint has safetensors, there are none in {folder}: is the run finished?")
    if pickles := [path.name for pattern in PICKLES for path in folder.rglob(pattern)]:
        raise ValueError(f"files that can run code when opened are not pushed, got {pickles[0]} in {folder}")
    files = sorted({path for pattern in SENT for path in folder.rglob(pattern) if path.is_file()})
    return Sending(folder, tuple((path.relative_to(folder).as_posix(), path.stat().st_size) for path in files))


def push(sending: Sending, repository: str, *, private: bool = False, revision: str | None = None) -> str:
    """Send the files as one commit; a repository that is not there is made first.

    Args:
      repository: OWNER/NAME.
      private: whether a new repository is.
      revision: branch, `main` by default.

    Returns:
      The address of the commit.

    Raises:
      ValueError: a name that is none, or what the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    check_repository(repository)
    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        made = api.upload_folder(
            repo_id=repository, folder_path=sending.folder, allow_patterns=[name for name, _ in sending.files],
            revision=revision, commit_message="Upload by flax_transformer",
        )  # fmt: skip
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise ValueError(f"the hub did not take {repository}: {str(error).strip().splitlines()[0]}") from error
    return str(made.commit_url)


def check_repository(name: str) -> None:
    """Check a name before anything is sent.

    Raises:
      ValueError: other than OWNER/NAME.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"a repository is OWNER/NAME, got {name!r:.60}") from error
    if name.count("/") != 1:
        raise ValueError(f"a repository is OWNER/NAME, got {name!r:.60}")
