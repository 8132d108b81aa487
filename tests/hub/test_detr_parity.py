"""DETR against transformers: padding, odd sizes, every layer, the names of timm's backbones, and the loss."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.models.vision.detr import DetrOutput
from flax_transformer.objective import DetectionLoss
from tests.hub.oracle import close, compare, forward

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("detr", "parity", "`DetrModel` and `DetrForObjectDetection` on ResNets, every layer, the loss"),
]

BASIC = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 12, 20, 24], "depths": [2, 1, 1, 1]}
DEEP = {"embedding_size": 6, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 2, 1, 3], "num_channels": 1}
ODD = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "num_queries": 7,
}  # fmt: skip
ONE = {
    "d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 9, "decoder_ffn_dim": 7, "num_queries": 1, "num_channels": 1,
    "activation_function": "gelu",
}  # fmt: skip
CASES = {
    "padded": (BASIC, ODD, (97, 131), ((97, 131), (60, 131), (50, 70))),
    "whole": (BASIC, ODD, (64, 75), None),
    "one query, grey": (DEEP, ONE, (75, 44), ((44, 44), (75, 30))),
    "one place": (DEEP, {**ONE, "num_queries": 4}, (32, 20), ((32, 20),)),
}


def make(backbone, options, *, labels=5, kind="DetrForObjectDetection"):
    torch.manual_seed(1)
    backbone = transformers.ResNetConfig(**backbone, out_features=["stage4"])
    config = transformers.DetrConfig(backbone_config=backbone, use_timm_backbone=False, num_labels=labels, **options)
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            if each.ndim == 1:
                each.add_(0.3 * torch.rand_like(each))
    return model


def pictures(options, size, parts):
    rows = 2 if parts is None else len(parts)
    shape = rows, options.get("num_channels", 3), *size
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    if parts is None:
        return {"pixel_values": values}
    mask = np.zeros((rows, *size), np.int64)
    for row, (height, width) in enumerate(parts):
        mask[row, :height, :width] = 1
    return {"pixel_values": values, "pixel_mask": mask}


@pytest.mark.parametrize("case", CASES)
def test_detection_equals_transformers(tmp_path, case):
    backbone, options, size, parts = CASES[case]
    compare(make(backbone, options), tmp_path, **pictures(options, size, parts))


@pytest.mark.parametrize("case", ["padded", "one query, grey"])
def test_a_model_without_heads_equals_transformers(tmp_path, case):
    backbone, options, size, parts = CASES[case]
    compare(make(backbone, options, kind="DetrModel"), tmp_path, **pictures(options, size, parts))


def test_a_detector_read_as_a_model_leaves_its_heads_out(tmp_path):
    backbone, options, size, parts = CASES["padded"]
    model, inputs = make(backbone, options).eval(), pictures(options, size, parts)
    model.save_pretrained(tmp_path)
    bare = hub.load(tmp_path, lenient=hub.Lenient(architecture="DetrModel"))(**inputs)
    expected = forward(model.model, inputs)
    for name in ("last_hidden_state", "encoder_last_hidden_state"):
        close(name, expected[name], bare[name], inputs)


def timm_name(name):
    """Name a tensor of the backbone as files with a backbone of timm do."""
    for i in range(4):
        name = name.replace(f"encoder.stages.{i}.layers.", f"layer{i + 1}.")
    for i in range(3):
        name = name.replace(f"layer.{i}.convolution", f"conv{i + 1}").replace(f"layer.{i}.normalization", f"bn{i + 1}")
    name = name.replace("shortcut.convolution", "downsample.0").replace("shortcut.normalization", "downsample.1")
    return name.replace("embedder.embedder.convolution", "conv1").replace("embedder.embedder.normalization", "bn1")


@pytest.mark.parametrize("said", ["as version 4", "as version 5"])
def test_a_backbone_of_timm_is_read_and_kept_as_a_resnet(tmp_path, said):
    backbone = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    model = make(backbone, ODD).eval()
    model.save_pretrained(tmp_path / "own")
    tensors = load_file(tmp_path / "own/model.safetensors")
    renamed = {timm_name(name) if ".conv_encoder." in name else name: tensor for name, tensor in tensors.items()}
    renamed["model.backbone.conv_encoder.model.bn1.num_batches_tracked"] = np.zeros((), np.int64)
    assert "model.backbone.conv_encoder.model.layer2.0.downsample.1.running_var" in renamed
    config = json.loads((tmp_path / "own/config.json").read_text())
    config |= {"backbone_config": None, "use_timm_backbone": True, "backbone": "resnet18"}
    if said == "as version 5":
        config |= {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet18"}}
        del config["use_timm_backbone"], config["backbone"]
    (tmp_path / "timm").mkdir()
    save_file(renamed, tmp_path / "timm/model.safetensors")
    (tmp_path / "timm/config.json").write_text(json.dumps(config))
    ours, inputs = hub.load(tmp_path / "timm"), pictures({}, (64, 70), ((64, 70), (40, 33)))
    expected = forward(model, inputs)
    close("logits", expected["logits"], ours(**inputs).logits, inputs)
    hub.save(ours, tmp_path / "back")
    again = transformers.DetrForObjectDetection.from_pretrained(tmp_path / "back").eval()
    np.testing.assert_allclose(forward(again, inputs)["logits"], expected["logits"], rtol=1e-5, atol=1e-5)


class Answers:
    """A model whose answers are known."""

    def __init__(self, logits, boxes):
        self.answers = DetrOutput(jnp.asarray(logits), jnp.asarray(boxes))

    def hidden_states(self, *, key=None):
        return None

    def output(self, hidden, *, key=None):
        return self.answers


@pytest.mark.parametrize("auxiliary", [True, False])
@pytest.mark.parametrize("counts", [(0, 2, 6, 3), (0, 0, 0, 0), (6, 6, 6, 6)])
def test_the_loss_equals_transformers(auxiliary, counts):
    from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

    B, L, Q, E, M = 4, 3, 7, 5, 6
    random = np.random.default_rng(0)
    logits = 2 * random.normal(size=(B, L, Q, E + 1)).astype(np.float32)
    boxes = random.uniform(0.2, 0.8, (B, L, Q, 4)).astype(np.float32)
    classes, real = random.integers(0, E, (B, M)), random.uniform(0.1, 0.6, (B, M, 4)).astype(np.float32)
    weights = (np.arange(M) < np.array(counts)[:, None]).astype(np.float32)
    labels = [
        {"class_labels": torch.as_tensor(classes[i, :n]), "boxes": torch.as_tensor(real[i, :n])}
        for i, n in enumerate(counts)
    ]
    config = transformers.DetrConfig(num_labels=E, decoder_layers=L, auxiliary_loss=auxiliary)
    layers = [torch.as_tensor(each).transpose(0, 1) for each in (logits, boxes)]
    loss, parts, _ = ForObjectDetectionLoss(layers[0][-1], labels, "cpu", layers[1][-1], config, *layers)
    batch = {
        "inputs": {}, "labels": {"classes": classes, "boxes": real, "weights": weights}, "weights": np.ones(B),
    }  # fmt: skip
    total, metrics = jax.jit(lambda batch: DetectionLoss(auxiliary=auxiliary)(Answers(logits, boxes), batch))(batch)
    assert metrics["count"] == sum(counts)
    np.testing.assert_allclose(total / max(sum(counts), 1), float(loss), rtol=1e-5)
    names = {
        "class_loss": "loss_ce",
        "box_loss": "loss_bbox",
        "overlap_loss": "loss_giou",
        "count_error": "cardinality_error",
    }
    for ours, theirs in names.items():
        np.testing.assert_allclose(metrics[ours].value(), float(parts[theirs]), rtol=1e-5, err_msg=ours)
