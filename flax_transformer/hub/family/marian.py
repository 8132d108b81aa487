"""Marian checkpoints, as those of OPUS-MT: BART's names, without its positions and norms."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import seq2seq_lm, seq2seq_model
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.side import BIAS, COPIES, SIDES, read_embedding, read_sides, write_sides
from flax_transformer.hub.table import embedding
from flax_transformer.models.seq2seq import Seq2SeqConfig


def read(fields: Fields) -> Seq2SeqConfig:
    """Make our config of config.json's fields."""
    fields.only(share_encoder_decoder_embeddings=True, static_position_embeddings=True, normalize_embedding=False)
    if fields.get("decoder_vocab_size") is not None:
        fields.only(decoder_vocab_size=fields.integer("vocab_size", 58_101))
    return Seq2SeqConfig(
        embedding=read_embedding(fields, 58_101, position="sinusoidal_halves"),
        output_bias=fields.flag("output_bias", True),
        **read_sides(fields),
    )


def write(config: Seq2SeqConfig) -> dict[str, Any]:
    """Make config.json's fields of our config; as Marian does, the last token is padding and begins a sentence.

    Raises:
      ValueError: when sines and cosines are not in Marian's order.
    """
    if config.embedding.position != "sinusoidal_halves":
        raise ValueError(f"Marian's positions are sinusoidal_halves, got {config.embedding.position}")
    last = config.embedding.vocab - 1
    return write_sides(config) | {"eos_token_id": 0, "pad_token_id": last, "decoder_start_token_id": last}


def _model(fields: Fields) -> Seq2SeqConfig:
    return replace(read(fields), output_bias=False)


FAMILIES = {
    "marian": Family(
        model_type="marian",
        architectures={
            "MarianMTModel": Architecture(read, seq2seq_lm, BIAS, uses=("respond",)),
            "MarianModel": Architecture(
                _model, seq2seq_model, base=True, ignored=("^final_logits_bias$",), uses=("embed",)
            ),
        },
        table=(*embedding("embedding.token", "shared"), *SIDES),
        write=write,
        prefix="model.",
        ignored=(r"(^|\.)(encoder|decoder)\.embed_positions\.weight$",),
        copies=COPIES,
    )
}
