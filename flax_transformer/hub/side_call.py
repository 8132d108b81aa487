"""How models of an encoder and a decoder of two families are called with Hugging Face's keyword names, and decoders
that are given the states they look at.

Axes: B rows, T tokens.
"""

from typing import Any

from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of, visible
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.registration import Architecture
from flax_transformer.models.head import Classifier
from flax_transformer.ops.split_keys import split_keys

DECODED = ("decoder_attentions", "cross_attentions")


def encoded_to_text(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of the token after each of the target, as VisionEncoderDecoderModel and EncoderDecoderModel do."""
    keys, encoder = split_keys(key), model.encoder
    projected = isinstance(encoder, Classifier)
    source = images_of(inputs) if inputs.pixel_values is not None else inputs.tokens
    seen = None if inputs.pixel_values is not None else visible(inputs.attention_mask)
    given = {} if seen is None else {"mask": seen}
    states = (encoder.backbone if projected else encoder)(source, key=keys[0], **given)
    memory = encoder.head(states).astype(states.dtype) if projected else states
    mask = visible(inputs.decoder_attention_mask)
    hidden = model.decode(inputs.decoder_input_ids, memory, seen, mask=mask, key=keys[1])
    logits = model.output(hidden).logits()
    return ModelOutput(logits=logits, last_hidden_state=hidden, encoder_last_hidden_state=states)


def both_layers(encoder: Architecture, seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, Any]:
    """Name what layers were given, and their attention weights: the encoder's as its own class does."""
    ends = {"attention_weights": 2, "hidden_states": 1}
    inner = ModelOutput(last_hidden_state=output.encoder_last_hidden_state)
    first = {mark: stacks[: len(stacks) - (mark in ends and ends[mark])] for mark, stacks in seen.items()}
    if "trunk_output" in first:
        first["trunk_output"] = first["trunk_output"][:-1]
    named = encoder.layers(first, inner)
    found = {f"encoder_{name}": named[name] for name in ("hidden_states", "attentions") if name in named}
    if "hidden_states" in seen:
        found["decoder_hidden_states"] = (*seen["hidden_states"][-1], output.last_hidden_state)
    if "attention_weights" in seen:
        found |= dict(zip(DECODED, map(tuple, seen["attention_weights"][-2:]), strict=True))
    return found


def states_to_text(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of the token after each, as a GPT2LMHeadModel with `add_cross_attention` does."""
    positions = {} if inputs.position_ids is None else {"positions": inputs.position_ids}
    hidden = model.decode(
        inputs.input_ids, inputs.encoder_hidden_states, visible(inputs.encoder_attention_mask),
        mask=visible(inputs.attention_mask), key=key, **positions,
    )  # fmt: skip
    return ModelOutput(logits=model.output(hidden).logits(), last_hidden_state=hidden)


def looking_layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, Any]:
    """Name what the layers of a decoder were given, and their attention weights."""
    found: dict[str, Any] = {}
    if "hidden_states" in seen:
        found["hidden_states"] = (*seen["hidden_states"][-1], output.last_hidden_state)
    if "attention_weights" in seen:
        found |= dict(zip(("attentions", "cross_attentions"), map(tuple, seen["attention_weights"]), strict=True))
    return found
