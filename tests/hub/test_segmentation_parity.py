"""Semantic segmentation against transformers: pyramids, heads of several shapes, maps of classes."""

import types

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from flax_transformer.hub.fields import Fields  # noqa: E402
from flax_transformer.hub.processor.segmentation import post_process_semantic_segmentation  # noqa: E402
from flax_transformer.hub.registry import find_architecture  # noqa: E402
from flax_transformer.parallel import path_name  # noqa: E402
from flax_transformer.train.carry import statistics_of  # noqa: E402
from tests.hub.oracle import close, compare_made, forward  # noqa: E402
from tests.hub.pictures import compare, images, strengthen  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("beit", "parity", "`BeitForSemanticSegmentation`, its pyramid and both heads, maps of classes"),
    pytest.mark.proves("upernet", "parity", "on ConvNeXt, Swin and ResNet, maps of classes"),
]

BEIT = {
    "plain": {"hidden_size": 12, "num_hidden_layers": 5, "num_attention_heads": 3, "intermediate_size": 20,
              "image_size": 28, "patch_size": 4, "use_relative_position_bias": True, "out_indices": [1, 2, 3, 5],
              "auxiliary_channels": 7},
    "deep": {"hidden_size": 10, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 9,
             "image_size": 45, "patch_size": 5, "num_channels": 1, "use_mean_pooling": False, "pool_scales": [1, 4],
             "use_shared_relative_position_bias": True, "out_indices": [1, 2, 3, 4], "auxiliary_num_convs": 3,
             "auxiliary_concat_input": True, "auxiliary_channels": 5, "use_absolute_position_embeddings": True},
    "one head": {"hidden_size": 14, "num_hidden_layers": 7, "num_attention_heads": 1, "intermediate_size": 31,
                 "image_size": 22, "patch_size": 3, "use_auxiliary_head": False, "out_indices": [2, 4, 6, 7],
                 "pool_scales": [2, 3, 5], "layer_scale_init_value": 0.0},
}  # fmt: skip


def random(model, seed=1):
    """Make everything random that counts, the statistics of batch norms too."""
    torch.manual_seed(seed)
    strengthen(model)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point() and "running" in name:
                buffer.add_(0.3 * torch.rand_like(buffer))
    return model


def beit(kind, options, **others):
    torch.manual_seed(0)
    return random(getattr(transformers, kind)(transformers.BeitConfig(**options, initializer_range=0.3, **others)))


def sized(options):
    return images(options["image_size"], options["image_size"], options.get("num_channels", 3))


@pytest.mark.parametrize("options", BEIT.values(), ids=BEIT)
def test_scores_of_a_beit_equal_transformers(tmp_path, options):
    compare(beit("BeitForSemanticSegmentation", options, num_labels=6), tmp_path, pixel_values=sized(options))


@pytest.mark.parametrize("options", BEIT.values(), ids=BEIT)
def test_a_pyramid_of_a_backbone_equals_transformers(tmp_path, options):
    compare(beit("BeitBackbone", options, add_fpn=True), tmp_path, pixel_values=sized(options))


STAGES = ["stage1", "stage2", "stage3", "stage4"]
UPERNET = {
    "convnext": (
        "ConvNext", {"depths": [1, 2, 1, 1], "hidden_sizes": [6, 10, 14, 18], "out_features": STAGES, "patch_size": 3},
        {"hidden_size": 10, "auxiliary_channels": 7}, (53, 66),
    ),
    "swin": (
        "Swin", {"embed_dim": 6, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 3, 4], "window_size": 3, "patch_size": 2,
                 "mlp_ratio": 2, "image_size": 40, "out_features": STAGES},
        {"hidden_size": 9, "use_auxiliary_head": False, "pool_scales": [1, 3]}, (40, 40),
    ),
    "swin, absolute": (
        "Swin", {"embed_dim": 6, "depths": [1, 1, 2], "num_heads": [2, 1, 3], "window_size": 3, "patch_size": 3,
                 "mlp_ratio": 3, "image_size": 36, "num_channels": 1, "out_indices": [0, 1, 3],
                 "use_absolute_embeddings": True, "qkv_bias": False},
        {"hidden_size": 5, "auxiliary_num_convs": 2, "auxiliary_concat_input": True, "auxiliary_channels": 4}, (36, 36),
    ),
    "resnet": (
        "ResNet", {"depths": [1, 2, 1, 1], "hidden_sizes": [8, 12, 16, 20], "embedding_size": 6, "out_features": STAGES,
                   "layer_type": "basic"},
        {"hidden_size": 7, "auxiliary_num_convs": 0, "auxiliary_channels": 16, "pool_scales": []}, (70, 45),
    ),
}  # fmt: skip


