"""PVT against transformers: every class, odd sizes, every layer, and the round trip."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close  # noqa: E402
from tests.hub.pictures import compare, images, make  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("pvt", "parity", "every class and layer, attention weights")]

CONFIGS = {
    "plain": {"image_size": 64, "hidden_sizes": [8, 12, 10, 6], "depths": [2, 1, 1, 2],
              "num_attention_heads": [2, 3, 5, 1]},
    "odd": {"image_size": 45, "num_encoder_blocks": 3, "depths": [1, 2, 1], "hidden_sizes": [4, 9, 8],
            "num_attention_heads": [2, 3, 2], "sequence_reduction_ratios": [3, 2, 1], "mlp_ratios": [2, 3, 1],
            "num_channels": 1, "qkv_bias": False, "layer_norm_eps": 0.1, "hidden_act": "relu"},
    "two stages": {"image_size": 38, "num_encoder_blocks": 2, "depths": [1, 3], "hidden_sizes": [6, 5],
                   "num_attention_heads": [3, 1], "sequence_reduction_ratios": [4, 1], "mlp_ratios": [1, 7]},
    "one stage": {"image_size": 21, "num_encoder_blocks": 1, "depths": [2], "hidden_sizes": [9], "patch_sizes": [5],
                  "strides": [5], "num_attention_heads": [9], "sequence_reduction_ratios": [1], "mlp_ratios": [2]},
}  # fmt: skip


def built(kind, options, **others):
    return make(kind, "PvtConfig", **options, initializer_range=0.3, **others)


def sized(options):
    return images(options["image_size"], options["image_size"], options.get("num_channels", 3))


@pytest.mark.parametrize("kind", ["PvtModel", "PvtForImageClassification"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, kind, options):
    compare(built(kind, options, num_labels=5), tmp_path, pixel_values=sized(options))


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_attention_weights_are_transformers(tmp_path, options):
    model, inputs = built("PvtModel", options).eval(), {"pixel_values": sized(options)}
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = model(**{name: torch.as_tensor(x) for name, x in inputs.items()}, output_attentions=True).attentions
    got = hub.load(tmp_path)(**inputs, output_attentions=True).attentions
    close("attentions", tuple(x.numpy() for x in expected), got, inputs)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"strides": [3, 2, 2, 2]}, "patches must lie side by side"),
        ({"num_encoder_blocks": 5}, "for each of 5 stages"),
        ({"sequence_reduction_ratios": [8, 4, 2, 2]}, "the last stage must have keys of all its patches"),
        ({"mlp_ratios": [1.3, 1, 1, 1]}, "mlp_ratio so that 64 times it is whole, it is 1.3"),
    ],
)
def test_what_is_not_supported_is_said(change, rule):
    from flax_transformer.hub.family.pvt import read
    from flax_transformer.hub.fields import Fields

    with pytest.raises(ValueError, match=rule):
        read(Fields.of(change))
