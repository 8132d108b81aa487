"""Make the golden checkpoints: tiny random models of every family, and what transformers says about some tokens.

    pip install torch==2.13.0 transformers
    python tests/hub/make_golden.py [NAME...]

Each folder of tests/hub/golden holds a checkpoint as `save_pretrained` writes it and `expected.npz`: inputs as
`in_NAME`, outputs as `out_NAME` (layers stacked, or `out_NAME.0`, … where their sizes differ), tokens of
`generate` as `greedy` and `beams`.
"""

import importlib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).parent / "golden"
V, TOKENS = 40, {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"vocab_size": V, "initializer_range": 0.3, **TOKENS}
SWIN = {
    "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 3, "mlp_ratio": 1, "image_size": 12,
    "patch_size": 2, "num_channels": 1, "initializer_range": 0.3, "use_absolute_embeddings": True, "num_labels": 5,
}  # fmt: skip
BEIT = {
    "hidden_size": 8, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "num_attention_heads": 2,
    "intermediate_size": 12, "vocab_size": 11,
    "image_size": 12, "patch_size": 2, "num_channels": 1, "use_mask_token": True, "initializer_range": 0.3,
    "use_relative_position_bias": True, "use_shared_relative_position_bias": True,
}  # fmt: skip
PVT = {
    "hidden_sizes": [8, 8], "depths": [1, 2], "num_encoder_blocks": 2, "num_attention_heads": [2, 4], "image_size": 16,
    "patch_sizes": [4, 2], "strides": [4, 2], "sequence_reduction_ratios": [2, 1], "mlp_ratios": [1, 2],
    "num_channels": 1, "num_labels": 5, "initializer_range": 0.3,
}  # fmt: skip
LLAMA = {
    **SMALL, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1000.0, "short_factor": [1.0], "long_factor": [2.0],
    "partial_rotary_factor": 0.5,
}  # fmt: skip
GEMMA = {
    "head_dim": 6, "sliding_window": 3, "final_logit_softcapping": 3.0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
DEEPSEEK = {
    "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6, "moe_intermediate_size": 12, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.5,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 0.8,
        "mscale_all_dim": 0.6,
    },
}  # fmt: skip
BERT = {
    **SMALL, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 32,
}  # fmt: skip
BART = {
    "vocab_size": V, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 32,
    "init_std": 0.3, "decoder_start_token_id": 2, "forced_eos_token_id": None, **TOKENS,
}  # fmt: skip
LED = {
    **{name: value for name, value in BART.items() if name != "max_position_embeddings"}, "encoder_layers": 2,
    "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32, "attention_window": [4, 8],
}  # fmt: skip
T5 = {
    "vocab_size": V, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 3, "initializer_factor": 1.0,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "pad_token_id": 3, "eos_token_id": 2,
    "decoder_start_token_id": 3,
}  # fmt: skip
ROPE = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}  # fmt: skip

