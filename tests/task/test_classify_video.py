"""Recipes that classify videos: where a run ends, that it resumes as if uninterrupted, and what its export says."""

import json
from dataclasses import replace

import jax
import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import MovingShapes, VideoData
from flax_transformer.data.video import SkeletonData
from flax_transformer.models.preset import abstract
from flax_transformer.nn import with_fields
from flax_transformer.report.sample import from_sheet
from flax_transformer.task.experiment import train
from flax_transformer.task.image_attention import draw_file
from flax_transformer.task.image_input import Augment
from flax_transformer.task.spec import Spec, sized
from flax_transformer.task.start import load_start
from flax_transformer.task.video_classification import LabelledVideos, classify_videos
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.data.video.test_skeletons import arrays
from tests.task.test_classify_images import experiments

pytestmark = pytest.mark.rotates

SHAPES = VideoData(shapes=MovingShapes(train=24, held_out=10, size=16, length=6))
SMALL = {"embed": 8, "heads": 2, "inner": 12, "depth": 2}


def short(name, steps=2, **changes):
    """Make a recipe of a few steps over a few small videos."""
    recipe = experiments("classify_video")[name]
    examples = replace(recipe.examples, rows=4, frames=min(recipe.examples.frames, 4))
    return replace(
        recipe, model=with_fields(recipe.model, **SMALL, **({"span": 2} if "span" in str(recipe.model) else {})),
        **{"data": SHAPES, "examples": examples, **changes},
        optimizer=replace(recipe.optimizer, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2),
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "timesformer"
    examples = LabelledVideos(rows=4, frames=4, augment=Augment(shift=1, flip=0.5, jitter=0.2, mixup=0.2, erase=0.5))
    train(short("timesformer", 4, examples=examples), folder)
    return folder


def records(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    timeless = [{k: v for k, v in json.loads(line).items() if "second" not in k} for line in lines]
    return [each for each in timeless if each["split"] == "train"]


@pytest.mark.proves("timesformer", "train", "[`classify_video`](../experiments/classify_video.py)")
def test_a_resumed_run_is_the_uninterrupted_one_with_everything_drawn_at_random(finished, tmp_path):
    examples = LabelledVideos(rows=4, frames=4, augment=Augment(shift=1, flip=0.5, jitter=0.2, mixup=0.2, erase=0.5))
    recipe = short("timesformer", 4, examples=examples)
    train(replace(recipe, train=replace(recipe.train, steps=2)), tmp_path)
    train(recipe, tmp_path)
    assert [each for each in records(tmp_path) if each["step"] > 2] == [
        each for each in records(finished) if each["step"] > 2
    ]


def samples_of(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def clips_of(folder, target):
    """Write the sheets of a run's samples as folders of frames."""
    found = []
    for number, each in enumerate(samples_of(folder)):
        found.append(target / str(number))
        found[-1].mkdir()
        for i, frame in enumerate(from_sheet(PIL.Image.open(folder / each["picture"]), each["frames"])):
            frame.save(found[-1] / f"{i}.png")
    return found


@pytest.mark.proves("timesformer", "weights", "the export of a run tells the same of files")
def test_the_export_tells_of_files_what_the_run_told(finished, tmp_path, run):
    samples, folders = samples_of(finished), clips_of(finished, tmp_path)
    told = classify_videos(hub.load(finished / "export"), folders)
    assert [labels[0].name for labels in told] == [each["hypothesis"] for each in samples]
    np.testing.assert_allclose([labels[0].probability for labels in told], [each["score"] for each in samples], 1e-4)
    code, out, _ = run("classify", finished, folders[0])
    assert (code, len(out.splitlines())) == (0, 8)
    assert out.split("\t")[1].startswith(samples[0]["hypothesis"])
    code, _, error = run("classify", finished, tmp_path / "nothing")
    assert (code, len(error.splitlines())) == (1, 1)
    assert "reads videos, folders of frames or video files, and there is no" in error
    (folders[0] / "3.png").unlink()
    code, _, error = run("classify", finished, folders[0])
    assert "/0: a video must have the 4 frames that are asked for, it has 3" in error
    code, _, error = run("classify", finished, "--pair", "one", "two")
    assert "pairs are of texts, the checkpoint reads videos" in error


def test_a_report_has_films_and_what_heads_look_at(finished, tmp_path):
    page = (finished / "report.html").read_text()
    assert "videos" in (finished / "samples.jsonl").read_text()
    assert "times" in page
    folders = clips_of(finished, tmp_path)
    attention, notes = draw_file(finished, folders[0])
    assert not notes
    assert attention.pixels.shape == (16, 4 * 16, 3)
    assert [maps.name for maps in attention.maps] == ["times", "time", "space"]
    for maps in attention.maps:
        np.testing.assert_allclose(maps.weights.sum(-1), 1, atol=1e-5)
    times, time, space = attention.maps
    assert (times.queries.rows, times.queries.columns, times.queries.width) == (1, 4, 16)
    assert (time.queries.rows, time.queries.columns, space.weights.shape) == (2, 8, (2, 2, 17, 17))
    seen = time.weights[0, 0][1:, 1:].reshape(2, 4, 2, 2, 4, 2) > 0
    row, frame, column, row2, frame2, column2 = np.nonzero(seen)
    assert ((row == row2) & (column == column2)).all()
    row, frame, column, row2, frame2, column2 = np.nonzero(space.weights[0, 0][1:, 1:].reshape(2, 4, 2, 2, 4, 2))
    assert (frame == frame2).all()


@pytest.mark.proves("vivit", "train", "[`classify_video`](../experiments/classify_video.py)")
def test_a_vivit_is_trained_and_drawn(tmp_path):
    folder = tmp_path / "run"
    train(short("vivit"), folder)
    attention, _ = draw_file(folder, clips_of(folder, tmp_path)[0])
    assert [maps.name for maps in attention.maps] == ["times", "self"]
    assert attention.pixels.shape == (16, 2 * 16, 3)
    np.testing.assert_allclose(attention.maps[0].weights.sum(-1), 1, atol=1e-5)
    whole, times = attention.maps[1].weights, attention.maps[0].weights
    first = whole[..., 0, 1:].reshape(2, 2, 2, 2, 2).sum((2, 4))
    np.testing.assert_allclose(first, times[..., 0, 1:], atol=1e-5)


@pytest.mark.proves("videomae", "train", "[`classify_video`](../experiments/classify_video.py), from a checkpoint")
def test_training_begins_with_a_checkpoint_at_another_size(tmp_path):
    golden = hub.load("tests/hub/golden/videomae")
    spec = Spec(uses=("classification",), classes=("a", "b"), image=(16, 16, 1), frames=6)
    start = load_start("tests/hub/golden/videomae", spec, None, seed=0)
    assert (start.config["image_size"], start.config["num_frames"]) == (16, 6)
    ours, theirs = start.model.backbone.trunk, golden.model.backbone.trunk
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(ours), jax.tree.leaves(theirs))
    assert start.model.hidden_states(np.ones((1, 6, 16, 16, 1), np.float32)).shape == (1, 3 * 16, 8)
    with pytest.raises(ValueError, match="golden/vit reads images, the data are videos"):
        load_start("tests/hub/golden/vit", spec, None, seed=0)


@pytest.mark.parametrize("frames", [1, 3])
def test_a_model_of_one_frame_sees_no_more(frames):
    """The frame in the middle, as frames are evenly spread."""
    recipe = experiments("classify_video")["frame"]
    config = sized(recipe.model, Spec(uses=("classification",), classes=("a", "b"), image=(32, 32, 3), frames=frames))
    assert abstract(config).backbone.cfg.patches.grid == (frames, 4, 4)
    assert recipe.examples.frames == 1


def test_skeletons_are_clips_of_joints(tmp_path):
    np.savez(tmp_path / "skeletons.npz", **arrays())
    data = SkeletonData(root=str(tmp_path), holdout=0.5)
    train(short("skeleton", data=data), tmp_path / "run")
    exported = hub.load(tmp_path / "run/export")
    assert (exported.config["image_size"], exported.config["num_channels"]) == ([4, 1], 3)
    assert exported.config["tubelet_size"] == [2, 1, 1]
    assert len(samples_of(tmp_path / "run")) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": 7}, "videos, number 0: a video must have the 7 frames that are asked for, it has 6; ask for fewer"),
        ({"frames": 0}, "frames must be at least 1, got 0"),
        ({"least": 2.0}, r"least must be in \[0, 1\], got 2.0"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(short("vivit", examples=LabelledVideos(rows=4, **changes)), tmp_path)


@pytest.mark.rotates
@pytest.mark.parity
def test_transformers_opens_what_a_run_exports(finished):
    """And tells the same of its frames, by its own processor."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.TimesformerForVideoClassification.from_pretrained(finished / "export").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(finished / "export", backend="pil")
    samples = samples_of(finished)
    assert samples
    for each in samples:
        frames = from_sheet(PIL.Image.open(finished / each["picture"]), each["frames"])
        with torch.no_grad():
            chances = model(**processor(frames, return_tensors="pt")).logits.softmax(-1)[0]
        assert model.config.id2label[int(chances.argmax())] == each["hypothesis"]
        assert float(chances.max()) == pytest.approx(each["score"], rel=1e-4)
