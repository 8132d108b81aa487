"""Sentence encoders as sentence-transformers keeps them: a checkpoint of any family, and modules on top of it.

In our `Fields` they are those of the checkpoint's config.json and one more, `sentence_transformers`: what stands in
modules.json and in the files that it names. From that both the model and, in `hub.save`, the files are made again.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import settle_pooler
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, linear, under
from flax_transformer.listing import listed
from flax_transformer.models.padded import Padded
from flax_transformer.models.text.sentence import (
    DenseConfig,
    SentenceEncoderConfig,
    SentenceHeadConfig,
    sentence_encoder,
)
from flax_transformer.ops.split_keys import split_keys

SENTENCE = "sentence_transformers"
"""The field in which modules stand."""
POOLS = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "sum over root length",
    "weightedmean": "mean by position",
    "lasttoken": "last",
}
"""Their names of pools, in the order in which several are put side by side, and ours."""
LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The flags by which versions before 5.4 say the same."""
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
"""Their activations of dense layers, and ours."""
PLAIN = {SENTENCE: {"modules": [{"kind": "Pooling", "path": "1_Pooling", "config": {}}]}}
"""What makes a checkpoint that has no modules one whose vectors are the mean: `Lenient(config=PLAIN)`."""
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
"""Modules there is a meaning for."""


def is_sentence(fields: Mapping[str, Any]) -> bool:
    """Return whether a config.json has modules on top."""
    return SENTENCE in fields


