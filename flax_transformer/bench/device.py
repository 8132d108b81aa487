"""How many floating-point operations a device can do a second: by table, or measured where the table is silent.

Dense peaks, without sparsity, of one JAX device. Sources: TPU, the system architecture pages of
https://cloud.google.com/tpu/docs (of TPU v2, v3 and 7x a JAX device is one of the chip's two cores, so half its
number); NVIDIA, the data sheets of each part at https://www.nvidia.com/en-us/data-center (numbers given there with
sparsity are halved).
"""

import re
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

_TERA = 1e12

# device_kind, as a pattern: TFLOP/s in float16, bfloat16, float32, TOP/s in int8, TFLOP/s in float8. JAX multiplies
# float32 matrices by default in bfloat16 passes on TPU and in TF32 on NVIDIA parts from Ampere on, so those are the
# peaks that count there. None: the part has no fast path for that type, or its pages name none. First match wins.
PEAKS: tuple[tuple[str, tuple[float | None, ...]], ...] = (
    (r"^TPU v2$", (None, 22.5, 22.5, None, None)),
    (r"^TPU v3$", (None, 61.5, 61.5, None, None)),
    (r"^TPU v4$", (None, 275, 275, 275, None)),
    (r"^TPU (v5 lite|v5e)$", (None, 197, 197, 394, None)),
    (r"^TPU v5p?$", (None, 459, 459, 918, 459)),
    (r"^TPU (v6 lite|v6e)$", (None, 918, 918, 1836, 918)),
    (r"^TPU ?7x$", (None, 1153.5, 1153.5, None, 2307)),
    (r"V100.*PCIE", (112, None, 14, None, None)),
    (r"V100", (125, None, 15.7, None, None)),
    (r"\bT4\b", (65, None, 8.1, 130, None)),
    (r"\bA10\b", (125, 125, 62.5, 250, None)),
    (r"\bA100\b", (312, 312, 156, 624, None)),
    (r"\bL4\b", (121, 121, 60, 242.5, 242.5)),
    (r"\bH100 PCIe\b", (756.5, 756.5, 378, 1513, 1513)),
    (r"\bH[12]00 NVL\b", (835, 835, 417.5, 1670.5, 1670.5)),
    (r"\bH[12]00\b", (989.4, 989.4, 494.7, 1978.9, 1978.9)),
    (r"\bB200\b", (2250, 2250, 1125, 4500, 4500)),
)
FLOATS = ("float16", "bfloat16", "float32")
TYPES = (*FLOATS, "int8", "float8_e4m3fn")


@dataclass(frozen=True)
class Peak:
    """FLOP/s that utilisation is measured against, and where the number is from."""

    flops: float
    source: str


def known_peak(device_kind: str, dtype: str) -> float | None:
    """Look up the dense peak of a device, in FLOP/s, or None.

    Args:
      device_kind: as `jax.Device.device_kind` spells it.
      dtype: what is multiplied; known are float16, bfloat16, float32, int8 and float8_e4m3fn.

    >>> known_peak("TPU v5 lite", "bfloat16")
    197000000000000.0
    >>> known_peak("cpu", "float32") is None
    True
    """
    for pattern, peaks in PEAKS if dtype in TYPES else ():
        if re.search(pattern, device_kind):
            value = peaks[TYPES.index(dtype)]
            return None if value is None else value * _TERA
    return None


def measured_peak(dtype: str, *, seconds: float = 0.3) -> float:
    """Measure what a square matrix product reaches on the default device, in FLOP/s: the best of several.

    Args:
      seconds: matrices are made larger until one product takes a fifth of this, or has 16,384 rows; then products
        are timed for about this long.
    """
    multiply = jax.jit(jnp.matmul)

    def once(x: jax.Array) -> float:
        began = time.perf_counter()
        multiply(x, x).block_until_ready()
        return time.perf_counter() - began

    size = 512
    while True:
        x = jnp.ones((size, size), dtype)
        once(x)
        best = min(once(x) for _ in range(2))
        if best > seconds / 5 or size >= 16_384:
            break
        size *= 2
    best = min([best, *(once(x) for _ in range(max(3, round(seconds / best))))])
    return 2 * size**3 / best


def device_peak(dtype: str, devices: int = 1) -> Peak:
    """Return the peak of this many of the devices here, from the table or measured.

    Devices of the CPU platform share its cores, so there one peak counts for all.
    """
    device = jax.devices()[0]
    known = known_peak(device.device_kind, dtype)
    if known is not None:
        each = f"{devices} × " if devices > 1 else ""
        return Peak(known * devices, f"{each}{device.device_kind} in {dtype}, by its data sheet")
    if device.platform == "cpu":
        return Peak(measured_peak(dtype), f"{dtype} matrix product measured here")
    each = f"{devices} × the " if devices > 1 else ""
    return Peak(measured_peak(dtype) * devices, f"{each}{dtype} matrix product measured here")
