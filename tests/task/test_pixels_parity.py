"""What a run of images as sequences exports, opened by transformers: the model, the colours, the sequences."""

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.image import ImageData
from flax_transformer.task.evaluator import evaluate
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import Context
from flax_transformer.train.folder import RunFolder
from tests.data.image.image_files import class_folders, idx_folder
from tests.task.test_pixels import recipe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("imagegpt", "parity", "the export of a run, colours and all"),
]


@pytest.mark.rotates
@pytest.mark.parametrize("form", [idx_folder, class_folders])
def test_an_export_is_the_model_in_transformers(tmp_path, form):
    root, folder = form(tmp_path / "data"), tmp_path / "run" / "export"
    made = recipe(root)
    train(made, tmp_path / "run")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    model = transformers.ImageGPTForCausalImageModeling.from_pretrained(folder)
    data = ImageData(root=str(root)).open().splits["test"]
    images = [data[i]["image"].convert("RGB") for i in range(len(data))]
    ids = np.asarray(processor(images, return_tensors="np")["input_ids"]).reshape(len(images), -1)
    found = made.examples.open(made.data, Context(folder=RunFolder(tmp_path / "run"), seed=made.train.seed))
    held = jax.tree.map(lambda *parts: np.concatenate(parts), *found.test())
    there = held["weights"][:, 0] > 0
    np.testing.assert_array_equal(held["labels"][there], ids)
    tokens = torch.as_tensor(held["inputs"]["tokens"][there], dtype=torch.int64)
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.as_tensor(ids, dtype=torch.int64).flatten())
    ours = evaluate(made.objective, hub.load(folder).model, found.test())["loss"]
    np.testing.assert_allclose(loss.item(), ours, rtol=1e-5)
