"""A model as one function of its inputs, run where its attention shows its weights, edited by a table of switches.

Axes: L layers, N heads, F neurons, T positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.inputs import Inputs
from flax_transformer.inside import Interventions, Replace, Scale, intervene
from flax_transformer.inside.lens import END, STATES
from flax_transformer.ops.capture import capture_all, places
from flax_transformer.ops.marked import Place
from flax_transformer.parallel import MeshConfig, make_mesh

SCORES = (
    "logits", "prediction_logits", "start_logits", "itm_score", "logits_per_text", "question_answering_score",
    "class_queries_logits", "action_preds", "sample", "reconstruction", "text_embeds", "image_embeds",
    "last_hidden_state", "language_output",
)  # fmt: skip
"""What of a model's output is its answer: the first that there is."""
HEADS, SUBLAYERS, NEURONS = "head_outputs", "_output", "neurons"
BUCKETS = (16, 32, 64, 128, 256, 512)
"""Lengths that texts are padded to, so that programs are compiled for these alone."""


def of_inputs(pretrained: Pretrained, given: Inputs) -> Any:
    """Return the model's whole output: the function that is looked into."""
    return pretrained.architecture.call(pretrained.model, given, None, pretrained.config)


def scores_of(output: Any) -> tuple[str, Any]:
    """Return the name and the values of a model's answer."""
    name = next(name for name in SCORES if getattr(output, name) is not None)
    return name, output[name]


def answers(pretrained: Pretrained, given: Inputs) -> jax.Array:
    """Return the model's answer alone."""
    return scores_of(of_inputs(pretrained, given))[1]


@dataclass(frozen=True)
class Switches:
    """What is switched off, and what is patched in from another input."""

    heads: tuple[tuple[int, int, int], ...] = ()
    """Place, layer, head."""
    sublayers: tuple[tuple[str, int, int], ...] = ()
    """Name, place, layer."""
    neurons: tuple[tuple[int, int, int], ...] = ()
    """Place, layer, neuron."""
    patches: tuple[tuple[int, int, int], ...] = ()
    """Place, layer, position of hidden states that come from the other input."""

    def __bool__(self) -> bool:
        return bool(self.heads or self.sublayers or self.neurons or self.patches)


class Program:
    """A checkpoint that answers by compiled programs, one for each bucket of lengths."""

    def __init__(self, pretrained: Pretrained):
        """Put the model on the CPU, where attention by `xla` has its weights."""
        self.device = jax.devices("cpu")[0]
        self.mesh = make_mesh(MeshConfig(data=1), [self.device])
        with jax.set_mesh(self.mesh):
            self.pretrained = jax.device_put(jax.tree.map(np.asarray, pretrained), self.device)
        self.pads: bool | None = None
        self._places: dict[Any, list[Place]] = {}

    def given(self, inputs: Mapping[str, Any], *, padded: bool = True) -> Inputs:
        """Return inputs as the model is called with them, texts padded to a bucket."""
        known = self.pretrained.architecture
        inputs = dict(inputs)
        for name in inputs:
            if name.endswith("_ids") and name != "position_ids":
                self.pretrained.check_ids(name, inputs[name])
        if padded and self._may_pad(inputs):
            inputs = self._padded(inputs)
        if known.prepare is not None:
            inputs = dict(known.prepare(inputs, self.pretrained.config))
        given = Inputs(**{name: jnp.asarray(value) for name, value in inputs.items()})
        return given if "token_type_ids" in self.pretrained.rows else replace(given, token_type_ids=None)

    def _may_pad(self, inputs: Mapping[str, Any]) -> bool:
        if self.pads is None and self._of_text(inputs):
            self.pads = False  # while the two are compared
            exact = self.run(answers, self.given(inputs))
            self.pads = True
            padded = self.run(answers, self.given(inputs))
            same = tuple(slice(size) for size in exact.shape)
            error = np.abs(np.asarray(padded[same] if padded.ndim == exact.ndim else exact + 1) - exact).max()
            self.pads = bool(error <= 1e-3 * max(float(np.abs(exact).max()), 1e-6))
        return bool(self.pads) and self._of_text(inputs)

    def _of_text(self, inputs: Mapping[str, Any]) -> bool:
        """Return whether all inputs are tokens, and padding can be hidden."""
        known = self.pretrained.architecture.inputs
        plain = {"input_ids", "attention_mask", "token_type_ids", "decoder_input_ids"}
        return set(inputs) <= plain and "attention_mask" in known.names and np.ndim(inputs["input_ids"]) == 2

    def _padded(self, inputs: dict[str, Any]) -> dict[str, Any]:
        T, pad = inputs["input_ids"].shape[-1], self.pretrained.config.get("pad_token_id")
        inputs.setdefault("attention_mask", np.ones_like(inputs["input_ids"]))
        for name, value in inputs.items():
            size = self.room(value.shape[-1] if name.startswith("decoder") else T)
            fill = pad if name.endswith("input_ids") and isinstance(pad, int) else 0
            inputs[name] = np.pad(value, ((0, 0), (0, size - value.shape[-1])), constant_values=fill)
        return inputs

    def room(self, length: int) -> int:
        """Return the bucket of a length, which no table of positions is too short for."""
        found = next((size for size in BUCKETS if size >= length), length)
        limit = self.longest
        return length if limit is not None and found > limit else found

    @cached_property
    def longest(self) -> int | None:
        """The smallest table of positions there is."""
        rows = self.pretrained.rows.get("position_ids")
        fields = (self.pretrained.config.get(name) for name in ("max_position_embeddings", "n_positions"))
        known = [each for each in (rows, *fields) if isinstance(each, int)]
        return min(known, default=None)

    def run(self, function: Any, *args: Any, **static: Any) -> Any:
        """Run a module-level function of the checkpoint and other arguments, compiled."""
        with jax.set_mesh(self.mesh):
            return jax.device_get(_compiled(function, **static)(self.pretrained, *args))

    def places(self, given: Inputs) -> list[Place]:
        """Return where the model marks values."""
        key = tuple((name, value.shape) for name, value in vars(given).items() if value is not None)
        if key not in self._places:
            with jax.set_mesh(self.mesh):
                self._places[key] = places(of_inputs, self.pretrained, given)
        return self._places[key]

    def edits(self, given: Inputs, switches: Switches, states: Sequence[Any] | None = None) -> Interventions:
        """Return the intervention of switches: of all heads, sublayers and neurons, so that one program serves all."""
        there = self.places(given)
        found = {HEADS: _factors(there, HEADS, -2, switches.heads)}
        found[NEURONS] = _factors(there, NEURONS, -1, switches.neurons)
        for name in (names := parts_of(there)):
            off = [(place, layer) for which, place, layer in switches.sublayers if which == name]
            found[name] = _factors(there, name, None, off)
        if unknown := {name for name, *_ in switches.sublayers} - {*names}:
            raise ValueError(f"what can be switched off is {', '.join(names)}, got {min(unknown)!r:.40}")
        if switches.patches and states is not None:
            found[STATES] = _patches(there, switches.patches, states)
        return {name: each for name, each in found.items() if each}


