"""ModernBERT checkpoints (Warner et al. 2024)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, encoder_hidden, encoder_lm, encoder_model, ends
from flax_transformer.hub.config import ConfigTable, choice
from flax_transformer.hub.family.mpnet import UNTYPED
from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.layer_types import FULL, SLIDING, depth_of, read_two_rotaries, read_window, write_two_rotaries
from flax_transformer.hub.layer_types import write_window as write_layer_types
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import TensorRow, embedding, linear, norm
from flax_transformer.models.encoder import MaskedLMConfig, WindowedEncoderConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.padded import Padded
from flax_transformer.models.text.modernbert import modernbert_base
from flax_transformer.nn import NormConfig
from flax_transformer.ops.split_keys import split_keys

BASES = "global_rope_theta", "local_rope_theta"
NORMS = {False: "layer_without_bias", True: "layer"}
IDS = {
    "bos_token_id": 50_281, "cls_token_id": 50_281, "eos_token_id": 50_282, "sep_token_id": 50_282,
    "pad_token_id": 50_283,
}  # fmt: skip
"""Special tokens of the published vocabulary."""
POOLS = {"cls": "first", "mean": "mean"}


def _reads(fields: Fields) -> dict[str, Any]:
    """Read windows, which config.json gives as the whole width, and rotary positions of either kind of layer."""
    depth, every = depth_of(fields), fields.integer("global_attn_every_n_layers", 3)
    usual = [SLIDING if i % max(every, 1) else FULL for i in range(depth)]
    windows = read_window(fields, fields.integer("local_attention", 128) // 2, usual)
    return {
        "windows": windows if isinstance(windows, tuple) else (windows,),
        "rotary": read_two_rotaries(fields, full=160_000.0, sliding=10_000.0, names=BASES, both=True),
        "residual_init_std": fields.number("initializer_range", 0.02) / math.sqrt(2 * depth),
    }


def _writes(config: WindowedEncoderConfig) -> dict[str, Any]:
    said = write_layer_types(config.windows, config.depth)
    width = said.pop("sliding_window")
    rotary = write_two_rotaries(config.block.attention.rotary, BASES, both=True)
    # Where config.json says nothing, transformers has the ids of the published vocabulary, and opens no smaller one.
    ids = dict.fromkeys(IDS) if config.embedding.vocab <= max(IDS.values()) else IDS
    return {**ids, **said, **rotary, "local_attention": 128 if width is None else 2 * width}


CONFIG = ConfigTable(
    modernbert_base().encoder,
    {
        "vocab_size": "vocab",
        "max_position_embeddings": "max_length",
        "hidden_size": "embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_activation": "activation",
        "norm_eps": ("norm_eps", "embedding.norm.eps"),
        "norm_bias": choice(("residual.norm", "feedforward_residual.norm", "embedding.norm.kind"), NORMS),
        "attention_bias": "attention.bias",
        "mlp_bias": "feedforward.bias",
        "initializer_range": "init_std",
        "embedding_dropout": "embedding.dropout",
        "attention_dropout": ("attention_dropout", "block.residual.dropout"),
        "mlp_dropout": "activation_dropout",
    },
    reads=_reads,
    writes=_writes,
)
read = CONFIG.read


def _head(fields: Fields) -> dict[str, Any]:
    """Read the dense layer before the output, its activation and its norm, of a classifier."""
    kind = NORMS[fields.flag("norm_bias", False)]
    return {
        "dense": fields.activation("classifier_activation", "gelu"),
        "dense_bias": fields.flag("classifier_bias", False),
        "dense_norm": NormConfig(kind=kind, eps=fields.number("norm_eps", 1e-5)),
        "dropout": fields.number("classifier_dropout", 0.0),
    }


def _classifier(outputs: int | None = None, *, pooled: bool = False) -> Callable[[Fields], ClassifierConfig]:
    """Return how a classifier is read; None: of as many outputs as there are labels."""

    def config(fields: Fields) -> ClassifierConfig:
        pool = "every"
        if pooled:
            said = fields.get("classifier_pooling", "cls")
            if said not in POOLS:
                raise ValueError(f"config.json has classifier_pooling={said!r}; supported are {', '.join(POOLS)}")
            pool = POOLS[said]
        count = fields.labels if outputs is None else outputs
        return with_head(read(fields), outputs=count, pool=pool, **_head(fields))

    return config


def _says(config: ClassifierConfig) -> dict[str, Any]:
    head, names = config.head, {ours: theirs for theirs, ours in POOLS.items()}
    return {
        "classifier_activation": spelled(head.dense), "classifier_bias": head.dense_bias,
        "classifier_dropout": head.dropout, "classifier_pooling": names.get(head.pool, "cls"),
    }  # fmt: skip


def _masked(fields: Fields) -> MaskedLMConfig:
    head = _head(fields)
    return MaskedLMConfig(
        encoder=read(fields), activation=head["dense"], dense_bias=head["dense_bias"],
        tied_output=fields.flag("tie_word_embeddings", True), output_bias=fields.flag("decoder_bias", True),
    )  # fmt: skip


def _says_masked(config: MaskedLMConfig) -> dict[str, Any]:
    return {
        "classifier_activation": spelled(config.resolved_activation), "classifier_bias": config.dense_bias,
        "decoder_bias": config.output_bias, "tie_word_embeddings": config.tied_output,
    }  # fmt: skip


def _score(
    model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields, *, real_first: bool = False
) -> ModelOutput:
    """Classify a text, or every token; `real_first`: by the first token that is no padding, not by the very first."""
    keys = split_keys(key)
    hidden = states = encoder_hidden(model.backbone, inputs, keys[0])
    if inputs.attention_mask is not None:
        real = jnp.broadcast_to(inputs.attention_mask != 0, hidden.shape[:-1])
        if model.head.cfg.pool == "mean":
            states = Padded(hidden, real)
        elif real_first:
            states = jnp.take_along_axis(hidden, jnp.argmax(real, axis=-1)[..., None, None], axis=-2)
    return ModelOutput(logits=model.head(states, key=keys[1]), last_hidden_state=hidden)


def _span(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    return ends(_score(model, inputs, key, fields))


def _choose(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score the choices of each row: everything that is given is [B, A, T]."""
    flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), inputs)
    found = _score(model, flat, key, fields, real_first=True)
    return replace(found, logits=found.logits.reshape(inputs.input_ids.shape[:-1]))


