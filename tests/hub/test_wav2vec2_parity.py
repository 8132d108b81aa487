"""wav2vec 2.0 against transformers: its classes, norms before and after, recordings of several lengths, both names of a
weight that is a direction and a length, and the round trip."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.family.wav2vec2 import read
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import as_tuple, compare, forward, padded

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("wav2vec2", "parity", "every class, every layer"),
    pytest.mark.proves("classify", "parity", "`Wav2Vec2ForSequenceClassification`"),
]

CONFIGS = {
    "base": {"heads": 4, "conv_dim": (7, 7, 7), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "window": 8},
    "stable": {
        "heads": 3, "conv_dim": (5, 9), "conv_kernel": (4, 3), "conv_stride": (3, 2), "window": 7,
        "do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True,
    },
    "mixed": {
        "heads": 1, "conv_dim": (6,), "conv_kernel": (5,), "conv_stride": (4,), "window": 16, "mask_time_prob": 0.0,
        "do_stable_layer_norm": True, "hidden_act": "relu", "layer_norm_eps": 1e-3,
    },
    "layered": {
        "heads": 2, "conv_dim": (4, 6, 5), "conv_kernel": (3, 3, 3), "conv_stride": (2, 1, 2), "window": 5,
        "feat_extract_norm": "layer",
    },
}  # fmt: skip

SPEAKER = {"tdnn_dim": (6, 7, 5), "tdnn_kernel": (3, 2, 1), "tdnn_dilation": (1, 2, 1), "xvector_output_dim": 8}
CODES = {
    "num_codevector_groups": 3, "num_codevectors_per_group": 4, "codevector_dim": 9, "proj_codevector_dim": 10,
    "contrastive_logits_temperature": 0.2,
}  # fmt: skip
KINDS = (
    "Wav2Vec2Model", "Wav2Vec2ForCTC", "Wav2Vec2ForSequenceClassification", "Wav2Vec2ForAudioFrameClassification",
    "Wav2Vec2ForXVector", "Wav2Vec2ForPreTraining",
)  # fmt: skip


def make(kind, *, heads, window, **options):
    torch.manual_seed(1)
    config = transformers.Wav2Vec2Config(
        vocab_size=11, num_labels=3, classifier_proj_size=5, hidden_size=12, num_hidden_layers=2,
        num_attention_heads=heads, intermediate_size=17, num_conv_pos_embeddings=window,
        num_conv_pos_embedding_groups=3, initializer_range=0.3, **SPEAKER, **CODES, **options,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.2 * torch.randn(each.shape))
    return model


def sounds(rows=3, length=131):
    return np.random.default_rng(0).normal(size=(rows, length)).astype(np.float32)


@pytest.mark.parametrize("lengths", [None, (131, 77, 40)], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, options, kind, lengths):
    longer = 4 if kind == "Wav2Vec2ForXVector" else 1  # what deviates over time takes several positions
    given = {"input_values": sounds(length=131 * longer)}
    if lengths is not None:
        given["attention_mask"] = padded([longer * each for each in lengths], 131 * longer)
    compare(make(kind, **options), tmp_path, published=published, **given)


@pytest.mark.parametrize("options", [CONFIGS["base"], CONFIGS["layered"]], ids=["base", "layered"])
def test_the_losses_of_pretraining_are_those_of_transformers(tmp_path, options):
    model = make("Wav2Vec2ForPreTraining", **options)
    positions = int(model._get_feat_extract_output_lengths(131))
    rng = np.random.default_rng(0)
    masked = rng.random((3, positions)) < 0.4
    masked[0, 0] = True
    with torch.no_grad():
        codes = model.eval()(torch.tensor(sounds())).projected_quantized_states.numpy().reshape(3 * positions, -1)
    differ = np.abs(codes[:, None] - codes).max(-1) > 1e-3  # equal codes are equal there but for rounding
    others = np.stack([rng.choice(np.flatnonzero(row), 5) for row in differ]).reshape(3, positions, 5)
    others[0, 0, 2:4] = 0  # itself, which is left out
    given = {"input_values": sounds(), "mask_time_indices": masked, "sampled_negative_indices": others}
    _, got = compare(model, tmp_path, published=published, **given)
    assert got.contrastive_loss > 1
    assert got.diversity_loss > 0


def test_the_loss_of_speakers_is_that_of_transformers(tmp_path):
    model = make("Wav2Vec2ForXVector", **CONFIGS["base"]).eval()
    model.save_pretrained(tmp_path)
    labels = np.array([0, 2, 1])
    with torch.no_grad():
        expected = model(torch.tensor(sounds()), labels=torch.tensor(labels)).loss
    ours = hub.load(tmp_path)
    losses = ours.model.head.loss(ours(input_values=sounds()).logits, labels)
    np.testing.assert_allclose(losses.mean(), expected, rtol=1e-5)


def published(name):
    """Return the names in the files on the hub."""
    for new, old in (("original0", "weight_g"), ("original1", "weight_v")):
        name = name.replace(f"parametrizations.weight.{new}", old)
    return name


@pytest.mark.parametrize("old", [True, False])
def test_both_names_of_a_normalised_weight_are_read(tmp_path, old):
    from safetensors.torch import load_file, save_file

    model = make("Wav2Vec2ForCTC", **CONFIGS["base"]).eval()
    model.save_pretrained(tmp_path)
    tensors = {published(name): tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    if not old:
        for name, new in (("weight_g", "original0"), ("weight_v", "original1")):
            (found,) = [each for each in tensors if each.endswith(name)]
            tensors[found.replace(name, f"parametrizations.weight.{new}")] = tensors.pop(found)
    save_file(tensors, tmp_path / "model.safetensors")
    expected = forward(model, {"input_values": sounds()})["logits"]
    np.testing.assert_allclose(hub.load(tmp_path)(input_values=sounds()).logits, expected, rtol=1e-4, atol=1e-4)


def test_a_model_for_pretraining_gives_its_encoder(tmp_path):
    model = make("Wav2Vec2ForPreTraining", **CONFIGS["base"]).eval()
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path, lenient=hub.Lenient(architecture="Wav2Vec2Model"))
    expected = forward(model.wav2vec2, {"input_values": sounds()})
    for a, b in zip(as_tuple(expected["hidden_states"]), ours(input_values=sounds(), output_hidden_states=True)
                    ["hidden_states"], strict=True):  # fmt: skip
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "value"), [("add_adapter", True), ("feat_extract_activation", "relu"), ("conv_dim", [])]
)
def test_what_is_not_supported_is_refused_by_name(option, value):
    with pytest.raises(ValueError, match=option):
        read(Fields.of({option: value}))
