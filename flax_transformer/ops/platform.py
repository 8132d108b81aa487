"""Which kind of devices the code being traced is for."""

import jax


def platform() -> str:
    """Name the platform, `cpu`, `gpu` or `tpu`: of the mesh in context if there is one, else JAX's default.

    The mesh decides because a program may be compiled here for devices that are elsewhere.

    >>> platform() in ("cpu", "gpu", "tpu")
    True
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    name = jax.default_backend() if device is None else device.platform
    return {"cuda": "gpu", "rocm": "gpu"}.get(name, name)
