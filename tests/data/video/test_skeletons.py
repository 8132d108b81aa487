"""Skeletons: which frames and sequences are kept, how they are laid out and changed, and what is refused."""

import numpy as np
import pytest

from flax_transformer.data.video import CentreBody, MoveBody, PoseRows, ResampleFrames, SkeletonData

RNG = np.random.default_rng(0)


def arrays(lengths=(9, 5, 7, 6, 8, 9, 5, 6), joints=4):
    rng, count = np.random.default_rng(0), len(lengths)
    return {
        "frames": rng.uniform(50, 200, (sum(lengths), joints, 3)).astype(np.float32),
        "lengths": np.array(lengths, np.int32), "action": np.arange(count) // 2 % 2 + 1,
        "subject": np.arange(count) % 2 + 1,
    }  # fmt: skip


def write(folder, **changes):
    np.savez(folder / "skeletons.npz", **{**arrays(), **changes})
    return SkeletonData(root=str(folder), focal=0.0, holdout=0.5)


def test_odd_subjects_are_trained_on_and_even_ones_test(tmp_path):
    found = write(tmp_path).open()
    assert {split: len(each) for split, each in found.splits.items()} == {"train": 2, "validation": 2, "test": 4}
    assert found.classes == ("1", "2")
    given = arrays()
    starts = np.cumsum(given["lengths"]) - given["lengths"]
    for row, number in enumerate((1, 3, 5, 7)):
        example = found.splits["test"][row]
        end = starts[number] + given["lengths"][number]
        np.testing.assert_array_equal(example["joints"], given["frames"][starts[number] : end])
        assert example["label"] == given["action"][number] - 1
        assert f"sequence {number}" in example["name"]


def test_frames_without_a_body_or_with_overflows_are_left_out(tmp_path):
    frames = arrays()["frames"]
    frames[0] = 0
    frames[2, 1, 1] = 2e9
    frames[9:13] = 0  # of the second sequence one frame is left
    found = write(tmp_path, frames=frames).open()
    assert found.note == "left out: 6 frames, 1 sequences"
    sizes = [len(each[i]["joints"]) for each in found.splits.values() for i in range(len(each))]
    assert sorted(sizes) == sorted([7, 7, 6, 8, 9, 5, 6])


def test_pixels_become_lengths(tmp_path):
    data = write(tmp_path)
    flat = data.open().splits["test"][0]["joints"]
    world = SkeletonData(root=data.root, focal=285.0, holdout=0.5).open().splits["test"][0]["joints"]
    np.testing.assert_allclose(world[..., 0], (flat[..., 0] - 160) * flat[..., 2] / 285, rtol=1e-5)
    np.testing.assert_array_equal(world[..., 2], flat[..., 2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": np.array([9, 5, 7, 6, 8, 9, 5, 5])}, r"skeletons.npz: lengths must add up to the frames"),
        ({"action": np.ones(8, np.int64)}, r"skeletons.npz: actions must be at least two, .*got \[1\]"),
        ({"subject": np.full(8, 2)}, r"skeletons.npz: subjects must be odd ones to train on and even ones to test"),
        ({"frames": np.zeros((55, 4))}, r"skeletons.npz: frames, lengths, .* must be \[N, J, 3\] and \[B\] each"),
        ({"subject": np.arange(8.0)}, r"skeletons.npz: lengths, action and subject must be whole numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path, **changes).open()


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must have one file of skeletons"):
        SkeletonData(root=str(tmp_path)).open()
    with pytest.raises(FileNotFoundError, match="nothing must be a file of skeletons"):
        SkeletonData(root=str(tmp_path / "nothing")).open()
    with pytest.raises(ValueError, match=r"of which none is named: --data\.root FILE"):
        SkeletonData(root="").open()
    np.savez(tmp_path / "some.npz", frames=np.zeros(3))
    with pytest.raises(ValueError, match=r"some.npz: it must have frames, .*, it lacks lengths, action, subject"):
        SkeletonData(root=str(tmp_path)).open()
    (tmp_path / "some.npz").write_bytes(b"none")
    with pytest.raises(ValueError, match=r"some.npz must be a file of arrays"):
        SkeletonData(root=str(tmp_path)).open()


def test_resampling_moves_joints_on_straight_lines():
    joints = np.arange(5, dtype=np.float32)[:, None, None] * np.ones((5, 2, 3), np.float32)
    found = ResampleFrames(count=9)({"joints": joints}, RNG)["joints"]
    np.testing.assert_allclose(found[:, 0, 0], np.arange(9) / 2)
    one = ResampleFrames(count=4)({"joints": joints[:1]}, RNG)["joints"]
    np.testing.assert_array_equal(one, np.zeros((4, 2, 3)))
    for seed in range(50):
        part = ResampleFrames(count=6, least=0.5, warp=0.5)({"joints": joints}, np.random.default_rng(seed))["joints"]
        times = part[:, 0, 0]
        assert (np.diff(times) > 0).all()
        assert times[-1] - times[0] >= 2 - 1e-5
        assert 0 <= times[0] <= times[-1] <= 4 + 1e-5


def test_a_body_is_put_into_the_middle_in_one_size():
    joints = RNG.normal(3, 7, (6, 5, 3))
    found = CentreBody()({"joints": joints}, RNG)["joints"]
    np.testing.assert_allclose(found.mean((0, 1)), 0, atol=1e-6)
    np.testing.assert_allclose(CentreBody()({"joints": 5 * joints + 2}, RNG)["joints"], found, atol=1e-5)


def test_a_body_is_turned_as_a_whole_and_mirrored_with_its_sides():
    joints = RNG.normal(0, 1, (3, 4, 3)).astype(np.float32)
    still = {"turn": 0.0, "tilt": 0.0, "stretch": 0.0, "shake": 0.0}
    np.testing.assert_allclose(MoveBody(**still)({"joints": joints}, RNG)["joints"], joints, atol=1e-6)
    turned = MoveBody(**{**still, "turn": 90.0, "tilt": 20.0})({"joints": joints}, RNG)["joints"]
    apart = lambda x: np.linalg.norm(x[:, :, None] - x[:, None], axis=-1)  # noqa: E731
    np.testing.assert_allclose(apart(turned), apart(joints), atol=1e-5)
    mirrored = MoveBody(**still, mirror=1.0, pairs=((0, 1),))({"joints": joints}, RNG)["joints"]
    np.testing.assert_allclose(mirrored[:, 0], joints[:, 1] * [-1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(mirrored[:, 2], joints[:, 2] * [-1, 1, 1], atol=1e-6)
    with pytest.raises(ValueError, match=r"stretch in \[0, 1\), got"):
        MoveBody(stretch=1.0)


def test_joints_are_pixels_of_a_clip():
    example = {"joints": RNG.normal(size=(5, 4, 3)).astype(np.float32), "label": 3}
    batch = PoseRows()([example, None])
    assert batch["inputs"]["videos"].shape == (2, 5, 4, 1, 3)
    np.testing.assert_array_equal(batch["inputs"]["videos"][0, :, :, 0], example["joints"])
    assert (batch["labels"].tolist(), batch["weights"].tolist()) == ([3, 0], [1, 0])
