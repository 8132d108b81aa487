"""ImageGPT checkpoints (Chen et al. 2020): GPT-2's tensors, RMSNorm's scales, an output layer of the colours alone."""

from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, causal_hidden, causal_lm, causal_model
from flax_transformer.hub.family import gpt2
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import COLOURS, Inputs
from flax_transformer.hub.registration import LOOKED_UP, Architecture, Family
from flax_transformer.hub.table import embedding, linear
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.imagegpt import imagegpt_small
from flax_transformer.ops.split_keys import split_keys

CONFIG = replace(
    gpt2.CONFIG,
    like=replace(imagegpt_small(), tied_output=True, outputs=None),
    only={"add_cross_attention": False, "tie_word_embeddings": False},
)
read = CONFIG.read


def _writer(fields: Fields) -> CausalConfig:
    config = read(fields)
    return replace(config, tied_output=False, outputs=config.embedding.vocab - 1)


def _classifier(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.labels, pool="mean", bias=False)


def mean_classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify by the mean of all hidden states, as ImageGPTForImageClassification does."""
    keys = split_keys(key)
    hidden = causal_hidden(model.backbone, inputs, keys[0])
    return ModelOutput(logits=model.output(hidden, key=keys[1]), last_hidden_state=hidden)


FAMILIES = {
    "imagegpt": Family(
        model_type="imagegpt",
        architectures={
            "ImageGPTForCausalImageModeling": Architecture(
                _writer, causal_lm, embedding("head.token", "lm_head"), uses=("text-generation",),
                inputs=COLOURS,
            ),
            "ImageGPTModel": Architecture(
                read, causal_model, base=True, ignored=(r"^lm_head\.",), uses=("feature-extraction",), inputs=COLOURS
            ),
            "ImageGPTForImageClassification": Architecture(
                _classifier, mean_classifier, linear("head.output", "score"), at="backbone.",
                ignored=(r"^lm_head\.",), uses=("classification",), inputs=COLOURS,
            ),
        },
        table=gpt2.TABLE,
        write=CONFIG.write,
        prefix="transformer.",
        ignored=(r"\.attn\.(bias|masked_bias)$",),
        looked_up={**LOOKED_UP, "token_type_ids": "embedding.token"},
    )
}  # fmt: skip
