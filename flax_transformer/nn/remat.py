"""What the blocks of a stack keep for the backward pass."""

from collections.abc import Callable

import jax

from flax_transformer.ops.remat import ATTENDED

REMAT: dict[str, Callable | None] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "attention": jax.checkpoint_policies.save_only_these_names(ATTENDED),
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "offload": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}
"""What a block keeps for its backward pass: everything, nothing but its input, what attention gives too, its matrix
products, or these in the memory of the host. By "attention" splash attention and attention by blocks are not computed
twice, for the memory of one more input, or more where splash pads heads to 128; cuDNN's is."""


def check_remat(remat: str) -> None:
    """Check a name, and that the device has the memory that it needs.

    Raises:
      ValueError: another name, or no memory of the host.
    """
    if remat not in REMAT:
        raise ValueError(f"remat must be one of {', '.join(REMAT)}, got {remat!r}")
    if remat == "offload":
        _check_host_memory()


def _check_host_memory() -> None:
    kinds = [memory.kind for memory in jax.local_devices()[0].addressable_memories()]
    if "pinned_host" not in kinds:
        raise ValueError(f"remat 'offload' needs pinned host memory, the device has {', '.join(kinds) or 'none'}")
