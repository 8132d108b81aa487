"""Compression of a checkpoint: what it is calibrated on, what becomes of it, and how much that changes its kernels."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flax_transformer import hub
from flax_transformer.compress import (
    Quantization,
    Statistics,
    head_importance,
    keep_layers,
    observe,
    quantize_model,
    remove_heads,
)
from flax_transformer.compress.heads import Importance
from flax_transformer.compress.kernel import linear_kernels, lookup_tables
from flax_transformer.compress.narrow import narrow_model
from flax_transformer.data.text.annotated import read_pairs
from flax_transformer.hub import Pretrained
from flax_transformer.hub.config import HEAD_WIDTH
from flax_transformer.hub.quantized.model import dequantize_model
from flax_transformer.ops.loss import cross_entropy
from flax_transformer.parallel import path_name
from flax_transformer.task.checkpoint import tokenizer_of
from flax_transformer.task.measure import TABLES, measure, split_file

ROWS = 128
"""Rows of calibration data that are read, unless more are asked for."""
PAIRS = 8
"""Pairs of texts that are read together."""

WRITES = {"text-generation", "text2text-generation"}
"""Uses of checkpoints that write texts."""

Call = dict[str, np.ndarray]
"""The inputs of one call of a checkpoint."""


class _Enough(Exception):
    """Raised in a call when enough rows are recorded."""


@dataclass(frozen=True, repr=False)
class _Recorded(Pretrained):
    """A checkpoint that keeps the inputs of its calls."""

    calls: Any = None
    most: int = ROWS

    def __call__(self, *given: Any, **inputs: Any) -> Any:
        """Keep the inputs and answer."""
        named = self.architecture.inputs.named(given, inputs)
        self.calls.append({name: np.asarray(value) for name, value in named.items() if value is not None})
        if sum(len(next(iter(call.values()))) for call in self.calls) >= self.most:
            raise _Enough
        return _plain(self)(**named)


def _plain(pretrained: Pretrained) -> Pretrained:
    return Pretrained(**{each.name: getattr(pretrained, each.name) for each in fields(Pretrained)})


def answers_at_once(pretrained: Pretrained) -> bool:
    """Return whether one call gives what a checkpoint is for; writing about images or speech takes many."""
    known = pretrained.architecture
    return known.inputs.reads == ("text",) or not {*known.uses} & WRITES


def calibration(pretrained: Pretrained, data: Path, *, rows: int = ROWS, split: str | None = None) -> list[Call]:
    """Read inputs of a checkpoint, in batches, from any data that `evaluate` takes; labels are not looked at.

    Raises:
      ValueError: data of another form, or a checkpoint that writes what it is calibrated on, as captions.
    """
    if rows < 1:
        raise ValueError(f"calibration needs at least 1 row, got {rows}")
    known = pretrained.architecture
    if not answers_at_once(pretrained):
        raise ValueError(f"a {pretrained.config['architectures'][0]} is not calibrated: it reads what it has written")
    if "text2text-generation" in known.uses and known.inputs.reads == ("text",):
        return _pairs(pretrained, split_file(data, split, TABLES), rows)
    calls: list[Call] = []
    own = {each.name: getattr(pretrained, each.name) for each in fields(Pretrained)}
    with contextlib.suppress(_Enough):
        measure(_Recorded(**own, calls=calls, most=rows), data, split)
    return calls


def _pairs(pretrained: Pretrained, file: Path, rows: int) -> list[Call]:
    """Lay out pairs of texts, of which the decoder reads the targets."""
    pairs = read_pairs(file)
    sources, targets = (pairs[side][:rows] for side in ("source", "target"))
    tokenizer = tokenizer_of(pretrained, *sources)
    writer = getattr(tokenizer, "target", None) or tokenizer
    start = pretrained.config.get("decoder_start_token_id", pretrained.config.get("pad_token_id"))
    order = np.argsort([len(source) for source in sources], kind="stable")
    found = []
    for at in range(0, len(order), PAIRS):
        part = order[at : at + PAIRS]
        given = tokenizer([sources[i] for i in part])
        written = np.asarray(writer([targets[i] for i in part])["input_ids"])
        behind = np.concatenate([np.full((len(written), 1), start, written.dtype), written[:, :-1]], axis=1)
        call = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"], "decoder_input_ids": behind}
        found.append({name: np.asarray(value) for name, value in call.items()})
    return found


def calibrate(
    pretrained: Pretrained, calls: Sequence[Call], rules: Quantization | Sequence[Quantization],
    tell: Callable[[str], None] = lambda text: None,
) -> Mapping[str, Statistics]:  # fmt: skip
    """Observe what the layers of a checkpoint are given in some calls, as far as the rules need to know."""
    rules = (rules,) if isinstance(rules, Quantization) else tuple(rules)
    needed = [rule for rule in rules if rule.calibrated]
    if not needed:
        return {}

    def run(model: Any, call: Mapping[str, Any]) -> Any:
        return replace(pretrained, model=model)(**call)

    def named() -> Any:
        for number, call in enumerate(calls, start=1):
            tell(f"calibration: batch {number} of {len(calls)}")
            yield call

    products = any(rule.products for rule in needed)
    return observe(
        pretrained.model, run, named(), products=products, chosen=lambda path: any(rule.takes(path) for rule in needed)
    )


def quantize_checkpoint(
    pretrained: Pretrained, rules: Quantization | Sequence[Quantization], calls: Sequence[Call] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Pretrained:  # fmt: skip
    """Return a checkpoint whose kernels have few bits.

    Args:
      calls: of calibration, where the rules need it.
      tell: is told what is being done.

    Raises:
      ValueError: as `quantize_model`.
    """
    statistics = calibrate(pretrained, calls, rules, tell)
    tell("rounding")
    return replace(pretrained, model=quantize_model(pretrained.model, rules, statistics))


def narrow_checkpoint(
    pretrained: Pretrained, share: float, calls: Sequence[Call] = (), tell: Callable[[str], None] = lambda text: None
) -> Pretrained:
    """Return a checkpoint whose feed-forward layers have fewer neurons, and whose config.json says so.

    Args:
      share: of the neurons, which are removed: the least important of each layer.
      calls: of calibration, by which a neuron counts as much as it writes; without it as much as its weights are.

    Raises:
      ValueError: as `narrow_model`, or a family whose config.json has no words for other widths.
    """
    statistics = None
    if calls:
        rule = Quantization(activations="int8", ranges="absmax", pattern=r"\.down\.kernel$")
        statistics = calibrate(pretrained, calls, rule, tell)
    return _described(pretrained, narrow_model(pretrained.model, share, statistics))


def shallow_checkpoint(pretrained: Pretrained, layers: Sequence[int], pattern: str = "") -> Pretrained:
    """Return a checkpoint whose stacks have some of their layers alone, and whose config.json says so.

    Args:
      layers, pattern: as `keep_layers` takes them.

    Raises:
      ValueError: as `keep_layers`, or a family whose config.json has no words for other depths.
    """
    shallow = _described(pretrained, keep_layers(pretrained.model, layers, pattern))
    kinds = pretrained.config.get("layer_types")
    if not isinstance(kinds, list):
        return shallow
    return replace(shallow, config=shallow.config.updated({"layer_types": [kinds[layer] for layer in layers]}))


def weigh_heads(
    pretrained: Pretrained, calls: Sequence[Call], tell: Callable[[str], None] = lambda text: None
) -> Importance:
    """Compute how much the loss of a checkpoint in some calls depends on each head: see `head_importance`.

    Where texts are written it is the cross-entropy of each next token of the texts that the calls have. Elsewhere it
    needs no labels: it is that of the class, or the token, which the checkpoint itself holds for the most probable.

    Raises:
      ValueError: no calls, a checkpoint without attention, or one that gives no logits of several classes.
    """

    def loss(model: Any, call: Mapping[str, Any]) -> Any:
        return _cross_entropy(replace(pretrained, model=model), call)

    def named() -> Any:
        for number, call in enumerate(calls, start=1):
            tell(f"importance of heads: batch {number} of {len(calls)}")
            yield call

    return head_importance(pretrained.model, loss, named())


def _cross_entropy(pretrained: Pretrained, call: Mapping[str, Any]) -> Any:
    """Return the loss of a call by which heads are weighed, a sum over rows."""
    output, mask = pretrained(**call), call.get("attention_mask")
    if {*pretrained.architecture.uses} & WRITES:
        tokens, padding = call.get("decoder_input_ids"), pretrained.config.get("pad_token_id")
        real = mask if tokens is None else tokens != (-1 if padding is None else padding)
        tokens = call["input_ids"] if tokens is None else tokens
        return cross_entropy(output.logits[:, :-1], tokens[:, 1:], None if real is None else real[:, 1:])[0]
    given = output.keys()
    scores = [output[name] for name in given if "logits" in name and output[name].shape[-1] > 1]
    if not scores:
        name = pretrained.config["architectures"][0]
        raise ValueError(f"heads are weighed by the loss of classes or tokens, a {name} gives {', '.join(given)}")
    total = 0.0
    for each in scores:
        weights = mask if mask is not None and each.shape[:-1] == mask.shape else None
        total += cross_entropy(each, jax.lax.stop_gradient(each).argmax(-1), weights)[0]
    return total


def fewer_heads_checkpoint(pretrained: Pretrained, share: float, importance: Importance) -> Pretrained:
    """Return a checkpoint whose attention has fewer heads, and whose config.json says so.

    Families whose config.json has no field for the width of heads get one, `head_dim`, which this package reads.

    Args:
      share: of the heads, which are removed: the least important of each layer.
      importance: of all heads: `weigh_heads(pretrained, …)`.

    Raises:
      ValueError: as `remove_heads`, or a family whose config.json has no words for it.
    """
    return _described(pretrained, remove_heads(pretrained.model, share, importance))


def _described(pretrained: Pretrained, model: Any) -> Pretrained:
    """Return a checkpoint of a model of other sizes, whose config.json says them."""
    name = pretrained.config["architectures"][0]
    before, after = (dict(hub.wrap(each, name).config) for each in (pretrained.model, model))
    changed = {field: value for field, value in after.items() if before.get(field) != value or field == HEAD_WIDTH}
    for field, value in changed.items():  # what is said inside of other configs stays
        if isinstance(value, Mapping) and isinstance(pretrained.config.get(field), Mapping):
            changed[field] = {**pretrained.config[field], **value}
    return replace(pretrained, model=model, config=pretrained.config.updated(changed))


def kernel_errors(before: Any, after: Any) -> dict[str, Float[np.ndarray, "..."]]:
    """Return how far kernels and tables that changed are from what they were, ‖W − Q‖ / ‖W‖, of each layer, by path."""
    wide = dequantize_model(after, np.float32)
    leaves = [dict(_leaves(model)) for model in (before, wide)]
    found = {}
    for path, axes in {**linear_kernels(before), **lookup_tables(before)}.items():
        if leaves[0][path] is leaves[1][path] or leaves[0][path].shape != leaves[1][path].shape:
            continue  # as it was, or narrower
        one, other = (np.asarray(each[path], np.float32) for each in leaves)
        own = tuple(range(axes.layers, one.ndim))
        found[path] = np.asarray(np.sqrt(((one - other) ** 2).sum(own) / np.maximum((one**2).sum(own), 1e-30)))
    return found


def _leaves(model: Any) -> Any:
    return ((path_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(model))
