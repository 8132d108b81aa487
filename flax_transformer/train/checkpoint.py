"""Checkpoints: a training state, the position in the data and a word about the run, by Orbax.

A checkpoint stores arrays under their parameter paths, so that it can be read without the code that wrote it. Orbax
keeps no checksum of array data; a manifest of SHA-256 sums is written beside each step and verified on restore.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_transformer.atomic import write_file
from flax_transformer.parallel import path_name
from flax_transformer.parallel.multihost import broadcast_from_first, whole
from flax_transformer.train.carry import NOTHING, Carry, alone


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message says which and why."""


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_arrays(tree: Any) -> dict[str, jax.Array]:
    """Flatten a pytree into arrays by path; typed PRNG keys become their integers."""
    pairs = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): jax.random.key_data(leaf) if _is_key(leaf) else leaf for path, leaf in pairs}


def from_arrays(tree: Any, arrays: dict[str, Any]) -> Any:
    """Put arrays back into the shape of `tree`, the inverse of `to_arrays`."""

    def fill(path: tuple, leaf: Any) -> Any:
        array = arrays[path_name(path)]
        return jax.random.wrap_key_data(array, impl=_key_impl(leaf)) if _is_key(leaf) else array

    return jax.tree_util.tree_map_with_path(fill, tree)


def _key_impl(leaf: Any) -> Any:
    """Read a key's generator, also off an abstract one, which only a trace can tell."""
    found = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), leaf)
    return found[0]


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    data = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
    place = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=place)


def _cause(error: BaseException) -> str:
    """Find the first sentence of what really went wrong, at the end of the exception chain."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    text = next(iter(str(error).strip().splitlines()), "no message")
    return "no space left on device" if "No space left" in text else f"{type(error).__name__}: {text}"


@functools.cache
def _quiet_orbax() -> None:
    """Report once what went wrong, in our own words; Orbax raises whatever it logs, and logs it at length.

    This is for the whole process. A save or restore that fails closes the event loop which its other reads and writes
    still report to; each of them would print a traceback of its own, after ours.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    otherwise = sys.unraisablehook

    def hook(raised: Any) -> None:
        if not (isinstance(raised.exc_value, RuntimeError) and str(raised.exc_value) == "Event loop is closed"):
            otherwise(raised)

    sys.unraisablehook = hook


def _preservation(keep: int | None) -> Any:
    """Make the policy of what stays: everything, or the newest `keep` and the one of the lowest score."""
    from orbax.checkpoint import v1 as ocp

    policies = ocp.training.preservation_policies
    if keep is None:
        return policies.PreserveAll()
    options = {"n": 1, "keep_checkpoints_without_metrics": False}
    best = policies.BestN(get_metric_fn=lambda metrics: -metrics["score"], **options)
    return policies.AnyPreservationPolicy([policies.LatestN(keep), best])


def _files(step_folder: Path) -> list[Path]:
    return sorted(path for path in step_folder.rglob("*") if path.is_file())


