"""What is no checkpoint, image or recording of the kinds that are read is named in one sentence."""

import json
import logging

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.file import open_tensors
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.listing import listed


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "beit_base_patch16_224"}, "is of timm's 'beit_base_patch16_224'; read are vit_…, deit_…"),
        ({"architecture": "vit_so150m_patch16_reg4_map_256"}, "are called vit_SIZE_patchN"),
        ({"architecture": "eva02_enormous_patch14_clip_224"}, "those of EVA that are read are called eva_giant_patchN"),
        ({"architecture": "eva02_tiny_patch14_224", "model_args": {"use_post_norm": True}}, "argument 'use_post_norm'"),
        (
            {"architecture": "eva_giant_patch14_224", "model_args": {"scale_attn_inner": True}},
            "has scale_attn_inner with use_rot_pos_emb alone",
        ),
        ({"architecture": "eva02_tiny_patch14_224", "global_pool": "map"}, "global_pool='map'; read are token and avg"),
        ({"architecture": "eva_giant_patch14_clip_224", "model_args": {"class_token": False}}, "has global_pool='avg'"),
        ({"architecture": "convnextv2_tiny"}, "timm's 'convnextv2_tiny'; read are"),
        ({"architecture": "convnext_tiny_hnf"}, "read are convnext_atto, convnext_femto"),
        ({"architecture": "vit_tiny_patch16_224", "model_args": {"qk_norm": True}}, "the argument 'qk_norm' of"),
        ({"architecture": "vit_tiny_patch16_224", "model_args": {"class_token": False}}, "without class_token has"),
        (
            {"architecture": "deit_tiny_distilled_patch16_224", "model_args": {"reg_tokens": 1}},
            "distilled Transformer of timm has global_pool='token' and no registers",
        ),
        (
            {"architecture": "vit_tiny_patch16_224", "global_pool": "map"},
            "global_pool='map' and act_layer='gelu'; read",
        ),
        ({"architecture": "convnext_tiny", "model_args": {"patch_size": 2}}, "patch_size=2; a ConvNeXt of timm"),
        ({"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": [3, 0, 2]}}, "must give input_size"),
    ],
)
def test_what_of_timm_is_not_read_is_named(tmp_path, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        hub.load(tmp_path)


def test_addresses_and_files_are_no_checkpoints(tmp_path):
    with pytest.raises(ValueError, match=r"and no address, got https://.*; hub.load\('google/vit'\) takes its id"):
        hub.load("https://huggingface.co/google/vit/tree/main")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="a checkpoint is a folder, got the file"):
        hub.load(tmp_path / "model.safetensors")


PROCESSORS = {
    "an image": ImageProcessor.of({"image_processor_type": "ViTImageProcessor", "size": 2}),
    "a recording": AudioProcessor.of({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}),
}


@pytest.mark.parametrize("what", PROCESSORS)
def test_addresses_folders_and_nothing_are_no_files(tmp_path, what):
    with pytest.raises(ValueError, match=f"{what} is a file, its bytes or an array, and nothing is downloaded"):
        PROCESSORS[what]("https://example.org/one")
    with pytest.raises(ValueError, match=f"{what} is one file, got the folder"):
        PROCESSORS[what](tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{what} is a file, its bytes or an array, there is no file"):
        PROCESSORS[what](tmp_path / "none")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.arange(100), "of 8, 16 or 32 bits, by whose range they are scaled, got int64; .*astype"),
        (np.arange(100, dtype=np.uint64), "got uint64"),
        (3000 * np.sin(np.arange(100.0)), r"floats between -1 and 1, .* got floats up to .*; samples / 32768"),
        (np.array([0.1, np.nan]), "must be finite numbers"),
    ],
)
def test_samples_of_unknown_range_are_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        PROCESSORS["a recording"](samples)


def test_whole_samples_of_any_width_are_one_sound():
    wave = np.sin(np.arange(400) / 9)
    found = [
        PROCESSORS["a recording"]((wave * (2 ** (bits - 1) - 1)).astype(f"int{bits}"))["input_values"]
        for bits in (16, 32)
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)
    np.testing.assert_allclose(found[1], PROCESSORS["a recording"](1.5 * wave)["input_values"], atol=1e-3)


def test_values_from_0_to_1_are_said_to_be_scaled_again(caplog):
    with caplog.at_level(logging.WARNING):
        PROCESSORS["an image"](np.full((8, 8, 3), 255, np.uint8))
        PROCESSORS["an image"](np.full((8, 8, 3), 0.5, np.float32), do_rescale=False)
        assert not caplog.records
        PROCESSORS["an image"](np.full((8, 8, 3), 0.5, np.float32))
    assert "give bytes from 0 to 255, or do_rescale=False" in caplog.text


def test_of_many_missing_shards_the_first_are_named(tmp_path):
    names = {str(i): f"model-{i:05}-of-10000.safetensors" for i in range(10_000)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ValueError, match=r"lacks model-00000-.*10,000 in all.*, which its index names") as refused:
        open_tensors(tmp_path)
    assert len(str(refused.value)) < 700


def test_a_list_in_a_message_is_as_long_as_people_read():
    assert len(listed(f"class {i} {'x' * 200}" for i in range(10_000))) < 700
