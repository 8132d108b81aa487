"""Decoders of words that look at something else: what each family's are in the checkpoint of both sides, and alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flax_transformer.hub.config import ConfigTable, choice
from flax_transformer.hub.family import bert, gpt2, roberta
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import STATES_TO_TEXT
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.seq2seq_side import BOTH, ROWS, side
from flax_transformer.hub.side_call import looking_layers, states_to_text
from flax_transformer.hub.table import Table, as_decoder, embedding, matrix, norm, under
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.multimodal.vision_encoder_decoder import captioner, text_reader, trocr_words, words_of
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn.attention import CrossAttentionConfig

LOOKS = {"add_cross_attention": True, "is_decoder": True}


@dataclass(frozen=True)
class Words:
    """A family's decoder that looks at what an encoder gives."""

    read: Callable[[Any, Fields], Seq2SeqConfig]
    """`read(encoder, fields)`: our config of an encoder's, None where states are given, and the decoder's fields."""
    write: Callable[[Seq2SeqConfig], dict[str, Any]]
    """The decoder's fields."""
    table: Table
    """Its tensors, by their names below `decoder.`."""
    copies: Mapping[str, str]
    """Tensors that are others once more, as a `Family` has them; names below `decoder.`."""
    ignored: tuple[str, ...] = ()
    """Patterns of names that say nothing, as a `Family` has them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """What else stands for parts of names in files, as a `Family` has it."""


def _gpt2() -> Words:
    config = replace(
        gpt2.CONFIG, only={**gpt2.CONFIG.only, "add_cross_attention": True, "scale_attn_by_inverse_layer_idx": False}
    )
    cross = (
        *norm("trunk.blocks.cross_residual.norm", "h.{}.ln_cross_attn"),
        *matrix("trunk.blocks.cross.query", "h.{}.crossattention.q_attn"),
        *matrix(("trunk.blocks.cross.key", "trunk.blocks.cross.value"), "h.{}.crossattention.c_attn"),
        *matrix("trunk.blocks.cross.out", "h.{}.crossattention.c_proj", inputs=2),
    )
    return Words(
        read=lambda encoder, fields: captioner(encoder, config.read(fields)),
        write=lambda ours: {**config.write(words_of(ours)), **LOOKS},
        table=as_decoder(under((*gpt2.TABLE, *cross), "", "transformer.")),
        copies={"lm_head.weight": "transformer.wte.weight"},
        ignored=gpt2.FAMILIES["gpt2"].ignored,
    )


def _bert(config: ConfigTable, base: str, out: Table, copies: Mapping[str, str], dense: str | None = None) -> Words:
    """Return BERT's or one of its kin: `dense` is the activation of the layer before the output, or the blocks' own."""
    like = config.like
    config = replace(
        config, like=CausalConfig(embedding=like.embedding, block=like.block, depth=like.depth),
        only={**config.only, **LOOKS, "tie_word_embeddings": True},
    )  # fmt: skip

    def read(encoder: Any, fields: Fields) -> Seq2SeqConfig:
        words = config.read(fields)
        return captioner(encoder, words, output_bias=True, output_dense=dense or words.block.feedforward.activation)

    return Words(
        read=read,
        write=lambda ours: {**config.write(words_of(ours)), **LOOKS},
        table=(*as_decoder(under((*bert.TABLE, *bert.CROSS), "", f"{base}.")), *out),
        copies=copies,
        ignored=bert.BUFFERS,
    )


def _roberta(kind: str) -> Words:
    copies = {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias",
    }  # fmt: skip
    return _bert(roberta.CONFIGS[kind], "roberta", roberta.OUT, copies, "gelu")


def _trocr() -> Words:
    def reads(fields: Fields) -> dict[str, int]:
        return {} if fields["use_learned_position_embeddings"] else {"offset": fields.integer("pad_token_id", 1) + 1}

    def writes(words: CausalConfig) -> dict[str, int]:
        padding = {} if words.embedding.position == "learned" else {"pad_token_id": words.embedding.offset - 1}
        return {"layernorm_embedding": words.embedding.norm is not None, **padding}

    rows = {name: ours for name, ours in ROWS.items() if not name.startswith(("encoder_", "decoder_", "output_"))}
    config = ConfigTable(
        trocr_words(50_265),
        {
            **rows,
            "decoder_layers": "depth",
            "decoder_attention_heads": "heads",
            "decoder_ffn_dim": "inner",
            "use_learned_position_embeddings": choice("position", {True: "learned", False: "sinusoidal_spanning"}),
            "layernorm_embedding": choice("embedding.norm", {True: 1e-5, False: None}),
            "tie_word_embeddings": "tied_output",
            "dropout": "dropout",
        },
        only={"decoder_layerdrop": 0.0},
        reads=reads,
        writes=writes,
    )

    def read(encoder: Any, fields: Fields) -> Seq2SeqConfig:
        seen = fields.integer("cross_attention_hidden_size", None)
        if seen is None:
            return captioner(encoder, config.read(fields))
        found = text_reader(encoder, config.read(fields))
        if seen != (width := found.decoder.block.cross.memory_width):
            raise ValueError(
                f"a decoder must look at states as wide as the encoder's, got cross_attention_hidden_size={seen} and "
                f"{width}"
            )
        return found

    def write(ours: Seq2SeqConfig) -> dict[str, Any]:
        cross = ours.decoder.block.cross
        seen = cross.memory_width if isinstance(cross, CrossAttentionConfig) else None
        return {**config.write(words_of(ours)), **LOOKS, "cross_attention_hidden_size": seen}

    at = "model.decoder"
    return Words(
        read=read,
        write=write,
        table=(
            *embedding("embedding.token", f"{at}.embed_tokens"),
            *embedding("embedding.position", f"{at}.embed_positions"),
            *norm("embedding.norm", f"{at}.layernorm_embedding"),
            *side("decoder", at, BOTH),
            *embedding("head.token", "output_projection"),
        ),
        copies={"output_projection.weight": f"{at}.embed_tokens.weight"},
        ignored=(r"embed_positions\._float_tensor$",),
        # transformers 5 gives the layers of any decoder the names of its ViT's when it saves both.
        renamed={rf"^decoder\.{at}\.encoder\.layer\.": f"decoder.{at}.layers."},
    )


WORDS = {
    "gpt2": _gpt2(),
    "bert": _bert(bert.CONFIG, "bert", under(bert.OUT, "", "cls.predictions."), {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }),
    **{kind: _roberta(kind) for kind in roberta.KINDS},
    "trocr": _trocr(),
}  # fmt: skip


def looking(kind: str, known: Family, call: Callable[..., Any] = states_to_text) -> Family:
    """Return a family's decoder by itself, which is given the states that it looks at.

    Args:
      known: the family as it is without.
      call: how it is called.
    """
    words = WORDS[kind]
    name, alone = next((name, each) for name, each in known.architectures.items() if "text-generation" in each.uses)
    return replace(
        known,
        architectures={
            name: Architecture(
                partial(words.read, None), call, base=True, uses=("text2text-generation",),
                inputs=STATES_TO_TEXT, layers=looking_layers, ignored=alone.ignored,
            )
        },
        table=words.table,
        write=words.write,
        ignored=words.ignored,
        copies=words.copies,
        looks=None,
    )  # fmt: skip


def kind_of(config: Seq2SeqConfig) -> str:
    """Name the family of a decoder, by what it is built of."""
    if config.output_dense is not None:
        return "roberta" if config.embedding.offset else "bert"
    return "gpt2" if config.decoder.block.residual.norm_position == "pre" else "trocr"
