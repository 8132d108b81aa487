"""TPU slices by name: chips, topology, machines, and what Cloud TPU and GKE call them.

Source: the Cloud TPU documentation (TPU versions; TPU software versions; queued resources, on TPU7x) and the GKE
documentation (plan TPUs in GKE), 2026-11.
"""

import difflib
import math

from flax_transformer.frozen import frozen

FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")


@frozen
class TpuGeneration:
    """What all slices of a TPU generation have in common."""

    name: str
    """What people call it, as in v5e:4x4."""
    prefix: str
    """What the names of its slices begin with, as in v5litepod-16."""
    cores: int
    """By how much the number in a slice's name exceeds that of its chips."""
    runtime: str | None
    """Software of its TPU machines; None: only GKE offers them."""
    gke: str
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    topologies: tuple[str, ...]
    whole: int = 4
    """Chips of the largest slice that is a single machine; larger slices have 4 chips a machine."""


GENERATIONS = (
    TpuGeneration(
        name="v4", prefix="v4", cores=2, runtime="tpu-ubuntu2204-base", gke="tpu-v4-podslice", topologies=CUBE
    ),
    TpuGeneration(
        name="v5e",
        prefix="v5litepod",
        cores=1,
        runtime="v2-alpha-tpuv5-lite",
        gke="tpu-v5-lite-podslice",
        topologies=FLAT,
        whole=8,
    ),
    TpuGeneration(
        name="v5p",
        prefix="v5p",
        cores=2,
        runtime="v2-alpha-tpuv5",
        gke="tpu-v5p-slice",
        topologies=(*CUBE, "16x16x16", "16x16x24"),
    ),
    TpuGeneration(
        name="v6e", prefix="v6e", cores=1, runtime="v2-alpha-tpuv6e", gke="tpu-v6e-slice", topologies=FLAT, whole=8
    ),
    TpuGeneration(
        name="tpu7x", prefix="tpu7x", cores=2, runtime=None, gke="tpu7x", topologies=(*CUBE, "16x16x16")
    ),
)  # fmt: skip


@frozen
class Accelerator:
    """One size of one TPU generation."""

    generation: TpuGeneration
    topology: str

    @property
    def chips(self) -> int:
        """How many chips it has."""
        return math.prod(map(int, self.topology.split("x")))

    @property
    def name(self) -> str:
        """Its accelerator type, as in v5litepod-16."""
        return f"{self.generation.prefix}-{self.chips * self.generation.cores}"

    @property
    def alias(self) -> str:
        """Generation and topology, as in v5e:4x4."""
        return f"{self.generation.name}:{self.topology}"

    @property
    def hosts(self) -> int:
        """Machines of a TPU VM, and processes of a run on it."""
        return 1 if self.chips <= self.generation.whole else self.chips // 4

    @property
    def pods(self) -> int:
        """Machines of a GKE node pool, each with `pod_chips` chips, and processes of a run on it."""
        return self.chips // self.pod_chips

    @property
    def pod_chips(self) -> int:
        """Chips of one machine of a GKE node pool."""
        return min(self.chips, 4)


ACCELERATORS = tuple(Accelerator(generation=g, topology=t) for g in GENERATIONS for t in g.topologies)


def find_accelerator(name: str) -> Accelerator:
    """Find a slice by its accelerator type or by generation and topology.

    >>> slice = find_accelerator("v5e:4x4")
    >>> slice.name, slice.chips, slice.hosts
    ('v5litepod-16', 16, 4)

    Raises:
      ValueError: when there is none of that name; the nearest are told.
    """
    asked = name.strip().lower()
    found = next((slice for slice in ACCELERATORS if asked in (slice.name, slice.alias)), None)
    if found is None:
        raise ValueError(f"a TPU must be one of {', '.join(_nearest(asked))}, …, got {name!r}")
    return found


def _nearest(asked: str) -> list[str]:
    """Name the slices of the same generation next in size, or those with the most similar names."""
    prefix, dash, size = asked.partition("-")
    same = [slice for slice in ACCELERATORS if prefix in (slice.generation.prefix, slice.generation.name)]
    if same and dash and size.isdigit():
        number = int(size) / same[0].generation.cores
        return [slice.name for slice in sorted(same, key=lambda slice: abs(slice.chips - number))[:2]]
    names = [name for slice in ACCELERATORS for name in (slice.name, slice.alias)]
    return difflib.get_close_matches(asked, names, n=3, cutoff=0.5) or [g.prefix + "-…" for g in GENERATIONS]