def parts_of(there: Sequence[Place]) -> list[str]:
    """Name what can be switched off beside heads and neurons: sublayers; where there are none, hidden states."""
    names = [*dict.fromkeys(place.name for place in there)]
    return [name for name in names if name.endswith(SUBLAYERS) and name != END] or [STATES] * (STATES in names)


def look(pretrained: Pretrained, given: Inputs, edits: Interventions) -> tuple[Any, dict[str, list[jax.Array]]]:
    """Return the answer under an intervention, and all attention weights, values and output kernels."""
    kept = {"attention_weights", "value", "out_kernel"}.__contains__
    output, found = capture_all(partial(intervene(of_inputs), edits), kept)(pretrained, given)
    return output, found


def states_of(pretrained: Pretrained, given: Inputs) -> list[jax.Array]:
    """Return the residual stream before each layer, of every place."""
    return capture_all(of_inputs, STATES.__eq__)(pretrained, given)[1].get(STATES, [])


_programs: dict[Any, Any] = {}


def _compiled(function: Any, **static: Any) -> Any:
    key = (function, *sorted(static.items()))
    if key not in _programs:
        _programs[key] = jax.jit(partial(function, **static))
    return _programs[key]


def _factors(there: Sequence[Place], name: str, axis: int | None, off: Sequence[tuple[int, ...]]) -> list[Scale]:
    """Return for each place a factor of 1, and 0 for what is off."""
    found, own = [], [each for each in there if each.name == name]
    for where, *_ in off:
        _within(where, len(own), name)
    for number, place in enumerate(own):
        shape = [1] * len(place.shape)
        if axis is not None:
            shape[axis] = place.shape[axis]
        factor = np.ones((*place.loops, *shape), np.float32)
        for where, layer, *index in off:
            if where == number:
                at: list[Any] = [slice(None)] * len(shape)
                if axis is not None:
                    at[axis] = _within(index[0], shape[axis], name)
                factor[(*_layer(layer, place), *at)] = 0
        found.append(Scale(factor))
    return found


def _patches(there: Sequence[Place], chosen: Sequence[tuple[int, int, int]], states: Sequence[Any]) -> list[Replace]:
    found = []
    for number, (place, value) in enumerate(zip((e for e in there if e.name == STATES), states, strict=True)):
        where = np.zeros(
            (*place.loops, *(n if i == len(place.shape) - 2 else 1 for i, n in enumerate(place.shape))), bool
        )
        for which, layer, position in chosen:
            if which == number:
                where[(*_layer(layer, place), ..., _within(position, place.shape[-2], "positions"), slice(None))] = True
        if value.shape != (*place.loops, *place.shape):
            raise ValueError("what is patched in must come from an input of the same length, got another")
        found.append(Replace(value, where))
    return found


def _layer(layer: int, place: Place) -> tuple[int, ...]:
    """Return a layer as an index of the loops around a place."""
    count = int(np.prod(place.loops))
    return tuple(int(i) for i in np.unravel_index(_within(layer, count, "layers"), place.loops)) if place.loops else ()


def _within(index: int, size: int, name: str) -> int:
    if not 0 <= index < size:
        raise ValueError(f"{name} has {size} entries, got number {index}")
    return index
