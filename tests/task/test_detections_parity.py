"""What a detector's run exports, opened by transformers."""

import jax
import numpy as np
import PIL.Image
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.synthetic import SceneData, ShapeScenes
from flax_transformer.models.vision.detr import DetrConfig
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.nn import TrunkConfig
from flax_transformer.task.detection import DetectionImages, detect
from flax_transformer.task.opened import Context
from flax_transformer.task.spec import sized
from flax_transformer.train.folder import RunFolder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity


def trunk(*, cross):
    return TrunkConfig(block=detr_block(embed=16, heads=2, inner=24, cross=cross), depth=2)


CONFIG = DetrConfig(
    backbone=ResNetConfig(stem=8, widths=(8, 12), depths=(1, 2), block="basic"), encoder=trunk(cross=False),
    decoder=trunk(cross=True), queries=7,
)  # fmt: skip


@pytest.mark.rotates
@pytest.mark.proves("detr", "weights", "a detector trained here, with its image processor, opened by `transformers`")
def test_a_detector_trained_here_finds_in_transformers_what_it_finds_here(tmp_path):
    data = SceneData(shapes=ShapeScenes(train=2, held_out=1, size=40))
    opened = DetectionImages(rows=2, size=48).open(data, Context(folder=RunFolder(tmp_path / "run")))
    config = sized(CONFIG, opened.spec)
    made = config.build(nnx.Rngs(0))
    draw = np.random.default_rng(0)
    model = jax.tree.map(lambda leaf: leaf + draw.uniform(0, 0.3, leaf.shape).astype(np.float32), made)
    ours = hub.wrap(model, "DetrForObjectDetection", processor=opened.processor, **opened.fields)
    hub.save(ours, tmp_path / "export")

    theirs = transformers.AutoModelForObjectDetection.from_pretrained(tmp_path / "export").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "export", backend="pil")
    assert theirs.config.id2label[3] == "cross"
    for height, width in ((40, 40), (31, 57), (90, 20)):
        picture = PIL.Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8))
        inputs = processor(picture, return_tensors="pt")
        np.testing.assert_array_equal(ours.processor(picture)["pixel_values"], inputs["pixel_values"])
        with torch.no_grad():
            output = theirs(**inputs)
        (found,) = processor.post_process_object_detection(output, threshold=0.0, target_sizes=[(height, width)])
        mine = detect(ours, picture, threshold=0.0)[0]
        order = np.argsort(-found["scores"].numpy(), kind="stable")
        np.testing.assert_allclose([each.probability for each in mine], found["scores"].numpy()[order], rtol=1e-5)
        np.testing.assert_allclose([each.box for each in mine], found["boxes"].numpy()[order], rtol=1e-4, atol=1e-3)
        names = [theirs.config.id2label[label] for label in found["labels"].numpy()[order].tolist()]
        assert [each.label for each in mine] == names