def _steps_in(folder: Path) -> list[int]:
    """List the steps of a folder; none where it has vanished."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.name) for path in paths if path.name.isdigit() and path.is_dir())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checkpoints:
    """The checkpoints of one run, `folder/STEP`: the newest `keep` of them, and the best of those saved with a score.

    Saving is asynchronous: it goes on while training does, and what went wrong is raised by the next call of `check`,
    `save`, `wait` or `close`. Use as a context manager, or close it.

    Args:
      keep: None only reads: nothing in the folder is touched, which another process may be writing to.
    """

    def __init__(self, folder: str | os.PathLike, *, keep: int | None = 3):
        from orbax.checkpoint import v1 as ocp

        _quiet_orbax()
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder, self._keep = Path(folder).absolute(), keep
        # Is gone when the folder is, which a write under way makes again; one each, as a bucket has no shared files.
        self._mark = self.folder / f".opened-{jax.process_index()}"
        self._thread: threading.Thread | None = None
        self._failed: tuple[int, BaseException] | None = None
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        context.array.saving.use_compression = False  # which takes most of the time for a few percent of float32
        context.checkpointables.registry = ocp.handlers.local_registry()
        context.checkpointables.registry.add(ocp.handlers.JsonHandler, checkpointable_name="meta")
        try:
            if keep is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._mark.touch()
            elif not self.folder.is_dir():
                raise CheckpointError(f"there are no checkpoints: no folder {self.folder}")
            self._orbax = ocp.training.Checkpointer(
                self.folder,
                context=context,
                save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
                preservation_policy=_preservation(keep),
                cleanup_tmp_directories=keep is not None,
            )
        except OSError as error:
            raise CheckpointError(f"cannot write checkpoints to {self.folder}: {error}") from error
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:  # the metadata of a step is damaged
            raise CheckpointError(f"cannot read the checkpoints in {self.folder} ({_cause(error)})") from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None or jax.process_count() == 1:  # else to wait for the others may be to wait for ever
            self.close()

    def steps(self) -> list[int]:
        """List the steps there are checkpoints of, oldest first."""
        return [checkpoint.step for checkpoint in self._orbax.checkpoints]

    def newest(self) -> int | None:
        """Return the newest step, if there is one, as process 0 sees it.

        Raises:
          CheckpointError: when this process does not see it, as folders on a network may come late or not be shared.
        """
        steps = self.steps()
        newest = broadcast_from_first(steps[-1] if steps else -1)
        if newest >= 0 and newest not in steps:
            raise CheckpointError(
                f"process {jax.process_index()} does not see checkpoint {newest} in {self.folder}, which process 0 "
                "does; all need one folder"
            )
        return newest if newest >= 0 else None

    def save(self, step: int, state: Any, meta: dict, *, score: float | None = None) -> None:
        """Begin to save; what is already saved at this step stays.

        Args:
          meta: JSON-able: position in the data, and whatever else a restart needs.
          score: lower is better; the best of all scored checkpoints is kept when it is no longer among the newest.

        Raises:
          CheckpointError: when an earlier save failed, or this one could not begin.
        """
        if self._keep is None:
            raise CheckpointError(f"the checkpoints in {self.folder} were opened to be read")
        self.wait()
        self.check_folder()
        if step in self.steps():
            return
        try:
            pending = self._orbax.save_checkpointables_async(
                step,
                {"state": to_arrays(state), "meta": meta},
                force=True,
                metrics=None if score is None else {"score": score},
            )
        except Exception as error:
            raise CheckpointError(self._sentence(step, error)) from error
        self._thread = threading.Thread(target=self._finish, args=(step, pending), daemon=True)
        self._thread.start()

    def _finish(self, step: int, pending: Any) -> None:
        """Wait for a save and seal it with its manifest; runs beside training."""
        try:
            if pending is not None:
                pending.result()
            if jax.process_index() == 0:
                self._write_manifest(step)
        except BaseException as error:
            self._failed = (step, error)

    def _sentence(self, step: int, error: BaseException) -> str:
        good = [other for other in _steps_in(self.folder) if other != step]
        kept = f"the last good one is step {good[-1]}" if good else "there is no earlier one"
        cause = _cause(error) if self._mark.exists() else "the folder is gone"
        return f"could not save the checkpoint of step {step} to {self.folder} ({cause}); {kept}"

    def check(self) -> None:
        """Raise CheckpointError if a save is known to have failed; costs nothing."""
        if self._failed is not None:
            (step, error), self._failed = self._failed, None
            raise CheckpointError(self._sentence(step, error)) from error

    def check_folder(self) -> None:
        """Raise CheckpointError if the folder is gone: a save would make it again, without what else was in it."""
        if self._keep is not None and not self._mark.exists():
            raise CheckpointError(f"the folder {self.folder} is gone; nothing more can be saved there")

    def wait(self) -> None:
        """Wait for the save under way, if any.

        Raises:
          CheckpointError: when it failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _manifest(self, step: int) -> Path:
        return self.folder / f"{step}.sha256.json"

    def _write_manifest(self, step: int) -> None:
        root = self.folder / str(step)
        sums = {str(path.relative_to(root)): _sha256(path) for path in _files(root)}
        write_file(self._manifest(step), json.dumps(sums, indent=1))
        for stale in self.folder.glob("*.sha256.json"):
            if not (self.folder / stale.name.split(".")[0]).is_dir():
                stale.unlink(missing_ok=True)

    def verify(self, step: int) -> None:
        """Compare a checkpoint's files with its manifest.

        Raises:
          CheckpointError: naming the first file that is missing or changed, and the newest checkpoint that is whole.
            One without a manifest, whose writer was killed before sealing it, is left to Orbax's own checks.
        """
        if fault := self._fault(step):
            raise CheckpointError(f"checkpoint {step} is damaged: {fault}{self._offer(step)}")

    def _fault(self, step: int) -> str:
        """Return what is wrong with a checkpoint's files, or nothing."""
        manifest = self._manifest(step)
        if not manifest.exists():
            return ""
        try:
            sums = dict(json.loads(manifest.read_text()))
        except (ValueError, TypeError, RecursionError):
            return f"{manifest} is no manifest"
        for name, expected in sums.items():
            path = self.folder / str(step) / name
            if not path.is_file():
                return f"{path} is missing"
            if _sha256(path) != expected:
                return f"{path} has changed"
        return ""

    def _offer(self, step: int) -> str:
        """Return how to go on without a damaged checkpoint; only the user may decide to."""
        good = next((other for other in reversed(self.steps()) if other < step and not self._fault(other)), None)
        if good is None:
            return "; there is no earlier good one"
        return f"; step {good} is the last good one, to go on from there delete {self.folder / str(step)}"

    def restore(self, state: Any, step: int | None = None) -> tuple[Any, dict]:
        """Read a checkpoint into the structure, shapes and layout of `state`.

        Args:
          state: arrays or abstract ones; only the paths it has are read.
          step: the newest by default.

        Returns:
          The state and the meta dictionary it was saved with.

        Raises:
          CheckpointError: when there is none, it is damaged, or it does not fit `state`.
        """
        self.wait()
        steps = self.steps()
        if not steps or (step is not None and step not in steps):
            raise CheckpointError(f"no checkpoint of step {step} in {self.folder}, there are {steps or 'none'}")
        step = steps[-1] if step is None else step
        if jax.process_index() == 0:  # the others would read the same files; if this one raises, all end
            self.verify(step)
        abstract = {name: _abstract(leaf) for name, leaf in _with_keys(state).items()}
        self._check_fits(step, abstract)
        try:
            loaded = self._orbax.load_checkpointables(step, {"state": abstract, "meta": None})
        except Exception as error:
            raise CheckpointError(
                f"cannot read checkpoint {step} in {self.folder} ({_cause(error)}){self._offer(step)}"
            ) from error
        if self._keep is not None and jax.process_index() == 0 and not self._manifest(step).exists():
            self._write_manifest(step)  # its writer was killed before it could
        return from_arrays(state, loaded["state"]), loaded["meta"]

    def shapes(self, step: int | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """List what a checkpoint holds, by path, without reading it."""
        step = self.steps()[-1] if step is None else step
        try:
            tree = self._orbax.checkpointables_metadata(step).metadata["state"]
        except Exception as error:
            raise CheckpointError(
                f"cannot read checkpoint {step} in {self.folder} ({_cause(error)}){self._offer(step)}"
            ) from error
        if tree is None:
            raise CheckpointError(f"cannot read what checkpoint {step} in {self.folder} holds{self._offer(step)}")
        return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in tree.items()}

    def _check_fits(self, step: int, wanted: dict[str, jax.ShapeDtypeStruct]) -> None:
        have = self.shapes(step)
        missing = [name for name in wanted if name not in have]
        differing = [
            f"{name} is {tuple(have[name].shape)}, not {leaf.shape}"
            for name, leaf in wanted.items()
            if name in have and tuple(have[name].shape) != tuple(leaf.shape)
        ]
        # Floats of another width are rounded, as whoever asks for them wants; whole numbers cannot hold them.

        def real(leaf):
            return jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)

        differing += [
            f"{name} is {have[name].dtype}, not {leaf.dtype}"
            for name, leaf in wanted.items()
            if name in have and real(have[name]) != real(leaf)
        ]
        if missing or differing:
            what = [f"{name} is missing" for name in missing] + differing
            more = f" and {len(what) - 5} more" if len(what) > 5 else ""
            raise CheckpointError(f"checkpoint {step} does not fit: {'; '.join(what[:5])}{more}")

    def close(self) -> None:
        """Finish what is under way and release the folder; raises what the last save met."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):  # what a save met, which `wait` has told
                self._orbax.close()


def _with_keys(tree: Any) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def average_models(
    checkpoints: Checkpoints, model: Any, steps: list[int], carry: Carry = NOTHING, carried: Any = None
) -> Any:
    """Average the parameters of several checkpoints, in float32 (Vaswani et al. 2017, §6.1).

    Args:
      model: the structure to fill, arrays or abstract.
      steps: which checkpoints.
      carry: how what is carried belongs to the model: the average is of the whole.
      carried: the structure of what is carried beside it.
    """
    if not steps:
        raise ValueError("averaging needs at least one checkpoint, got none")
    wanted = {"model": model} if carry.whole is alone else {"model": model, "carried": carried}
    total = None
    for step in steps:
        restored, _ = checkpoints.restore(wanted, step)
        one = carry.whole(restored["model"], restored.get("carried"))
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), whole(one))
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    like = carry.whole(model, carried)
    return jax.tree.map(lambda leaf, like: jax.numpy.asarray(leaf / len(steps), like.dtype), total, like)
