"""Marian checkpoints, as those of OPUS-MT: BART's names, without its positions and norms."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.call import seq2seq_lm, seq2seq_model
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import EMBEDDED_TO_TEXT
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.seq2seq_side import ADDS, BIAS, COPIES, ONLY, ROWS, SIDES, SIZES
from flax_transformer.hub.table import embedding
from flax_transformer.models.preset import abstract
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.marian import marian
from flax_transformer.nn import with_fields
from flax_transformer.parallel import logical_axes, path_name


def _one_vocabulary(fields: Fields) -> dict[str, Any]:
    if fields.get("decoder_vocab_size") is not None:
        fields.only(decoder_vocab_size=fields.integer("vocab_size"))
    return {}


def _tokens(config: Seq2SeqConfig) -> dict[str, int]:
    """Return Marian's: the last token, of both vocabularies, is padding and begins a sentence."""
    last = min(each.vocab for each in (config.embedding, config.source_embedding) if each is not None) - 1
    return {"eos_token_id": 0, "pad_token_id": last, "decoder_start_token_id": last}


CONFIG = ConfigTable(
    with_fields(marian(), **SIZES),
    ROWS,
    only={
        **ONLY, "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
        "normalize_embedding": False,
    },
    adds=ADDS,
    reads=_one_vocabulary,
    writes=_tokens,
)  # fmt: skip
APART = replace(
    CONFIG,
    like=replace(CONFIG.like, source_embedding=CONFIG.like.embedding),
    rows={**ROWS, "vocab_size": "source_embedding.vocab", "decoder_vocab_size": "embedding.vocab"},
    only={**CONFIG.only, "share_encoder_decoder_embeddings": False},
    adds={**ADDS, "share_encoder_decoder_embeddings": False},
    reads=None,
)
"""Of two vocabularies, each with a table of its own."""


def read(fields: Fields) -> Seq2SeqConfig:
    """Make our config of config.json's fields."""
    if fields.flag("share_encoder_decoder_embeddings", True):
        return CONFIG.read(fields)
    if fields.get("decoder_vocab_size") is None:
        fields = fields.updated({"decoder_vocab_size": fields.integer("vocab_size", CONFIG.like.embedding.vocab)})
    return APART.read(fields)


def write(config: Seq2SeqConfig) -> dict[str, Any]:
    """Make config.json's fields of our config."""
    return (CONFIG if config.source_embedding is None else APART).write(config)


def _model(fields: Fields) -> Seq2SeqConfig:
    return replace(read(fields), output_bias=False)


def adopt(model: Any) -> Any:
    """Put a model whose sines and cosines take turns in Marian's order, all sines first; it computes the same.

    Every parameter with an axis of the model width has its channels reordered, and table rows that only fill up go.
    """
    config = getattr(model, "cfg", None)
    if not isinstance(config, Seq2SeqConfig) or config.embedding.position != "sinusoidal" or config.source_embedding:
        return model
    if isinstance(jax.tree.leaves(model)[0], jax.ShapeDtypeStruct):
        return jax.eval_shape(adopt, model)
    width, vocab = config.embedding.width, config.embedding.vocab
    order = np.r_[0:width:2, 1:width:2]

    def ordered(path: tuple, leaf: Any) -> Any:
        name = path_name(path)
        axes = logical_axes(name, leaf.ndim)
        if "embed" in axes:
            leaf = jnp.take(leaf, order, axis=axes.index("embed"))
        elif re.search(r"(norm\.(scale|bias)|(out|down)\.bias)$", name):
            leaf = jnp.take(leaf, order, axis=-1)
        return leaf[:vocab] if axes[0] == "vocab" else leaf

    embedding = replace(config.embedding, position="sinusoidal_halves", multiple=1)
    like = abstract(replace(config, embedding=embedding))
    leaves = jax.tree.leaves(jax.tree_util.tree_map_with_path(ordered, model))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


OWN = "source_embedding.token.embedding"
TABLE = (
    *(replace(row, unless=OWN) for row in embedding("embedding.token", "shared")),
    *(replace(row, given=OWN) for row in embedding("embedding.token", "decoder.embed_tokens")),
    *embedding("source_embedding.token", "encoder.embed_tokens"),
    *SIDES,
)
TIED = {"lm_head.weight": "decoder.embed_tokens.weight"}
"""Where there is one vocabulary, that is a copy of the shared table in turn."""

FAMILIES = {
    "marian": Family(
        model_type="marian",
        architectures={
            "MarianMTModel": Architecture(
                read, seq2seq_lm, BIAS, inputs=EMBEDDED_TO_TEXT, uses=("text2text-generation",)
            ),
            "MarianModel": Architecture(
                _model,
                seq2seq_model,
                base=True,
                ignored=("^final_logits_bias$",),
                inputs=EMBEDDED_TO_TEXT,
                uses=("feature-extraction",),
            ),
        },
        table=TABLE,
        write=write,
        adopt=adopt,
        prefix="model.",
        ignored=(r"(^|\.)(encoder|decoder)\.embed_positions\.weight$",),
        copies=TIED | {name: table for name, table in COPIES.items() if name not in TIED},
    )
}
