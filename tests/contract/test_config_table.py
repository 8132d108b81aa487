"""config.json and our configs say the same, whichever of a family's fields are changed, in both directions."""

import json
from pathlib import Path

import pytest

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registry import families
from flax_transformer.models.preset import abstract
from flax_transformer.nn import with_fields
from tests.contract.golden import DECODERS

TABLES = [
    (kind, name)
    for kind, family in families().items()
    for name in family.architectures
    if name in (next(iter(family.architectures)), "T5EncoderModel", "MT5EncoderModel") and not kind.startswith("timm_")
]
"""A class of each family, and two that have a table of their own; timm's arguments have none: they follow from a name,
and hub/test_timm_folder reads and writes them."""

GOLDEN = Path(__file__).parent.parent / "hub/golden"
LIKE = {"xlm-roberta": "roberta", "camembert": "roberta"}
INSIDE = {
    f"{kind}_{name}_model": (kind, f"{name}_config")
    for kind in ("clip", "siglip", "siglip2", "blip")
    for name in ("text", "vision")
} | {"git_vision_model": ("git", "vision_config")}
"""Families whose fields stand in those of another."""
FOR_OTHERS = {"bos_token_id", "eos_token_id", "decoder_start_token_id", "pad_token_id", "is_encoder_decoder"}
"""Fields that are written for `transformers`, and say nothing of our config, but that RoBERTa's positions are counted
from its padding token."""
TOGETHER = {"use_sliding_window", "sliding_window", "max_window_layers"}
"""Of a Qwen: any alone says nothing."""
LAYERS = {"layer_types", "num_hidden_layers"}
"""Of layers that are listed by kind, of which there are as many as are listed."""
AMONG = {"hidden_size", "video_token_id", "vision_start_token_id", "vision_end_token_id"}
"""Of texts with images among their tokens: one width of both, and marks that nothing here reads."""
UNREAD = {"num_key_value_heads", "head_dim", "moe_layer_freq", "scoring_func", "topk_method", "n_group", "topk_group"}
"""Of a DeepSeek, whose keys are made of latents: two follow from others, and groups come together."""
ONE = {
    "Qwen2ForCausalLM": LAYERS,
    "Qwen3ForCausalLM": LAYERS,
    "Qwen2VLForConditionalGeneration": LAYERS | AMONG,
    "Qwen2_5_VLForConditionalGeneration": LAYERS | AMONG,
    "OPTForCausalLM": {"hidden_size", "word_embed_proj_dim"},
    "GPTNeoXForCausalLM": {"rotary_pct", "num_attention_heads"},
    "FalconForCausalLM": {"num_kv_heads", "num_ln_in_parallel_attn"},  # of the other architecture
    "Phi3ForCausalLM": {"partial_rotary_factor"},
    "DeepseekV3ForCausalLM": UNREAD,
    "DeepseekV2ForCausalLM": UNREAD,
    "Gemma2ForCausalLM": LAYERS,
    "Gemma3ForCausalLM": LAYERS,
    "PvtModel": {"num_encoder_blocks", "patch_sizes", "strides", "sequence_reduction_ratios"},
    "DINOv3ViTModel": {"pos_embed_jitter", "pos_embed_shift"},
    "SegformerModel": {"num_encoder_blocks"},
    "Siglip2VisionModel": {"num_patches"},
    "BartForConditionalGeneration": {"tie_word_embeddings"},
    "MarianMTModel": {"tie_word_embeddings", "vocab_size"},
    "LEDForConditionalGeneration": {"tie_word_embeddings", "encoder_layers"},
    "PegasusForConditionalGeneration": {"tie_word_embeddings"},
    "MBartForConditionalGeneration": {"tie_word_embeddings"},
    "M2M100ForConditionalGeneration": {"tie_word_embeddings"},
    "ModernBertModel": LAYERS | {"cls_token_id", "sep_token_id"},
    "MPNetModel": {"relative_attention_num_buckets"},
    "ConvNextModel": {"num_stages"},
    "LongformerModel": {"num_hidden_layers"},
    "BigBirdModel": {"attention_type"},
    "NystromformerModel": {"num_landmarks"},
    "DetrForObjectDetection": {"num_channels", "use_timm_backbone"},
    "Mask2FormerForUniversalSegmentation": {"feature_strides", "common_stride"},
    "TimesformerModel": {"attention_type"},
    "T5EncoderModel": {"num_decoder_layers"},
    "Wav2Vec2Model": {"feat_extract_activation", "feat_extract_norm", "mask_time_prob", "num_feat_extract_layers"},
    "VisionEncoderDecoderModel": {"tie_word_embeddings"},
    "EncoderDecoderModel": {"tie_word_embeddings"},
    "WhisperForConditionalGeneration": {"tie_word_embeddings"},
    "MT5EncoderModel": {"num_decoder_layers"},
    "BlipTextModel": {"is_decoder"},
    "DiTTransformer2DModel": {"_class_name", "activation_fn", "norm_type", "out_channels"},
    "CLIPTextModel": {"projection_dim"},
    "AutoencoderKL": {
        "_class_name",
        "act_fn",
        "in_channels",
        "down_block_types",
        "out_channels",
        "up_block_types",
        "use_post_quant_conv",
        "use_quant_conv",
    },
    "CLIPVisionModel": {"projection_dim"},
}
"""Fields of which one value is supported, also of tiny heads, or that say nothing of a class: a vocabulary decides on
Marian's tokens."""


