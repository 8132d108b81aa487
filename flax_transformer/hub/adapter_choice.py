"""Several adapters beside the kernels of one checkpoint, held by name: which of them is used is data.

Axes: n adapters, r rank, B rows.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from flax_transformer.compress.kernel import KernelAxes, kernels_of, linear_kernels, map_kernels
from flax_transformer.hub.adapter_factor import load_adapter
from flax_transformer.hub.adapter_target import targets_of
from flax_transformer.hub.quantized.model import plain
from flax_transformer.listing import listed
from flax_transformer.nn.adapted import AdaptedKernel
from flax_transformer.train.lora import Lora, merge_lora

Names = str | None | Sequence[str | None]
"""The name of an adapter for all rows, or one for each; None: none."""


def hold_adapters(pretrained: Any, adapters: Mapping[str, Lora | str | os.PathLike]) -> Any:
    """Return a checkpoint that has adapters beside its kernels, by name; none is chosen yet.

    `held.choose("name")` computes with one of them, `held.choose(["name", None])` with another in each row, and
    `held.merged("name")` is a checkpoint like any other. All choices of a kind share one program.

    Args:
      pretrained: without such adapters.
      adapters: low-rank factors, or folders or hub ids of PEFT's; their ranks and kernels may differ.

    Raises:
      ValueError: a name that is none, factors that do not fit, or that change what is no linear layer.
    """
    if pretrained.adapters:
        raise ValueError(f"a checkpoint holds adapters once, this one has {listed(pretrained.adapters)}")
    if not adapters or not all(isinstance(name, str) and name for name in adapters):
        raise ValueError(f"adapters are held by their names, got {listed(map(repr, adapters))}")
    loras = {name: _factors(name, each, pretrained) for name, each in adapters.items()}
    model = pretrained.model
    axes, kernels, targets = linear_kernels(model), kernels_of(model), targets_of(pretrained)
    for name, lora in loras.items():
        if others := [path for path in lora if path not in axes or path not in targets]:
            raise ValueError(
                f"adapters that are held by name change linear layers alone, {name} changes {listed(others)}: "
                "hub.load(BASE, adapters=[FOLDER]) merges it"
            )
    changed = dict.fromkeys(path for lora in loras.values() for path in lora)
    held = {path: _held(kernels[path], axes[path], [lora.get(path) for lora in loras.values()]) for path in changed}
    model = map_kernels(lambda path, kernel: held.get(path, kernel), model)
    return replace(pretrained, model=model, adapters=tuple(loras))


def _factors(name: str, given: Any, pretrained: Any) -> Lora:
    try:
        lora = dict(given) if isinstance(given, Mapping) else load_adapter(given, pretrained)
        jax.eval_shape(merge_lora, plain(pretrained.model), lora)
    except ValueError as error:
        raise ValueError(f"adapter {name!r}: {error}") from error
    return lora


def _held(base: Any, axes: KernelAxes, pairs: Sequence[Any]) -> AdaptedKernel:
    """Stack the factors of a kernel, those of a smaller rank filled with zeros."""
    ends = axes.layers, axes.layers + axes.inputs
    lead, inputs, outputs = base.shape[: ends[0]], base.shape[slice(*ends)], base.shape[ends[1] :]
    rank = max(pair.a.shape[-1] for pair in pairs if pair is not None)
    shape_a, shape_b = (*lead, *inputs, rank), (*lead, rank, *outputs)

    def filled(part: Any, shape: tuple[int, ...]) -> jax.Array:
        if part is None:
            return jnp.zeros(shape, jnp.float32)
        part = jnp.asarray(part, jnp.float32)
        return jnp.pad(part, [(0, size - own) for size, own in zip(shape, part.shape, strict=True)])

    a = jnp.stack([filled(pair and pair.a, shape_a) for pair in pairs], axis=axes.layers)
    b = jnp.stack([filled(pair and pair.b, shape_b) for pair in pairs], axis=axes.layers)
    factor = jnp.broadcast_to(jnp.asarray([pair.scale if pair else 0.0 for pair in pairs]), (*lead, len(pairs)))
    kernel = AdaptedKernel(base, a, b, factor, np.full(lead, -1, np.int32))
    places = [leaf.sharding for leaf in jax.tree.leaves(base) if isinstance(leaf, jax.Array)]
    if not places or not isinstance(places[0], NamedSharding):
        return kernel
    whole = NamedSharding(places[0].mesh, PartitionSpec())
    return replace(kernel, **{name: jax.device_put(getattr(kernel, name), whole) for name in ("a", "b", "factor")})


def choice_of(names: Names, adapters: Sequence[str]) -> np.ndarray | np.int32:
    """Return the numbers of adapters, -1 for none: one, or [B].

    Raises:
      ValueError: a name that no adapter has.
    """
    each = [names] if names is None or isinstance(names, str) else [*names]
    if unknown := [name for name in each if name is not None and name not in adapters]:
        raise ValueError(f"adapters are {listed(adapters)}, got {unknown[0]!r:.60}")
    if not each:
        raise ValueError("an adapter is chosen for each row, or one for all, got an empty list")
    numbers = np.asarray([-1 if name is None else adapters.index(name) for name in each], np.int32)
    return numbers[0] if names is None or isinstance(names, str) else numbers


def merged(model: Any, index: int | None) -> Any:
    """Return a model with an adapter in its kernels, or with none; kernels of few bits that it changes become whole."""

    def change(path: str, kernel: Any) -> Any:
        return kernel.merged(index) if isinstance(kernel, AdaptedKernel) else kernel

    return map_kernels(change, model)
