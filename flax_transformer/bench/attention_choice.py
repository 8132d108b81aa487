"""Which backend serves each attention of a model on the devices that are here, and why others cannot."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import jax

from flax_transformer.bench.target import find_target
from flax_transformer.bench.timing import Program
from flax_transformer.bench.workload import Size
from flax_transformer.ops import watch_attention
from flax_transformer.parallel import MeshConfig, make_mesh

Choices = Mapping[str, Mapping[str, str]]
"""What `watch_attention` has seen."""


def attention_choices(
    name: str, size: Size, what: str = "forward", mesh: MeshConfig | None = None, options: Sequence[str] = ()
) -> Choices:
    """Trace a program of a target, of which nothing is allocated, and see how its attention is served.

    Args:
      name, size, options: as `find_target`'s.
      what: `forward`, `train` or `decode`; a function is one program.
      mesh: the target's own by default.

    Raises:
      ValueError: for a target, program, size or mesh that cannot be.
    """
    with watch_attention() as seen:  # a function is traced as it is found
        found = find_target(name, size, options)
        if isinstance(found, Program):
            jax.eval_shape(found.function, *found.arguments)
            return seen
    if what not in found.programs:
        raise ValueError(f"what is explained of {name} must be one of {', '.join(found.programs)}, got {what!r}")
    devices = make_mesh(mesh or found.mesh)
    found.check_rows(devices.shape)
    run = {"forward": found.forward, "decode": found.decode, "train": found.step}[what]
    given = found.state if what == "train" else found.state.model
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), found.batch)
    with jax.set_mesh(devices) if devices.size > 1 else nullcontext(), watch_attention() as seen:
        jax.eval_shape(run, given, batch)
    return seen


def render_choices(choices: Choices) -> str:
    """Write a paragraph for each kind of call.

    >>> print(render_choices({"1 rows, 8 queries": {"cudnn": "cannot: it needs an NVIDIA GPU", "xla": "chosen"}}))
    1 rows, 8 queries
      cudnn      cannot: it needs an NVIDIA GPU
      xla        chosen
    """
    if not choices:
        return "nothing here calls attention: its layers have a function of their own, or none"
    paragraphs = (
        "\n".join([call, *(f"  {name:<11}{verdict}" for name, verdict in verdicts.items())])
        for call, verdicts in choices.items()
    )
    return "\n\n".join(paragraphs)
