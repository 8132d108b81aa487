"""Every family this package has, narrow, with the objective it is trained on and a batch of any size for it."""

from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.encoder import MaskedLMConfig
from flax_transformer.models.preset import find_preset, module_of, presets
from flax_transformer.nn import AttentionConfig, EmbeddingConfig
from flax_transformer.objective import OBJECTIVES
from tests.batch import taught

V, D = 40, 32
PRESETS = (
    "gpt2", "llama3_2_1b", "mistral_7b", "qwen2_5_0_5b", "qwen3_0_6b",
    "bert_base_uncased", "roberta_base", "distilbert_base_uncased",
    "longformer_base_4096", "bigbird_roberta_base", "nystromformer_512",
    "mpnet_base", "modernbert_base",
    "t5_small", "t5_v1_1_small", "bart_base", "marian", "transformer_base",
    "led_base_16384", "pegasus_large", "mbart_large_cc25", "m2m100_418m",
    "evolved_transformer_base", "universal_base",
)  # fmt: skip
TEXTS = [name for name, preset in presets().items() if ".text." in preset.__module__]
"""Presets of models that read text."""
IMAGES = (
    "vit_tiny_patch16", "deit_tiny_distilled", "dinov2_small", "dinov3_small", "mae_base", "beit_base_patch16",
    "eva02_tiny_patch14",
    "swin_tiny", "pvt_tiny", "mit_b0", "segformer_b0",
    "resnet18", "convnext_tiny", "mixer_small_patch32", "cct_2_3x2",
    "detr_resnet50",
)  # fmt: skip
"""A preset of each family that reads images."""
AUDIO_FILES = ("whisper_tiny", "wav2vec2_base")
"""A preset of each family that reads audio."""


def narrow(config, **changes):
    """Shrink a config: width D, two layers, V tokens, no dropout; as many kv heads for a query head as it has."""
    if not is_dataclass(config) or isinstance(config, type):
        return config
    given = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
    found = {name: narrow(value) for name, value in given.items()}
    found |= {name: 0.0 for name in given if name.endswith("dropout") and given[name] is not None}
    found |= {name: 2 for name in given if name.endswith("depth")}
    if isinstance(config, EmbeddingConfig):
        found |= {"vocab": V, "max_length": min(config.max_length, 512)}
    found |= {name: size for name, size in {"embed": D, "inner": 2 * D}.items() if name in given}
    if isinstance(config, AttentionConfig):
        few = config.resolved_kv_heads < config.heads
        found |= {"heads": 4, "kv_heads": 2 if few else None, "head_width": 8}
    if given.get("output_scale", 1.0) != 1.0:
        found["output_scale"] = D**-0.5
    return replace(config, **found | changes)


def family(name):
    """Return a preset's narrow config."""
    return narrow(find_preset(name)())


def build(config):
    """Make a model of it; always the same parameters."""
    return config.build(nnx.Rngs(0))


def objective(config, **options):
    """Return what models of that kind are trained on."""
    return replace(OBJECTIVES[module_of(config).use], **{"label_smoothing": 0.0, **options})


def batch(config, rows, length):
    """Draw rows of tokens, the last of them shorter, with all that the objective can make use of."""
    draw = np.random.default_rng(0)
    tokens, labels = draw.integers(4, V, (2, rows, length)).astype(np.int32)
    lengths = np.full(rows, length, np.int32)
    lengths[-1] -= length // 3
    real = (np.arange(length) < lengths[:, None]).astype(np.float32)
    if isinstance(config, CausalConfig):
        made = {"inputs": {"tokens": tokens}, "labels": labels, "weights": real}
    elif isinstance(config, MaskedLMConfig):
        places = np.argsort(draw.random((rows, length)), axis=1)[:, : max(2, length // 7)].astype(np.int32)
        chosen = {name: np.take_along_axis(x, places, 1) for name, x in (("labels", labels), ("weights", real))}
        made = {"inputs": {"tokens": tokens, "lengths": lengths}, "positions": places, **chosen}
        if config.encoder.embedding.types:
            made["inputs"]["types"] = np.tile(
                np.arange(length, dtype=np.int32) % config.encoder.embedding.types, (rows, 1)
            )
        if config.next_sentence:
            made["next_sentence"] = draw.integers(0, 2, rows).astype(np.int32)
    else:
        target = draw.integers(4, V, (rows, length + 1)).astype(np.int32)
        made = taught(tokens, lengths, target, lengths)
    return jax.tree.map(jnp.asarray, made)
