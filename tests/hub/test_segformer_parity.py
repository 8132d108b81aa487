"""SegFormer against transformers: every class, odd sizes, options on and off, every stage, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from flax_transformer.hub.fields import Fields  # noqa: E402
from flax_transformer.hub.registry import find_architecture  # noqa: E402
from tests.hub.oracle import close, compare, compare_made, forward  # noqa: E402
from tests.hub.pictures import images, make  # noqa: E402

pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("segformer", "parity", "every class and stage, attention weights, images of any size"),
]

CONFIGS = {
    "plain": ({"hidden_sizes": [8, 12, 10, 16], "depths": [2, 1, 1, 2], "num_attention_heads": [2, 3, 5, 1],
               "decoder_hidden_size": 20}, (64, 96)),
    "odd": ({"num_encoder_blocks": 3, "depths": [1, 2, 1], "hidden_sizes": [4, 9, 8], "num_attention_heads": [2, 3, 2],
             "sr_ratios": [3, 2, 1], "mlp_ratios": [2, 3, 1], "num_channels": 1, "hidden_act": "relu",
             "patch_sizes": [5, 3, 3], "strides": [3, 2, 2], "decoder_hidden_size": 7,
             "layer_norm_eps": 0.1}, (45, 61)),
    "two stages": ({"num_encoder_blocks": 2, "depths": [1, 3], "hidden_sizes": [6, 5], "num_attention_heads": [3, 1],
                    "sr_ratios": [4, 2], "mlp_ratios": [1, 7], "patch_sizes": [7, 2], "strides": [2, 3],
                    "decoder_hidden_size": 5, "hidden_act": "gelu_new", "classifier_dropout_prob": 0.3}, (38, 27)),
    "one stage": ({"num_encoder_blocks": 1, "depths": [2], "hidden_sizes": [9], "patch_sizes": [4], "strides": [4],
                   "num_attention_heads": [9], "sr_ratios": [1], "mlp_ratios": [2], "decoder_hidden_size": 3,
                   "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}, (21, 33)),
}  # fmt: skip
KINDS = ["SegformerModel", "SegformerForImageClassification", "SegformerForSemanticSegmentation"]


def built(kind, options, **others):
    model = make(kind, "SegformerConfig", **options, initializer_range=0.3, **others)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.add_(0.3 * torch.rand_like(buffer))
    return model


def sized(case):
    options, size = case
    return images(*size, options.get("num_channels", 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, kind, case):
    compare(built(kind, case[0], num_labels=5), tmp_path, pixel_values=sized(case))


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_last_stage_line_by_line_equals_transformers(tmp_path, kind):
    case = CONFIGS["odd"]
    compare(built(kind, case[0], num_labels=5, reshape_last_stage=False), tmp_path, pixel_values=sized(case))


@pytest.mark.parametrize("case", CONFIGS.values(), ids=CONFIGS)
def test_attention_weights_are_transformers(tmp_path, case):
    model, inputs = built("SegformerModel", case[0]).eval(), {"pixel_values": sized(case)}
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(torch.as_tensor(inputs["pixel_values"]), output_attentions=True).attentions
    got = hub.load(tmp_path)(**inputs, output_attentions=True).attentions
    close("attentions", tuple(x.numpy() for x in expected), got, inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_transformers_5_are_read(tmp_path, kind):
    model, inputs = built(kind, CONFIGS["odd"][0], num_labels=5).eval(), {"pixel_values": sized(CONFIGS["odd"])}
    model.save_pretrained(tmp_path)
    tensors = {name: np.ascontiguousarray(x.numpy()) for name, x in model.state_dict().items()}
    assert any(name.endswith("stages.0.blocks.0.attention.sequence_reduction.layer_norm.bias") for name in tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = hub.load(tmp_path)
    name, expected = next(iter(forward(model, inputs).items()))
    close(name, expected, loaded(**inputs)[name], inputs)


def test_modules_have_the_names_of_transformers_5(tmp_path):
    from flax_transformer.hub.weights import renamer

    model = built("SegformerForSemanticSegmentation", CONFIGS["odd"][0])
    model.save_pretrained(tmp_path)
    family = hub.load(tmp_path).family
    theirs = {name for name, _ in model.named_parameters()}
    from safetensors import safe_open

    with safe_open(tmp_path / "model.safetensors", "np") as file:
        ours = {renamer(family.modules)(name) for name in file.keys()}  # noqa: SIM118
    assert theirs <= ours


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_here_opens_in_transformers(tmp_path, kind):
    case = CONFIGS["two stages"]
    built(kind, case[0], num_labels=4).save_pretrained(tmp_path / "a")
    compare_made(hub.load(tmp_path / "a").model.cfg, kind, tmp_path / "b", pixel_values=sized(case))


@pytest.mark.parametrize("name", ["odd", "two stages"])
def test_statistics_of_a_batch_are_those_of_torch(tmp_path, name):
    """In training, without dropout and stochastic depth: scores, and the running statistics after a step."""
    off = {"drop_path_rate": 0.0, "classifier_dropout_prob": 0.0}
    model = built(KINDS[2], {**CONFIGS[name][0], **off}, num_labels=6)
    model.save_pretrained(tmp_path)
    ours, pixels = hub.load(tmp_path).model, sized(CONFIGS[name])
    with torch.no_grad():
        expected = model.train()(torch.tensor(pixels)).logits.numpy()
    hidden, new = ours.observe(np.moveaxis(pixels, 1, -1))
    close("logits", expected, np.moveaxis(ours.output(hidden), -1, 1), {})
    for part in ("mean", "var"):
        theirs = getattr(model.decode_head.batch_norm, f"running_{part}").numpy()
        close(part, theirs, new["head"]["fuse"]["norm"][part], {})


@pytest.mark.parametrize(
    ("kind", "change", "rule"),
    [
        ("SegformerModel", {"num_encoder_blocks": 5}, "for each of 5 stages"),
        ("SegformerModel", {"mlp_ratios": [1.3, 1, 1, 1]}, "mlp_ratio so that 32 times it is whole, it is 1.3"),
        ("SegformerModel", {"strides": [4, 2, 0, 2]}, r"strides must be at least 1, got \(4, 2, 0, 2\)"),
        ("SegformerForSemanticSegmentation", {"reshape_last_stage": False}, "reshape_last_stage=false"),
    ],
)
def test_what_is_not_supported_is_said(kind, change, rule):
    with pytest.raises(ValueError, match=rule):
        find_architecture(kind)[1].config(Fields.of(change))
