"""A model to be asked: every view of the explorer's page as plain data.

Axes: L layers, N heads, T positions, R positions that answer, E answers.
"""

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.inputs import Inputs
from flax_transformer.inside import (
    Interventions,
    Replace,
    attention_flow,
    attention_targets,
    head_table,
    intervene,
    name_heads,
)
from flax_transformer.inside.lens import END, STATES, stack_of, stream
from flax_transformer.inside.sweep import entries, masks
from flax_transformer.task.explore.answer import NUMBERS, Answers, log_probabilities, moved
from flax_transformer.task.explore.attribute import (
    COMPLETE,
    EMBEDDED,
    METHODS,
    STEPS,
    Question,
    as_json,
    attribute,
    grouped,
    integrate,
)
from flax_transformer.task.explore.beside import Beside, put_beside
from flax_transformer.task.explore.case import Case, make_case, repeated_tokens
from flax_transformer.task.explore.kind import WEIGHTS, kinds_of
from flax_transformer.task.explore.pack import norms_of, packed, stacked_norms, sublayers_of
from flax_transformer.task.explore.program import (
    HEADS,
    Program,
    Switches,
    answers,
    look,
    of_inputs,
    scores_of,
    states_of,
)
from flax_transformer.task.explore.tree import tree_of, writes

KEPT = 8
"""Inputs that are remembered."""
NAMED = 0.3
"""Of its weight that a head gives to one kind of keys to be named for it."""
FLOWS = 40
"""Positions at most of which attention flow is computed."""
EFFECTS = 1_024
"""Heads, or layers and positions, at most that are tried one by one."""


