"""Videos: which there are, which frames are seen, changes that all frames share, and what is refused at the door."""

import numpy as np
import PIL.Image
import pytest

from flax_transformer.data.image import Flip, ShiftFlip
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.synthetic import ACTIONS, MovingShapes
from flax_transformer.data.video import (
    ChannelsToFrames,
    PerFrame,
    SampleFrames,
    VideoFolderData,
    VideoRows,
    evenly_spaced_frames,
)
from flax_transformer.data.video.video_set import decode_frames, video_size

RNG = np.random.default_rng(0)


def write_clip(folder, frames=5, size=(9, 7), seed=0):
    folder.mkdir(parents=True)
    for number in range(frames):
        pixels = np.random.default_rng((seed, number)).integers(0, 256, (*size, 3), np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{number + 1}.png")


@pytest.fixture
def root(tmp_path):
    for number, action in enumerate(("jump", "run")):
        for clip in range(4):
            write_clip(tmp_path / action / f"clip {clip}", frames=11, seed=4 * number + clip)
    return tmp_path


def test_clips_of_class_folders_are_found_and_some_held_out(root):
    found = VideoFolderData(root=str(root), holdout=0.25).open()
    assert found.classes == ("jump", "run")
    assert {split: len(videos) for split, videos in found.splits.items()} == {"train": 4, "validation": 2, "test": 2}
    names = [videos["name"][i] for videos in found.splits.values() for i in range(len(videos))]
    assert len(set(names)) == 8
    for videos in found.splits.values():
        assert sorted(videos["label"].tolist()) == [0] * (len(videos) // 2) + [1] * (len(videos) // 2)


def test_folders_of_splits_are_taken_as_they_are(tmp_path):
    for split, count in (("train", 3), ("val", 1), ("test", 2)):
        for action in ("a", "b"):
            for clip in range(count):
                write_clip(tmp_path / split / action / str(clip))
    found = VideoFolderData(root=str(tmp_path)).open()
    assert {split: len(videos) for split, videos in found.splits.items()} == {"train": 6, "validation": 2, "test": 4}


def test_frames_come_in_the_order_of_their_numbers(root):
    videos = VideoFolderData(root=str(root)).open().splits["train"]["frames"]
    frames = videos.read(0, [0, 9, 10])
    folder = videos.root / videos.names[0]
    for frame, name in zip(frames, ("1", "10", "11"), strict=True):
        np.testing.assert_array_equal(np.asarray(frame), np.asarray(PIL.Image.open(folder / f"{name}.png")))


def test_another_clip_is_another_fingerprint(root):
    before = VideoFolderData(root=str(root)).open().splits["train"].fingerprint
    assert VideoFolderData(root=str(root)).open().splits["train"].fingerprint == before
    name = VideoFolderData(root=str(root)).open().splits["train"]["frames"].name(0)
    PIL.Image.new("RGB", (7, 9)).save(f"{name}/3.png")
    assert VideoFolderData(root=str(root)).open().splits["train"].fingerprint != before


def empty(root):
    (root / "run" / "nothing").mkdir()
    return "nothing must have frames, as every video, got none"


def sizes(root):
    PIL.Image.new("RGB", (8, 9)).save(root / "run" / "clip 0" / "12.png")
    return r"must have one size: .*clip 0.1.png has 7 × 9, .*clip 0.12.png 8 × 9"


def damaged(root):
    (root / "run" / "clip 0" / "12.png").write_bytes(b"\x89PNG\r\n\x1a\nnot")
    return r"12.png must be an image .*, it is none or damaged"


def no_av(root):
    (root / "run" / "clip.mp4").write_bytes(b"no video")
    return r"clip.mp4 (takes PyAV: pip install|is a damaged video, or none)"


@pytest.mark.parametrize("spoil", [empty, sizes, damaged, no_av])
def test_a_clip_that_is_none_is_named(root, spoil):
    message = spoil(root)
    found = VideoFolderData(root=str(root), holdout=0.2).open()
    every = [(videos["frames"], i) for videos in found.splits.values() for i in range(len(videos))]
    with pytest.raises(ValueError, match=message):
        [videos.size(i) for videos, i in every]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "jump").rename(root.parent / "gone"), "at least two classes, got 1"),
        (lambda root: (root / "walk").mkdir(), "walk must have at least one video, as every class folder, got none"),
        (lambda root: PIL.Image.new("RGB", (2, 2)).save(root / "run" / "1.png"), "must have a folder for the frames"),
        (lambda root: (root / "a.mp4").write_bytes(b""), "must have its videos in class folders, got a.mp4"),
    ],
)
def test_folders_of_another_form_are_refused(root, tmp_path_factory, spoil, message):
    inner = tmp_path_factory.mktemp("inner") / "data"
    root.rename(inner)
    spoil(inner)
    with pytest.raises(ValueError, match=message):
        VideoFolderData(root=str(inner)).open()


def test_no_folder_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere must be a folder of videos, there is none"):
        VideoFolderData(root=str(tmp_path / "nowhere")).open()


