"""ViLT checkpoints (Kim et al. 2021).

Patches come in their order, all of them: transformers shuffles those of an image that fills its place, and repeats
padding at random, of which what a model gives does not depend.

Axes: B texts, I images of a text, T tokens, S tokens and patches, D width.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family import cct, vit
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, masked_lm, settle_pooler
from flax_transformer.hub.image_call import LAYERS
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, TensorRow, conv, embedding, linear, norm, parameter
from flax_transformer.models.answer_head import answering
from flax_transformer.models.head import ClassifierConfig
from flax_transformer.models.multimodal.vilt import ViltConfig, vilt_encoder
from flax_transformer.nn import StemConfig
from flax_transformer.ops.split_keys import split_keys

ROWS = {
    "vocab_size": "vocab",
    "max_position_embeddings": "max_length",
    "type_vocab_size": "types",
    "modality_type_vocab_size": "kinds",
    "image_size": sides("image"),
    "patch_size": sides("patches.patch"),
    "num_channels": "channels",
    "hidden_size": "embed",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "feedforward.inner",
    "hidden_act": "activation",
    "layer_norm_eps": ("norm_eps", "embedding.norm"),
    "initializer_range": "init_std",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "qkv_bias": "attention.bias",
}
STEM = {"stem_sizes": "patches.inner", "max_pool": "patches.pool"}
"""Of convolutions in place of patches, as no checkpoint of transformers has them; they are told as CCT's are."""
BARE = vilt_encoder()
CONFIG = ConfigTable(BARE, ROWS)
STEMMED = ConfigTable(
    replace(BARE, patches=StemConfig(embed=BARE.block.embed, image=BARE.patches.image, inner=(64,)), table_std=0.2),
    {**{name: ours for name, ours in ROWS.items() if name != "patch_size"}, **STEM},
)


def read(fields: Fields) -> ViltConfig:
    """Make our config of config.json's fields."""
    return (STEMMED if "stem_sizes" in fields else CONFIG).read(fields)


def write(config: ViltConfig) -> dict[str, Any]:
    """Write config.json's fields."""
    return (STEMMED if isinstance(config.patches, StemConfig) else CONFIG).write(config)


GIVEN = Signature(
    ("input_ids", "pixel_values"), ("attention_mask", "token_type_ids", "pixel_mask"),
    order=("input_ids", "attention_mask", "token_type_ids", "pixel_values", "pixel_mask"),
)  # fmt: skip
SEVERAL = replace(GIVEN, several=True)
TEXT = "embeddings.text_embeddings"
TABLE = (
    *embedding("embedding.token", f"{TEXT}.word_embeddings"),
    *embedding("embedding.position", f"{TEXT}.position_embeddings"),
    *embedding("embedding.type", f"{TEXT}.token_type_embeddings"),
    *norm("embedding.norm", f"{TEXT}.LayerNorm"),
    *parameter("class_token", "embeddings.cls_token", ones=1),
    *parameter("positions", "embeddings.position_embeddings", ones=1),
    *parameter("kind", "embeddings.token_type_embeddings.weight"),
    *conv("patches.patch", "embeddings.patch_embeddings.projection"),
    *cct.STEM,
    *vit.blocks("trunk.blocks", "encoder.layer"),
    *norm("trunk.norm", "layernorm"),
)
MASKED = (
    *linear("dense", "mlm_score.transform.dense"),
    *norm("norm", "mlm_score.transform.LayerNorm"),
    TensorRow(("output_bias",), "mlm_score.decoder.bias"),
)
POOLER = linear("head.dense", "vilt.pooler.dense")
OTHERS, GUESSES, UNPOOLED = r"^(itm_score|classifier|rank_output)\.", r"^mlm_score\.", r"^(vilt\.)?pooler\."
HEADS = (OTHERS, GUESSES)


def scores(pooler: str, layers: str) -> Table:
    """Return the rows of a head that answers: its pooler, the layer between with its norm, the output layer."""
    return (
        *linear("head.pooler.dense", pooler),
        *linear("head.scores.dense", f"{layers}.0"),
        *norm("head.scores.norm", f"{layers}.1"),
        *linear("head.scores.output", f"{layers}.3"),
    )


def hidden(model: Any, inputs: Inputs, key: PRNGKeyArray | None = None) -> Float[Array, "*B S D"]:
    """Run an encoder of texts and images."""
    mask, seen = inputs.attention_mask, inputs.pixel_mask
    return model(
        inputs.input_ids, images=images_of(inputs), visible=None if mask is None else mask != 0,
        seen=None if seen is None else seen != 0, types=inputs.token_type_ids, key=key,
    )  # fmt: skip