LAYER, BLOCKS = "layers.{}.", "trunk.blocks."
PROJECTIONS = tuple(f"{BLOCKS}attention.{part}" for part in ("query", "key", "value"))
GATE_UP = tuple(f"{BLOCKS}feedforward.{part}" for part in ("gate", "up"))
TABLE = (
    *embedding("embedding.token", "embeddings.tok_embeddings"),
    *norm("embedding.norm", "embeddings.norm"),
    *norm(f"{BLOCKS}attention_residual.norm", f"{LAYER}attn_norm", later=True),
    *linear(PROJECTIONS, f"{LAYER}attn.Wqkv"),
    *linear(f"{BLOCKS}attention.out", f"{LAYER}attn.Wo", inputs=2),
    *norm(f"{BLOCKS}feedforward_residual.norm", f"{LAYER}mlp_norm"),
    *linear(GATE_UP, f"{LAYER}mlp.Wi"),
    *linear(f"{BLOCKS}feedforward.down", f"{LAYER}mlp.Wo"),
    *norm("trunk.norm", "final_norm"),
)
MASKED = (
    *linear("dense", "head.dense"),
    *norm("norm", "head.norm"),
    TensorRow(("output_bias",), "decoder.bias"),
    TensorRow(("head.token.embedding",), "decoder.weight"),
    TensorRow(("head.output_bias",), "decoder.bias"),
)
OUTPUT = (
    *linear("head.dense", "head.dense"),
    *norm("head.dense_norm", "head.norm"),
    *linear("head.output", "classifier"),
)
LARGER, ALL = (r"^decoder\.",), (r"^(head|decoder|classifier)\.",)


def _on_top(config: Callable[[Fields], ClassifierConfig], call: Callable[..., ModelOutput], use: str) -> Architecture:
    return Architecture(config, call, OUTPUT, _says, at="backbone.", ignored=LARGER, uses=(use,), inputs=UNTYPED)


ARCHITECTURES = {
    "Model": Architecture(
        read, encoder_model, base=True, ignored=ALL, uses=("feature-extraction",), inputs=UNTYPED
    ),
    "ForMaskedLM": Architecture(
        _masked, encoder_lm, MASKED, _says_masked, at="encoder.", uses=("fill-mask",), inputs=UNTYPED
    ),
    "ForSequenceClassification": _on_top(_classifier(pooled=True), _score, "classification"),
    "ForTokenClassification": _on_top(_classifier(), _score, "token-classification"),
    "ForQuestionAnswering": _on_top(_classifier(2), _span, "question-answering"),
    "ForMultipleChoice": _on_top(_classifier(1, pooled=True), _choose, "multiple-choice"),
}  # fmt: skip

FAMILIES = {
    "modernbert": Family(
        model_type="modernbert",
        architectures={f"ModernBert{name}": architecture for name, architecture in ARCHITECTURES.items()},
        table=TABLE,
        write=CONFIG.write,
        prefix="model.",
        copies={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    )
}
