"""The example's family against `transformers`: values of every class, and what is saved opens there as it was."""

import numpy as np
import pytest

from flax_transformer import hub
from tests.examples import registered

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity
CLASSES = ("AlbertModel", "AlbertForMaskedLM", "AlbertForSequenceClassification")


@pytest.fixture(autouse=True, scope="module")
def albert():
    with registered() as albert:
        yield albert


def test_every_class_is_compared(albert):
    assert set(albert.ARCHITECTURES) == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_that_of_transformers(name, tmp_path):
    config = transformers.AlbertConfig(
        vocab_size=50, embedding_size=12, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_labels=3,
        intermediate_size=40, max_position_embeddings=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = getattr(transformers, name)(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    ids, mask = np.random.default_rng(0).integers(50, size=(2, 7)), np.ones((2, 7), int)
    mask[1, 5:] = 0
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
    pretrained = hub.load(tmp_path)
    found = pretrained(input_ids=ids, attention_mask=mask)
    compared = [key for key in expected if key in found.keys()]  # noqa: SIM118
    assert compared
    for key in compared:
        wanted, got = expected[key].numpy(), np.asarray(found[key])
        real = mask == 1 if wanted.ndim == 3 else slice(None)
        np.testing.assert_allclose(got[real], wanted[real], rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    hub.save(pretrained, tmp_path / "again")
    again = getattr(transformers, name).from_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize(
    "sizes", [{}, {"use_layer_scale": False, "pool_size": 5, "mlp_ratio": 3.0, "hidden_act": "relu"}]
)
@pytest.mark.parametrize("name", ["PoolFormerModel", "PoolFormerForImageClassification"])
def test_a_network_for_images_is_that_of_transformers(name, sizes, tmp_path):
    config = transformers.PoolFormerConfig(
        hidden_sizes=[8, 12, 16, 20], depths=[1, 2, 2, 1], num_labels=3, **{"mlp_ratio": 2.0, **sizes}
    )
    torch.manual_seed(0)
    theirs = getattr(transformers, name)(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    images = np.random.default_rng(0).normal(size=(2, 3, 61, 48)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(images), output_hidden_states=True)
    with registered("poolformer"):
        pretrained = hub.load(tmp_path)
        found = pretrained(pixel_values=images, output_hidden_states=True)
        hub.save(pretrained, tmp_path / "again")
    outputs = {name: value for name, value in expected.items() if name != "hidden_states"}
    maps = {f"stage {i}": (ours, value) for i, (ours, value) in
            enumerate(zip(found["hidden_states"], expected["hidden_states"], strict=True))}  # fmt: skip
    for ours, value in (*((found[name], value) for name, value in outputs.items()), *maps.values()):
        np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-5 * float(value.abs().max()))
    again = getattr(transformers, name).from_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in theirs.state_dict().items())