@pytest.mark.parametrize("length", [8, 9, 31])
def test_frames_by_chance_rise_lie_within_and_are_all_drawn(length):
    sample, seen = SampleFrames(count=8, least=0.7), set()
    for seed in range(200):
        numbers = sample.choose(length, np.random.default_rng(seed))
        assert (np.diff(numbers) >= 0).all()
        assert 0 <= numbers[0] <= numbers[-1] < length
        seen |= set(numbers.tolist())
    assert seen == set(range(length))
    assert len(set(evenly_spaced_frames(8, length).tolist())) == 8


def test_a_clip_of_fewer_frames_than_are_asked_for_is_refused(root):
    videos = VideoFolderData(root=str(root)).open().splits["train"]
    with pytest.raises(ValueError, match="a video must have the 12 frames that are asked for, it has 11"):
        SampleFrames(count=12)(videos[0], RNG)


def test_all_frames_of_a_clip_are_changed_alike():
    images = [PIL.Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))] * 6
    for seed in range(8):
        found = PerFrame(transform=Flip(share=0.5))({"images": images}, np.random.default_rng(seed))["images"]
        assert len({each.tobytes() for each in found}) == 1


def test_what_changes_batches_of_pictures_changes_clips_alike_in_all_frames():
    frames = np.random.default_rng(0).integers(0, 256, (2, 5, 8, 8, 3), np.uint8)
    frames[:] = frames[:, :1]
    examples = [{"images": [PIL.Image.fromarray(frame) for frame in clip], "label": 1} for clip in frames]
    batch = VideoRows()([*examples, None])
    changed = ShiftFlip(pad=2, flip=0.5)(batch, Draw(np.random.default_rng(1), 3, np.arange(3)))
    videos = ChannelsToFrames()(changed)["inputs"]["videos"]
    assert videos.shape == (3, 5, 8, 8, 3)
    np.testing.assert_array_equal(videos, np.broadcast_to(videos[:, :1], videos.shape))
    np.testing.assert_array_equal(ChannelsToFrames()(batch)["inputs"]["videos"][:2], frames)
    assert not (videos[:2] == frames).all()
    assert batch["weights"].tolist() == [1, 1, 0]


def test_clips_of_several_sizes_are_no_batch():
    one, two = ({"images": [PIL.Image.new("RGB", (side, 4))] * 2, "label": 0} for side in (4, 5))
    with pytest.raises(ValueError, match=r"videos of a batch must have one size, got \(4, 4\) and \(4, 5\)"):
        VideoRows()([one, two])


@pytest.mark.rotates
def test_no_single_frame_shows_what_a_shape_does():
    """Of every frame alike, whatever is done: the mean of all frames and how much is covered, and where."""
    shapes = MovingShapes(train=1, held_out=1, noise=0.0)
    first, last = [], []
    for action in ACTIONS:
        videos = np.stack([shapes.draw(action, np.random.default_rng((7, i))) for i in range(300)])
        ground = np.median(videos.reshape(300, -1, 3), axis=1)[:, None, None, None]
        covered = (np.abs(videos.astype(int) - ground) > 20).any(-1)
        first.append(covered[:, 0].mean((0, 1)))
        last.append(covered[:, -1].mean((0, 1)))
    for shares in (np.array(first), np.array(last)):
        assert np.abs(shares.mean(1) - shares.mean()).max() < 0.02
        assert np.abs(shares - shares.mean()).max() < 0.08


def test_what_a_shape_does_is_seen_from_frame_to_frame():
    shapes = MovingShapes(train=1, held_out=1, noise=0.0)
    where = {action: shapes._path(action, np.random.default_rng(3)) for action in ACTIONS}
    step = {action: np.diff((places + 1e-9), axis=0) % 32 for action, (places, _) in where.items()}
    assert (step["right"][:, 1] < 16).all()
    assert (step["left"][:, 1] > 16).all()
    assert (step["down"][:, 0] < 16).all()
    assert (step["up"][:, 0] > 16).all()
    for action in ("approach", "retreat"):
        sizes = np.diff(np.log(where[action][1])) * (1 if action == "approach" else -1)
        assert (sizes > 0).sum() >= len(sizes) - 2
        assert np.ptp(where[action][0]) == np.ptp(where[action][0][0])


def test_the_same_seed_draws_the_same_clips():
    one, two = (MovingShapes(train=5, held_out=2).open() for _ in range(2))
    assert one.splits["train"].fingerprint == two.splits["train"].fingerprint
    other = MovingShapes(train=5, held_out=2, drawing_seed=1).open()
    assert one.splits["train"].fingerprint != other.splits["train"].fingerprint
    with pytest.raises(ValueError, match="of at least 16 pixels and 3 frames"):
        MovingShapes(length=2)


def test_video_files_are_decoded(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for number in range(9):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), 25 * number, np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    assert video_size(path) == (9, 16, 32)
    frames = [float(np.asarray(frame).mean()) for frame in decode_frames(path, [0, 3, 3, 8])]
    np.testing.assert_allclose(frames, [0, 75, 75, 200], atol=8)
    with pytest.raises(ValueError, match=r"clip.mp4 must have a frame 9, it ends before"):
        decode_frames(path, [9])
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"clip.mp4 is a damaged video, or none"):
        video_size(path)
