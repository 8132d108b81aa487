"""Mask2Former against transformers: Swins and ResNets, odd sizes, norms before and after, every layer, segments."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402
from transformers.models.mask2former import modeling_mask2former as published  # noqa: E402

from flax_transformer import hub  # noqa: E402
from flax_transformer.hub.fields import Fields  # noqa: E402
from flax_transformer.hub.processor.segmentation import (  # noqa: E402
    class_scores,
    enlarged_masks,
    post_process_instance_segmentation,
    post_process_panoptic_segmentation,
    post_process_semantic_segmentation,
)
from flax_transformer.hub.registry import find_architecture  # noqa: E402
from flax_transformer.ops.deformable import deformable_attention  # noqa: E402
from tests.hub.oracle import close, compare_made, forward  # noqa: E402
from tests.hub.pictures import compare, images, strengthen  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(
        "mask2former", "parity", "on Swin and ResNet, every layer; semantic, instance and panoptic maps"
    ),
]

KIND = "Mask2FormerForUniversalSegmentation"
STAGES = ["stage1", "stage2", "stage3", "stage4"]
SMALL = {
    "feature_size": 32, "mask_feature_size": 12, "hidden_dim": 20, "encoder_feedforward_dim": 18, "num_queries": 7,
    "dim_feedforward": 14, "encoder_layers": 2, "decoder_layers": 6, "num_attention_heads": 2,
}  # fmt: skip
WIDE = {
    "feature_size": 64, "mask_feature_size": 5, "hidden_dim": 64, "encoder_feedforward_dim": 9, "num_queries": 3,
    "dim_feedforward": 11, "encoder_layers": 1, "decoder_layers": 3, "num_attention_heads": 4, "pre_norm": True,
    "activation_function": "gelu",
}  # fmt: skip
SWIN = {
    "embed_dim": 6, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 3, 4], "window_size": 3, "patch_size": 4,
    "mlp_ratio": 2, "image_size": 64, "out_features": STAGES, "initializer_range": 0.3,
}  # fmt: skip
RESNET = {"depths": [1, 2, 1, 1], "hidden_sizes": [8, 12, 16, 20], "embedding_size": 6, "out_features": STAGES}
CASES = {
    "swin": ("Swin", SWIN, SMALL, (70, 101)),
    "swin, norms before, grey": (
        "Swin", {**SWIN, "num_channels": 1, "qkv_bias": False, "out_features": None, "out_indices": [1, 2, 3, 4]},
        {**WIDE, "enforce_input_projection": True}, (64, 64),
    ),
    "resnet": ("ResNet", {**RESNET, "layer_type": "basic"}, {**WIDE, "pre_norm": False, "decoder_layers": 5}, (75, 44)),
    "three maps": (
        "ResNet", {**RESNET, "depths": [1, 1, 1], "hidden_sizes": [8, 12, 16], "out_features": STAGES[:3]},
        {**SMALL, "feature_strides": [4, 8, 16], "num_attention_heads": 4}, (33, 52),
    ),
}  # fmt: skip


def built(case):
    kind, inner, options, size = CASES[case]
    torch.manual_seed(1)
    backbone = getattr(transformers, f"{kind}Config")(**inner)
    config = transformers.Mask2FormerConfig(backbone_config=backbone, num_labels=5, init_std=0.3, **options)
    model = strengthen(getattr(transformers, KIND)(config))
    with torch.no_grad():
        for name, each in (*model.named_parameters(), *model.named_buffers()):
            if "running" in name:
                each.add_(0.3 * torch.rand_like(each))
            if "sampling_offsets.weight" in name or "attention_weights.weight" in name:  # which begin at 0
                each.add_(0.3 * torch.randn_like(each))
    return model, {"pixel_values": images(*size, inner.get("num_channels", 3))}


@pytest.mark.parametrize("case", CASES)
def test_answers_equal_transformers(tmp_path, case):
    model, inputs = built(case)
    _, found = compare(model, tmp_path, **inputs)
    assert np.asarray(found.masks_queries_logits).std() > 0.1


@pytest.mark.parametrize("case", ["swin", "resnet"])
def test_attention_of_queries_equals_transformers(tmp_path, case):
    model, inputs = built(case)
    model.eval().save_pretrained(tmp_path)
    model.config.output_attentions = True
    with torch.no_grad():
        expected = model(torch.tensor(inputs["pixel_values"]), output_attentions=True).attentions
    found = hub.load(tmp_path)(**inputs, output_attentions=True).attentions
    close("attentions", tuple(each.numpy() for each in expected), found, inputs)


@pytest.mark.parametrize("sizes", [[(3, 5), (1, 2), (7, 4)], [(1, 1)], [(2, 9), (5, 5)]])
def test_deformable_attention_equals_transformers(sizes):
    random, places = np.random.default_rng(0), sum(rows * columns for rows, columns in sizes)
    values = random.normal(size=(2, places, 3, 5)).astype(np.float32)
    points = random.uniform(-0.3, 1.3, (2, 6, 3, len(sizes), 4, 2)).astype(np.float32)
    weights = random.dirichlet(np.ones(4 * len(sizes)), (2, 6, 3)).astype(np.float32).reshape(2, 6, 3, len(sizes), 4)
    expected = published.multi_scale_deformable_attention(
        torch.tensor(values), sizes, torch.tensor(points), torch.tensor(weights)
    )
    found = deformable_attention(jnp.asarray(values), sizes, jnp.asarray(points), jnp.asarray(weights))
    np.testing.assert_allclose(found.reshape(2, 6, 15), expected.numpy(), atol=2e-6)


def test_gradients_of_deformable_attention_equal_torchs():
    import jax

    random, sizes = np.random.default_rng(1), [(3, 4), (2, 2)]
    given = (
        random.normal(size=(1, 16, 2, 3)).astype(np.float32),
        random.uniform(-0.2, 1.2, (1, 5, 2, 2, 3, 2)).astype(np.float32),
        random.random((1, 5, 2, 2, 3), np.float32),
    )
    tensors = [torch.tensor(each, requires_grad=True) for each in given]
    published.multi_scale_deformable_attention(tensors[0], sizes, *tensors[1:]).square().sum().backward()
    found = jax.grad(lambda *x: jnp.sum(deformable_attention(x[0], sizes, *x[1:]) ** 2), argnums=(0, 1, 2))(
        *map(jnp.asarray, given)
    )
    for ours, theirs in zip(found, tensors, strict=True):
        np.testing.assert_allclose(ours, theirs.grad.numpy(), atol=2e-5)


@pytest.mark.parametrize("case", ["swin", "three maps"])
def test_a_model_made_here_opens_in_transformers(tmp_path, case):
    model, inputs = built(case)
    model.save_pretrained(tmp_path / "a")
    compare_made(hub.load(tmp_path / "a").model.cfg, KIND, tmp_path / "b", **inputs)


def test_names_of_transformers_5_are_read(tmp_path):
    model, inputs = built("swin")
    model.eval().save_pretrained(tmp_path)
    tensors = {name: np.ascontiguousarray(x.numpy()) for name, x in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    found, expected = hub.load(tmp_path)(**inputs), forward(model, inputs)
    for name in ("class_queries_logits", "masks_queries_logits"):
        close(name, expected[name], found[name], inputs)


def test_weights_of_classes_are_those_of_config_json(tmp_path):
    """Of a model made here, or with other classes; those that were stored stay."""
    model, _ = built("resnet")
    model.criterion.empty_weight[1] = 3
    model.save_pretrained(tmp_path / "a")
    name = "criterion.empty_weight"
    hub.save(hub.load(tmp_path / "a"), tmp_path / "b")
    np.testing.assert_array_equal(load_file(tmp_path / "b/model.safetensors")[name], [1, 3, 1, 1, 1, np.float32(0.1)])
    lenient = hub.Lenient(config={"num_labels": 2, "no_object_weight": 0.25}, initialise=(r"^class_predictor\.",))
    hub.save(hub.load(tmp_path / "a", lenient=lenient), tmp_path / "c")
    np.testing.assert_array_equal(load_file(tmp_path / "c/model.safetensors")[name], [1, 1, 0.25])
    _, loading = getattr(transformers, KIND).from_pretrained(tmp_path / "c", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["mismatched_keys"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"backbone_config": None}, "backbone_config as an object, it is None"),
        ({"backbone_config": {"model_type": "bit"}}, "model_type='bit'; supported"),
        ({"feature_strides": [4, 8, "x"]}, "feature_strides as a list of numbers from 1 on"),
        ({"common_stride": 3}, "by whose doublings the stride 8 is reached, it is 3"),
        ({"common_stride": 1}, "finer must be at most the 1 maps beside the 3 coarsest, got 3"),
        ({"feature_size": 48}, "multiple of the 32 groups of its norms, got 48"),
        ({"backbone_config": {**SWIN, "model_type": "swin", "out_features": STAGES[2:]}}, "at least 3 feature maps"),
        ({"decoder_layers": 1}, "depth must be at least 1, got 0"),
    ],
)
def test_what_is_not_supported_is_refused(options, rule):
    fields = Fields.of({**SMALL, "backbone_config": {**SWIN, "model_type": "swin"}, **options})
    with pytest.raises(ValueError, match=rule):
        find_architecture(KIND)[1].config(fields)


SIZES = [(41, 57), (8, 5), (20, 20)]


def answers(classes):
    """Draw answers that are regions of several kinds, some sure, some not."""
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(3, 11, classes + 1)).astype(np.float32)
    masks = np.repeat(np.repeat(3 * random.normal(size=(3, 11, 3, 3)), 4, -1), 5, -2).astype(np.float32)
    masks += 0.2 * random.normal(size=masks.shape).astype(np.float32) - np.arange(11, dtype=np.float32)[:, None, None]
    output = types.SimpleNamespace(class_queries_logits=torch.tensor(logits), masks_queries_logits=torch.tensor(masks))
    return logits, masks, output, transformers.Mask2FormerImageProcessor()


def same_segments(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(theirs["segmentation"].numpy(), ours["segmentation"])
        for one, other in zip(theirs["segments_info"], ours["segments_info"], strict=True):
            assert abs(one.pop("score") - other.pop("score")) <= 2e-6
            assert one == other


@pytest.mark.parametrize("sizes", [None, SIZES])
def test_semantic_maps_are_those_of_transformers(sizes):
    logits, masks, output, processor = answers(5)
    expected = processor.post_process_semantic_segmentation(output, sizes)
    found = post_process_semantic_segmentation(class_scores(logits, enlarged_masks(masks)), sizes)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
    assert len(np.unique(found[0])) > 2


@pytest.mark.parametrize("sizes", [None, SIZES])
@pytest.mark.parametrize("fused", [(), (0, 2)])
@pytest.mark.parametrize("limits", [(0.5, 0.5, 0.8), (0.2, 0.1, 0.3), (0.99, 0.5, 0.8)])
def test_panoptic_maps_are_those_of_transformers(sizes, fused, limits):
    logits, masks, output, processor = answers(5)
    expected = processor.post_process_panoptic_segmentation(output, *limits, {*fused}, sizes)
    threshold, mask_threshold, overlap = limits
    found = post_process_panoptic_segmentation(
        logits, enlarged_masks(masks), sizes, threshold=threshold, mask_threshold=mask_threshold, overlap=overlap,
        fused=fused,
    )  # fmt: skip
    assert sum(len(each["segments_info"]) for each in expected) > 0 or threshold > 0.9
    same_segments(found, expected)


@pytest.mark.parametrize("sizes", [None, SIZES])
@pytest.mark.parametrize("threshold", [0.5, 0.05, 0.99])
def test_instance_maps_are_those_of_transformers(sizes, threshold):
    """Of more classes than 64, where torch sorts scores though it is not asked to."""
    logits, masks, output, processor = answers(70)
    logits[:, :, :5] += 4
    output.class_queries_logits = torch.tensor(logits)
    expected = processor.post_process_instance_segmentation(output, threshold=threshold, target_sizes=sizes)
    found = post_process_instance_segmentation(logits, enlarged_masks(masks), sizes, threshold=threshold)
    assert sum(len(each["segments_info"]) for each in expected) > 3 or threshold > 0.2
    same_segments(found, expected)


def test_other_sizes_than_images_are_refused():
    with pytest.raises(ValueError, match="one size for each image, got 1 for 2"):
        post_process_instance_segmentation(np.zeros((2, 3, 4)), np.zeros((2, 3, 4, 4)), [(5, 5)])
