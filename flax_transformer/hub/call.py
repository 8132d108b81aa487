"""How models of ours are called with Hugging Face's keyword names, and what they return under its names.

Axes: B batch, T positions, S source positions, N heads, D width, V vocabulary, E outputs, A choices, C channels; H and
W of an image.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs
from flax_transformer.ops import Mask
from flax_transformer.ops.split_keys import split_keys


@jax.tree_util.register_dataclass
@frozen
class ModelOutput:
    """What a model returns, under Hugging Face's names; what it does not have is None."""

    logits: Any = None
    """[B, T, V] of tokens, [B, E] of classes, [B, T, E] of each token's classes, [B, A] of choices; [B, E, I, J] of the
    classes of each place of an image."""
    auxiliary_logits: Any = None
    """[B, E, I, J], by the head that helps in training, on a grid of its own."""
    last_hidden_state: Any = None
    """[B, T, D]; of the decoder, where there are two sides."""
    pooler_output: Any = None
    """[B, D]."""
    sentence_embedding: Any = None
    """[B, E], of sentence encoders."""
    start_logits: Any = None
    """[B, T]."""
    end_logits: Any = None
    """[B, T]."""
    relevance_logits: Any = None
    """[B]: how relevant each passage is to its question."""
    prediction_logits: Any = None
    """[B, T, V]."""
    seq_relationship_logits: Any = None
    """[B, 2]; 0 is "follows"."""
    logits_per_text: Any = None
    """[B, B]: the score of every text with every image."""
    logits_per_image: Any = None
    """[B, B]: its transpose."""
    itm_score: Any = None
    """[B, 2]: whether each text belongs to its image, no and yes."""
    text_embeds: Any = None
    """[B, E], of texts."""
    image_embeds: Any = None
    """[B, E], of images; [B, S, D], what is written or read of them is made from."""
    question_embeds: Any = None
    """[B, T, D]: texts as they are read with images."""
    text_model_output: Any = None
    """What the tower of texts gives, a `ModelOutput`."""
    vision_model_output: Any = None
    """What the tower of images gives."""
    pred_boxes: Any = None
    """[B, Q, 4]: centre x and y, width and height, as shares of the image."""
    pred_masks: Any = None
    """[B, Q, I, J]: of every query, logits of the places that are of its object."""
    class_queries_logits: Any = None
    """[B, Q, E + 1]: of every query, logits of the classes, the last of no mask."""
    masks_queries_logits: Any = None
    """[B, Q, I, J]: of every query, logits of the places that are of its mask."""
    language_output: Any = None
    """[B, T, D], of the text, where there are states of regions beside."""
    vision_output: Any = None
    """[B, R, D], of regions."""
    pooled_output: Any = None
    """[B, D], of both."""
    cross_relationship_score: Any = None
    """[B, 2]; 1 is "belongs to the image"."""
    question_answering_score: Any = None
    """[B, E], of answers."""
    action_preds: Any = None
    """[B, T, A]: the action to take at each step."""
    state_preds: Any = None
    """[B, T, S]: the state that follows."""
    return_preds: Any = None
    """[B, T, 1]: the return that is then to come."""
    cls_logits: Any = None
    """[B, E], by the labels' head."""
    distillation_logits: Any = None
    """[B, E], by the teacher's."""
    sample: Any = None
    """[B, C, H, W]: what is predicted of images with noise, under diffusers' name."""
    reconstruction: Any = None
    """[B, C, H, W]."""
    mask: Any = None
    """[B, P]: 1 where a patch is masked."""
    ids_restore: Any = None
    """[B, P]: where a patch is in the order in which those that are kept come first."""
    embeddings: Any = None
    """[B, E], of recordings by who speaks."""
    projected_states: Any = None
    """[B, S, E]: what the positions of a recording are predicted to be."""
    projected_quantized_states: Any = None
    """[B, S, E]: what they are, by their codes."""
    codevector_perplexity: Any = None
    """[]: how many codes are in use."""
    contrastive_loss: Any = None
    """[]: summed over masked positions."""
    diversity_loss: Any = None
    """[]: of codes that are not in use."""
    extract_features: Any = None
    """[B, S, C]: what convolutions give of a recording's samples, normalised."""
    encoder_last_hidden_state: Any = None
    """[B, S, D]."""
    pixel_decoder_last_hidden_state: Any = None
    """[B, D, I, J], the fine map."""
    transformer_decoder_last_hidden_state: Any = None
    """[B, Q, D], of queries."""
    hidden_states: Any = None
    """L + 1 times [B, T, D]: what every layer is given, then what the last gives, normalised where the model does."""
    feature_maps: Any = None
    """Of the stages that config.json names, [B, D, I, J] each; [B, T, D] where they are no grids."""
    reshaped_hidden_states: Any = None
    """Of every stage, [B, D, R, C] of rows and columns of patches."""
    encoder_hidden_states: Any = None
    decoder_hidden_states: Any = None
    pixel_decoder_hidden_states: Any = None
    """[B, D, I, J] each, the coarsest first."""
    transformer_decoder_hidden_states: Any = None
    """L + 1 times [Q, B, D]."""
    attentions: Any = None
    """L times [B, N, T, T]: every layer's attention weights."""
    encoder_attentions: Any = None
    decoder_attentions: Any = None
    cross_attentions: Any = None
    language_hidden_states: Any = None
    """What every layer gives of the text, not what the first is given."""
    vision_hidden_states: Any = None
    language_attentions: Any = None
    """Of the layers that see the text alone."""
    vision_attentions: Any = None
    cross_encoder_attentions: Any = None
    """Of the text to regions, in the layers that join them."""

    def keys(self) -> list[str]:
        """Name what there is."""
        return [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None]

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str):
            raise TypeError(f"what a model returns is taken by name, {', '.join(self.keys())}, got {name!r}")
        if name not in self.keys():
            raise KeyError(f"this model returns {', '.join(self.keys())}, not {name}")
        return getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        hint = {
            "loss": "; optax.softmax_cross_entropy_with_integer_labels(logits, labels) is one",
            "past_key_values": "; generate keeps a cache by itself",
            "to_tuple": "; each is taken by name",
        }.get(name, "")
        raise AttributeError(f"a model returns what ModelOutput names, not {name}{hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


def visible(attention_mask: Int[Array, "*B T"] | None) -> Mask | None:
    """Turn an attention mask into ours."""
    return None if attention_mask is None else Mask(dense=(attention_mask != 0)[..., None, None, :])


def images_of(inputs: Inputs) -> Float[Array, "B *I H W C"]:
    """Return images as models of this package take them, channels last; [B, I, H, W, C] where a row has several."""
    return jnp.moveaxis(inputs.pixel_values, -3, -1)


def source_of(inputs: Inputs) -> tuple[Any, Mask | None]:
    """Return what an encoder reads, and what of it is real: tokens, or frames of audio, of which silence is real."""
    if inputs.input_features is not None:
        return inputs.input_features.mT, None
    return tokens_of(inputs), visible(inputs.attention_mask)


def tokens_of(inputs: Inputs) -> Any:
    """Return tokens, by name beside their positions and those of global ones where there are any."""
    named = {"positions": inputs.position_ids, "global_positions": inputs.global_positions}
    beside = {name: value for name, value in named.items() if value is not None}
    return {"tokens": inputs.tokens, **beside} if beside else inputs.tokens


def layers_of(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name what layers were given, and their attention weights, as most classes do: by the side, in order.

    Args:
      seen: "hidden_states" and "attention_weights" that were marked, of each stack an array with a layer axis.
      output: of the same call.
    """
    both = output.encoder_last_hidden_state is not None
    found: dict[str, tuple[Array, ...]] = {}
    if "hidden_states" in seen and both:
        ends = output.encoder_last_hidden_state, output.last_hidden_state
        for side, stack, end in zip(("encoder", "decoder"), seen["hidden_states"], ends, strict=True):
            found[f"{side}_hidden_states"] = (*stack, end)
    elif "hidden_states" in seen:
        found["hidden_states"] = (*chain(*seen["hidden_states"]), output.last_hidden_state)
    if "attention_weights" in seen and both:
        kinds = ("encoder_attentions", "decoder_attentions", "cross_attentions")
        found |= dict(zip(kinds, map(tuple, seen["attention_weights"]), strict=True))
    elif "attention_weights" in seen:
        found["attentions"] = tuple(chain(*seen["attention_weights"]))
    return found


def last_token(inputs: Inputs, pad: int | None) -> Int[Array, "*B"]:
    """Find the last position that is not the padding token, as Hugging Face does to classify by it.

    Raises:
      ValueError: several rows, and no padding token to tell where each ends.
    """
    ids = inputs.input_ids
    if pad is None:
        if math.prod(ids.shape[:-1]) > 1:
            raise ValueError(
                "to classify several rows by their last tokens config.json must give pad_token_id, it has none; got "
                f"input_ids of shape {ids.shape}"
            )
        return jnp.full(ids.shape[:-1], ids.shape[-1] - 1)
    return jnp.max(jnp.where(ids != pad, jnp.arange(ids.shape[-1]), 0), axis=-1)


def causal_hidden(model: Any, inputs: Inputs, key: PRNGKeyArray | None = None) -> Float[Array, "*B T D"]:
    """Run a decoder-only model."""
    return model.encode(
        inputs.tokens, mask=visible(inputs.attention_mask), types=inputs.token_type_ids,
        positions=inputs.position_ids, key=key,
    )  # fmt: skip


def causal_model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states, as GPT2Model and LlamaModel do."""
    return ModelOutput(last_hidden_state=causal_hidden(model, inputs, key))


def causal_lm(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of the token after each, as GPT2LMHeadModel and LlamaForCausalLM do."""
    hidden = causal_hidden(model, inputs, key)
    return ModelOutput(logits=model.output(hidden).logits(), last_hidden_state=hidden)


def causal_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify by the last token that is not padding, or every token, on a decoder-only model."""
    keys = split_keys(key)
    hidden = causal_hidden(model.backbone, inputs, keys[0])
    last = last_token(inputs, fields.get("pad_token_id")) if model.head.cfg.pool == "last" else None
    return ModelOutput(logits=model.head(hidden, last, key=keys[1]), last_hidden_state=hidden)


def causal_span(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score every token as either end of an answer, on a decoder-only model."""
    return ends(causal_classifier(model, inputs, key, fields))


def encoder_hidden(model: Any, inputs: Inputs, key: PRNGKeyArray | None = None) -> Float[Array, "*B T D"]:
    """Run an encoder."""
    extra = {} if inputs.global_positions is None else {"global_positions": inputs.global_positions}
    return model(
        inputs.input_ids, mask=visible(inputs.attention_mask), types=inputs.token_type_ids,
        positions=inputs.position_ids, key=key, **extra,
    )  # fmt: skip


def encoder_model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states, as DistilBertModel does."""
    return ModelOutput(last_hidden_state=encoder_hidden(model, inputs, key))


def pooled_encoder(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the pooler makes of the first, as BertModel does."""
    keys = split_keys(key)
    hidden = encoder_hidden(model.backbone, inputs, keys[0])
    return ModelOutput(last_hidden_state=hidden, pooler_output=model.head(hidden, key=keys[1]))


def encoder_lm(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of each token, as BertForMaskedLM does."""
    hidden = encoder_hidden(model.encoder, inputs, key)
    return ModelOutput(logits=model.output(hidden).logits(), last_hidden_state=hidden)


def pretraining(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of each token and of one sentence following the other, as BertForPreTraining does."""
    hidden = encoder_hidden(model.encoder, inputs, key)
    return ModelOutput(
        prediction_logits=model.output(hidden).logits(), seq_relationship_logits=model.sentence(hidden),
        last_hidden_state=hidden,
    )  # fmt: skip


def encoder_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify a sequence, or every token."""
    keys = split_keys(key)
    hidden = encoder_hidden(model.backbone, inputs, keys[0])
    return ModelOutput(logits=model.head(hidden, key=keys[1]), last_hidden_state=hidden)


def encoder_span(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score every token as either end of an answer, as BertForQuestionAnswering does."""
    return ends(encoder_classifier(model, inputs, key, fields))


def ends(found: ModelOutput) -> ModelOutput:
    """Split two scores a token into those of an answer's first and last token."""
    start, end = found.logits[..., 0], found.logits[..., 1]
    return replace(found, logits=None, start_logits=start, end_logits=end)


def multiple_choice(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score the choices of each row: everything that is given is [B, A, T]."""
    flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), inputs)
    found = encoder_classifier(model, flat, key, fields)
    return replace(found, logits=found.logits.reshape(inputs.input_ids.shape[:-1]))


def shifted(inputs: Inputs, fields: Fields) -> Inputs:
    """Shift the source to the right as the decoder's input, where none is given, as BART does to restore a text.

    Raises:
      ValueError: without `decoder_input_ids`, where there are no ids, or config.json has no `decoder_start_token_id`.
    """
    if inputs.decoder_input_ids is not None:
        return inputs
    if fields.get("decoder_start_token_id") is None or inputs.input_ids is None:
        needed = "decoder_start_token_id in config.json" if inputs.inputs_embeds is None else "ids of the source"
        raise ValueError(f"an encoder-decoder needs decoder_input_ids, or {needed}; got none")
    ids = jnp.roll(inputs.input_ids, 1, axis=-1).at[..., 0].set(fields.integer("decoder_start_token_id"))
    return replace(inputs, decoder_input_ids=ids)


def decoder_hidden(
    model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields
) -> tuple[Float[Array, "B S D"], Float[Array, "B T D"]]:
    """Run an encoder-decoder: what either side gives."""
    inputs, keys = shifted(inputs, fields), split_keys(key)
    source, seen = source_of(inputs)
    memory = model.encode(source, seen, key=keys[0])
    mask, positions = visible(inputs.decoder_attention_mask), inputs.decoder_position_ids
    beside = {} if positions is None else {"positions": positions}
    return memory, model.decode(inputs.decoder_input_ids, memory, seen, mask=mask, key=keys[1], **beside)


def seq2seq_model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states of both sides, as T5Model and BartModel do."""
    memory, hidden = decoder_hidden(model, inputs, key, fields)
    return ModelOutput(last_hidden_state=hidden, encoder_last_hidden_state=memory)


def seq2seq_lm(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of the token after each of the target, as T5ForConditionalGeneration does."""
    memory, hidden = decoder_hidden(model, inputs, key, fields)
    logits = model.output(hidden).logits()
    return ModelOutput(logits=logits, last_hidden_state=hidden, encoder_last_hidden_state=memory)


def seq2seq_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify by what the decoder makes of the last end token, as T5 and BART do, or every token."""
    keys = split_keys(key)
    memory, hidden = decoder_hidden(model.backbone, inputs, keys[0], fields)
    if model.head.cfg.pool == "last":
        at = jnp.arange(inputs.input_ids.shape[-1])
        logits = model.head(hidden, jnp.max(jnp.where(is_end(inputs, fields), at, 0), axis=-1), key=keys[1])
        logits = jnp.where(all_alike(count_ends(inputs, fields)), logits, jnp.nan)
    else:
        logits = model.head(hidden, key=keys[1])
    return ModelOutput(logits=logits, last_hidden_state=hidden, encoder_last_hidden_state=memory)


def is_end(inputs: Inputs, fields: Fields) -> Bool[Array, "*B T"]:
    """Return which tokens end a source."""
    return inputs.input_ids == fields.integer("eos_token_id")


def count_ends(inputs: Inputs, fields: Fields) -> Int[Array, "*B"]:
    """Count the end tokens of each row."""
    return is_end(inputs, fields).sum(axis=-1)


def all_alike(counts: Int[Array, "*B"]) -> Bool[Array, ""]:
    """Return whether all rows have as many end tokens, and one at least, without which transformers refuses them."""
    return (counts.min() == counts.max()) & (counts.min() > 0)


def seq2seq_span(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score every token as either end of an answer, as BartForQuestionAnswering does."""
    return ends(seq2seq_classifier(model, inputs, key, fields))
