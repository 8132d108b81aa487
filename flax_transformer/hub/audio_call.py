"""How models of recordings alone are called with Hugging Face's keyword names.

Axes: B batch, T frames or samples, S positions of the encoder, D width, E classes.
"""

from typing import Any

from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, source_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs
from flax_transformer.ops import Mask
from flax_transformer.ops.split_keys import split_keys


def audio_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify recordings, as WhisperForAudioClassification does."""
    keys = split_keys(key)
    hidden = model.hidden_states(source_of(inputs)[0], key=keys[0])
    return ModelOutput(logits=model.output(hidden, key=keys[1]), last_hidden_state=hidden)


def _given(inputs: Inputs) -> tuple[Float[Array, "B T"], Mask | None]:
    """Return samples, and how many of each row are audio."""
    mask = inputs.attention_mask
    return inputs.input_values, None if mask is None else Mask(lengths=(mask != 0).sum(axis=-1))


def samples_model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what they are made of, as Wav2Vec2Model does."""
    samples, mask = _given(inputs)
    features = model.features(samples)
    return ModelOutput(last_hidden_state=model.encode(features, mask=mask, key=key), extract_features=features)


def samples_ctc(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of each position, as Wav2Vec2ForCTC does."""
    keys = split_keys(key)
    samples, mask = _given(inputs)
    hidden = model.backbone(samples, mask=mask, key=keys[0])
    return ModelOutput(logits=model.output(hidden, key=keys[1]), last_hidden_state=hidden)


def samples_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify recordings, as Wav2Vec2ForSequenceClassification does."""
    keys = split_keys(key)
    samples, mask = _given(inputs)
    hidden = model.hidden_states(samples, lengths=None if mask is None else mask.lengths, key=keys[0])
    return ModelOutput(logits=model.output(hidden, key=keys[1]))


def samples_speaker(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Embed recordings by who speaks, as Wav2Vec2ForXVector does."""
    samples, mask = _given(inputs)
    hidden = model.hidden_states(samples, lengths=None if mask is None else mask.lengths, key=key)
    embeddings = model.head.embeddings(hidden)
    return ModelOutput(logits=model.head.output(embeddings), embeddings=embeddings)


def samples_contrast(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Predict masked positions, and tell them from others where these are given, as Wav2Vec2ForPreTraining does."""
    samples, mask = _given(inputs)
    masked = None if inputs.mask_time_indices is None else inputs.mask_time_indices.astype(bool)
    found = model(samples, mask=mask, masked=masked, key=key)
    losses = None, None
    if inputs.sampled_negative_indices is not None:
        losses = model.losses(found, inputs.sampled_negative_indices, masked)
    return ModelOutput(
        projected_states=found.predicted, projected_quantized_states=found.quantised,
        codevector_perplexity=found.perplexity, contrastive_loss=losses[0], diversity_loss=losses[1],
    )  # fmt: skip
