"""Whisper checkpoints (Radford et al. 2022): BART's names, with convolutions over frames in place of source tokens."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.audio_call import audio_classifier
from flax_transformer.hub.call import causal_lm, seq2seq_lm, seq2seq_model
from flax_transformer.hub.check import check_frames
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import AUDIO, AUDIO_TO_TEXT
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.seq2seq_side import BOTH, SELF, side
from flax_transformer.hub.table import Table, conv, embedding, linear, norm, parameter
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.vision_encoder_decoder import words_of
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.speech.whisper import WhisperEncoderConfig, whisper_tiny
from flax_transformer.nn import TrunkConfig, with_fields


def _tokens(config: Seq2SeqConfig) -> dict[str, int]:
    """Return the start and the end as the published vocabularies have them, which begin with those of GPT-2's."""
    end = 50_257 if config.embedding.vocab >= 51_865 else 50_256
    last = config.embedding.vocab - 1
    end, start = min(end, last), min(end + 1, last)
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}


CONFIG = ConfigTable(
    replace(whisper_tiny(), output_bias=False),
    {
        "vocab_size": "vocab",
        "num_mel_bins": "front.channels",
        "d_model": "embed",
        "encoder_layers": "encoder.depth",
        "decoder_layers": "decoder.depth",
        "encoder_attention_heads": "encoder.heads",
        "decoder_attention_heads": "decoder.heads",
        "encoder_ffn_dim": "encoder.inner",
        "decoder_ffn_dim": "decoder.inner",
        "max_source_positions": "max_source",
        "max_target_positions": "max_length",
        "activation_function": "activation",
        "dropout": ("encoder.dropout", "dropout"),
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
        "init_std": "init_std",
    },
    only={"tie_word_embeddings": True, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    adds={"is_encoder_decoder": True, "tie_word_embeddings": True},
    writes=_tokens,
)  # fmt: skip
read = CONFIG.read


def read_words(fields: Fields) -> CausalConfig:
    """Make the config of the decoder alone, which looks at no recording."""
    return words_of(read(fields))


def write(config: Seq2SeqConfig | WhisperEncoderConfig | CausalConfig) -> dict[str, Any]:
    """Make config.json's fields of both sides, or of one beside another as wide that nobody runs."""
    if isinstance(config, Seq2SeqConfig):
        return CONFIG.write(config)
    attention, inner = config.block.attention, config.block.feedforward
    words = isinstance(config, CausalConfig)
    alike = with_fields(
        CONFIG.like, embed=config.block.embed, heads=attention.heads,
        init_std=(config.embedding if words else config.front).init_std,
        attention_dropout=attention.attention_dropout, activation=inner.activation,
        activation_dropout=inner.activation_dropout,
    )  # fmt: skip
    if not words:
        return CONFIG.write(replace(alike, encoder=config))
    decoder = TrunkConfig(block=replace(config.block, cross=attention), depth=config.depth)
    return CONFIG.write(replace(alike, embedding=config.embedding, decoder=decoder))


def _classifier(fields: Fields) -> ClassifierConfig:
    fields.only(use_weighted_layer_sum=False)
    return with_head(
        read(fields).encoder, outputs=fields.labels, pool="mean", dense="identity",
        dense_width=fields.integer("classifier_proj_size", 256),
    )  # fmt: skip


def _encoder(ours: str) -> Table:
    return (
        *conv(f"{ours}front.conv1", "encoder.conv1"),
        *conv(f"{ours}front.conv2", "encoder.conv2"),
        *parameter(f"{ours}positions", "encoder.embed_positions.weight"),
        *side(f"{ours}trunk", "encoder", SELF),
        *norm(f"{ours}trunk.norm", "encoder.layer_norm"),
    )


TABLE = (
    *_encoder("encoder."),
    # Either side alone is another model of ours.
    *(replace(row, given="front.conv1.kernel") for row in _encoder("")),
    *(replace(row, unless="front.conv1.kernel") for row in side("trunk", "decoder", SELF)),
    *(replace(row, unless="front.conv1.kernel") for row in norm("trunk.norm", "decoder.layer_norm")),
    *embedding("embedding.token", "decoder.embed_tokens"),
    *embedding("embedding.position", "decoder.embed_positions"),
    *side("decoder", "decoder", BOTH),
    *norm("decoder.norm", "decoder.layer_norm"),
)
HEAD = (*linear("head.dense", "projector"), *linear("head.output", "classifier"))
BOTH_SIDES = {"inputs": AUDIO_TO_TEXT, "check": check_frames}

FAMILIES = {
    "whisper": Family(
        model_type="whisper",
        architectures={
            "WhisperForConditionalGeneration": Architecture(read, seq2seq_lm,
                uses=("text2text-generation",), **BOTH_SIDES),
            "WhisperModel": Architecture(read, seq2seq_model, base=True, uses=("feature-extraction",), **BOTH_SIDES),
            "WhisperForCausalLM": Architecture(
                read_words, causal_lm, (), lambda config: {"is_encoder_decoder": False}, uses=("text-generation",),
                ignored=(r"^(model\.)?encoder\.", r"\.encoder_attn(_layer_norm)?\."),
            ),
            "WhisperForAudioClassification": Architecture(
                _classifier, audio_classifier, HEAD, lambda config: {"classifier_proj_size": config.head.dense_width},
                at="backbone.", base=True, ignored=(r"^(model\.)?decoder\.", r"^proj_out\."), uses=("classification",),
                inputs=AUDIO, check=check_frames,
            ),
        },
        table=TABLE,
        write=write,
        prefix="model.",
        copies={"proj_out.weight": "decoder.embed_tokens.weight"},
    )
}  # fmt: skip