def pooled(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and what the pooler, if there is one, makes of the first, as ViltModel does."""
    keys = split_keys(key)
    states = hidden(model.backbone, inputs, keys[0])
    first = model.head(states, key=keys[1]) if fields.flag("has_pooler", True) else None
    return ModelOutput(last_hidden_state=states, pooler_output=first)


def guessing(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return logits of each token of the text, as ViltForMaskedLM does."""
    states = hidden(model.encoder, inputs, key)
    text = states[..., : inputs.input_ids.shape[-1], :]
    return ModelOutput(logits=model.output(text).logits(), last_hidden_state=states)


def classified(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score a text with its image, or images: answers, classes, or how well they match."""
    keys = split_keys(key)
    states = hidden(model.backbone, inputs, keys[0])
    return ModelOutput(logits=model.head(states, key=keys[1]), last_hidden_state=states)


def labelled(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify each token of the text, as ViltForTokenClassification does."""
    keys = split_keys(key)
    states = hidden(model.backbone, inputs, keys[0])
    text = states[..., : inputs.input_ids.shape[-1], :]
    return ModelOutput(logits=model.head(text, key=keys[1]), last_hidden_state=states)


def check(inputs: Inputs, fields: Fields) -> None:
    """Refuse more patches than a checkpoint takes, of which transformers draws some at random.

    Raises:
      ValueError: says how many.
    """
    limit, (rows, columns) = (
        fields.get("max_image_length"),
        read(fields).patches.grid_of(*inputs.pixel_values.shape[-2:]),
    )
    if isinstance(limit, int) and 0 < limit < rows * columns:
        raise ValueError(
            f"an image must have at most max_image_length patches, {limit} by config.json, got {rows} × {columns}; -1 "
            "there takes them all"
        )


def answered(fields: Fields) -> ClassifierConfig:
    """Put a head of answers on the encoder."""
    return answering(read(fields), fields.labels)


def compared(fields: Fields) -> ClassifierConfig:
    """Put a head on the encoder that sees several images of a text."""
    images = 2 if fields.get("num_images") == -1 else fields.integer("num_images", 2)  # -1: nothing is said
    return answering(read(fields), fields.labels, images=images)


BOTH = {"at": "backbone.", "inputs": GIVEN, "check": check, **LAYERS}
DROPOUT = {"hidden_dropout_prob": 0.0}
FIRST = {"pool": "first", "dense": "tanh"}


def _given(made: Architecture) -> Architecture:
    """Return an architecture of texts that takes images too."""
    return replace(made, inputs=GIVEN, check=check, **LAYERS)


FAMILIES = {
    "vilt": Family(
        model_type="vilt",
        architectures={
            "ViltModel": Architecture(
                partial(vit.pooled, read), pooled, linear("head.dense", "pooler.dense"),
                lambda config: {"has_pooler": False} if config.head.dense is None else {}, base=True, ignored=HEADS,
                uses=("feature-extraction",), **BOTH,
            ),
            "ViltForMaskedLM": _given(masked_lm(read, MASKED, guessing, ignored=(OTHERS, UNPOOLED))),
            "ViltForQuestionAnswering": Architecture(
                answered, classified, scores("vilt.pooler.dense", "classifier"), ignored=HEADS,
                uses=("visual-question-answering",), **BOTH
            ),
            "ViltForImageAndTextRetrieval": _given(
                classifier(
                    read, classified, (*POOLER, *linear("head.output", "rank_output")), 1, ignored=HEADS,
                    uses=("visual-reasoning",), **FIRST,
                )
            ),
            "ViltForImagesAndTextClassification": Architecture(
                compared, classified, scores("vilt.pooler.dense", "classifier"),
                lambda config: {"num_images": config.head.images}, ignored=HEADS, uses=("visual-reasoning",),
                **{**BOTH, "inputs": SEVERAL},
            ),
            "ViltForTokenClassification": _given(
                classifier(
                    read, labelled, linear("head.output", "classifier"), dropout=DROPOUT, ignored=(*HEADS, UNPOOLED),
                    uses=("token-classification",),
                )
            ),
        },
        table=TABLE,
        write=write,
        prefix="vilt.",
        ignored=(r"(^|\.)text_embeddings\.(position_ids|token_type_ids)$",),
        copies={
            "mlm_score.decoder.weight": f"vilt.{TEXT}.word_embeddings.weight",
            "mlm_score.bias": "mlm_score.decoder.bias",
        },
        settled=partial(settle_pooler, "ViltModel"),
    )
}  # fmt: skip