VIT = {
    "image_size": 12, "patch_size": 4, "initializer_range": 0.3, "num_channels": 1, "hidden_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
}  # fmt: skip
MAE = {
    "decoder_hidden_size": 12, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 3,
    "decoder_intermediate_size": 8, "mask_ratio": 0.5,
}  # fmt: skip
FRAMES = {**VIT, "num_frames": 4, "num_labels": 5}
RESNET = {"num_channels": 1, "embedding_size": 4, "hidden_sizes": [8, 16], "depths": [1, 2]}
CONVNEXT = {
    "num_channels": 1, "hidden_sizes": [4, 8], "depths": [1, 2], "num_stages": 2, "layer_scale_init_value": 0.5,
    "initializer_range": 0.3,
}  # fmt: skip
UPERNET = {
    "hidden_size": 4, "auxiliary_channels": 4, "pool_scales": [1, 2], "initializer_range": 0.3,
    "backbone_config": transformers.ConvNextConfig(
        num_channels=1, hidden_sizes=[4, 6, 8], depths=[1, 1, 2], num_stages=3, layer_scale_init_value=0.5,
        initializer_range=0.3, out_features=["stage1", "stage2", "stage3"],
    ),
}  # fmt: skip
SEGFORMER = {
    "hidden_sizes": [8, 12], "depths": [1, 2], "num_encoder_blocks": 2, "num_attention_heads": [2, 3],
    "patch_sizes": [5, 3], "strides": [4, 2], "sr_ratios": [2, 1], "mlp_ratios": [1, 2], "num_channels": 1,
    "decoder_hidden_size": 4, "initializer_range": 0.3,
}  # fmt: skip
DETR = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 8, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8, "decoder_ffn_dim": 4, "num_queries": 5, "num_channels": 1, "init_std": 0.4,
    "use_timm_backbone": False,
    "backbone_config": transformers.ResNetConfig(
        num_channels=1, embedding_size=4, hidden_sizes=[8, 8, 16], depths=[1, 2, 1],
        out_features=["stage1", "stage2", "stage3"],
    ),
}  # fmt: skip
MASK2FORMER = {
    "feature_size": 32, "mask_feature_size": 8, "hidden_dim": 12, "encoder_feedforward_dim": 8, "dim_feedforward": 10,
    "encoder_layers": 1, "decoder_layers": 4, "num_attention_heads": 2, "num_queries": 5, "init_std": 0.3,
    "backbone_config": transformers.SwinConfig(
        num_channels=1, embed_dim=4, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 4], window_size=3, patch_size=2,
        mlp_ratio=1, image_size=32, out_features=["stage1", "stage2", "stage3", "stage4"], initializer_range=0.3,
    ),
}  # fmt: skip
TOWER = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
         "initializer_range": 0.3, "initializer_factor": 8.0}  # fmt: skip
END = V - 1
CLIP = {
    "text_config": {**TOWER, **TOKENS, "vocab_size": V, "max_position_embeddings": 16, "eos_token_id": END},
    "vision_config": {**TOWER, "image_size": 12, "patch_size": 4, "num_channels": 1},
}
SIGLIP = {
    "text_config": {**TOWER, "vocab_size": V, "max_position_embeddings": 16},
    "vision_config": {**TOWER, "image_size": 12, "patch_size": 4, "num_channels": 1},
}
SIGLIP2 = {
    "text_config": {**TOWER, "vocab_size": V, "max_position_embeddings": 16},
    "vision_config": {**TOWER, "num_patches": 9, "patch_size": 2, "num_channels": 1},
}
GIT = {
    **BERT, "vision_config": {**TOWER, "image_size": 12, "patch_size": 4, "num_channels": 1},
    "num_image_with_embedding": 2,
}  # fmt: skip
QWEN2_VL = {
    "text_config": {
        **{name: value for name, value in LLAMA.items() if name != "hidden_size"}, "hidden_size": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [1, 1, 2]},
    },
    "vision_config": {
        "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "depth": 2, "mlp_ratio": 1, "patch_size": 2,
        "in_channels": 1, "initializer_range": 0.3,
    },
    "image_token_id": 36, "video_token_id": 37, "vision_start_token_id": 38, "vision_end_token_id": 39,
}  # fmt: skip
QWEN2_5_VL = {
    **QWEN2_VL,
    "vision_config": {
        "hidden_size": 16, "out_hidden_size": 32, "num_heads": 2, "depth": 3, "intermediate_size": 12, "patch_size": 2,
        "in_channels": 1, "initializer_range": 0.3, "window_size": 4, "fullatt_block_indexes": [1],
    },
}  # fmt: skip
BLIP = {
    "text_config": {**TOWER, **TOKENS, "vocab_size": V, "max_position_embeddings": 32, "sep_token_id": END},
    "vision_config": {**TOWER, "image_size": 12, "patch_size": 4}, "image_text_hidden_size": 6,
    "initializer_range": 0.3,
}  # fmt: skip
VILT = {**VIT, "vocab_size": V, "max_position_embeddings": 16, "pad_token_id": 3}
LXMERT = {
    **SMALL, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "max_position_embeddings": 16,
    "l_layers": 1, "r_layers": 2, "x_layers": 2, "visual_feat_dim": 6, "num_qa_labels": 5,
}  # fmt: skip

