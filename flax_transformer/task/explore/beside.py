"""Two checkpoints that are given the same: what the other says, how far their answers and their layers are apart.

Axes: L layers and the end, R positions that answer, E answers, n positions that are compared, D width.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flax_transformer.hub import Pretrained
from flax_transformer.hub.inputs import Inputs
from flax_transformer.inside import Interventions, cka_of_layers, debiased_cka, intervene
from flax_transformer.inside.lens import stream
from flax_transformer.task.explore.answer import NUMBERS, Answers, log_probabilities, moved
from flax_transformer.task.explore.case import Case, make_case
from flax_transformer.task.explore.program import of_inputs, scores_of


class Beside:
    """A checkpoint beside the one that is explored; switches are the first one's alone."""

    def __init__(self, explorer: Any, other: Any):
        """Put two explorers beside each other.

        Raises:
          ValueError: tasks or tokenizers that do not go together.
        """
        check_tasks(explorer.program.pretrained, other.program.pretrained)
        check_tokens(explorer.program.pretrained, other.program.pretrained)
        self.explorer, self.other = explorer, other

    @property
    def views(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """Return what can be asked of the two."""
        return {"beside": self.look, "beside_lens": self.lens}

    def request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the other is asked: the same, its decoder fed what the first one's is, and nothing switched off.

        Raises:
          ValueError: an input that is other tokens to it.
        """
        case, asked = self.explorer.case(request), {**(request.get("input") or {})}
        theirs = {"input": _fed(asked, case), "measure": request.get("measure")}
        other = self.other.case(theirs)
        for name in ("input_ids", "decoder_input_ids"):
            ids = [np.asarray(each.inputs[name]) for each in (case, other) if name in each.inputs]
            if len(ids) == 2 and not np.array_equal(*ids):
                raise ValueError(
                    f"two checkpoints are compared on the same tokens, this text is {ids[0].size} tokens to one and "
                    f"{'others' if ids[0].size == ids[1].size else ids[1].size} to the other"
                )
        return theirs

    def keep(self, asked: Mapping[str, Any], case: Case, file: Path | None) -> None:
        """Remember what the first one is given by a file as the other's input too."""
        written = case.written if case.target else None
        self.other.keep(_fed(asked, case), make_case(self.other.program.pretrained, case.text, file, written))

    def look(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the other's look at an input, how far its answers are from the first one's, and CKA of the layers."""
        theirs = self.request(request)
        both = [self._states(self.explorer, request), self._states(self.other, theirs)]
        name, scores, answer = both[0][:3]
        if (name, scores.shape[-1]) != (both[1][0], both[1][1].shape[-1]) or answer.rows != both[1][2].rows:
            raise ValueError(
                f"two checkpoints must answer alike to be compared, got {scores.shape[-1]} {name} at "
                f"{len(answer.rows)} positions and {both[1][1].shape[-1]} {both[1][0]} at {len(both[1][2].rows)}"
            )
        numbers = name in NUMBERS
        mine, other = (
            log_probabilities(name, jnp.asarray(each[1]))[each[2].first : each[2].first + len(each[2].rows)]
            for each in both
        )
        states = [each[3] for each in both]
        alike = None
        if all(each is not None for each in states) and states[0].shape[1] == states[1].shape[1] >= 4:
            alike = np.round(np.asarray(_cka(*states), np.float64), 4).tolist()
        return {
            "name": self.other.name, "look": self.other.look(theirs),
            "distance": _listed(moved(mine, other, True) if numbers else jensen_shannon(mine, other)),
            "divergence": None if numbers else _listed(moved(mine, other, False)),
            "agree": None if numbers else np.asarray(mine.argmax(-1) == other.argmax(-1)).tolist(),
            "cka": alike, "positions": None if states[0] is None else states[0].shape[1],
        }  # fmt: skip

    def lens(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the other's logit lens."""
        return self.other.lens(self.request(request))

    def _states(self, explorer: Any, request: Mapping[str, Any]) -> tuple[str, np.ndarray, Answers, np.ndarray | None]:
        """Return the name and the scores of an answer, what they are called, and the residual stream [L, n, D]."""
        case = explorer.case(request)
        given, _, edits = explorer.asked(request, case)
        try:
            output, states = explorer.program.run(scores_and_stream, given, edits)
        except ValueError:  # no trunk whose end is marked
            output, states = explorer.program.run(scores_alone, given, edits), None
        name, scores = scores_of(jax.eval_shape(of_inputs, explorer.program.pretrained, given))
        if states is not None:
            ids, tokens = (given.decoder_input_ids, case.target) if case.target else (given.input_ids, case.source)
            states = states[:, 0, : states.shape[2] - (ids.shape[-1] - len(tokens) if tokens else 0)]
        return name, output, Answers(explorer.program.pretrained, case, name, scores.shape), states


def put_beside(explorer: Any, other: Any) -> None:
    """Show the checkpoint of another explorer beside the one that is explored.

    Raises:
      ValueError: tasks or tokenizers that do not go together.
    """
    explorer.beside = Beside(explorer, other)


def check_tasks(first: Pretrained, other: Pretrained) -> None:
    """Refuse checkpoints that have no task in common, read something else, or tell other classes.

    Raises:
      ValueError: these.
    """
    names = [each.config["architectures"][0] for each in (first, other)]
    known = [each.architecture for each in (first, other)]
    if not set(known[0].uses) & set(known[1].uses) or known[0].inputs.reads != known[1].inputs.reads:
        can = [
            f"a {n} ({', '.join(k.uses)}; reads {', '.join(k.inputs.reads)})" for n, k in zip(names, known, strict=True)
        ]
        raise ValueError(f"two checkpoints beside each other must have a task in common, got {can[0]} and {can[1]}")
    classes = [each.config.get("id2label") for each in (first, other)]
    if "classification" in " ".join(known[0].uses) and (classes[0] or {}) != (classes[1] or {}):
        counts = [f"{len(each or {})} classes" for each in classes]
        raise ValueError(f"two checkpoints beside each other must tell the same classes, got {counts[0]} and others"
                         f" ({counts[1]})")  # fmt: skip


def check_tokens(first: Pretrained, other: Pretrained) -> None:
    """Refuse checkpoints whose tokenizers have other tokens.

    Raises:
      ValueError: these.
    """
    if "text" not in first.architecture.inputs.reads:
        return
    pairs = [(first.tokenizer, other.tokenizer)]
    pairs += [tuple(getattr(each, "target", None) for each in pairs[0])]
    said = [f"{getattr(each, 'vocab_size', None) or 'none'}" for each in pairs[0]]
    for mine, theirs in pairs:
        if (mine is None) != (theirs is None) or (mine is not None and mine.get_vocab() != theirs.get_vocab()):
            raise ValueError(
                "two checkpoints beside each other must have one tokenizer, got two that differ, of "
                f"{said[0]} and {said[1]} tokens"
            )
    if first.vocabulary != other.vocabulary:
        raise ValueError(
            f"two checkpoints beside each other must have one vocabulary, got {first.vocabulary} and "
            f"{other.vocabulary} tokens"
        )


def jensen_shannon(p: Float[Array, "R E"], q: Float[Array, "R E"]) -> Float[Array, "R"]:
    """Return the Jensen-Shannon divergence in nats of distributions given by their logarithms: 0 to ln 2.

    >>> import math
    >>> apart = jensen_shannon(jnp.log(jnp.array([[1.0, 1e-30]])), jnp.log(jnp.array([[1e-30, 1.0]])))
    >>> math.isclose(float(apart[0]), math.log(2), rel_tol=1e-6)
    True
    """
    middle = jnp.logaddexp(p, q) - jnp.log(2.0)
    return (moved(p, middle, False) + moved(q, middle, False)) / 2


def scores_and_stream(pretrained: Pretrained, given: Inputs, edits: Interventions) -> tuple[jax.Array, jax.Array]:
    """Return scores, and the residual stream of the last trunk before each layer and at its end."""

    def run(pretrained: Pretrained, given: Inputs) -> Any:
        return intervene(of_inputs)(edits, pretrained, given)

    output, states = stream(run, pretrained, given)
    return scores_of(output)[1], states.astype(jnp.float32)


def scores_alone(pretrained: Pretrained, given: Inputs, edits: Interventions) -> jax.Array:
    """Return scores."""
    return scores_of(intervene(of_inputs)(edits, pretrained, given))[1]


@jax.jit
def _cka(x: Float[Array, "L n D"], y: Float[Array, "P n E"]) -> Float[Array, "L P"]:
    return cka_of_layers(x, y, debiased_cka)


def _fed(asked: Mapping[str, Any], case: Case) -> dict[str, Any]:
    return {**asked, "written": [*case.written]} if case.target else dict(asked)


def _listed(values: Array) -> list[float]:
    return [float(f"{value:.6g}") for value in np.asarray(values)]
