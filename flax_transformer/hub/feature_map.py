"""What checkpoints of convolutional networks have in common: how they are called, and what their layers are.

Axes: B images, C channels, H W height and width, I J those of a feature map, D its width.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.registration import Architecture
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
