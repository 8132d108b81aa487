"""ALBERT, an encoder with the world's weights, that stands outside of the package.

    import albert                                     # registers the family
    pretrained = hub.load("albert/albert-base-v2")    # a folder or hub id; hub.save writes what `transformers` opens

Lan et al. 2019 (https://arxiv.org/abs/1909.11942): BERT with one block for all layers, and narrow embeddings. The first
half is the model, in the package a file of `models/text`; the second is how it stands in a checkpoint, there a file of
`hub/family`.
"""

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer import hub
from flax_transformer.frozen import frozen
from flax_transformer.hub.call import encoder_classifier, pooled_encoder
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.head import classifier, masked_lm
from flax_transformer.hub.registration import Family
from flax_transformer.hub.table import TensorRow, embedding, linear, norm
from flax_transformer.models.encoder import Encoder, EncoderConfig
from flax_transformer.nn import Embedding, EmbeddingConfig, transformer_block
from flax_transformer.ops import Mask
from flax_transformer.order import Layer


@frozen
class AlbertConfig(EncoderConfig):
    """An encoder that runs one block `depth` times."""

    def build(self, rngs: nnx.Rngs) -> "Albert":
        """Make the encoder."""
        return Albert(self, rngs=rngs)


class Albert(Encoder):
    """Hidden states of tokens that all see each other."""

    layer_order = ("embedding", Layer("block"))  # one block, however often it runs

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


CONFIG = ConfigTable(  # our config of a config.json that says nothing, and where ours is of each field that it may have
    AlbertConfig(
        embedding=EmbeddingConfig(
            vocab=30_000, embed=128, project=4096, position="learned", max_length=512, types=2, scaled=False,
            norm=1e-12, init_std=0.02,
        ),
        block=transformer_block(
            embed=4096, heads=64, inner=16_384, activation="gelu_tanh", norm_eps=1e-12, init_std=0.02
        ),
        depth=12,
    ),
    {
        "vocab_size": "vocab",
        "embedding_size": "embedding.embed",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "types",
        "hidden_size": ("block.embed", "embedding.project"),
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": ("norm_eps", "embedding.norm"),
        "initializer_range": "init_std",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    only={"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"},  # others are refused
)  # fmt: skip
read = CONFIG.read

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
    TensorRow(("output_bias",), "predictions.bias"),
)
ARCHITECTURES = {
    "AlbertModel": classifier(
        read, pooled_encoder, linear("head.dense", "pooler"), 0, base=True,
        uses=("feature-extraction",), ignored=LARGER, **POOL
    ),
    "AlbertForMaskedLM": masked_lm(read, GUESS, uses=("fill-mask",), ignored=LARGER),
    "AlbertForSequenceClassification": classifier(
        read, encoder_classifier, POOLER + OUTPUT, dropout={"classifier_dropout_prob": 0.1}, uses=("classification",),
        ignored=LARGER, **POOL,
    ),
}  # fmt: skip
FAMILIES = {
    "albert": Family(
        model_type="albert",
        architectures=ARCHITECTURES,
        table=TABLE,
        write=CONFIG.write,
        prefix="albert.",
        ignored=(r"embeddings\.position_ids$",),
        copies={
            "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
    )
}
hub.register(FAMILIES)
