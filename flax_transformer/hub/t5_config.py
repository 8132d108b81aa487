"""What T5's config.json says (Raffel et al. 2020): our configs of it, and it of our configs."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from flax_transformer.hub.family import ACTIVATIONS, SPELLING, Fields
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import BlockConfig, EmbeddingConfig, Precision, RelativeConfig
from flax_transformer.ops import even_attention

PRECISION = Precision(wide_residual=True)
"""Numbers outgrow float16: `transformers`, too, has the last kernel of feed-forward layers in float32, and with it all
that is added to what comes out."""

MT5 = {"vocab_size": 250_112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
"""What mT5's config.json need not say, and T5's would."""


def settled(fields: Fields, names: Collection[str]) -> Fields:
    """Say whether the output layer is the embedding table, which only the names of the tensors tell.

    Transformers 5 writes `tie_word_embeddings` true whatever the model, and T5 1.1, whose published config.json says
    false, is without a layer of its own where transformers 5 made it. With hidden states scaled it is always tied.
    """
    if _scaled(fields):
        return fields
    own = any(name.endswith("lm_head.weight") for name in names)
    said = {} if _is_mt5(fields) else {"scale_decoder_outputs": False}
    return fields.updated({"tie_word_embeddings": not own, **said})


def _is_mt5(fields: Fields) -> bool:
    return fields.get("model_type") == "mt5"


def _scaled(fields: Fields) -> bool:
    """Read whether hidden states are scaled before the output layer, which mT5 never does."""
    tied = fields.flag("tie_word_embeddings", True)
    return not _is_mt5(fields) and fields.flag("scale_decoder_outputs", tied)


def read(fields: Fields) -> Seq2SeqConfig:
    """Make our config of config.json's fields, once they are `settled`."""
    encoder = read_encoder(fields)
    return Seq2SeqConfig(
        embedding=encoder.embedding,
        encoder=encoder.block,
        decoder=replace(encoder.block, cross=True),
        encoder_depth=encoder.depth,
        decoder_depth=fields.integer("num_decoder_layers", None) or encoder.depth,
        relative=encoder.relative,
        tied_output=fields.flag("tie_word_embeddings", True),
        output_scale=encoder.block.embed**-0.5 if _scaled(fields) else 1.0,
    )


def read_encoder(fields: Fields) -> EncoderConfig:
    """Make the config of the encoder alone."""
    if _is_mt5(fields):
        fields = Fields.of({**MT5, **fields})
    embed, rate = fields.integer("d_model", 512), fields.number("dropout_rate", 0.1)
    *gated, name = str(fields.get("feed_forward_proj", "relu")).split("-")
    if gated not in ([], ["gated"]) or name not in ACTIVATIONS:
        known = ", ".join(("gated-gelu", *ACTIVATIONS))
        raise ValueError(f"config.json has feed_forward_proj={fields['feed_forward_proj']!r}; supported are {known}")
    if gated and name == "gelu":
        name = "gelu_new"  # T5 1.1 approximates
    fields.only(dense_act_fn=name, is_gated_act=bool(gated))
    return EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=fields.integer("vocab_size", 32_128), embed=embed, position="none", scaled=False, dropout=rate,
            init_std=fields.number("initializer_factor", 1.0), precision=PRECISION,
        ),
        block=BlockConfig(
            embed=embed, heads=fields.integer("num_heads", 8), head_width=fields.integer("d_kv", 64),
            hidden=fields.integer("d_ff", 2048), norm="rms", norm_position="pre", bias=False, scale=1.0,
            norm_eps=fields.number("layer_norm_epsilon", 1e-6), activation=ACTIVATIONS[name], gated=bool(gated),
            dropout=rate, attention_dropout=rate, activation_dropout=rate, attend=even_attention, precision=PRECISION,
        ),
        depth=fields.integer("num_layers", 6),
        relative=RelativeConfig(
            buckets=fields.integer("relative_attention_num_buckets", 32),
            max_distance=fields.integer("relative_attention_max_distance", 128),
        ),
    )  # fmt: skip


def write_mt5(config: Seq2SeqConfig | EncoderConfig) -> dict[str, Any]:
    """Make the fields of an mT5 of our config.

    Raises:
      ValueError: for hidden states that are scaled before the output layer, or as `write` does.
    """
    fields = write(config)
    if fields.pop("scale_decoder_outputs", False):
        raise ValueError(f"mT5 does not scale what goes into its output layer, got output_scale={config.output_scale}")
    return fields


def write(config: Seq2SeqConfig | EncoderConfig) -> dict[str, Any]:
    """Make config.json's fields of our config.

    Raises:
      ValueError: for a gated GELU that is not the approximate one, which T5's config.json cannot say.
    """
    both = isinstance(config, Seq2SeqConfig)
    block, depth = (config.encoder, config.encoder_depth) if both else (config.block, config.depth)
    name = SPELLING[block.activation]
    if block.gated and name == "gelu":
        raise ValueError(f"T5's gated GELU is gelu_tanh, got {block.activation}")
    fields = {
        "vocab_size": config.embedding.vocab,
        "d_model": block.embed,
        "d_kv": block.width,
        "d_ff": block.hidden,
        "num_heads": block.heads,
        "num_layers": depth,
        "num_decoder_layers": config.decoder_depth if both else depth,
        "feed_forward_proj": ("gated-gelu" if name == "gelu_new" else f"gated-{name}") if block.gated else name,
        "layer_norm_epsilon": block.norm_eps,
        "dropout_rate": block.dropout,
        "initializer_factor": config.embedding.init_std or 1.0,
        "relative_attention_num_buckets": config.relative.buckets,
        "relative_attention_max_distance": config.relative.max_distance,
        "is_encoder_decoder": both,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }
    if both:
        fields |= {"tie_word_embeddings": config.tied_output, "scale_decoder_outputs": config.output_scale != 1}
    return fields