WHISPER = {
    "vocab_size": V, "num_mel_bins": 5, "d_model": 8, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 12,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 10, "max_source_positions": 7,
    "max_target_positions": 24, "init_std": 0.3, "pad_token_id": 20, "bos_token_id": 20, "eos_token_id": 20,
    "decoder_start_token_id": 21, "begin_suppress_tokens": None,
}  # fmt: skip
WAV2VEC2 = {
    "vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16,
    "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2, "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
SPEECH = {
    "lang_to_id": {"<|en|>": 22, "<|de|>": 23}, "task_to_id": {"translate": 24, "transcribe": 25},
    "no_timestamps_token_id": 28, "is_multilingual": True, "max_initial_timestamp_index": 4, "suppress_tokens": [1, 2],
    "begin_suppress_tokens": [3, 20], "max_length": 24,
}  # fmt: skip
"""Of Whisper's generation_config.json: the text's tokens come first, then the marks, then times."""

CAPTIONER = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
    transformers.SwinConfig(**SWIN),
    transformers.GPT2Config(n_positions=32, n_embd=12, n_layer=2, n_head=2, add_cross_attention=True, **SMALL),
    decoder_start_token_id=1,
    **TOKENS,
)

ANSWERER = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
    transformers.BertConfig(
        hidden_size=10, num_hidden_layers=2, num_attention_heads=2, intermediate_size=14, max_position_embeddings=32,
        **SMALL,
    ),
    transformers.GPT2Config(n_positions=32, n_embd=12, n_layer=2, n_head=2, **SMALL),
    decoder_start_token_id=1, **TOKENS,
)  # fmt: skip

