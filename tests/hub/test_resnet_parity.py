"""ResNet against transformers: every class, odd sizes, every option, statistics of batches, and the round trip."""

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.objective import BatchStatistics, LabelLoss
from flax_transformer.train.carry import with_statistics, without_statistics
from tests.hub.oracle import close, compare, forward

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("resnet", "parity", "every class but `ResNetBackbone`, every stage, batch statistics"),
]

CONFIGS = {
    "basic": {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 12, 20], "depths": [2, 1, 3]},
    "grey, halving at once": {
        "embedding_size": 6, "hidden_sizes": [8, 12, 20, 24], "depths": [2, 1, 3, 1], "num_channels": 1,
        "downsample_in_first_stage": True,
    },
    "halving early, gelu": {
        "embedding_size": 6, "hidden_sizes": [8, 12], "depths": [2, 4], "downsample_in_bottleneck": True,
        "hidden_act": "gelu",
    },
    "one stage": {
        "embedding_size": 7, "hidden_sizes": [28], "depths": [3], "downsample_in_first_stage": True,
        "downsample_in_bottleneck": True,
    },
}  # fmt: skip
SIZES = {"basic": (33, 47), "grey, halving at once": (64, 31), "halving early, gelu": (29, 50), "one stage": (18, 7)}


def make(kind, options, **more):
    torch.manual_seed(1)
    model = getattr(transformers, kind)(transformers.ResNetConfig(**options, **more))
    with torch.no_grad():  # norms, which begin at 0 and 1, say something too
        for each in (*model.parameters(), *model.buffers()):
            if each.ndim == 1:
                each.add_(0.3 * torch.rand_like(each))
    return model


def pictures(options, size, rows=3):
    shape = rows, options.get("num_channels", 3), *size
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_equals_transformers(tmp_path, name):
    compare(make("ResNetModel", CONFIGS[name]), tmp_path, pixel_values=pictures(CONFIGS[name], SIZES[name]))


@pytest.mark.parametrize("name", ["basic", "halving early, gelu"])
def test_the_classifier_equals_transformers(tmp_path, name):
    model = make("ResNetForImageClassification", CONFIGS[name], num_labels=5)
    compare(model, tmp_path, pixel_values=pictures(CONFIGS[name], SIZES[name]))


def test_other_sizes_than_one_checkpoints_own(tmp_path):
    model = make("ResNetForImageClassification", CONFIGS["basic"])
    model.eval().save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    for size in ((7, 90), (64, 64)):
        images = {"pixel_values": pictures({}, size)}
        close("logits", forward(model, images)["logits"], ours(**images).logits, images)


def test_a_model_made_here_opens_in_transformers(tmp_path):
    config = ResNetConfig(stem=8, widths=(8, 12), depths=(1, 2), channels=1)
    ours = hub.wrap(config.build(nnx.Rngs(3)), "ResNetModel")
    hub.save(ours, tmp_path)
    theirs, loading = transformers.ResNetModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not {*loading["missing_keys"], *loading["unexpected_keys"]}, loading
    images = {"pixel_values": pictures({"num_channels": 1}, (30, 30))}
    got = ours(**images, output_hidden_states=True)
    for name, value in forward(theirs.eval(), images).items():
        close(name, value, got[name], images)


def test_training_moves_statistics_and_gives_gradients_as_torch_does(tmp_path):
    images, labels = pictures(CONFIGS["basic"], (64, 61), rows=4), np.array([0, 2, 1, 2])
    theirs = make("ResNetForImageClassification", CONFIGS["basic"], num_labels=3)
    theirs.save_pretrained(tmp_path / "before")
    ours = hub.load(tmp_path / "before").model
    loss = theirs.train()(torch.as_tensor(images), labels=torch.as_tensor(labels)).loss
    loss.backward()
    theirs.save_pretrained(tmp_path / "after")
    after = hub.load(tmp_path / "after").model
    objective = BatchStatistics(of=LabelLoss())
    batch = {
        "inputs": {"images": jax.numpy.asarray(images.transpose(0, 2, 3, 1))},
        "labels": labels,
        "weights": np.ones(4),
    }

    batch = jax.tree.map(jax.numpy.asarray, batch)

    def mean(model, carried):
        total, metrics, new = objective(model, batch, carried=carried)
        return total / metrics["count"], new

    carried = objective.carry.begin(ours, jax.random.key(0))
    (found, new), gradient = jax.jit(jax.value_and_grad(mean, has_aux=True))(without_statistics(ours), carried)
    np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
    moved = with_statistics(without_statistics(ours), new)
    for a, b in zip(jax.tree.leaves(moved), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())
    slope = theirs.resnet.embedder.embedder.convolution.weight.grad.numpy().transpose(2, 3, 1, 0)
    assert np.abs(gradient.backbone.stem.convolution.kernel[...] - slope).max() <= 1e-5 * np.abs(slope).max()
