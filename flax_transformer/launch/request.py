"""What is asked of a launch: which experiment, with which options, where, and under which name."""

import re
from pathlib import PurePosixPath

from flax_transformer.frozen import frozen
from flax_transformer.launch.accelerator import Accelerator
from flax_transformer.launch.package import Package

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""Fits TPU machines, queued resources and, with what JobSet adds to it, pods."""

BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]")
"""https://cloud.google.com/storage/docs/buckets#naming, but for the length of what is between dots."""

MOUNT = "/gcs"
"""Folder on the workers in which buckets appear as folders."""


@frozen
class LaunchRequest:
    """An experiment to run on the workers of one TPU slice."""

    name: str
    """Of all that is made for it."""
    folder: str
    """Local folder with what is sent to the workers."""
    package: Package
    options: tuple[str, ...] = ()
    """Arguments of the experiment."""
    workdir: str
    """gs://BUCKET/FOLDER, where the run is kept."""
    accelerator: Accelerator
    zone: str | None = None
    project: str | None = None
    spot: bool = False
    """Whether to ask for machines that are cheap and may be taken away."""
    retries: int = 10
    """How often to begin again after the machines were taken away."""

    def __post_init__(self):
        check_name(self.name)
        if not re.fullmatch(r"gs://[^/]+(/[^/]+)+/?", self.workdir):
            raise ValueError(
                "a run on other machines must have a WORKDIR gs://BUCKET/FOLDER that all of them reach, got "
                f"{self.workdir!r:.100}"
            )
        if not (BUCKET.fullmatch(self.bucket) and all(len(part) <= 63 for part in self.bucket.split("."))):
            raise ValueError(
                "a bucket's name must have 3 to 63 lower-case letters, digits, hyphens, underscores and dots (with "
                f"dots 222, 63 between two), the first and last a letter or digit, got {self.bucket!r:.99} in WORKDIR "
                "gs://BUCKET/FOLDER"
            )
        if self.retries < 0:
            raise ValueError(f"retries must not be negative, got {self.retries}")

    @property
    def bucket(self) -> str:
        """The bucket of WORKDIR."""
        return self.workdir.split("/")[2]

    @property
    def mount(self) -> str:
        """Where the workers see the bucket."""
        return f"{MOUNT}/{self.bucket}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the script `worker.sh` is given."""
        workdir = str(PurePosixPath(self.mount) / self.workdir.split("/", 3)[3].rstrip("/"))
        package = self.package
        return (
            package.digest, package.requirement, self.bucket, package.experiment, *self.options, "--workdir", workdir
        )  # fmt: skip


def check_name(name: str) -> str:
    """Return a name that clouds accept.

    Raises:
      ValueError: when they do not.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"a name must begin with a letter and have at most 40 lower-case letters, digits and hyphens, got {name!r}"
        )
    return name


def default_name(experiment: str, options: tuple[str, ...]) -> str:
    """Make a name from the experiment file and the one of it that is chosen.

    >>> default_name("experiments/wmt14.py", ("base", "--train.steps", "10"))
    'wmt14-base'
    """
    chosen = [option for option in options[:1] if not option.startswith("-")]
    words = "-".join([PurePosixPath(experiment.replace("\\", "/")).stem, *chosen]).lower()
    return check_name(re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:40].rstrip("-"))
