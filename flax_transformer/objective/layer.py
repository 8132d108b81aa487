"""Learning from the layers of a teacher, beside what another objective minimises.

Axes: L layers, B rows, T positions, D width of the student, W width of the teacher.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from flax_transformer.frozen import frozen
from flax_transformer.listing import listed
from flax_transformer.nn import TrunkConfig, own_tables
from flax_transformer.nn.config import check_at_least, configs_in
from flax_transformer.nn.module import Module
from flax_transformer.objective.distil import Asked
from flax_transformer.objective.layer_term import BothLayers
from flax_transformer.objective.objective import Batch, KnownStates, ObjectiveWrapper, present_rows
from flax_transformer.ops import capture_all
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.train.carry import NOTHING, Carry
from flax_transformer.train.mean import summed, terms_of

AXES = {"hidden_states": 4, "trunk_output": 3, "query": 5, "key": 5, "value": 5}
"""What models mark: what layers are given, what the last one gives, and so on; with how many axes, layers included."""


@frozen
class LayerLoss(ObjectiveWrapper):
    """Minimise an objective, and how far layers are from those of a teacher.

    A batch has what was asked of the teacher as `teacher[name][number]`, of hidden states [B, T, D], of queries, keys
    and values [B, T, N, H]; of one without, as held-out ones are, the objective alone is minimised. Every term is a
    mean of its own, which is reported, and added with its weight. The model is one stack of layers, which runs once;
    its layers are not recomputed (`remat`) in the backward pass.

    Where hidden states of the student are compared and not as wide as the teacher's, a matrix [D, W] for all layers is
    trained with it (Jiao et al. 2020), which evaluation and export leave out.
    """

    terms: tuple[Any, ...]
    """A `LayerTerm` of each kind that is wanted."""
    width: int | None = None
    """W, where hidden states are compared; that of the teacher when a recipe begins."""

    def __post_init__(self):
        check_at_least(self, 1, "width")
        names = [term.name for term in self.terms]
        if not names or len(names) > len(set(names)):
            raise ValueError(f"terms must be at least one, and of different kinds, got {listed(names) or 'none'}")

    @property
    def asked(self) -> Asked:
        """What is asked of the teacher."""
        asked = (each for part in (self.of, *self.terms) for each in getattr(part, "asked", ()))
        return tuple(dict.fromkeys(asked))

    @property
    def carry(self) -> Carry:
        """Beside the student a matrix is trained, where widths are known and may differ."""
        return NOTHING if self.width is None else Carry(trained=partial(_projected, self.width), whole=_student)

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None, **carried: Any) -> tuple:
        """Sum the loss over a batch."""
        project, model = _project_of(model), own_tables(_student(model))
        if "teacher" not in batch:
            return *self.of(model, batch, key=key), *carried.values()
        keys = split_keys(key)
        names = tuple(dict.fromkeys(name for term in self.terms for name in term.values))
        hidden, found = layer_values(model, batch["inputs"], names, key=keys[0])
        loss, metrics = self.of(KnownStates(model, hidden), batch, key=keys[1])
        teacher = jax.lax.stop_gradient(batch["teacher"])
        real = real_positions(batch, next(iter(found.values())).shape[2])
        both = BothLayers(student=found, teacher=teacher, real=real, project=project)
        means = {term.name: term(both) for term in self.terms}
        before = terms_of(metrics.pop("loss", loss), metrics["count"])
        added = tuple(means[term.name].scaled(term.weight) for term in self.terms)
        return *summed((*before, *added), **metrics, **means), *carried.values()


def real_positions(batch: Batch, length: int) -> Bool[Array, "B T"]:
    """Return which positions of a batch's rows are there, and are no padding."""
    lengths = batch["inputs"].get("lengths")
    if lengths is None:
        rows = present_rows(batch)
        return jnp.broadcast_to(rows[:, None], (len(rows), length))
    return jnp.arange(length) < lengths[:, None]


def layer_values(
    model: Any, inputs: Mapping[str, Any], names: Sequence[str], *, key: jax.Array | None = None
) -> tuple[Any, dict[str, Float[Array, "_ B T ..."]]]:
    """Compute a model's hidden states, and what each of its layers has.

    Args:
      inputs: of a batch.
      names: of `hidden_states` [L + 1, B, T, D], what the first layer is given and what each gives, before a norm at
        the end of all; `query`, `key` and `value` [L, B, T, N, H].
      key: for dropout; None means none.

    Returns:
      What `model.hidden_states(**inputs)` gives, and the values by name.

    Raises:
      ValueError: a model that does not mark such values, or has several stacks of layers.
    """

    def run(model: Any, inputs: Any, key: Any) -> Any:
        return model.hidden_states(**inputs, key=key)

    marks = [*names, "trunk_output"] if "hidden_states" in names else names
    hidden, found = capture_all(run, marks.__contains__)(model, inputs, key)
    for mark in marks:
        if [each.ndim for each in found.get(mark, ())] != [AXES[mark]]:
            raise ValueError(
                f"layers can be compared in a model that has one stack of them, a {type(model).__name__} marks {mark} "
                f"{len(found.get(mark, ()))} times"
            )
    values = {mark: each for mark, (each,) in found.items()}
    if "hidden_states" in names:
        last = values.pop("trunk_output")
        values["hidden_states"] = jnp.concatenate([values["hidden_states"], last[None]])
    return hidden, values


class Projected(Module):
    """A student, and the matrix that makes its hidden states as wide as the teacher's."""

    layer_order = (Part("student"), "to_teacher")

    def __init__(self, student: Any, width: int, teacher: int):
        self.student = student
        kernel = jax.random.normal(jax.random.key(0), (width, teacher)) / width**0.5
        self.to_teacher = nnx.Param(kernel, out_sharding=("embed", None), eager_sharding=False)


def _projected(width: int, model: Any) -> Any:
    """Put a matrix beside a student, if its hidden states are not that wide."""
    own = width_of(model.cfg)
    return model if own in (None, width) else Projected(model, own, width)


def width_of(config: Any) -> int | None:
    """Return how wide the hidden states of a model are, of the first stack of layers in its config; None without."""
    return next((each.block.embed for each in configs_in(config) if isinstance(each, TrunkConfig)), None)


def _student(model: Any, carried: Any = None) -> Any:
    return model.student if isinstance(model, Projected) else model


def _project_of(model: Any) -> Callable[[Array], Array]:
    return (lambda x: x @ model.to_teacher[...].astype(x.dtype)) if isinstance(model, Projected) else lambda x: x
