"""How models of sounds alone are called with Hugging Face's keyword names.

Axes: B batch, T frames or samples, S positions of the encoder, D width, E classes.
"""

from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, source_of, split_keys
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs


def sound_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify sounds, as WhisperForAudioClassification does."""
    keys = split_keys(key)
    hidden = model.hidden_states(source_of(inputs)[0], key=keys[0])
    return ModelOutput(logits=model.output(hidden, key=keys[1]), last_hidden_state=hidden)
