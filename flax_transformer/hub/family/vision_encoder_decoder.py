"""Picture-to-text checkpoints: an encoder of images and a decoder of words, each of a family of its own."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from flax_transformer.hub.captioner import both_layers, image_to_text
from flax_transformer.hub.config_diff import config_diff
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import IMAGES, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.registry import families
from flax_transformer.hub.table import Table, TensorRow, linear, under
from flax_transformer.hub.text_decoder import WORDS, kind_of
from flax_transformer.models.head import ClassifierConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig


def _inside(fields: Fields, side: str) -> Fields:
    """Return the config.json of the encoder or the decoder.

    Raises:
      ValueError: what is no object, or of a family that cannot stand there.
    """
    found = fields.get(side)
    if not isinstance(found, dict):
        raise ValueError(f"config.json must give {side} as an object, it is {found!r:.40}")
    kind = found.get("model_type")
    known = list(WORDS) if side == "decoder" else list(_encoders())
    if kind not in known:
        raise ValueError(f"config.json has {side}.model_type={kind!r}; supported there are {', '.join(known)}")
    return Fields.of(found)


def _encoders() -> dict[str, tuple[Family, Architecture]]:
    """List the families that encode images into hidden states, and the class of each that is nearest to just that."""
    found = {}
    for kind, family in families().items():
        able = [each for each in family.architectures.values() if each.inputs.needs == IMAGES.needs]
        able = [each for each in able if {"feature-extraction", "classification"} & set(each.uses)]
        if able and family.composed is None:
            found[kind] = family, next((each for each in able if "feature-extraction" in each.uses), able[0])
    return found


def _encoder(architecture: Architecture, fields: Fields) -> Any:
    """Read the config of an encoder without what stands on it."""
    return architecture.backbone_of(architecture.config(fields))


def read(fields: Fields) -> Seq2SeqConfig:
    """Make the config of both sides of config.json's fields."""
    fields.only(tie_word_embeddings=False)
    inside = _inside(fields, "encoder")
    encoder, words = _encoder(_encoders()[inside["model_type"]][1], inside), _inside(fields, "decoder")
    return WORDS[words["model_type"]].read(encoder, words)


def write(config: Seq2SeqConfig) -> dict[str, Any]:
    """Write config.json's fields of both sides.

    Raises:
      ValueError: an encoder or a decoder that is of no family.
    """
    encoder = config.encoder.backbone if isinstance(config.encoder, ClassifierConfig) else config.encoder
    kind = kind_of(config)
    words = {"model_type": kind, **WORDS[kind].write(config)}
    if config_diff(config, WORDS[kind].read(encoder, Fields.of(words))):
        raise ValueError(f"the decoder must be one that a family of checkpoints has: {', '.join(WORDS)}")
    return {
        "encoder": _written(encoder), "decoder": words, "is_encoder_decoder": True, "tie_word_embeddings": False,
    }  # fmt: skip


def _written(encoder: Any) -> dict[str, Any]:
    for kind, (family, architecture) in _encoders().items():
        try:
            said = {"model_type": kind, **family.write(encoder)}
            if not config_diff(encoder, _encoder(architecture, Fields.of(said))):
                return said
        except (AttributeError, TypeError, ValueError):
            continue  # of another family
    raise ValueError(f"the encoder must be one that a family of checkpoints has, got {type(encoder).__name__}")


def _rows(table: Table, ours: str, theirs: str, side: str) -> Iterator[TensorRow]:
    """Put a side's rows where they are, and let them be fitted to that side's fields."""
    for row in under(table, ours, theirs):
        yield row if row.fit is None else replace(row, fit=partial(_fitted, row.fit, side))


def _fitted(fit: Any, side: str, tensor: np.ndarray, before: Fields, after: Fields) -> np.ndarray:
    return fit(tensor, _inside(before, side), _inside(after, side))


@cache
def composed(fields: Fields) -> Family:
    """Return the family of checkpoints with these two sides."""
    inside = _inside(fields, "encoder")
    family, architecture = _encoders()[inside["model_type"]]
    projected = isinstance(read(fields).encoder, ClassifierConfig)
    words = WORDS[_inside(fields, "decoder")["model_type"]]
    general = FAMILIES["vision-encoder-decoder"]
    own = {
        name: replace(
            each, marks=tuple(dict.fromkeys((*architecture.marks, "hidden_states"))),
            layers=partial(both_layers, architecture),
        )
        for name, each in general.architectures.items()
    }  # fmt: skip
    return replace(
        general,
        architectures=own,
        table=(
            *_rows(family.table, "encoder.backbone." if projected else "encoder.", "encoder.", "encoder"),
            *linear("encoder.head.output", "enc_to_dec_proj"),
            *under(words.table, "", "decoder."),
        ),
        ignored=(*family.ignored, *words.ignored),
        renamed={**family.renamed, **words.renamed},
        modules=family.modules,
        copies={f"decoder.{name}": f"decoder.{other}" for name, other in words.copies.items()},
    )


IMAGES_TO_TEXT = Signature(("pixel_values", "decoder_input_ids"), ("decoder_attention_mask",))
FAMILIES = {
    "vision-encoder-decoder": Family(
        model_type="vision-encoder-decoder",
        architectures={
            "VisionEncoderDecoderModel": Architecture(
                read,
                image_to_text,
                base=True,
                uses=("text2text-generation",),
                inputs=IMAGES_TO_TEXT,
                ignored=(r"^encoder\.pooler\.", r"^encoder\.embeddings\.mask_token$"),
            )
        },
        table=(),
        write=write,
        composed=composed,
    )
}