MODELS = {
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config(n_positions=32, n_embd=16, n_layer=2, n_head=2, **SMALL)),
    "imagegpt": (
        "ImageGPTForCausalImageModeling",
        transformers.ImageGPTConfig(n_positions=32, n_embd=8, n_layer=2, n_head=2, vocab_size=V, initializer_range=0.3),
    ),
    "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA, rope_parameters=ROPE)),
    "mistral": ("MistralForCausalLM", transformers.MistralConfig(**LLAMA, sliding_window=5, head_dim=6)),
    "mixtral": ("MixtralForCausalLM", transformers.MixtralConfig(**LLAMA, num_local_experts=4, sliding_window=5)),
    "qwen2": ("Qwen2ForCausalLM", transformers.Qwen2Config(**LLAMA, tie_word_embeddings=True)),
    "qwen3": ("Qwen3ForCausalLM", transformers.Qwen3Config(**LLAMA, head_dim=6)),
    "gemma2": (
        "Gemma2ForCausalLM",
        transformers.Gemma2Config(**{**LLAMA, **GEMMA, "layer_types": None}, attn_logit_softcapping=2.0),
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        transformers.Gemma3TextConfig(**{**LLAMA, **GEMMA, "num_hidden_layers": 3}),
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        transformers.Qwen3MoeConfig(
            **LLAMA, head_dim=6, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True
        ),
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        transformers.GPTNeoXConfig(
            **{name: value for name, value in LLAMA.items() if name != "num_key_value_heads"},
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        ),
    ),
    **{
        name: (
            "FalconForCausalLM",
            transformers.FalconConfig(
                hidden_size=16, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, **more, **SMALL
            ),
        )
        for name, more in (
            ("falcon", {}),
            ("falcon_alibi", {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2}),
        )
    },
    "opt": (
        "OPTForCausalLM",
        transformers.OPTConfig(
            vocab_size=V,
            hidden_size=16,
            ffn_dim=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            init_std=0.3,
            max_position_embeddings=32,
            **TOKENS,
        ),
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", transformers.DeepseekV3Config(**{**LLAMA, **DEEPSEEK})),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        transformers.DeepseekV2Config(**{**LLAMA, **DEEPSEEK, "q_lora_rank": None}, topk_method="group_limited_greedy"),
    ),
    "phi3": ("Phi3ForCausalLM", transformers.Phi3Config(**LLAMA, rope_parameters=LONG)),
    "bert": ("BertForPreTraining", transformers.BertConfig(**BERT)),
    "bert_decoder": ("BertLMHeadModel", transformers.BertConfig(**BERT, is_decoder=True)),
    "roberta_decoder": (
        "RobertaForCausalLM",
        transformers.RobertaConfig(**{**BERT, "max_position_embeddings": 36}, is_decoder=True),
    ),
    "big_bird_decoder": (
        "BigBirdForCausalLM",
        transformers.BigBirdConfig(**BERT, block_size=4, num_random_blocks=1, is_decoder=True),
    ),
    "whisper_decoder": (
        "WhisperForCausalLM",
        transformers.WhisperConfig(**{**WHISPER, **TOKENS, "max_target_positions": 32}),
    ),
    "roberta": ("RobertaForMaskedLM", transformers.RobertaConfig(**BERT)),
    "longformer": (
        "LongformerForMaskedLM",
        transformers.LongformerConfig(**{**BERT, "num_hidden_layers": 4}, attention_window=[8, 4, 8, 4]),
    ),
    "big_bird": (
        "BigBirdForPreTraining",
        transformers.BigBirdConfig(**BERT, block_size=4, num_random_blocks=1),
    ),
    "nystromformer": (
        "NystromformerForMaskedLM",
        transformers.NystromformerConfig(**BERT, num_landmarks=9, segment_means_seq_len=9, conv_kernel_size=5),
    ),
    "distilbert": (
        "DistilBertForQuestionAnswering",
        transformers.DistilBertConfig(
            dim=16, hidden_dim=24, n_layers=2, n_heads=2, max_position_embeddings=32, **SMALL
        ),
    ),
    "swin": ("SwinForImageClassification", transformers.SwinConfig(**SWIN)),
    "beit": ("BeitForMaskedImageModeling", transformers.BeitConfig(**BEIT)),
    "beit_segmentation": (
        "BeitForSemanticSegmentation",
        transformers.BeitConfig(**{**BEIT, "use_mask_token": False, "num_labels": 3, "auxiliary_channels": 4}),
    ),
    "pvt": ("PvtForImageClassification", transformers.PvtConfig(**PVT)),
    "electra": ("ElectraForPreTraining", transformers.ElectraConfig(**BERT, embedding_size=12)),
    "t5": ("T5ForConditionalGeneration", transformers.T5Config(**T5)),
    "mt5": ("MT5ForConditionalGeneration", transformers.MT5Config(**T5)),
    "bart": ("BartForConditionalGeneration", transformers.BartConfig(**BART)),
    "led": ("LEDForConditionalGeneration", transformers.LEDConfig(**LED)),
    "pegasus": ("PegasusForConditionalGeneration", transformers.PegasusConfig(**BART, scale_embedding=True)),
    "mbart": ("MBartForConditionalGeneration", transformers.MBartConfig(**BART, scale_embedding=True)),
    "m2m_100": ("M2M100ForConditionalGeneration", transformers.M2M100Config(**BART)),
    "modernbert": (
        "ModernBertForMaskedLM",
        transformers.ModernBertConfig(
            **{**BERT, "num_hidden_layers": 4}, cls_token_id=1, sep_token_id=2, local_attention=4
        ),
    ),
    "mpnet": ("MPNetForMaskedLM", transformers.MPNetConfig(**{**BERT, "pad_token_id": 1, "bos_token_id": 0})),
    "dpr": ("DPRQuestionEncoder", transformers.DPRConfig(**BERT)),
    "vit": ("ViTForImageClassification", transformers.ViTConfig(**VIT, num_labels=3)),
    "deit": ("DeiTForImageClassificationWithTeacher", transformers.DeiTConfig(**VIT, num_labels=3)),
    "dinov2": ("Dinov2ForImageClassification", transformers.Dinov2Config(**VIT, num_labels=3, use_mask_token=False)),
    "dinov3_vit": (
        "DINOv3ViTModel",
        transformers.DINOv3ViTConfig(**{**VIT, "hidden_size": 16}, num_register_tokens=2, use_gated_mlp=True),
    ),
    "vit_mae": ("ViTMAEForPreTraining", transformers.ViTMAEConfig(**VIT, **MAE)),
    "resnet": ("ResNetForImageClassification", transformers.ResNetConfig(**RESNET, num_labels=3)),
    "convnext": ("ConvNextForImageClassification", transformers.ConvNextConfig(**CONVNEXT)),
    "upernet": ("UperNetForSemanticSegmentation", transformers.UperNetConfig(**UPERNET, num_labels=3)),
    "segformer": ("SegformerForSemanticSegmentation", transformers.SegformerConfig(**SEGFORMER, num_labels=3)),
    "detr": ("DetrForObjectDetection", transformers.DetrConfig(**DETR, num_labels=3)),
    "detr_segmentation": ("DetrForSegmentation", transformers.DetrConfig(**DETR, num_labels=3)),
    "mask2former": (
        "Mask2FormerForUniversalSegmentation",
        transformers.Mask2FormerConfig(**MASK2FORMER, num_labels=3),
    ),
    "clip": ("CLIPModel", transformers.CLIPConfig(**CLIP, projection_dim=6)),
    "siglip": ("SiglipModel", transformers.SiglipConfig(**SIGLIP)),
    "siglip2": ("Siglip2Model", transformers.Siglip2Config(**SIGLIP2)),
    "git": ("GitForCausalLM", transformers.GitConfig(**GIT)),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", transformers.Qwen2VLConfig(**QWEN2_VL)),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", transformers.Qwen2_5_VLConfig(**QWEN2_5_VL)),
    "blip": ("BlipForConditionalGeneration", transformers.BlipConfig(**BLIP)),
    "blip_answers": ("BlipForQuestionAnswering", transformers.BlipConfig(**BLIP)),
    "blip_retrieval": ("BlipForImageTextRetrieval", transformers.BlipConfig(**BLIP)),
    "decision_transformer": (
        "DecisionTransformerModel",
        transformers.DecisionTransformerConfig(
            state_dim=3,
            act_dim=2,
            hidden_size=8,
            n_layer=2,
            n_head=2,
            n_positions=4,
            max_ep_len=12,
            action_tanh=False,
            initializer_range=0.3,
        ),
    ),
    "vilt": ("ViltForQuestionAnswering", transformers.ViltConfig(**VILT, num_labels=5)),
    "lxmert": ("LxmertForQuestionAnswering", transformers.LxmertConfig(**LXMERT)),
    "vivit": (
        "VivitForVideoClassification",
        transformers.VivitConfig(**{**FRAMES, "tubelet_size": [2, 4, 4]}),
    ),
    "timesformer": ("TimesformerForVideoClassification", transformers.TimesformerConfig(**FRAMES)),
    "videomae": ("VideoMAEForVideoClassification", transformers.VideoMAEConfig(**FRAMES)),
    "wav2vec2": ("Wav2Vec2ForCTC", transformers.Wav2Vec2Config(**WAV2VEC2)),
    "vision-encoder-decoder": ("VisionEncoderDecoderModel", CAPTIONER),
    "encoder-decoder": ("EncoderDecoderModel", ANSWERER),
    "whisper": ("WhisperForConditionalGeneration", transformers.WhisperConfig(**WHISPER)),
    "marian": ("MarianMTModel", transformers.MarianConfig(**BART, scale_embedding=True)),
}