class Explorer:
    """A checkpoint's answers to what the page asks; `ask(view, request)` gives what JSON can hold."""

    def __init__(self, pretrained: Pretrained, name: str = ""):
        """Wrap a checkpoint; `name` is what the page calls it."""
        self.program, self.name = Program(pretrained), name
        self.first: Mapping[str, Any] = {}
        """What the page shows before anything is asked: see `page.first_views`."""
        self.beside: Beside | None = None
        """Another checkpoint that is given the same; see `beside.put_beside`."""
        self._given: dict[str, Case] = {}
        self._cases: OrderedDict[str, Case] = OrderedDict()
        self._lock = Lock()

    @property
    def views(self) -> dict[str, Any]:
        """Return what can be asked."""
        return {
            "look": self.look, "lens": self.lens, "attribute": self.attribute, "effects": self.effects,
            "flow": self.flow, "trace": self.trace, "heads": self.heads, "tree": self.tree,
            **({} if self.beside is None else self.beside.views),
        }  # fmt: skip

    def ask(self, view: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request, one at a time.

        Raises:
          ValueError: a view that there is not, or a request that does not fit.
        """
        if view not in self.views:
            raise ValueError(f"a view is one of {', '.join(self.views)}, got {view[:40]!r}")
        with self._lock:
            return self.views[view](request)

    def facts(self) -> dict[str, Any]:
        """Return what the page must know before anything is asked."""
        known = self.program.pretrained.architecture
        return {
            "name": self.name,
            "architecture": self.program.pretrained.config["architectures"][0],
            "reads": list(known.inputs.reads),
            "text": "input_ids" in known.inputs.names and not known.inputs.colours,
            "file": bool({"images", "audio"} & set(known.inputs.reads)),
            "ids": self.program.pretrained.tokenizer is None,
            "writes": writes(self.program.pretrained),
            "beside": None if self.beside is None else self.beside.other.name,
        }

    def case(self, request: Mapping[str, Any], which: str = "input") -> Case:
        """Return the inputs that a request names; they are made once."""
        asked = request.get(which) or {}
        key = _key(asked)
        if key in self._given:
            return self._given[key]
        if key not in self._cases:
            text, written, file = str(asked.get("text", "")), asked.get("written"), asked.get("file")
            if isinstance(file, str):
                try:
                    file = base64.b64decode(file.partition(",")[2] if file.startswith("data:") else file, validate=True)
                except ValueError as error:
                    raise ValueError("a file must be base64, got something else") from error
            written = None if written is None else [int(token) for token in written]
            self._cases[key] = make_case(self.program.pretrained, text, file or None, written)
        self._cases.move_to_end(key)
        while len(self._cases) > KEPT:
            self._cases.popitem(last=False)
        return self._cases[key]

    def keep(self, asked: Mapping[str, Any], case: Case) -> None:
        """Remember inputs as what a request asks for, such as a file that no page sends."""
        self._given[_key(asked)] = case

    def look(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return attention, answers and what switches have changed."""
        program, case = self.program, self.case(request)
        given, switches, edits = self.asked(request, case)
        output, found = program.run(look, given, edits)
        name, scores = scores_of(output)
        answer = Answers(program.pretrained, case, name, scores.shape)
        logs = np.asarray(log_probabilities(name, jnp.asarray(scores)))
        kinds = kinds_of(program, case, given, output, found.get(WEIGHTS, []))
        heads = sum(place.name == HEADS for place in program.places(given))
        after: dict[str, Any] = {"tops": answer.tops(logs), "loss": _loss(case, answer, logs)}
        before = after
        if switches:
            plain = np.asarray(log_probabilities(name, jnp.asarray(program.run(answers, given))))
            before = {"tops": answer.tops(plain), "loss": _loss(case, answer, plain)}
            after["moved"] = np.asarray(moved(jnp.asarray(plain), jnp.asarray(logs), answer.numbers))[
                answer.first : answer.first + len(answer.rows)
            ].tolist()
        norms = norms_of(found) if request.get("measure") == "norms" else {}
        return {
            "source": case.source, "target": case.target, "written": case.written, "image": case.image,
            "kinds": [packed(kind, norms, heads == len(found.get(WEIGHTS, []))) for kind in kinds],
            "sublayers": sublayers_of(program, given),
            "answer": {
                "name": name, "rows": answer.rows, "first": answer.first, "numbers": answer.numbers,
                "tokens": answer.of_tokens, "continues": bool(answer.continues), "after": after, "before": before,
            },
        }  # fmt: skip

    def lens(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the likeliest answer of the hidden states before each layer, and after the last."""
        program, case = self.program, self.case(request)
        given, _, edits = self.asked(request, case)
        best, p = program.run(_lens, given, edits)
        answer = self._answers(case, given)[0]
        if answer.numbers:
            raise ValueError("the logit lens is of models that score answers, this one gives numbers")
        own = slice(answer.first, answer.first + len(answer.rows))
        names = [[answer.spell(int(i)) for i in row] for row in best[:, own]]
        return {"rows": answer.rows, "names": names, "p": np.round(p[:, own], 4).tolist()}

    def attribute(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an answer depends on."""
        program, case = self.program, self.case(request)
        given, _, edits = self.asked(request, case)
        row = self._row(request, case, given)
        scores = scores_of(jax.eval_shape(of_inputs, program.pretrained, given))[1]
        answer = _number(request.get("answer"), max(scores.shape[-1], 2), "answers")
        group = grouped(given)
        asked = Question(given, edits, jnp.asarray(group.groups), row, answer)
        found = program.run(attribute, asked, what=group.what, count=group.count)
        for steps in STEPS:
            name = METHODS[0]
            found[name], error = program.run(integrate, asked, what=group.what, count=group.count, steps=steps)
            if abs(error) <= COMPLETE:
                break
        real = len(case.source) if group.what == EMBEDDED and case.source else group.count
        return {**as_json(found, float(error), real), "grid": group.grid, "of": group.what}

    def effects(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return how far the answer of a position moves without each head."""
        program, case = self.program, self.case(request)
        given, _, edits = self.asked(request, case)
        row = self._row(request, case, given)
        found, there = [], [place for place in program.places(given) if place.name == HEADS]
        _check_count(sum(len(entries(place, -2)) for place in there))
        for number, place in enumerate(there):
            off = jnp.asarray(1.0 - masks(place, -2, entries(place, -2)), jnp.float32)
            found.append(program.run(_effects, given, edits, off, row, place=number).reshape(-1, place.shape[-2]))
        return {"effects": [np.round(each, 6).tolist() for each in found]}

    def trace(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return how far each hidden state of another input, patched in, moves the answer towards the other's."""
        program, case, other = self.program, self.case(request), self.case(request, "other")
        given, _, edits = self.asked(request, case)
        states, row = program.run(states_of, self.given_of(other)), self._row(request, case, given)
        place = len(states) - 1
        there = [each for each in program.places(given) if each.name == STATES][place]
        if states[place].shape != (*there.loops, *there.shape):
            raise ValueError("an input must have as many tokens as the other to be patched, got another length")
        if len(case.target or case.source) != len(other.target or other.source):
            raise ValueError(
                f"an input must have as many tokens as the other to be patched, got {len(case.target or case.source)} "
                f"and {len(other.target or other.source)}"
            )
        chosen = entries(there, len(there.shape) - 2)
        _check_count(len(chosen))
        where = jnp.asarray(masks(there, -2, chosen))
        p, ends, best = program.run(_trace, given, self.given_of(other), edits, states[place], where, row, place=place)
        size = len(case.target or case.source) or there.shape[-2]
        grid = np.asarray(p).reshape(-1, there.shape[-2])[:, :size]
        answer = self._answers(case, given)[0]
        return {
            "p": np.round(grid, 5).tolist(), "place": place, "columns": case.target or case.source,
            "own": float(ends[0]), "other": float(ends[1]), "answer": answer.spell(int(best)),
        }  # fmt: skip

    def flow(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return attention flow from the last layer of a kind of heads down to its input."""
        program, case = self.program, self.case(request)
        given, _, edits = self.asked(request, case)
        output, found = program.run(look, given, edits)
        kinds = kinds_of(program, case, given, output, found.get(WEIGHTS, []))
        kind = kinds[_number(request.get("kind"), len(kinds), "kinds of attention")]
        T, S = kind.weights.shape[-2:]
        if T != S or T > FLOWS:
            raise ValueError(f"attention flow is of at most {FLOWS} positions that look at each other, got {T} and {S}")
        layer = _number(request.get("layer"), len(kind.weights), "layers")
        return {"flow": np.round(attention_flow(kind.weights, layer=layer), 5).tolist()}

    def heads(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what heads of texts do, by where they look in random tokens that are said twice."""
        program = self.program
        ids = repeated_tokens(program.pretrained)
        given = program.given(ids, padded=False)
        seen, found = program.run(look, given, {})[1], []
        targets = attention_targets(ids["input_ids"])
        for place, each in enumerate(seen.get(WEIGHTS, [])):
            if each.ndim == 5 and each.shape[-2:] == 2 * ids["input_ids"].shape[-1:]:
                named = name_heads(head_table(each, targets, stacked_norms(seen, place)), NAMED)
                found += [[place, layer, head, *what] for (layer, head), what in named.items()]
        return {"heads": found}

    def tree(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the beams of a search as a tree; nothing is switched off in it."""
        case = self.case(request)
        return tree_of(self.program.pretrained, case.inputs, request.get("beams", 4), request.get("tokens", 12))

    def given_of(self, case: Case) -> Inputs:
        """Return inputs as the programs take them."""
        return self.program.given(case.inputs)

    def asked(self, request: Mapping[str, Any], case: Case) -> tuple[Inputs, Switches, Interventions]:
        """Return the inputs of a case, what a request switches off, and the intervention that does."""
        given, off = self.given_of(case), request.get("off") or {}
        switches = Switches(
            *(tuple(tuple(_plain(part) for part in each) for each in off.get(name, ())) for name in
              ("heads", "sublayers", "neurons", "patches"))
        )  # fmt: skip
        states = self.program.run(states_of, self.given_of(self.case(request, "other"))) if switches.patches else None
        return given, switches, self.program.edits(given, switches, states)

    def _row(self, request: Mapping[str, Any], case: Case, given: Inputs) -> int:
        """Return the position that is asked about: by default the last that is no padding."""
        answer, shape = self._answers(case, given)
        row = request.get("row")
        return answer.asked() if row is None else _number(row, int(np.prod(shape[:-1])), "positions")

    def _answers(self, case: Case, given: Inputs) -> tuple[Answers, tuple[int, ...]]:
        """Return what answers are called, and the shape of the scores."""
        name, scores = scores_of(jax.eval_shape(of_inputs, self.program.pretrained, given))
        return Answers(self.program.pretrained, case, name, scores.shape), scores.shape


def _key(asked: Mapping[str, Any]) -> str:
    """Return what a request names its inputs by."""
    named = str(asked.get("text", "")), asked.get("written"), asked.get("file")
    return hashlib.sha256(repr(named).encode()).hexdigest()


def open_explorer(name: str | Path, revision: str | None = None, beside: str | Path | None = None) -> Explorer:
    """Open a run or a checkpoint to be explored; `name` is what `open_checkpoint` takes.

    Args:
      revision: branch, tag or commit of a hub id.
      beside: another one that is given the same inputs.

    Raises:
      FileNotFoundError, FolderError, CheckpointError, ValueError: what cannot be opened, or does not go together.
    """
    from flax_transformer.task.checkpoint import open_checkpoint

    explorer = Explorer(open_checkpoint(str(name), revision=revision), Path(name).resolve().name)
    if beside is not None:
        put_beside(explorer, Explorer(open_checkpoint(str(beside)), Path(beside).resolve().name))
    return explorer


def _lens(pretrained: Pretrained, given: Inputs, edits: Interventions) -> tuple[jax.Array, jax.Array]:
    """Return the likeliest answer [L, R] of each layer's states, and its probability."""
    run = partial(intervene(of_inputs), edits)
    end, states = stack_of(run, pretrained, given)[1], stream(run, pretrained, given)[1]

    def one(state: jax.Array) -> tuple[jax.Array, jax.Array]:
        replaced = {**edits, END: [*[None] * end, Replace(state)]}
        logs = log_probabilities(*scores_of(intervene(of_inputs)(replaced, pretrained, given)))
        best = logs.argmax(-1)
        return best, jnp.exp(jnp.take_along_axis(logs, best[:, None], -1)[:, 0])

    return jax.lax.map(one, states)


def _effects(
    pretrained: Pretrained, given: Inputs, edits: Interventions, off: jax.Array, row: jax.Array, *, place: int
) -> jax.Array:
    """Return how far the answer of a position moves with each factor on the heads of a place."""
    name, scores = scores_of(intervene(of_inputs)(edits, pretrained, given))
    before = log_probabilities(name, scores)[row][None]

    def one(factor: jax.Array) -> jax.Array:
        own = [
            scale if number != place else type(scale)(scale.factor * factor)
            for number, scale in enumerate(edits[HEADS])
        ]
        after = scores_of(intervene(of_inputs)({**edits, HEADS: own}, pretrained, given))
        return moved(before, log_probabilities(*after)[row][None], name in NUMBERS)[0]

    return jax.lax.map(one, off, batch_size=4)


def _trace(
    pretrained: Pretrained, given: Inputs, other: Inputs, edits: Interventions, states: jax.Array, where: jax.Array,
    row: jax.Array, *, place: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Return the probability of the other's answer with each state patched in; without, and of the other itself."""
    run = intervene(of_inputs)
    there = log_probabilities(*scores_of(run(edits, pretrained, other)))[row]
    best = there.argmax()
    own = log_probabilities(*scores_of(run(edits, pretrained, given)))[row]

    def one(mask: jax.Array) -> jax.Array:
        patched = {**edits, STATES: [*[None] * place, Replace(states, mask)]}
        return log_probabilities(*scores_of(run(patched, pretrained, given)))[row][best]

    return jnp.exp(jax.lax.map(one, where, batch_size=4)), jnp.exp(jnp.stack([own[best], there[best]])), best


def _loss(case: Case, answer: Answers, logs: np.ndarray) -> float | None:
    """Return the mean negative log-likelihood of the tokens that are there; None where answers are no next tokens."""
    if not answer.continues:
        return None
    ids = case.written if case.target else tuple(np.asarray(case.inputs["input_ids"]).ravel().tolist())[1:]
    rows = logs[answer.first : answer.first + len(answer.rows)]
    count = min(len(ids), len(rows))
    return float(-rows[np.arange(count), list(ids[:count])].mean()) if count else None


def _number(value: Any, size: int, what: str) -> int:
    """Check a number of a request; the last one by default."""
    number = size - 1 if value is None else value
    if not isinstance(number, int) or not 0 <= number < size:
        raise ValueError(f"there are {size} {what}, got number {number!r:.40}")
    return number


def _plain(part: Any) -> int | str:
    if isinstance(part, bool) or not isinstance(part, int | str):
        raise ValueError(f"switches are lists of numbers and names, got {part!r:.40}")
    return part


def _check_count(count: int) -> None:
    if count > EFFECTS:
        raise ValueError(f"at most {EFFECTS:,} are tried one by one, got {count:,}")
