"""ALBERT, an encoder with the world's weights, that stands outside of the package.

    import albert                                     # registers the family
    pretrained = hub.load("albert/albert-base-v2")    # a folder or hub id; hub.save writes what `transformers` opens

Lan et al. 2019 (https://arxiv.org/abs/1909.11942): BERT with one block for all layers, and narrow embeddings. The first
half is the model, in the package a file of `models/text`; the second is how it stands in a checkpoint, there a file of
`hub/family`.
"""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer import hub
from flax_transformer.frozen import frozen
from flax_transformer.hub.call import encoder_classifier, pooled_encoder
from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.head import classifier, guesser
from flax_transformer.hub.registration import Family
from flax_transformer.hub.table import Row, embedding, linear, norm
from flax_transformer.models.encoder import Encoder, EncoderConfig
from flax_transformer.nn import Embedding, EmbeddingConfig, transformer_block
from flax_transformer.ops import Mask


@frozen
class AlbertConfig(EncoderConfig):
    """An encoder that runs one block `depth` times."""

    def build(self, rngs: nnx.Rngs) -> "Albert":
        """Make the encoder."""
        return Albert(self, rngs=rngs)


class Albert(Encoder):
    """Hidden states of tokens that all see each other."""

    def __init__(self, cfg: AlbertConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        self.block = cfg.block.build(rngs)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Encode tokens; arguments as `Encoder`'s."""
        keys = [None] * (self.cfg.depth + 1) if key is None else jax.random.split(key, self.cfg.depth + 1)
        x = self.embedding(tokens, positions=positions, types=types, key=keys[0])
        for key in keys[1:]:
            x = self.block(x, mask=mask, key=key)
        return x


def read(fields: Fields) -> AlbertConfig:
    """Make our config of config.json's fields; what we cannot do is refused, not ignored."""
    fields.only(num_hidden_groups=1, inner_group_num=1, position_embedding_type="absolute")
    embed, eps = fields.integer("hidden_size", 4096), fields.number("layer_norm_eps", 1e-12)
    std, dropout = fields.number("initializer_range", 0.02), fields.number("hidden_dropout_prob", 0.0)
    return AlbertConfig(
        embedding=EmbeddingConfig(
            vocab=fields.integer("vocab_size", 30_000), embed=fields.integer("embedding_size", 128), project=embed,
            position="learned", max_length=fields.integer("max_position_embeddings", 512), scaled=False, norm=True,
            types=fields.integer("type_vocab_size", 2), norm_eps=eps, dropout=dropout, init_std=std,
        ),
        block=transformer_block(
            embed=embed, heads=fields.integer("num_attention_heads", 64), norm_eps=eps, dropout=dropout, init_std=std,
            inner=fields.integer("intermediate_size", 16_384), activation=fields.activation("hidden_act", "gelu_new"),
            attention_dropout=fields.number("attention_probs_dropout_prob", 0.0),
        ),
        depth=fields.integer("num_hidden_layers", 12),
    )  # fmt: skip


def write(config: AlbertConfig) -> dict[str, Any]:
    """Make config.json's fields of our config; `hub.wrap` reads them back and refuses a model they do not describe."""
    table, block = config.embedding, config.block
    return {
        "vocab_size": table.vocab, "embedding_size": table.embed, "max_position_embeddings": table.max_length,
        "type_vocab_size": table.types, "hidden_size": block.embed, "intermediate_size": block.feedforward.inner,
        "num_attention_heads": block.attention.heads, "num_hidden_layers": config.depth,
        "hidden_act": spelled(block.feedforward.activation), "layer_norm_eps": block.residual.norm_eps,
        "hidden_dropout_prob": block.residual.dropout, "initializer_range": block.feedforward.init_std or 0.02,
        "attention_probs_dropout_prob": block.attention.attention_dropout,
    }  # fmt: skip


LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
TABLE = (  # our path, their name; `{}` in a name would be the layer of a stack
    *embedding("embedding.token", "embeddings.word_embeddings"),
    *embedding("embedding.position", "embeddings.position_embeddings"),
    *embedding("embedding.type", "embeddings.token_type_embeddings"),
    *norm("embedding.norm", "embeddings.LayerNorm"),
    *linear("embedding.project", "encoder.embedding_hidden_mapping_in"),
    *linear("block.attention.query", f"{LAYER}.attention.query"),
    *linear("block.attention.key", f"{LAYER}.attention.key"),
    *linear("block.attention.value", f"{LAYER}.attention.value"),
    *linear("block.attention.out", f"{LAYER}.attention.dense", inputs=2),  # of N heads and their width H
    *norm("block.attention_residual.norm", f"{LAYER}.attention.LayerNorm"),
    *linear("block.feedforward.up", f"{LAYER}.ffn"),
    *linear("block.feedforward.down", f"{LAYER}.ffn_output"),
    *norm("block.feedforward_residual.norm", f"{LAYER}.full_layer_layer_norm"),
)
POOLER, OUTPUT = linear("head.dense", "albert.pooler"), linear("head.output", "classifier")
POOL = {"pool": "first", "dense": "tanh"}
LARGER = (r"^predictions\.", r"^sop_classifier\.", r"^(albert\.)?pooler\.")  # what a checkpoint may have besides
GUESS = (
    *linear("dense", "predictions.dense"),
    *norm("norm", "predictions.LayerNorm"),
    Row(("output_bias",), "predictions.bias"),
)
ARCHITECTURES = {
    "AlbertModel": classifier(
        read, pooled_encoder, linear("head.dense", "pooler"), 0, base=True, uses=("embed",), ignored=LARGER, **POOL
    ),
    "AlbertForMaskedLM": guesser(read, GUESS, uses=("fill",), ignored=LARGER),
    "AlbertForSequenceClassification": classifier(
        read, encoder_classifier, POOLER + OUTPUT, dropout={"classifier_dropout_prob": 0.1}, uses=("classify",),
        ignored=LARGER, **POOL,
    ),
}  # fmt: skip
FAMILIES = {
    "albert": Family(
        model_type="albert",
        architectures=ARCHITECTURES,
        table=TABLE,
        write=write,
        prefix="albert.",
        ignored=(r"embeddings\.position_ids$",),
        copies={
            "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
    )
}
hub.register(FAMILIES)
