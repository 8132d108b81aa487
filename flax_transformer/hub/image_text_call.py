"""How models that read or write texts about images are called with Hugging Face's keyword names.

Axes: B texts or images, I images of a row, T positions, S states of an image, E width of the common space.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, encoder_hidden, images_of, visible
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import plain_layers
from flax_transformer.hub.inputs import Inputs
from flax_transformer.models.multimodal.towers import Embedded, unit
from flax_transformer.ops.split_keys import split_keys


def last_stack(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, Any]:
    """Name what the layers of the text were given, which come after those of the images."""
    return plain_layers({mark: stacks[-1:] for mark, stacks in seen.items()}, output)


WRITTEN = {"marks": ("hidden_states", "trunk_output"), "layers": last_stack}
"""How an `Architecture` says so."""


def prefixed_model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states of images and of the tokens after them, as GitModel does."""
    seen, images = inputs.attention_mask, images_of(inputs)
    if seen is not None:
        before = model.cfg.vision.patches.grid_of(*images.shape[-3:-1])
        count = before[0] * before[1] + len(model.cfg.vision.tokens)
        count *= images.shape[-4] if images.ndim == 5 else 1
        seen = jnp.concatenate([jnp.ones((*seen.shape[:-1], count), seen.dtype), seen], axis=-1)
    hidden = model.encode(inputs.input_ids, images, mask=visible(seen), positions=inputs.position_ids, key=key)
    return ModelOutput(last_hidden_state=hidden)


def prefixed_lm(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of the token after each position, images' ones too, as GitForCausalLM does."""
    found = prefixed_model(model, inputs, key, fields)
    return replace(found, logits=model.output(found.last_hidden_state).logits())


def normed_image(tower: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the head makes of the first, which is normalised twice, as BlipVisionModel does."""
    hidden = tower.hidden_states(images_of(inputs), key=key)
    return ModelOutput(last_hidden_state=tower.head.norm(hidden), pooler_output=tower.head.pool(hidden))


def captioner(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of the token after each, and an image's states, as BlipForConditionalGeneration does."""
    keys = split_keys(key)
    states = model.encode(images_of(inputs), key=keys[0])
    hidden = model.decode(inputs.input_ids, states, mask=visible(inputs.attention_mask), key=keys[1])
    return ModelOutput(logits=model.output(hidden).logits(), image_embeds=states, last_hidden_state=states)


def answerer(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of an answer's tokens and an image's states; BlipForQuestionAnswering gives the latter."""
    keys, seen = split_keys(key), visible(inputs.attention_mask)
    first = split_keys(keys[0])
    states = model.encoder.vision(images_of(inputs), key=first[0])
    memory = model.encoder.text(inputs.input_ids, states, mask=seen, key=first[1])
    mask = visible(inputs.decoder_attention_mask)
    hidden = model.decode(inputs.decoder_input_ids, memory, seen, mask=mask, key=keys[1])
    return ModelOutput(
        logits=model.output(hidden).logits(), image_embeds=states, last_hidden_state=states, question_embeds=memory
    )


def retriever(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return vectors of length 1 of what there is, texts or images, their cosines, and scores of each text with its
    image, where there are as many, as BlipForImageTextRetrieval does with its head and without.
    """
    keys, text, states, image = split_keys(key), None, None, None
    reader, seen = model.encoder, visible(inputs.attention_mask)
    if inputs.pixel_values is not None:  # first, as the layers that are asked for are images'
        states = reader.vision(images_of(inputs), key=keys[1])
        image = unit(model.vision_head(states))
    if inputs.input_ids is not None:
        text = unit(model.text_head(reader.text(inputs.input_ids, mask=seen, key=keys[0])))
    found = ModelOutput(text_embeds=text, image_embeds=image, last_hidden_state=states)
    if text is None or image is None:
        return found
    cosines = image @ text.T
    found = replace(found, logits_per_image=cosines, logits_per_text=cosines.T)
    if text.shape[0] != image.shape[0]:
        return found
    both = reader.text(inputs.input_ids, states, mask=seen, key=keys[0])
    return replace(found, itm_score=model.match_head(both), question_embeds=both)


def pooled_towers(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return vectors of length 1 of what there is, texts or images, and of both their scores, as BlipModel does."""
    keys, text, image = split_keys(key), None, None
    if inputs.input_ids is not None:
        tower = model.text
        hidden = encoder_hidden(tower.backbone, inputs, keys[0])
        text = ModelOutput(last_hidden_state=hidden, pooler_output=tower.head.pool(hidden))
    if inputs.pixel_values is not None:
        image = normed_image(model.vision, inputs, keys[1], fields)

    def project(tower, side):
        return None if side is None else unit(tower.head.output(side.pooler_output))

    vectors = Embedded(project(model.text, text), project(model.vision, image))
    scores = None if text is None or image is None else model.output(vectors)
    return ModelOutput(
        logits_per_text=scores, logits_per_image=None if scores is None else scores.T, text_embeds=vectors.first,
        image_embeds=vectors.second, text_model_output=text, vision_model_output=image,
    )  # fmt: skip