def modules_of(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the modules on top of the Transformer: kind, path and config of each.

    Raises:
      ValueError: a field that is no such list, or modules that cannot stand there, or in that order.
    """
    stated = fields.get(SENTENCE)
    modules = stated.get("modules") if isinstance(stated, dict) else None
    if not isinstance(modules, list) or not all(isinstance(each, dict) and "kind" in each for each in modules):
        raise ValueError(f"config.json must give {SENTENCE} as an object with a list of modules, it is {stated!r:.60}")
    kinds = [each["kind"] for each in modules]
    if kinds[:1] != ["Pooling"] or "Normalize" in kinds[:-1] or not {*kinds[1:]} <= {"Dense", "Normalize"}:
        raise ValueError(
            "modules on top of a Transformer must be Pooling, any number of Dense, and perhaps Normalize, got "
            f"{listed(kinds)}"
        )
    return modules


def read_head(fields: Mapping[str, Any], backbone: Any) -> SentenceEncoderConfig:
    """Put a head as the modules say on a backbone.

    Raises:
      ValueError: an option that is not supported, or widths that do not fit each other.
    """
    first, *others = modules_of(fields)
    said = first["config"]
    dense = tuple(_read_dense(each["config"]) for each in others if each["kind"] == "Dense")
    made = sentence_encoder(
        backbone, pools=_read_pools(said), include_prompt=_flag(said, "include_prompt", True), dense=dense,
        normalise=any(each["kind"] == "Normalize" for each in others),
    )  # fmt: skip
    head = made.head
    given = [said.get("embedding_dimension", said.get("word_embedding_dimension", head.embed))]
    given += [each["config"].get("in_features") for each in others if each["kind"] == "Dense"]
    expected = [head.embed, *head.widths[:-1]]
    if wrong := [pair for pair in zip(given, expected, strict=True) if pair[0] != pair[1]]:
        raise ValueError(f"a module must take what the one before gives, got {wrong[0][0]!r} for {wrong[0][1]} numbers")
    return made


def _flag(said: Mapping[str, Any], name: str, default: bool) -> bool:
    if not isinstance(value := said.get(name, default), bool):
        raise ValueError(f"a module must give {name} as true or false, it is {value!r:.60}")
    return value


def _read_pools(said: Mapping[str, Any]) -> tuple[str, ...]:
    legacy = [mode for name, mode in LEGACY.items() if said.get(name)]
    modes = said.get("pooling_mode", legacy or "mean")
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(isinstance(each, str) and each in POOLS for each in modes):
        raise ValueError(f"Pooling must give pooling_mode as one or several of {', '.join(POOLS)}, it is {modes!r:.60}")
    return tuple(POOLS[mode] for mode in modes)


def _read_dense(said: Mapping[str, Any]) -> DenseConfig:
    name = said.get("activation_function", "torch.nn.modules.activation.Tanh")
    if name not in ACTIVATIONS:
        raise ValueError(f"Dense must have one of the activations {', '.join(ACTIVATIONS)}, it has {name!r:.60}")
    if _flag(said, "use_residual", False):
        raise ValueError("Dense has use_residual=True, of which only False is supported")
    sides = {said.get(name, "sentence_embedding") for name in ("module_input_name", "module_output_name")}
    if sides - {"sentence_embedding", None}:
        raise ValueError(f"Dense must take and give sentence_embedding, it has {listed(sorted(map(str, sides)))}")
    width = Fields.of(said).integer("out_features")
    return DenseConfig(width=width, activation=ACTIVATIONS[name], bias=_flag(said, "bias", True))


def write_modules(head: SentenceHeadConfig) -> dict[str, Any]:
    """Write what modules.json and its files say of a head, in words that every version of the library opens."""
    modes = {ours: theirs for theirs, ours in POOLS.items()}
    modes = [modes[pool] for pool in head.pools]
    pooling = {"word_embedding_dimension": head.embed, "include_prompt": head.include_prompt}
    in_order = [mode for mode in POOLS if mode in modes]
    if modes == in_order:
        pooling |= {name: mode in modes for name, mode in LEGACY.items()}
    else:  # which the flags cannot say
        pooling["pooling_mode"] = modes
    modules = [{"kind": "Pooling", "path": "1_Pooling", "config": pooling}]
    spelled = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    for inputs, layer in zip(head.widths, head.dense, strict=False):
        if layer.activation not in spelled:
            raise ValueError(f"Dense has names for the activations {', '.join(spelled)}, got {layer.activation!r}")
        said = {
            "in_features": inputs, "out_features": layer.width, "bias": layer.bias,
            "activation_function": spelled[layer.activation],
        }  # fmt: skip
        modules.append({"kind": "Dense", "path": f"{len(modules) + 1}_Dense", "config": said})
    if head.normalise:
        modules.append({"kind": "Normalize", "path": f"{len(modules) + 1}_Normalize", "config": {}})
    return {SENTENCE: {"modules": modules}}


def _on_top(known: Architecture, model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return what the Transformer gives, and the vectors of sentences."""
    keys, inner = split_keys(key), model.backbone
    if known.at and not hasattr(inner, "head"):  # a class with a pooler, of which there is none
        inner = SimpleNamespace(backbone=inner, head=lambda hidden, key=None: None)
    found = known.call(inner, inputs, keys[0], fields)
    hidden, mask = found.last_hidden_state, inputs.attention_mask
    real = jnp.ones(hidden.shape[:-1], bool) if mask is None else mask != 0
    vectors = model.head(Padded(hidden, real), prompt=inputs.prompt_length, key=keys[1])
    return replace(found, sentence_embedding=vectors)


def _config(known: Architecture, fields: Fields) -> SentenceEncoderConfig:
    inner = known.config(fields)
    if known.at and not fields.flag("has_pooler", True):
        inner = known.backbone_of(inner)
    return read_head(fields, inner)


def _dense_rows(fields: Fields) -> Table:
    paths = [each["path"] for each in modules_of(fields) if each["kind"] == "Dense"]
    rows = (linear(f"head.dense_{i}", f"{path}/linear") for i, path in enumerate(paths))
    return tuple(row for each in rows for row in each)


def sentence_family(family: Family, name: str, fields: Fields) -> Family:
    """Return a family as it is with modules on top of one of its classes.

    Tensors of modules are called by their folder: `2_Dense/linear.weight`.

    Raises:
      ValueError: a class that reads no text, or gives no hidden states of it.
    """
    known = family.architectures[name]
    reads = "input_ids" in known.inputs.needs and "decoder_input_ids" not in known.inputs.names
    if not reads or "feature-extraction" not in known.uses:
        able = [each for each, other in family.architectures.items() if "feature-extraction" in other.uses]
        raise ValueError(f"modules stand on a model of texts alone, such as {listed(able) or 'BertModel'}, got {name}")
    whole = under(family.rows(known), "backbone.", "")
    bare = under(family.table, "backbone.", family.prefix_of(known)) if known.at else ()
    made = Architecture(
        partial(_config, known), partial(_on_top, known), (*whole, *bare, *_dense_rows(fields)), base=True,
        ignored=known.ignored, uses=("sentence-similarity",), marks=known.marks, layers=known.layers,
        inputs=replace(known.inputs, takes=(*known.inputs.takes, "prompt_length")), check=known.check,
        prepare=known.prepare, at="",
    )  # fmt: skip
    settled = partial(settle_pooler, name) if known.at and known.head else family.settled
    return replace(family, architectures={name: made}, table=(), settled=settled, composed=None, adopt=None)
