"""How models of videos are called with Hugging Face's keyword names.

Axes: B batch, I frames, C channels, H W height and width in pixels, P tubelets, K those that are kept, T tokens and
tubelets, D width, E classes.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import plain_layers
from flax_transformer.hub.inputs import VIDEOS, Inputs, Signature
from flax_transformer.ops.split_keys import split_keys

MASKED_VIDEOS = Signature(("pixel_values", "bool_masked_pos"), frames=True)
MASKABLE_VIDEOS = Signature(VIDEOS.needs, ("bool_masked_pos",), frames=True)


def videos(inputs: Inputs) -> Float[Array, "B I H W C"]:
    """Return videos as models of this package take them, channels last."""
    return jnp.moveaxis(inputs.pixel_values, 2, -1)


def keep_patches(inputs: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Find the patches that a mask leaves, of which each row must have as many.

    Raises:
      ValueError: rows that differ in it, a mask that leaves all or none, or one that is not known before a call is
        compiled.
    """
    if (mask := inputs.get("bool_masked_pos")) is None:
        return dict(inputs)
    if isinstance(mask, jax.core.Tracer):
        raise ValueError("the shapes of a call depend on bool_masked_pos, which must be known, got a traced one")
    mask = np.atleast_2d(np.asarray(mask) != 0)
    counts = sorted(set((~mask).sum(-1).ravel().tolist()))
    if len(counts) != 1 or not 0 < counts[0] < mask.shape[-1]:
        raise ValueError(
            "bool_masked_pos must leave as many patches of each video, some but not all, got one that leaves "
            f"{' and '.join(map(str, counts))} of {mask.shape[-1]}"
        )
    visible = np.argsort(mask, axis=-1, kind="stable")[..., : counts[0]].astype(np.int32)
    return {**inputs, "kept_patches": visible}


def pooled_video(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the head makes of them, if there is a pooler, as VivitModel does."""
    keys = split_keys(key)
    states = model.hidden_states(videos(inputs), key=keys[0])
    pooled = model.head(states, key=keys[1]) if fields.flag("has_pooler", True) else None
    return ModelOutput(last_hidden_state=states, pooler_output=pooled)


def video_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify videos."""
    keys = split_keys(key)
    states = model.hidden_states(videos(inputs), key=keys[0])
    return ModelOutput(logits=model.output(states, key=keys[1]), last_hidden_state=states)


def by_frame(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states, as TimesformerModel does: without attention over time those of all frames, a row each."""
    return ModelOutput(last_hidden_state=_flat(model.encode(videos(inputs), key=key)))


def frame_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify videos as TimesformerForVideoClassification does: without attention over time a row for each frame."""
    keys = split_keys(key)
    states = _flat(model.backbone.encode(videos(inputs), key=keys[0]))
    return ModelOutput(logits=model.output(states, key=keys[1]), last_hidden_state=states)


def _flat(states: Float[Array, "..."]) -> Float[Array, "R T D"]:
    return states.reshape(-1, *states.shape[-2:])


def frame_layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name the layers as TimeSformer does: attention over space alone, and without one over time a row a frame."""
    rows = {"hidden_states": 2, "attention_weights": 3}
    found = {name: [_rows(seen[name][-1], axes)] for name, axes in rows.items() if name in seen}
    return plain_layers({**found, "trunk_output": [_flat(each) for each in seen.get("trunk_output", ())]}, output)


def _rows(values: Float[Array, "L ..."], axes: int) -> Float[Array, "L R ..."]:
    return values.reshape(values.shape[0], -1, *values.shape[-axes:])


def encoded_video(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Encode the tubelets that a mask leaves, or all, as VideoMAEModel does."""
    return ModelOutput(last_hidden_state=model.encode(videos(inputs), inputs.kept_patches, key=key))


def restored_video(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Reconstruct the pixels of masked tubelets, as VideoMAEForPreTraining does."""
    keys, visible = split_keys(key), inputs.kept_patches
    masked = jnp.argsort(inputs.bool_masked_pos != 0, axis=-1, stable=True)[:, visible.shape[-1] :]
    states = model.encoder.encode(videos(inputs), visible, key=keys[0])
    return ModelOutput(
        logits=model.output(model.decode(states, visible, masked, key=keys[1])), last_hidden_state=states
    )
