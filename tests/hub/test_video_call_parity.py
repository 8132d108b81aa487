"""Models of videos against transformers: every class and layer, odd sizes, other resolutions, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.numpy import load_file, save_file  # noqa: E402

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import close, forward  # noqa: E402
from tests.hub.pictures import compare, make  # noqa: E402

pytestmark = pytest.mark.parity

VIVIT = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
              "image_size": 16, "num_frames": 4, "tubelet_size": [2, 4, 4]},
    "odd": {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
            "image_size": 17, "num_frames": 7, "tubelet_size": [3, 5, 4], "num_channels": 1, "hidden_act": "relu",
            "qkv_bias": False},
    "oblong": {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 9,
               "image_size": [14, 23], "num_frames": 5, "tubelet_size": [1, 4, 3], "num_channels": 4,
               "layer_norm_eps": 1e-3},
    "one head": {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
                 "image_size": 12, "num_frames": 3, "tubelet_size": [3, 6, 6], "hidden_act": "quick_gelu"},
}  # fmt: skip
TIMESFORMER = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
              "image_size": 16, "patch_size": 4, "num_frames": 3},
    "odd": {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 22,
            "image_size": 17, "patch_size": 5, "num_frames": 5, "num_channels": 1, "hidden_act": "relu",
            "qkv_bias": False},
    "one head": {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
                 "image_size": 12, "patch_size": 6, "num_frames": 1, "layer_norm_eps": 1e-3},
}  # fmt: skip
KINDS = ("divided_space_time", "joint_space_time", "space_only")
VIDEOMAE = {
    "plain": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
              "image_size": 16, "patch_size": 4, "num_frames": 4, "tubelet_size": 2},
    "odd": {"hidden_size": 18, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 22,
            "image_size": 15, "patch_size": 5, "num_frames": 9, "tubelet_size": 3, "num_channels": 1,
            "hidden_act": "relu", "qv_bias": False, "use_mean_pooling": False},
    "one head": {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 50,
                 "image_size": 12, "patch_size": 6, "num_frames": 3, "tubelet_size": 1, "layer_norm_eps": 1e-3,
                 "use_mean_pooling": False},
}  # fmt: skip
DECODER = {"decoder_hidden_size": 12, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 3,
           "decoder_intermediate_size": 10}  # fmt: skip


def videos(frames, size, channels=3, rows=2, seed=0):
    height, width = size if isinstance(size, list) else (size, size)
    return np.random.default_rng(seed).standard_normal((rows, frames, channels, height, width), dtype=np.float32)


def sized(options, **changes):
    options = {**options, **changes}
    return videos(options["num_frames"], options["image_size"], options.get("num_channels", 3))


@pytest.mark.proves("vivit", "parity", "both classes and every layer")
@pytest.mark.parametrize("kind", ["VivitModel", "VivitForVideoClassification"])
@pytest.mark.parametrize("options", VIVIT.values(), ids=VIVIT)
def test_vivit_equals_transformers(tmp_path, kind, options):
    compare(make(kind, "VivitConfig", **options, num_labels=5), tmp_path, pixel_values=sized(options))


@pytest.mark.proves("timesformer", "parity", "both classes, every kind of attention and every layer")
@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("kind", ["TimesformerModel", "TimesformerForVideoClassification"])
@pytest.mark.parametrize("options", TIMESFORMER.values(), ids=TIMESFORMER)
def test_timesformer_equals_transformers(tmp_path, kind, options, attention):
    model = make(kind, "TimesformerConfig", **options, attention_type=attention, num_labels=5)
    compare(model, tmp_path, pixel_values=sized(options))


@pytest.mark.proves("videomae", "parity", "every class and layer, for given masks")
@pytest.mark.parametrize("kind", ["VideoMAEModel", "VideoMAEForVideoClassification"])
@pytest.mark.parametrize("options", VIDEOMAE.values(), ids=VIDEOMAE)
def test_videomae_equals_transformers(tmp_path, kind, options):
    compare(make(kind, "VideoMAEConfig", **options, num_labels=5), tmp_path, pixel_values=sized(options))


def masks(options, share, rows=2):
    side = options["image_size"] // options["patch_size"]
    count = options["num_frames"] // options["tubelet_size"] * side * side
    order = np.argsort(np.random.default_rng(2).random((rows, count)), axis=1)
    return order < share * count


@pytest.mark.parametrize("kind", ["VideoMAEModel", "VideoMAEForPreTraining"])
@pytest.mark.parametrize("name", VIDEOMAE)
def test_masked_clips_are_restored_as_transformers_does(tmp_path, kind, name):
    options = VIDEOMAE[name]
    model = make(kind, "VideoMAEConfig", **options, **DECODER)
    compare(model, tmp_path, pixel_values=sized(options), bool_masked_pos=masks(options, 0.7))


@pytest.mark.parametrize("names", [{}, {"q_bias": "query.bias", "v_bias": "value.bias"}], ids=["vectors", "layers"])
def test_biases_are_read_by_both_of_their_names(tmp_path, names):
    """Those of published files, which transformers once left at zero, and those of the linear layers they belong to."""
    model = make("VideoMAEForVideoClassification", "VideoMAEConfig", **VIDEOMAE["plain"], num_labels=5)
    model.save_pretrained(tmp_path)
    file, given = tmp_path / "model.safetensors", {"pixel_values": sized(VIDEOMAE["plain"])}
    tensors = load_file(file)
    assert sum(name.endswith(("q_bias", "v_bias")) for name in tensors) == 6
    for old, new in names.items():
        tensors = {name.replace(old, new): x for name, x in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    expected = forward(type(model).from_pretrained(tmp_path).eval(), given)
    np.testing.assert_array_equal(expected["logits"], forward(model.eval(), given)["logits"])
    close("logits", expected["logits"], hub.load(tmp_path)(**given)["logits"], given)


@pytest.mark.parametrize("size", [[16, 24], [9, 31], [40, 8]])
def test_other_resolutions_of_a_vivit_are_transformers(tmp_path, size):
    """Whose own resampling takes the table for that of one time, a square."""
    model = make("VivitForVideoClassification", "VivitConfig", **{**VIVIT["plain"], "num_frames": 2}, num_labels=5)
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": videos(2, size)}
    expected = forward(model.eval(), {**inputs, "interpolate_pos_encoding": True})
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, got[name], inputs)


@pytest.mark.parametrize(
    ("attention", "frames", "size"),
    [("divided_space_time", 3, [32, 16]), ("joint_space_time", 7, [16, 16]), ("joint_space_time", 2, [24, 12]),
     ("space_only", 4, [24, 20])],
)  # fmt: skip
def test_other_sizes_of_a_timesformer_are_transformers(tmp_path, attention, frames, size):
    options = {**TIMESFORMER["plain"], "attention_type": attention}
    model = make("TimesformerForVideoClassification", "TimesformerConfig", **options, num_labels=5)
    model.save_pretrained(tmp_path)
    inputs = {"pixel_values": videos(frames, size)}
    expected = forward(model.eval(), inputs)
    got = hub.load(tmp_path)(**inputs, output_hidden_states=True)
    for name, value in expected.items():
        close(name, value, got[name], inputs)
