"""A run of BEiT ends with a checkpoint that `transformers` opens, and that says there what it says here."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.task.experiment import train
from tests.task.test_self_supervised import small

pytestmark = pytest.mark.parity


@pytest.mark.rotates
@pytest.mark.proves("beit", "parity", "the export of a run, in `transformers`")
def test_the_export_scores_words_as_in_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import BeitForMaskedImageModeling

    train(small("beit", evaluators=()), tmp_path)
    theirs = BeitForMaskedImageModeling.from_pretrained(tmp_path / "export").eval()
    ours = hub.load(tmp_path / "export").model
    images = np.random.default_rng(0).normal(size=(2, 12, 12, 3)).astype(np.float32)
    masked = np.random.default_rng(1).random((2, 9)) < 0.4
    with torch.no_grad():
        given = {"pixel_values": torch.tensor(images.transpose(0, 3, 1, 2)), "bool_masked_pos": torch.tensor(masked)}
        expected = theirs(**given).logits
    found = ours.output(ours.hidden_states(images, masked=masked))
    assert found.shape == (2, 9, 8)
    np.testing.assert_allclose(found, expected, atol=1e-5)
