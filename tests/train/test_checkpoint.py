import asyncio
import gc
import subprocess
import sys
import time
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from flax_transformer.train.checkpoint import CheckpointError, Checkpoints, _quiet_orbax, average_models

pytestmark = pytest.mark.proves("checkpoints of runs", "asynchronous, verified by SHA-256")


def state_of(seed=0, impl="threefry2x32"):
    random = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    return {
        "model": {"kernel": draw(64, 32), "half": draw(7).astype(jnp.bfloat16), "odd": jnp.array([0.0, -0.0, 1e-45])},
        "step": jnp.array(seed, jnp.int32),
        "key": jax.random.key(seed, impl=impl),
    }


def bits(state):
    raw = lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf  # noqa: E731
    return [(leaf.dtype, np.asarray(raw(leaf)).tobytes()) for leaf in jax.tree.leaves(state)]


@pytest.fixture
def folder(tmp_path):
    """Three checkpoints, of steps 1, 2 and 3."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, state_of(step), {"at": step})
    return tmp_path


def largest(folder, step):
    return max(
        (path for path in (folder / str(step)).rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_round_trip_is_exact(tmp_path, impl):
    state = state_of(5, impl)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, state, {"data": {"step": 5}, "patience": {"best": None}})
        restored, meta = checkpoints.restore(jax.eval_shape(lambda: state_of(0, impl)))
    assert bits(restored) == bits(state)
    assert jax.random.key_impl(restored["key"]) == jax.random.key_impl(state["key"])
    assert meta == {"data": {"step": 5}, "patience": {"best": None}}


def test_newest_are_kept_with_their_manifests_alone(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, state_of(step), {})
        checkpoints.wait()
        assert checkpoints.steps() == [3, 4]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["3.sha256.json", "4.sha256.json"]


def test_newest_is_restored_unless_another_is_asked_for(folder):
    with Checkpoints(folder) as checkpoints:
        assert int(checkpoints.restore(state_of())[0]["step"]) == 3
        assert bits(checkpoints.restore(state_of(), 2)[0]) == bits(state_of(2))
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 in .*there are \[1, 2, 3\]"):
            checkpoints.restore(state_of(), 7)


def test_a_part_of_the_state_can_be_read(folder):
    with Checkpoints(folder, keep=None) as checkpoints:
        part, _ = checkpoints.restore({"model": {"half": jnp.zeros(7, jnp.bfloat16)}})
    assert part["model"]["half"].tobytes() == state_of(3)["model"]["half"].tobytes()


def test_a_flipped_byte_is_detected_and_the_last_good_step_offered(folder):
    path = largest(folder, 3)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with Checkpoints(folder) as checkpoints, pytest.raises(CheckpointError) as caught:
        checkpoints.restore(state_of())
    message = str(caught.value)
    assert f"checkpoint 3 is damaged: {path} has changed" in message
    assert f"step 2 is the last good one, to go on from there delete {folder / '3'}" in message


def test_the_offer_can_be_taken(folder):
    largest(folder, 3).write_bytes(b"")
    subprocess.run(["rm", "-r", folder / "3"], check=True)
    with Checkpoints(folder) as checkpoints:
        restored, meta = checkpoints.restore(state_of())
        assert (bits(restored), meta) == (bits(state_of(2)), {"at": 2})
        checkpoints.save(3, state_of(3), {"at": 3})
        checkpoints.wait()
        assert bits(checkpoints.restore(state_of())[0]) == bits(state_of(3))


def test_a_damaged_checkpoint_is_not_offered(folder):
    for step in (3, 2):
        path = largest(folder, step)
        path.write_bytes(path.read_bytes()[:-1])
    with Checkpoints(folder) as checkpoints, pytest.raises(CheckpointError, match="step 1 is the last good one"):
        checkpoints.restore(state_of())


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:100])])
@pytest.mark.parametrize("pattern", ["state/d/*", "meta/data.json", "state/manifest.ocdbt", "state/_METADATA"])
def test_missing_and_truncated_files_are_named(tmp_path, damage, pattern):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jax.random.normal(jax.random.key(0), (64, 64))}, {"long": "x" * 200})
    path = next((tmp_path / "1").glob(pattern))
    damage(path)
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError) as caught:
        checkpoints.restore({"w": jnp.zeros((64, 64))})
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("; there is no earlier good one")


def test_a_damaged_manifest_is_named(folder):
    (folder / "3.sha256.json").write_text("[1")
    with Checkpoints(folder) as checkpoints, pytest.raises(CheckpointError, match=r"3\.sha256\.json is no manifest"):
        checkpoints.restore(state_of())


def test_what_a_killed_save_left_is_ignored_and_cleared(folder):
    torn = folder / "4.orbax-checkpoint-tmp"
    (torn / "state").mkdir(parents=True)
    (torn / "state" / "part").write_bytes(b"half")
    with Checkpoints(folder, keep=None) as checkpoints:
        assert checkpoints.steps() == [1, 2, 3]
        assert int(checkpoints.restore(state_of())[0]["step"]) == 3
    assert torn.exists()  # a reader leaves alone what another process may be writing
    with Checkpoints(folder) as checkpoints:
        assert checkpoints.steps() == [1, 2, 3]
        checkpoints.save(4, state_of(4), {})
        checkpoints.wait()
        assert bits(checkpoints.restore(state_of())[0]) == bits(state_of(4))
    assert not torn.exists()


def test_reading_changes_nothing(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with Checkpoints(folder, keep=None) as checkpoints:
        checkpoints.restore(state_of())
        checkpoints.shapes()
        with pytest.raises(CheckpointError, match="opened to be read"):
            checkpoints.save(4, state_of(), {})
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_reading_where_nothing_is_makes_nothing(tmp_path):
    with pytest.raises(CheckpointError, match="no folder"):
        Checkpoints(tmp_path / "none", keep=None)
    assert not (tmp_path / "none").exists()


def test_a_state_that_does_not_fit_is_listed(folder):
    wanted = state_of()
    wanted["model"] = {"kernel": jnp.zeros((8, 32)), "half": jnp.zeros(9, jnp.bfloat16), "bias": jnp.zeros(3)}
    with Checkpoints(folder) as checkpoints, pytest.raises(CheckpointError) as caught:
        checkpoints.restore(wanted)
    message = str(caught.value)
    assert "checkpoint 3 does not fit" in message
    for part in ("model.bias is missing", "model.kernel is (64, 32), not (8, 32)", "model.half is (7,), not (9,)"):
        assert part in message


def test_average_is_the_mean(folder):
    with Checkpoints(folder) as checkpoints:
        model = average_models(checkpoints, state_of()["model"], [1, 3])
        with pytest.raises(ValueError, match="at least one checkpoint"):
            average_models(checkpoints, state_of()["model"], [])
    both = [np.asarray(state_of(step)["model"]["kernel"], np.float64) for step in (1, 3)]
    np.testing.assert_array_equal(model["kernel"], np.mean(both, axis=0).astype(np.float32))
    assert model["half"].dtype == jnp.bfloat16


def test_saving_the_same_step_again_keeps_what_is_there(folder):
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(3, state_of(9), {})
        checkpoints.wait()
        assert bits(checkpoints.restore(state_of())[0]) == bits(state_of(3))


def test_a_failed_save_is_told_by_check_and_leaves_the_last_good_one(folder, monkeypatch):
    with Checkpoints(folder) as checkpoints:
        monkeypatch.setattr(
            checkpoints, "_write_manifest", lambda step: (_ for _ in ()).throw(OSError(28, "No space left"))
        )
        checkpoints.save(4, state_of(4), {})
        with pytest.raises(
            CheckpointError, match=r"could not save .* step 4 .*\(no space left.*last good one is step 3"
        ):
            until_told(checkpoints)
        checkpoints.check()  # told once
    with Checkpoints(folder, keep=None) as checkpoints:
        assert bits(checkpoints.restore(state_of(), 3)[0]) == bits(state_of(3))


def until_told(checkpoints, seconds=30, save=lambda: None):
    """Go on as training does: no waiting, only looking."""
    save()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        checkpoints.check()
        time.sleep(0.02)


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_told_at_once_and_the_last_good_step_survives(tmp_path):
    random = np.random.default_rng(0)
    state = {"w": jnp.asarray(random.normal(size=400_000), jnp.float32)}  # 1.6 MB, which does not compress
    with small_disk(tmp_path / "disk", "2600k") as disk:
        with Checkpoints(disk / "checkpoints", keep=3) as checkpoints:
            checkpoints.save(1, state, {})
            checkpoints.wait()
            with pytest.raises(
                CheckpointError, match=r"step 2 .*no space left on device\); the last good one is step 1"
            ):
                until_told(checkpoints, save=lambda: checkpoints.save(2, state, {}))
        with Checkpoints(disk / "checkpoints", keep=None) as checkpoints:
            assert checkpoints.steps() == [1]
            restored, _ = checkpoints.restore(state)
            np.testing.assert_array_equal(restored["w"], state["w"])


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*file"):
        Checkpoints(tmp_path / "file" / "checkpoints")


def test_keep_is_checked(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.rotates
def test_what_ends_after_a_save_has_failed_says_nothing(monkeypatch, caplog):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: said.append(str(raised.exc_value)))

    def late_write():
        """A write that ends after its event loop is closed, as Orbax closes one when another write fails."""
        promise, future = tensorstore.Promise.new()

        async def write():
            await future

        async def fail():
            await asyncio.sleep(0)
            raise OSError("no space")

        async def both():
            await asyncio.gather(write(), fail())

        loop = asyncio.new_event_loop()
        with pytest.raises(OSError, match="no space"):
            loop.run_until_complete(both())
        loop.close()
        promise.set_result(1)

    class Broken:
        def __del__(self):
            raise ValueError("this is told")

    late_write()
    assert said == ["Event loop is closed"]
    _quiet_orbax.__wrapped__()
    late_write()
    Broken()
    gc.collect()
    assert said[1:] == ["this is told"]
    assert caplog.records == []


def test_floats_are_not_read_into_whole_numbers(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"a": jnp.full(3, 0.5), "n": jnp.arange(2)}, {})
        with pytest.raises(CheckpointError, match="a is float32, not int32"):
            checkpoints.restore({"a": jnp.zeros(3, jnp.int32)})
        with pytest.raises(CheckpointError, match="n is int32, not float32"):
            checkpoints.restore({"n": jnp.zeros(2)})
        assert checkpoints.restore({"a": jnp.zeros(3, jnp.bfloat16)})[0]["a"].tolist() == [0.5] * 3