def upernet(kind, inner, options):
    torch.manual_seed(0)
    backbone = getattr(transformers, f"{kind}Config")(**inner, initializer_range=0.3)
    config = transformers.UperNetConfig(backbone_config=backbone, num_labels=6, initializer_range=0.3, **options)
    return random(transformers.UperNetForSemanticSegmentation(config))


@pytest.mark.parametrize("case", UPERNET.values(), ids=UPERNET)
def test_scores_of_a_upernet_equal_transformers(tmp_path, case):
    kind, inner, options, size = case
    model = upernet(kind, inner, options)
    compare(model, tmp_path, pixel_values=images(*size, inner.get("num_channels", 3)))


def test_names_of_transformers_5_are_read(tmp_path):
    model = beit("BeitForSemanticSegmentation", BEIT["deep"], num_labels=6).eval()
    model.save_pretrained(tmp_path)
    tensors = {name: np.ascontiguousarray(x.numpy()) for name, x in model.state_dict().items()}
    assert "decode_head.psp_modules.blocks.1.conv.normalization.running_var" in tensors
    assert not tensors.keys() & {name for name in load_file(tmp_path / "model.safetensors") if "head" in name} - {
        "decode_head.classifier.weight", "decode_head.classifier.bias", "auxiliary_head.classifier.weight",
        "auxiliary_head.classifier.bias",
    }  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    inputs = {"pixel_values": sized(BEIT["deep"])}
    close("logits", forward(model, inputs)["logits"], hub.load(tmp_path)(**inputs).logits, inputs)


def test_a_swin_without_the_norm_at_its_end_is_read(tmp_path):
    kind, inner, options, size = UPERNET["swin"]
    model = upernet(kind, inner, options).eval()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.pop("backbone.swin.layernorm.weight") is not None
    save_file(tensors, tmp_path / "model.safetensors")
    inputs = {"pixel_values": images(*size)}
    close("logits", forward(model, inputs)["logits"], hub.load(tmp_path)(**inputs).logits, inputs)


@pytest.mark.parametrize("name", ["plain", "deep"])
def test_the_auxiliary_head_scores_as_in_transformers(tmp_path, name):
    model = beit("BeitForSemanticSegmentation", BEIT[name], num_labels=6).eval()
    model.save_pretrained(tmp_path)
    seen = []
    model.auxiliary_head.register_forward_hook(lambda module, given, found: seen.append(found))
    inputs = {"pixel_values": sized(BEIT[name])}
    forward(model, inputs)
    close("auxiliary_logits", seen[0].numpy(), hub.load(tmp_path)(**inputs).auxiliary_logits, inputs)


@pytest.mark.parametrize("name", ["plain", "deep"])
def test_statistics_of_a_batch_are_those_of_torch(tmp_path, name):
    """In training, without dropout and stochastic depth: scores, and the running statistics after a step."""
    model = beit("BeitForSemanticSegmentation", BEIT[name], num_labels=6, drop_path_rate=0.0)
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path).model
    pixels = sized(BEIT[name])
    with torch.no_grad():
        expected = model.train()(torch.tensor(pixels)).logits.numpy()
    hidden, new = ours.observe(np.moveaxis(pixels, 1, -1))
    close("logits", expected, np.moveaxis(ours.output(hidden), -1, 1), {})
    found = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(new)}
    assert found.keys() == statistics_of(ours).keys()
    theirs = {"head.fuse.norm": model.decode_head.fpn_bottleneck.normalization,
              "head.pool1.norm": model.decode_head.psp_modules.blocks[1].conv.normalization,
              "auxiliary_head.conv0.norm": model.auxiliary_head.convs[0].normalization,
              "backbone.neck.quadruple_norm": model.fpn.fpn1.normalization}  # fmt: skip
    for path, norm in theirs.items():
        close(f"{path}.mean", norm.running_mean.numpy(), found[f"{path}.mean"], {})
        close(f"{path}.var", norm.running_var.numpy(), found[f"{path}.var"], {})


