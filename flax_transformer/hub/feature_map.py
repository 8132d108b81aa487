"""What checkpoints of convolutional networks have in common: how they are called, and what their layers are.

Axes: B images, C channels, H W height and width, I J those of a feature map, D its width.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.registration import Architecture
from flax_transformer.hub.table import Table, norm
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.ops.split_keys import split_keys


def channels_first(x: Array) -> Array:
    """Lay a feature map [B, I, J, D] out as `transformers` gives it, [B, D, I, J]."""
    return jnp.moveaxis(x, -1, 1)


def stages_of(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name the feature maps that stages are given, and the last."""
    return {"hidden_states": (*map(channels_first, seen["hidden_states"]), output.last_hidden_state)}


def of_maps(architecture: Architecture) -> Architecture:
    """Return an architecture that takes images and whose layers are stages of feature maps."""
    return replace(architecture, inputs=IMAGES, layers=stages_of)


def map_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify by the mean of the last feature map."""
    keys = split_keys(key)
    found = model.backbone.feature_map(images_of(inputs), key=keys[0])
    hidden = found.reshape(*found.shape[:-3], -1, found.shape[-1])
    return ModelOutput(logits=model.head(hidden, key=keys[1]), last_hidden_state=channels_first(found))


def stage_names(count: int) -> list[str]:
    """Name the feature maps of a network of so many stages, or layers.

    >>> stage_names(2)
    ['stem', 'stage1', 'stage2']
    """
    return ["stem", *(f"stage{number + 1}" for number in range(count))]


def read_stages(fields: Fields, count: int) -> tuple[int, ...]:
    """Return the numbers of the feature maps that config.json names; the last where it names none.

    Raises:
      ValueError: what names no such map.
    """
    names, features, indices = stage_names(count), fields.get("out_features"), fields.get("out_indices")
    if features is None and indices is None:
        return (count,)
    if features is not None:
        if not isinstance(features, list) or not features or not {*map(str, features)} <= {*names}:
            raise ValueError(f"config.json must give out_features among {', '.join(names)}, it has {features!r:.80}")
        found = [names.index(name) for name in features]
    else:
        known = isinstance(indices, list) and indices and all(type(each) is int for each in indices)
        if not known or not all(-len(names) <= each < len(names) for each in indices):
            raise ValueError(f"config.json must give out_indices below {len(names)}, it has {indices!r:.80}")
        found = [each % len(names) for each in indices]
    if found != sorted({*found}):
        raise ValueError(f"feature maps must be named in order and each once, config.json has {features or indices}")
    return tuple(found)


def write_stages(stages: tuple[int, ...], count: int) -> dict[str, Any]:
    """Write the fields that `read_stages` reads."""
    names = stage_names(count)
    return {"out_features": [names[stage] for stage in stages], "out_indices": list(stages)}


def bare(prefix: str, name: str, fields: Fields) -> str:
    """Name a tensor as files of backbones do, some of which lack a prefix there; a `Family` has it as `spelled`."""
    return re.sub(prefix, "", name) if fields["architectures"][0].endswith("Backbone") else name


def feature_maps(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return the feature maps of some stages, as the backbones of `transformers` do."""
    return ModelOutput(feature_maps=tuple(map(_outward, model(images_of(inputs), key=key))))


def _outward(x: Array) -> Array:
    return channels_first(x) if x.ndim == 4 else x


def states_of(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name what all stages give, and attention weights."""
    found = {"hidden_states": tuple(map(_outward, seen["stage_states"]))} if "stage_states" in seen else {}
    if "attention_weights" in seen:
        found["attentions"] = tuple(each for stack in seen["attention_weights"] for each in stack)
    return found


def backbone(
    read: Callable[[Fields], Any], count: Callable[[Any], int], *,
    widths: Callable[[Any], tuple[int, ...]] | None = None, eps: float = 1e-5, tokens: bool = False,
    end_norm: bool = False, **options: Any,
) -> Architecture:  # fmt: skip
    """Make the architecture of a network that gives feature maps.

    Args:
      read: makes the network's config of config.json.
      count: of that, how many stages or layers it has.
      widths: of that, how wide every map is, if each that is given has a norm of its own; None: none has.
      eps: of these norms.
      tokens: whether its states are tokens and patches, which config.json says how to give.
      end_norm: whether config.json may ask for the norm at the end of the stack on every map.
      options: what else an `Architecture` has.
    """

    def config(fields: Fields) -> BackboneConfig:
        inner = read(fields)
        stages = read_stages(fields, count(inner))
        every = () if widths is None else tuple(widths(inner)[stage] for stage in stages)
        return BackboneConfig(
            backbone=inner, stages=stages, widths=every, norm_eps=eps,
            end_norm=end_norm and fields.flag("apply_layernorm", True),
            grids=not tokens or fields.flag("reshape_hidden_states", True),
        )  # fmt: skip

    def writes(config: BackboneConfig) -> dict[str, Any]:
        said = write_stages(config.stages, count(config.backbone))
        said |= {"reshape_hidden_states": config.grids} if tokens else {}
        return said | ({"apply_layernorm": config.end_norm} if end_norm else {})

    return Architecture(
        config, feature_maps, NORMS, writes, at="backbone.", uses=("feature-maps",), inputs=IMAGES,
        marks=("stage_states",), layers=states_of, **options,
    )  # fmt: skip


NORMS: Table = tuple(
    row for number, name in enumerate(stage_names(8)) for row in norm(f"norm{number}", f"hidden_states_norms.{name}")
)
