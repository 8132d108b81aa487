"""NVIDIA GPUs: what the compiler of programs for them asks of a device, told by the parts' data sheets.

Sources: the data sheets at https://www.nvidia.com/en-us/data-center, the tables of compute capabilities in the CUDA C++
programming guide; the shape is XLA's `GpuTargetConfigProto`. Links are NVLink's to the GPUs of the same host, one way.
"""

from dataclasses import dataclass

HOST = 8
"""GPUs of a full host, in NVIDIA's own machines and those of clouds."""
SHARE = 0.75
"""Of a card's memory that JAX takes when it starts, if it is not told otherwise."""


@dataclass(frozen=True)
class Gpu:
    """One card."""

    name: str
    """As `jax.Device.device_kind` spells it."""
    capability: tuple[int, int]
    processors: int
    """Streaming multiprocessors."""
    units: int
    """Of float32 in each of them."""
    clock: float
    """GHz."""
    memory: int
    """Bytes that a program sees."""
    bandwidth: int
    """Of the memory, bytes a second."""
    cache: int
    """Bytes of the second level."""
    shared: int
    """Bytes of shared memory a processor has; a block may take 1,024 less."""
    links: float
    """Bytes a second that leave the card by NVLink."""

    @property
    def room(self) -> int:
        """Bytes that programs get by default."""
        return int(SHARE * self.memory)


GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 85100068864, 2039040000000, 41943040, 167936, 300e9),
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 84942979072, 3352320000000, 52428800, 233472, 450e9),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 128, 1.98, 151397597184, 4800000000000, 52428800, 233472, 450e9),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 128, 1.965, 191514411008, 7672320000000, 132644864, 233472, 900e9),
}


def target_config(gpu: Gpu, cudnn: tuple[int, int, int] = (9, 10, 0), cuda: str = "12.8.0") -> str:
    """Describe a card to the compiler: XLA's `GpuTargetConfigProto` as text.

    Args:
      cudnn: the version of the library that will run the program.
      cuda: that of the toolkit.
    """
    (major, minor), (*version,) = gpu.capability, cudnn
    features = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    dnn = " ".join(f"{name}: {number}" for name, number in zip(("major", "minor", "patch"), version, strict=True))
    return f"""gpu_device_info {{
      threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
      core_count: {gpu.processors} fpus_per_core: {gpu.units} shared_memory_per_core: {gpu.shared}
      shared_memory_per_block: 49152 shared_memory_per_block_optin: {gpu.shared - 1024}
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
      memory_bandwidth: {gpu.bandwidth} l2_cache_size: {gpu.cache} clock_rate_ghz: {gpu.clock}
      device_memory_size: {gpu.memory} registers_per_core_limit: 65536 registers_per_block_limit: 65536
      cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
      device_address_bits: 64 pcie_bandwidth: 34359738368
      driver_version: "13.0.0" runtime_version: "{cuda}" compile_time_toolkit_version: "{cuda}"
      dnn_version: "{".".join(map(str, version))}" device_vendor: "NVIDIA Corporation" name: "{gpu.name}" }}
    platform_name: "CUDA" device_description_str: "{gpu.name}" dnn_version_info {{ {dnn} }}"""