@pytest.mark.parametrize("sizes", [None, [(31, 57), (8, 5)], [(640, 11), (17, 200)]])
def test_maps_of_classes_are_those_of_transformers(sizes):
    logits = np.random.default_rng(0).normal(size=(2, 7, 13, 9)).astype(np.float32)
    output = types.SimpleNamespace(logits=torch.tensor(logits))
    expected = transformers.BeitImageProcessor().post_process_semantic_segmentation(output, sizes)
    found = post_process_semantic_segmentation(logits, sizes)
    for theirs, ours in zip(expected, found, strict=True):
        np.testing.assert_array_equal(theirs.numpy(), ours)


def test_maps_of_other_sizes_than_there_are_images_are_refused():
    with pytest.raises(ValueError, match="one size for each image, got 1 for 2"):
        post_process_semantic_segmentation(np.zeros((2, 3, 4, 4)), [(5, 5)])


def test_a_segmenter_made_here_opens_in_transformers(tmp_path):
    config = hub.load(folder_of(beit("BeitForSemanticSegmentation", BEIT["one head"]), tmp_path / "a")).model.cfg
    compare_made(config, "BeitForSemanticSegmentation", tmp_path / "b", pixel_values=sized(BEIT["one head"]))
    kind, inner, options, size = UPERNET["convnext"]
    config = hub.load(folder_of(upernet(kind, inner, options), tmp_path / "c")).model.cfg
    compare_made(config, "UperNetForSemanticSegmentation", tmp_path / "d", pixel_values=images(*size))


def folder_of(model, folder):
    model.save_pretrained(folder)
    return folder


PLAIN = {"model_type": "beit", **BEIT["plain"]}


@pytest.mark.parametrize(
    ("name", "fields", "rule"),
    [
        ("BeitForSemanticSegmentation", {**PLAIN, "out_indices": [1, 2, 5]}, r"four feature maps.* \[1, 2, 5\]"),
        ("BeitForSemanticSegmentation", {**PLAIN, "out_indices": [0, 1, 2, 5]}, "from number 1 on"),
        ("BeitForSemanticSegmentation", {**PLAIN, "pool_scales": [1, 0]}, r"numbers from 1 on, it is \[1, 0\]"),
        ("BeitForSemanticSegmentation", {**PLAIN, "auxiliary_num_convs": 0}, "keeps its width, got C=12, D=7"),
        ("BeitBackbone", {**PLAIN, "add_fpn": True, "out_indices": [2]}, r"four feature maps.* \[2\]"),
        ("BeitBackbone", {**PLAIN, "add_fpn": True, "reshape_hidden_states": False}, "grids=False"),
        ("UperNetForSemanticSegmentation", {"backbone_config": None}, "backbone_config as an object, it is None"),
        ("UperNetForSemanticSegmentation", {"backbone_config": {"model_type": "bit"}}, "model_type='bit'; supported"),
        (
            "UperNetForSemanticSegmentation",
            {"backbone_config": {"model_type": "resnet", "out_indices": [1, 2]}},
            "on the third feature map, config.json names 2",
        ),
        (
            "UperNetForSemanticSegmentation",
            {"backbone_config": {"model_type": "resnet", "out_indices": [0, 1, 2]}, "auxiliary_in_channels": 9},
            "third map has, 512, it is 9",
        ),
    ],
)
def test_what_is_not_supported_is_refused(name, fields, rule):
    with pytest.raises(ValueError, match=rule):
        find_architecture(name)[1].config(Fields.of(fields))
