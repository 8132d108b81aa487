"""How models of images are called with Hugging Face's keyword names.

Axes: B batch, C channels, H W height and width in pixels, T tokens and patches, P patches, E classes.
"""

from itertools import chain
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.ops.split_keys import split_keys

MASKABLE = Signature(("pixel_values",), ("bool_masked_pos",))


def plain_layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name what layers were given and the last one gave, before the norm at the end, and their attention weights."""
    found = {}
    if "hidden_states" in seen:
        found["hidden_states"] = (*chain(*seen["hidden_states"]), seen["trunk_output"][-1])
    if "attention_weights" in seen:
        found["attentions"] = tuple(chain(*seen["attention_weights"]))
    return found


def encoder_layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name the layers of the encoder alone, where there is a decoder too."""
    return plain_layers({name: values[:1] for name, values in seen.items()}, output)


LAYERS = {"marks": ("hidden_states", "trunk_output"), "layers": plain_layers}
"""How an `Architecture` says so."""


def hidden(model: Any, inputs: Inputs, key: PRNGKeyArray | None = None) -> Float[Array, "B T D"]:
    """Run an encoder of images, some patches of which may be masked."""
    masked = {} if inputs.bool_masked_pos is None else {"masked": inputs.bool_masked_pos.astype(bool)}
    return model.hidden_states(images_of(inputs), **masked, key=key)


def image_model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and the first of them, as Dinov2Model does."""
    states = hidden(model, inputs, key)
    return ModelOutput(last_hidden_state=states, pooler_output=states[:, 0])


def pooled_image(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the head makes of them, if there is a pooler, as ViTModel does."""
    keys = split_keys(key)
    states = hidden(model.backbone, inputs, keys[0])
    pooled = model.head(states, key=keys[1]) if fields.flag("has_pooler", True) else None
    return ModelOutput(last_hidden_state=states, pooler_output=pooled)


def image_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify images."""
    keys = split_keys(key)
    states = hidden(model, inputs, keys[0])
    return ModelOutput(logits=model.output(states, key=keys[1]), last_hidden_state=states)


def image_restorer(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return images back, as ViTForMaskedImageModeling does."""
    states = hidden(model, inputs, key)
    return ModelOutput(reconstruction=jnp.moveaxis(model.output(states), -1, 1), last_hidden_state=states)


def two_headed(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify by both heads, as DeiTForImageClassificationWithTeacher does."""
    states = hidden(model, inputs, key)
    by_label, by_teacher = model.both(states)
    return ModelOutput(
        logits=(by_label + by_teacher) / 2, cls_logits=by_label, distillation_logits=by_teacher,
        last_hidden_state=states,
    )  # fmt: skip


def autoencoder_model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Encode the patches that noise leaves, as ViTMAEModel does, which draws some where it is given none."""
    found = model.encode(images_of(inputs), inputs.noise, key=key)
    return ModelOutput(
        last_hidden_state=found.hidden, mask=found.masked.astype(jnp.float32), ids_restore=found.restore_order
    )


def autoencoder(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Reconstruct the pixels of all patches, as ViTMAEForPreTraining does."""
    keys = split_keys(key)
    found = model.encode(images_of(inputs), inputs.noise, key=keys[0])
    return ModelOutput(
        logits=model.output(model.decode(found, key=keys[1])), mask=found.masked.astype(jnp.float32),
        ids_restore=found.restore_order, last_hidden_state=found.hidden,
    )  # fmt: skip