PATCHES = ("vit", "deit", "dinov2", "dinov3_vit", "vit_mae", "swin", "beit", "beit_segmentation", "pvt")
PIXELS = ("resnet", "convnext", "upernet", "segformer", "detr", "detr_segmentation", "mask2former")
VIDEOS = ("vivit", "timesformer", "videomae")
TOWERS = ("clip", "siglip", "siglip2")
"""Of texts and of images."""
CAPTIONERS = ("vision-encoder-decoder",)
BESIDE = ("git", "blip", "blip_answers", "blip_retrieval")
"""Of texts that are read or written with an image."""
AMONG = ("qwen2_vl", "qwen2_5_vl")
"""Of texts with images among their tokens."""
ASKED = ("vilt", "lxmert")
"""Of both together."""

LONG = ("longformer", "led")
"""Of texts with global tokens."""

COUNTED = ("whisper_decoder", "roberta_decoder")
"""Whose positions are counted otherwise there when texts with padding before them are generated from."""

READ = (
    "input_ids", "attention_mask", "global_attention_mask", "input_features", "pixel_values", "image_grid_thw",
    "mm_token_type_ids",
)  # fmt: skip
"""What is given to generate by."""


def inputs(name: str, kind: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    if name == "wav2vec2":
        return {"input_values": random.normal(size=(2, 120)).astype(np.float32)}
    if name == "whisper":
        frames = random.normal(size=(2, 5, 14)).astype(np.float32)
        return {"input_features": frames, "decoder_input_ids": random.integers(4, 20, (2, 6))}
    if name in VIDEOS:
        return {"pixel_values": random.normal(size=(2, 4, 1, 12, 12)).astype(np.float32)}
    if name in PIXELS + PATCHES:
        config = MODELS[name][1]
        size = (24, 32) if name in PIXELS else 2 * (config.image_size,)
        given = {"pixel_values": random.normal(size=(2, 1, *size)).astype(np.float32)}
        if name.startswith("detr"):
            given["pixel_mask"] = np.zeros((2, *size), np.int64)
            given["pixel_mask"][0], given["pixel_mask"][1, :16, :21] = 1, 1
        if name == "vit_mae":
            given["noise"] = random.random((2, (config.image_size // config.patch_size) ** 2), dtype=np.float32)
        masked = {"beit": 36, "dinov3_vit": 9}  # patches
        return given | ({"bool_masked_pos": random.random((2, masked[name])) < 0.4} if name in masked else {})
    if name == "decision_transformer":
        numbers = lambda width: random.normal(size=(2, 5, width)).astype(np.float32)  # noqa: E731
        given = {"states": numbers(3), "actions": numbers(2), "returns_to_go": numbers(1)}
        return {**given, "timesteps": np.arange(5)[None] + np.array([[0], [6]])}
    if name in CAPTIONERS:
        pixels = random.normal(size=(2, 1, 12, 12)).astype(np.float32)
        return {"pixel_values": pixels, "decoder_input_ids": random.integers(4, V, (2, 6))}
    if name in TOWERS:
        ids, pixels = random.integers(4, END, (2, 9)), random.normal(size=(2, 1, 12, 12)).astype(np.float32)
        ids[0, 8] = ids[1, 4] = END
        if name == "siglip2":  # images of 3×4 and 5×2 patches
            shapes = {"spatial_shapes": np.array([[3, 4], [5, 2]])}
            shapes["pixel_attention_mask"] = (np.arange(12) < np.array([[12], [10]])).astype(np.int64)
            return {"input_ids": ids, "pixel_values": random.normal(size=(2, 12, 4)).astype(np.float32), **shapes}
        return {"input_ids": ids, "attention_mask": (~_after(ids)).astype(np.int64), "pixel_values": pixels}
    if name in AMONG:  # images of 2×4 and 2×2 patches in the first row, of 4×2 in the second
        image, begin, end = (
            MODELS[name][1].to_dict()[f"{each}_token_id"] for each in ("image", "vision_start", "vision_end")
        )
        ids = np.array(
            [[7, begin, image, image, end, 9, begin, image, end, 11], [3, 3, 3, 12, begin, image, image, end, 8, 5]]
        )
        grids = np.array([[[1, 2, 4], [1, 2, 2]], [[1, 4, 2], [0, 0, 0]]])
        pixels = random.normal(size=(2, 12, 8)).astype(np.float32) * (np.arange(12) < [[12], [8]])[..., None]
        given = {
            "input_ids": ids,
            "attention_mask": (ids != 3).astype(np.int64),
            "pixel_values": pixels.astype(np.float32),
        }
        return {**given, "image_grid_thw": grids, "mm_token_type_ids": (ids == image).astype(np.int64)}
    left = ("Causal" in kind or "LMHead" in kind) and name != "roberta_decoder"
    lengths, length = np.array([[9], [5]]), 9
    mask = (np.arange(length) >= length - lengths if left else np.arange(length) < lengths).astype(np.int64)
    ids = np.where(mask, random.integers(4, V, (2, length)), 3)
    given = {"input_ids": ids, "attention_mask": mask}
    if name in BESIDE:
        given["pixel_values"] = random.normal(size=(2, 3, 12, 12)).astype(np.float32)
        if name == "git":  # two images a row
            given["pixel_values"] = given["pixel_values"][:, :2, None]
    if name in ("t5", "mt5", "bart", "marian", "led", "pegasus", "mbart", "m2m_100", "blip_answers", "encoder-decoder"):
        given["decoder_input_ids"] = random.integers(4, V, (2, 6))
    if name == "vilt":
        given["pixel_values"] = random.normal(size=(2, 1, 12, 16)).astype(np.float32)
        given["pixel_mask"] = np.ones((2, 12, 16), np.int64)
    if name == "lxmert":
        given["visual_feats"] = random.normal(size=(2, 7, 6)).astype(np.float32)
        given["visual_pos"] = random.random((2, 7, 4), dtype=np.float32)
    if name in LONG:
        given["global_attention_mask"] = np.zeros_like(mask)
        given["global_attention_mask"][0, [0, 6]] = given["global_attention_mask"][1, 3] = 1
    if name in ("bert", "bert_decoder", "big_bird", "big_bird_decoder", "electra", "vilt", "lxmert"):
        given["token_type_ids"] = (np.arange(length) > 4)[None].repeat(2, 0).astype(np.int64)
    return given


def generated_from(name: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what texts are generated from, of the inputs of a call; images alone, where a prompt has no padding."""
    if name in COUNTED:
        return {"input_ids": given["input_ids"][:1]}
    names = {"blip": ("pixel_values",), "blip_answers": ("pixel_values", "input_ids")}
    return {key: value for key, value in given.items() if key in names.get(name, READ)}


def as_theirs(name: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return inputs as transformers takes them: images that are laid out in rows one after another."""
    if name not in AMONG:
        return given
    grids, pixels = given["image_grid_thw"], given["pixel_values"]
    real = np.arange(pixels.shape[1]) < grids.prod(-1).sum(-1)[:, None]
    return {**given, "pixel_values": pixels[real], "image_grid_thw": grids[grids.prod(-1) > 0]}


def _after(ids: np.ndarray) -> np.ndarray:
    """Say which tokens come after the end."""
    return np.cumsum(ids == END, 1) - (ids == END) > 0


def make(name: str) -> None:
    kind, config = MODELS[name]
    torch.manual_seed(0)
    if name == "vilt":  # the patches of an image in their order, and not shuffled
        torch.multinomial = lambda weights, count, replacement=False: torch.arange(int(count)) % len(weights)
    model = getattr(transformers, kind)(config).eval()
    random_too = PIXELS + PATCHES + VIDEOS + TOWERS + CAPTIONERS + BESIDE + AMONG + ASKED
    if name in random_too:  # what begins at 0, 1 or next to it says something too
        flat = name in PIXELS and name != "mask2former"
        for each in model.state_dict().values():  # and no buffers that are not written, as frequencies
            if each.is_floating_point() and (each.ndim == 1 or not each.any() or (flat and each.ndim == 2)):
                each.data += 0.3 * (torch.rand_like(each) if each.ndim == 1 else torch.randn_like(each))
    for key, each in model.named_buffers():
        if key.endswith("e_score_correction_bias"):  # which begins at 0
            each.data += 0.3 * torch.rand_like(each)
    if name == "decision_transformer":  # a table of tokens, of which nothing comes, is not written again
        del model.encoder.wte
    if name == "whisper":
        vars(model.generation_config).update(SPEECH)
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    if name == "vit_mae":  # names of the published files, which transformers reads and does not write
        file = folder / "model.safetensors"
        tensors = {key.replace("decoder_encoder.layer.", "decoder_layers."): x for key, x in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
    if name == "pegasus":  # likewise, without tables of sinusoids
        file = folder / "model.safetensors"
        found = {key: x for key, x in load_file(file).items() if "embed_positions" not in key}
        save_file(found, file, metadata={"format": "pt"})
    if name == "wav2vec2":  # likewise
        file, old = folder / "model.safetensors", {"original0": "weight_g", "original1": "weight_v"}
        found = {
            re.sub(r"parametrizations\.weight\.(\w+)$", lambda m: old[m[1]], k): x for k, x in load_file(file).items()
        }
        save_file(found, file, metadata={"format": "pt"})
    given = inputs(name, kind)
    tensors = {key: torch.as_tensor(value) for key, value in as_theirs(name, given).items()}
    arrays = {f"in_{key}": value for key, value in given.items()}
    with torch.no_grad():
        for key, value in model(**tensors, output_hidden_states=True, use_cache=False).items():
            if key == "reshaped_hidden_states" or hasattr(value, "items"):
                continue
            if isinstance(value, tuple) and len({each.shape for each in value}) > 1:
                arrays |= {f"out_{key}.{i}": each.numpy() for i, each in enumerate(value)}
            elif key not in ("past_key_values", "loss"):
                stacked = torch.stack(value) if isinstance(value, tuple) else value
                arrays[f"out_{key}"] = stacked.numpy()
        if hasattr(model, "generate") and model.can_generate():
            prompt = generated_from(name, given)
            kept = name in (*BESIDE, *AMONG, *LONG, *COUNTED)
            arrays |= {f"from_{key}": value for key, value in prompt.items()} if kept else {}
            prompt = {key: torch.as_tensor(value.copy()) for key, value in as_theirs(name, prompt).items()}
            options = {"max_new_tokens": 12, "do_sample": False}
            if name == "whisper_decoder":  # of theirs a cache is as deep as the encoder
                options["use_cache"] = False
            if name == "roberta_decoder":  # which are counted from 0 there, and not from the padding's, where not given
                options["position_ids"] = torch.arange(prompt["input_ids"].shape[1])[None] + config.pad_token_id + 1
            arrays["greedy"] = model.generate(**prompt, **options).numpy()
            arrays["beams"] = model.generate(**prompt, **options, num_beams=4, length_penalty=0.7).numpy()
    np.savez_compressed(folder / "expected.npz", **arrays)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {sorted(arrays)}, {size / 1000:.0f} kB")


OWN = {
    "mixer": {
        "hidden_size": 16, "num_hidden_layers": 2, "tokens_intermediate_size": 8, "intermediate_size": 24,
        "image_size": [8, 12], "patch_size": [4, 3], "num_channels": 3,
    },
    "cct": {
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
        "image_size": [9, 12], "stem_sizes": [6], "num_channels": 1, "max_pool": True,
    },
}  # fmt: skip
"""Of which there are none in transformers."""


def make_own(name: str) -> None:
    """Make one of these by its own reference."""
    reference, options = importlib.import_module(f"{name}_reference"), OWN[name]
    given = reference.tensors(options)
    shutil.rmtree(GOLDEN / name, ignore_errors=True)
    reference.save(GOLDEN / name, given, options)
    shape = (2, options["num_channels"], *options["image_size"])
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    logits, layers = reference.forward(given, torch.as_tensor(images), options)
    arrays = {"in_pixel_values": images, "out_logits": logits.numpy(), "out_hidden_states": torch.stack(layers).numpy()}
    np.savez_compressed(GOLDEN / name / "expected.npz", **arrays)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for each in sys.argv[1:] or (*MODELS, *OWN):
        make_own(each) if each in OWN else make(each)