def fields_of(kind):
    whole, part = INSIDE.get(kind, (LIKE.get(kind, kind), None))
    found = json.loads((GOLDEN / whole / "config.json").read_text())
    return found[part] if part else found


def whole(kind, name, data):
    return families()[kind].architectures[name].config(Fields.of({**data, "model_type": kind}))


def backbone(kind, name, data):
    return families()[kind].architectures[name].backbone_of(whole(kind, name, data))


def variants(value):
    """Return other values of a field, of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, 3 * value]
    if isinstance(value, float):
        return [value / 2 + 0.0625]
    if isinstance(value, str):
        return ["relu", "gelu_new", "gated-relu", "basic", "bottleneck"]
    if isinstance(value, list):
        return [[2 * each for each in value]]
    if isinstance(value, dict) and "depths" in value:
        return [{**value, "depths": [2 * each for each in value["depths"]]}]
    if isinstance(value, dict) and "n_layer" in value:
        return [{**value, "n_layer": 2 * value["n_layer"]}]
    if isinstance(value, dict) and "spatial_merge_size" in value:
        return [{**value, "depth": 2 * value["depth"]}]
    if isinstance(value, dict) and "hidden_size" in value:
        return [{**value, "num_hidden_layers": 2 * value["num_hidden_layers"]}]
    if isinstance(value, dict) and "mrope_section" in value:
        return [{**value, "mrope_section": value["mrope_section"][::-1]}]
    if isinstance(value, dict):
        return [{**value, "factor": 2 * value["factor"]}]
    return [4, {"rope_type": "linear", "factor": 2.0}] if value is None else []


@pytest.mark.rotates
@pytest.mark.parametrize("kind", families())
def test_what_is_written_of_any_class_reads_as_the_same(kind):
    for name, known in families()[kind].architectures.items():
        for data in ({}, fields_of(kind))[families()[kind].composed is not None :]:
            config = whole(kind, name, {**data, "is_decoder": True} if name in DECODERS else data)
            beside = {} if known.writes is None else known.writes(config)
            said = {**families()[kind].write(known.backbone_of(config)), **beside}
            assert backbone(kind, name, said) == known.backbone_of(config), name


@pytest.mark.rotates
@pytest.mark.parametrize(("kind", "name"), TABLES, ids=[name for _, name in TABLES])
def test_a_field_is_read_as_it_is_written(kind, name):
    """Each changed alone gives another config, which is written, and read again, as the same."""
    write = families()[kind].write
    config = backbone(kind, name, fields_of(kind))
    said = write(config)
    silent = set()
    for field, value in said.items():
        read = [changed for other in variants(value) if (changed := accepted(kind, name, {**said, field: other}))]
        for changed in (each for each in read if each != config):
            again = {**said, **write(changed)}
            assert again[field] != value, field
            assert backbone(kind, name, again) == changed, field
        silent |= set() if any(each != config for each in read) else {field}
    assert silent <= FOR_OTHERS | TOGETHER | ONE.get(name, set())


def accepted(kind, name, data):
    """Read a config, if it is supported."""
    try:
        return backbone(kind, name, data)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("kind", "change", "rule"),
    [
        ("distilbert", {"norm_eps": 0.1}, r"would describe one with .*norm_eps 1e-12 instead of 0\.1"),
        ("bert", {"norm_position": "pre"}, "norm_position 'post' instead of 'pre'"),
        ("mt5", {"output_scale": 0.5}, r"output_scale 1\.0 instead of 0\.5"),
        ("t5", {"activation": "gelu", "gated": True}, "activation 'gelu_tanh' instead of 'gelu'"),
        ("gpt2", {"position": "none"}, "position 'learned' instead of 'none'"),
    ],
)
def test_what_no_field_can_say_is_refused(kind, change, rule):
    name = next(name for name in families()[kind].architectures if name.endswith("Model"))
    given = fields_of(kind)
    model = families()[kind].architectures[name].config(Fields.of({**given, "model_type": kind}))
    with pytest.raises(ValueError, match=rule):
        hub.wrap(abstract(with_fields(model, **change)), name)
