"""TPU chips: what a slice is made of, how much its memory holds, how fast memory and links are.

Sources: the system architecture page of each generation at https://cloud.google.com/tpu/docs. Peaks of arithmetic
are in `device`. The pages give a chip's links in both directions together; here is what goes out, half of that. The
room for programs is what the compiler of libtpu 0.0.42 names when one is too large.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GIB = 2**30
HOST = (2, 2, 1)
"""Chips of a host along each axis, as the compiler takes it."""


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


CHIPS = {
    "v4": Chip("TPU v4", 1, int(30.75 * GIB), 1228e9, 300e9, 3, {"chip_config_name": "megacore"}),
    "v5e": Chip("TPU v5 lite", 1, int(15.75 * GIB), 819e9, 200e9, 2),
    "v5p": Chip("TPU v5", 1, int(95.74 * GIB), 2765e9, 600e9, 3),
    "v6e": Chip("TPU v6 lite", 1, int(31.25 * GIB), 1638e9, 400e9, 2),
    "tpu7x": Chip("TPU7x", 2, int(94.75 * GIB), 7380e9, 600e9, 3),
}


@dataclass(frozen=True)
class Topology:
    """A slice: chips of one generation on a grid.

    >>> Topology.of("v5e:4x4")
    Topology(name='v5e:4x4', chip='v5e', shape=(4, 4))
    >>> Topology.of("v5p:4x4x4").devices
    64
    """

    name: str
    chip: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str) -> "Topology":
        """Read a name as the compiler understands it: generation, colon, chips along each axis.

        Raises:
          ValueError: another generation, or a grid of another number of axes; says what there is.
        """
        found = re.fullmatch(r"([a-z0-9]+):(\d+(?:x\d+)*)", name)
        if not found:
            raise ValueError(f"a topology is GENERATION:AxB or GENERATION:AxBxC, as v5e:4x4 or v5p:4x4x4, got {name!r}")
        kind, sizes = found[1], tuple(map(int, found[2].split("x")))
        if kind not in CHIPS:
            near = difflib.get_close_matches(kind, CHIPS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(CHIPS)}"
            raise ValueError(f"no TPU generation is called {kind!r}; {hint}")
        if len(sizes) != CHIPS[kind].axes or min(sizes) < 1:
            raise ValueError(f"the chips of {kind} lie on {CHIPS[kind].axes} axes, got {name!r}")
        return cls(name, kind, sizes)

    @property
    def spec(self) -> Chip:
        """What each chip is."""
        return CHIPS[self.chip]

    @property
    def options(self) -> dict[str, Any]:
        """For the compiler: those of the chip and, on a slice that is less than a host has, what there is of the host.

        Newer compilers find that out themselves.
        """
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
