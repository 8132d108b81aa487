"""How models of two towers, of texts and of images, are called with Hugging Face's keyword names.

Axes: B texts or images, T positions, E width of the common space.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, causal_hidden, encoder_hidden, images_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import plain_layers
from flax_transformer.hub.inputs import Inputs
from flax_transformer.models.multimodal.towers import Embedded, unit
from flax_transformer.models.padded import Padded
from flax_transformer.ops.split_keys import split_keys

Tower = Callable[..., ModelOutput]
OLD_END = 2
"""What old config.json of CLIP have as `eos_token_id`, which is not that of their tokenizer's end."""


def inside(fields: Fields, side: str) -> Fields:
    """Return the fields of one tower, "text" or "vision", of a config.json of both.

    In old ones `text_config_dict` stands beside `text_config`, and counts.

    Raises:
      ValueError: what is no object.
    """
    found = next((fields[name] for name in (f"{side}_config_dict", f"{side}_config") if fields.get(name)), {})
    if not isinstance(found, dict):
        raise ValueError(f"config.json must give {side}_config as an object, it is {found!r:.40}")
    return Fields.of(found)


def ends(ids: Int[Array, "*B T"], fields: Fields) -> Int[Array, "*B"]:
    """Find where texts end: at the first end token; by old fields at the largest id."""
    end = fields.integer("eos_token_id", 49_407)
    return jnp.argmax(ids if end == OLD_END else ids == end, axis=-1)


def text_tower(tower: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the head makes of the one at the end, as CLIPTextModel does."""
    keys = split_keys(key)
    hidden = causal_hidden(tower.backbone, inputs, keys[0])
    pooled = tower.head(hidden, ends(inputs.input_ids, fields), key=keys[1])
    return ModelOutput(last_hidden_state=hidden, pooler_output=pooled)


def image_tower(tower: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the head makes of the first, as CLIPVisionModel does."""
    keys = split_keys(key)
    hidden = tower.hidden_states(images_of(inputs), key=keys[0])
    return ModelOutput(last_hidden_state=hidden, pooler_output=tower.head(hidden, key=keys[1]))


def patch_states(tower: Any, inputs: Inputs, key: PRNGKeyArray | None) -> Padded:
    """Encode patches of images of any shape, and mark which are padding."""
    shape = inputs.pixel_values.shape[:-1]
    mask = inputs.pixel_attention_mask
    seen = jnp.ones(shape, bool) if mask is None else mask != 0
    return tower.hidden_states(inputs.pixel_values, inputs.spatial_shapes, seen, key=key)


def patch_tower(tower: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the head makes of those that are no padding, as Siglip2VisionModel does."""
    keys = split_keys(key)
    hidden = patch_states(tower, inputs, keys[0])
    return ModelOutput(last_hidden_state=hidden.hidden, pooler_output=tower.head(hidden, key=keys[1]))


def text_projected(tower: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and the vector of a text, as CLIPTextModelWithProjection does."""
    found = text_tower(tower, inputs, key, fields)
    return replace(found, pooler_output=None, text_embeds=found.pooler_output)


def image_projected(tower: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and the vector of an image, as CLIPVisionModelWithProjection does."""
    found = image_tower(tower, inputs, key, fields)
    return replace(found, pooler_output=None, image_embeds=found.pooler_output)


def last_tower(tower: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the head makes of the very last, padding or not, as SiglipTextModel does."""
    keys = split_keys(key)
    hidden = encoder_hidden(tower.backbone, inputs, keys[0])
    return ModelOutput(last_hidden_state=hidden, pooler_output=tower.head(hidden, key=keys[1]))


def two_towers(
    model: Any,
    inputs: Inputs,
    key: PRNGKeyArray | None,
    fields: Fields,
    *,
    texts: Tower = text_tower,
    images: Tower = image_tower,
) -> ModelOutput:
    """Return vectors of length 1 of what there is, texts or images, and of both their scores, as CLIPModel does.

    Args:
      texts: how the tower of texts is called.
      images: how that of images is.
    """
    keys, text, image = split_keys(key), None, None
    if inputs.input_ids is not None:
        text = texts(model.text, inputs, keys[0], inside(fields, "text"))
    if inputs.pixel_values is not None:
        image = images(model.vision, inputs, keys[1], inside(fields, "vision"))
    vectors = Embedded(*(None if side is None else unit(side.pooler_output) for side in (text, image)))
    scores = None if text is None or image is None else model.output(vectors)
    return ModelOutput(
        logits_per_text=scores, logits_per_image=None if scores is None else scores.T, text_embeds=vectors.first,
        image_embeds=vectors.second, text_model_output=text, vision_model_output=image,
    )  # fmt: skip


def tower_layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, Any]:
    """Name what the layers of either tower were given, and their attention weights: text comes first."""
    named = {}
    sides = [name for name in ("text_model_output", "vision_model_output") if getattr(output, name) is not None]
    for place, name in enumerate(sides):
        own = plain_layers({mark: stacks[place : place + 1] for mark, stacks in seen.items()}, output)
        named[name] = replace(getattr(output, name), **own)
    return named


def first_stack(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, Any]:
    """Name what the layers of the tower were given, without those of a head that attends."""
    return plain_layers({mark: stacks[:1] for mark, stacks in seen.items()}, output)


ALONE = {"marks": ("hidden_states", "trunk_output"), "layers": first_stack}
TOWER_LAYERS = {"marks": ("hidden_states", "trunk_output"), "layers": tower_layers}
"""How an `Architecture` of one tower, and of both, says so."""
