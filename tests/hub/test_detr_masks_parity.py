"""DETR's masks against transformers: padding, odd sizes, other backbones, names of every age, and panoptic maps."""

import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from flax_transformer.hub.fields import Fields  # noqa: E402
from flax_transformer.hub.processor.segmentation import post_process_panoptic_segmentation  # noqa: E402
from flax_transformer.hub.registry import find_architecture  # noqa: E402
from tests.hub.oracle import close, compare, compare_made, forward  # noqa: E402
from tests.hub.test_detr_parity import pictures  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("detr", "parity", "`DetrForSegmentation`: masks, and maps of the objects of pixels"),
]

KIND = "DetrForSegmentation"
STAGES = ["stage1", "stage2", "stage3", "stage4"]
BASIC = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [6, 12, 20, 22], "depths": [2, 1, 1, 1]}
DEEP = {"embedding_size": 6, "hidden_sizes": [8, 12, 20], "depths": [1, 3, 2], "num_channels": 1}
SMALL = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 8,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "num_queries": 7,
}  # fmt: skip
WIDE = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 16,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 9, "decoder_ffn_dim": 7, "num_queries": 3, "num_channels": 1,
    "activation_function": "gelu",
}  # fmt: skip
CASES = {
    "padded": ({**BASIC, "out_features": STAGES}, SMALL, (97, 131), ((97, 131), (60, 131), (50, 70))),
    "whole": ({**BASIC, "out_indices": [1, 2, 3, 4]}, SMALL, (64, 75), None),
    "three stages, grey": ({**DEEP, "out_features": STAGES[:3]}, WIDE, (75, 44), ((44, 44), (75, 30))),
    "the stem too": ({**BASIC, "out_features": ["stem", "stage2", "stage3", "stage4"]}, SMALL, (40, 33), None),
}


def made(case):
    backbone, options, size, parts = CASES[case]
    model = masked(backbone, options)
    return model, pictures(options, size, parts)


def masked(backbone, options):
    names = {name: backbone[name] for name in ("out_features", "out_indices") if name in backbone}
    torch.manual_seed(1)
    rest = {name: value for name, value in backbone.items() if name not in names}
    inner = transformers.ResNetConfig(**rest, **names)
    config = transformers.DetrConfig(backbone_config=inner, use_timm_backbone=False, num_labels=5, **options)
    model = getattr(transformers, KIND)(config)
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            if each.is_floating_point() and each.ndim == 1:
                each.add_(0.3 * torch.rand_like(each))
    return model


@pytest.mark.parametrize("case", CASES)
def test_masks_equal_transformers(tmp_path, case):
    model, inputs = made(case)
    compare(model, tmp_path, **inputs)


def test_names_of_transformers_5_are_read(tmp_path):
    model, inputs = made("whole")
    model.eval().save_pretrained(tmp_path)
    tensors = {name: np.ascontiguousarray(x.numpy()) for name, x in model.state_dict().items()}
    assert "mask_head.fpn_stages.1.refine.norm.weight" in tensors
    assert "mask_head.gn4.weight" in load_file(tmp_path / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors")
    found = hub.load(tmp_path)(**inputs)
    for name in ("logits", "pred_boxes", "pred_masks"):
        close(name, forward(model, inputs)[name], found[name], inputs)


def test_a_backbone_of_timm_gives_all_its_maps(tmp_path):
    """Which config.json says of timm's, and what is saved of the ResNet that stands for it."""
    inner = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "out_features": STAGES}
    model = masked(inner, SMALL).eval()
    model.save_pretrained(tmp_path / "own")
    own = hub.load(tmp_path / "own")
    fields = own.config.updated({"backbone_config": None, "use_timm_backbone": True, "backbone": "resnet18"})
    assert find_architecture(KIND)[1].config(fields) == own.model.cfg
    (tmp_path / "own" / "config.json").write_text(fields.text)
    ours, inputs = hub.load(tmp_path / "own"), pictures({}, (40, 33), None)
    hub.save(ours, tmp_path / "back")
    again = transformers.DetrForSegmentation.from_pretrained(tmp_path / "back").eval()
    close("pred_masks", forward(again, inputs)["pred_masks"], ours(**inputs).pred_masks, inputs)


def test_a_model_made_here_opens_in_transformers(tmp_path):
    model, inputs = made("three stages, grey")
    model.save_pretrained(tmp_path / "a")
    compare_made(hub.load(tmp_path / "a").model.cfg, KIND, tmp_path / "b", **inputs)


@pytest.mark.parametrize("fused", [(), (0, 2)])
@pytest.mark.parametrize("sizes", [None, [(41, 57), (8, 5), (20, 20)]])
@pytest.mark.parametrize("limits", [(0.5, 0.5, 0.8), (0.2, 0.1, 0.3), (0.99, 0.5, 0.8)])
def test_panoptic_maps_are_those_of_transformers(fused, sizes, limits):
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(3, 11, 5)).astype(np.float32)
    masks = np.repeat(np.repeat(3 * random.normal(size=(3, 11, 3, 3)), 4, -1), 5, -2).astype(np.float32)
    masks += 0.2 * random.normal(size=masks.shape).astype(np.float32) - np.arange(11, dtype=np.float32)[:, None, None]
    threshold, mask_threshold, overlap = limits
    output = types.SimpleNamespace(logits=torch.tensor(logits), pred_masks=torch.tensor(masks))
    expected = transformers.DetrImageProcessor().post_process_panoptic_segmentation(
        output, threshold, mask_threshold, overlap, {*fused}, sizes
    )
    found = post_process_panoptic_segmentation(
        logits, masks, sizes, threshold=threshold, mask_threshold=mask_threshold, overlap=overlap, fused=fused
    )
    assert sum(len(each["segments_info"]) for each in expected) > 0 or threshold > 0.9
    for theirs, ours in zip(expected, found, strict=True):
        np.testing.assert_array_equal(theirs["segmentation"].numpy(), ours["segmentation"])
        assert [{**each, "score": 0} for each in theirs["segments_info"]] == [
            {**each, "score": 0} for each in ours["segments_info"]
        ]
        for one, other in zip(theirs["segments_info"], ours["segments_info"], strict=True):
            assert abs(one["score"] - other["score"]) <= 2e-6


def test_maps_of_other_sizes_than_there_are_images_are_refused():
    with pytest.raises(ValueError, match="one size for each image, got 1 for 2"):
        post_process_panoptic_segmentation(np.zeros((2, 3, 4)), np.zeros((2, 3, 4, 4)), [(5, 5)])


@pytest.mark.parametrize(
    ("options", "inner", "rule"),
    [
        (SMALL, {**BASIC, "out_features": STAGES[2:]}, "refined by three feature maps of the backbone, .* names 2"),
        ({**SMALL, "encoder_attention_heads": 4}, BASIC, "channels of masks, 20, 8, 4, 2, 1 of D=16 and 4 heads"),
        ({**SMALL, "d_model": 48}, BASIC, "must be below 8 or multiples of it, got 12"),
        ({**SMALL, "d_model": 8}, BASIC, "got 0"),
    ],
)
def test_what_is_not_supported_is_refused(options, inner, rule):
    inner = {"out_features": STAGES, **inner, "model_type": "resnet"}
    fields = Fields.of({**options, "backbone_config": inner, "use_timm_backbone": False})
    with pytest.raises(ValueError, match=rule):
        find_architecture(KIND)[1].config(fields)
