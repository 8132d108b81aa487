"""Chips that are not here: what a TPU slice or a group of GPUs is made of, its memory, how fast that and links are.

Sources for TPUs: the system architecture page of each generation at https://cloud.google.com/tpu/docs. Peaks of
arithmetic are in `device`. The pages give a chip's links in both directions together; here is what goes out, half of
that. The room for programs is what the compiler of libtpu 0.0.42 names when one is too large. GPUs are in `gpu`.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flax_transformer.bench import gpu

GIB = 2**30
HOST = (2, 2, 1)
"""TPU chips of a host along each axis, as the compiler takes it."""


@dataclass(frozen=True)
class Chip:
    """One chip of a generation; bytes, and bytes a second."""

    kind: str
    """As `jax.Device.device_kind` spells its devices."""
    devices: int
    """JAX devices a chip."""
    room: int
    """What the compiler lets a program use of each device's memory, somewhat less than there is."""
    bandwidth: float
    """Of the chip's memory."""
    links: float
    """What all links to other chips carry away together."""
    axes: int
    """Of the grid."""
    options: Mapping[str, str] = field(default_factory=dict)
    """For the compiler, to see devices as JAX does on such a machine."""
    platform: str = "tpu"
    """As JAX names it when it compiles ahead of time: `tpu` or `cuda`."""


CHIPS = {
    "v4": Chip("TPU v4", 1, int(30.75 * GIB), 1228e9, 300e9, 3, {"chip_config_name": "megacore"}),
    "v5e": Chip("TPU v5 lite", 1, int(15.75 * GIB), 819e9, 200e9, 2),
    "v5p": Chip("TPU v5", 1, int(95.74 * GIB), 2765e9, 600e9, 3),
    "v6e": Chip("TPU v6 lite", 1, int(31.25 * GIB), 1638e9, 400e9, 2),
    "tpu7x": Chip("TPU7x", 2, int(94.75 * GIB), 7380e9, 600e9, 3),
} | {
    name: Chip(
        card.name, 1, card.room, float(card.bandwidth), float(card.links), 2,
        {"target_config": gpu.target_config(card)}, "cuda",
    )
    for name, card in gpu.GPUS.items()
}  # fmt: skip


@dataclass(frozen=True)
class Topology:
    """A slice: chips of one generation on a grid. Of GPUs, those of a host beside each other, and the hosts.

    >>> Topology.of("v5e:4x4")
    Topology(name='v5e:4x4', chip='v5e', shape=(4, 4))
    >>> Topology.of("v5p:4x4x4").devices
    64
    >>> Topology.of("h100:16").shape, Topology.of("h100:4x4").shape
    ((2, 8), (4, 4))
    """

    name: str
    chip: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str) -> "Topology":
        """Read a name as the compiler understands it: generation, colon, chips along each axis.

        GPUs are a number, in hosts of 8, or hosts × GPUs of each.

        Raises:
          ValueError: another generation, or a grid of another number of axes; says what there is.
        """
        found = re.fullmatch(r"([a-z0-9]+):(\d+(?:x\d+)*)", name)
        if not found:
            raise ValueError(
                "a topology is GENERATION:AxB or GENERATION:AxBxC, as v5e:4x4 or v5p:4x4x4, or GPU:N, as h100:8, "
                f"got {name!r}"
            )
        kind, sizes = found[1], tuple(map(int, found[2].split("x")))
        if kind not in CHIPS:
            near = difflib.get_close_matches(kind, CHIPS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(CHIPS)}"
            raise ValueError(f"no generation of TPUs, and no GPU, is called {kind!r}; {hint}")
        if kind in gpu.GPUS:
            return cls(name, kind, _hosts(name, sizes))
        if len(sizes) != CHIPS[kind].axes or min(sizes) < 1:
            raise ValueError(f"the chips of {kind} lie on {CHIPS[kind].axes} axes, got {name!r}")
        return cls(name, kind, sizes)

    @property
    def spec(self) -> Chip:
        """What each chip is."""
        return CHIPS[self.chip]

    @property
    def platform(self) -> str:
        """As JAX names it when it compiles ahead of time."""
        return self.spec.platform

    @property
    def options(self) -> dict[str, Any]:
        """For the compiler: those of the chip; how GPUs lie in hosts, or what there is of a host that is not whole.

        Newer compilers of TPUs find the latter out themselves.
        """
        if self.platform == "cuda":
            return {**self.spec.options, "topology": "x".join(map(str, (1, *self.shape)))}  # one slice
        part = tuple(map(min, (*self.shape, 1), HOST))
        return {**self.spec.options, **({} if part == HOST else {"chips_per_host_bounds": part})}

    @property
    def chips(self) -> int:
        """Count the chips."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """Count the devices that JAX sees."""
        return self.chips * self.spec.devices

    def __str__(self) -> str:
        if self.platform == "cuda":
            hosts, each = self.shape
            return f"{self.chips} GPUs, {hosts} host{'s' if hosts > 1 else ''} of {each}"
        return f"{self.chips} chips, {self.devices} devices"


def _hosts(name: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Share GPUs out to hosts.

    Raises:
      ValueError: no GPUs, or a host that is not full.
    """
    if len(sizes) == 1:
        count = sizes[0]
        sizes = (1, count) if count <= gpu.HOST else (count // gpu.HOST, gpu.HOST)
        if count != math.prod(sizes):
            raise ValueError(
                f"GPUs in several hosts are a multiple of {gpu.HOST}, or HOSTSxGPUS as h100:3x4, got {name!r}"
            )
    if len(sizes) != 2 or min(sizes) < 1:
        raise ValueError(f"GPUs are a number, or HOSTSxGPUS as h100:2x8, got {name!r}")
    return sizes
