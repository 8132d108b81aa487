"""From an experiment to a finished run: folder, mesh, state, loop, and what comes at the end."""

import contextlib
import io
import json
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jax

from flax_transformer.frozen import frozen
from flax_transformer.listing import listed, short_path
from flax_transformer.parallel import MeshConfig, make_mesh, multihost
from flax_transformer.task.command import quietly
from flax_transformer.train.batch_layout import closed, shared, work_in
from flax_transformer.train.carry import NOTHING, Carry, Objective, carry_of, check_new_statistics
from flax_transformer.train.checkpoint import CheckpointError, Checkpoints
from flax_transformer.train.compiled_step import programs_folder
from flax_transformer.train.finetune import adopt_state, freeze, trained_count
from flax_transformer.train.folder import FolderError, RunFolder, gone_if_refused, open_folder
from flax_transformer.train.large_pages import large_pages_hint
from flax_transformer.train.loop import (
    Batches,
    Evaluation,
    Interrupted,
    NotFinite,
    Preempted,
    Reporting,
    TrainConfig,
    fit,
)
from flax_transformer.train.metric_window import skip_not_finite
from flax_transformer.train.metrics import JsonLines, MetricWriter, TensorBoard, Tracker, Writers
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.preemption import preempted_at_once
from flax_transformer.train.profile import FOLDER as PROFILE
from flax_transformer.train.profile import Profile
from flax_transformer.train.schedule import make_schedule
from flax_transformer.train.state import TrainState, evaluated_model, init_state, parameter_count
from flax_transformer.train.step import OwnStep, Step, jit_train_step, make_own_step, make_train_step


@dataclass(frozen=True)
class Task:
    """What the training loop must be given, made from an experiment once its data is open."""

    init: Callable[[jax.Array], Any] | None
    """`init(key) -> model`, of a new model."""
    objective: Objective | None
    """What is minimised; None where the task brings its own step."""
    batches: Batches
    evaluate: Callable[[Any, int], dict[str, float]]
    """`evaluate(model, step) -> metrics` on validation data, of the whole model (`Carry.whole`), run within the mesh of
    training; `train.share.fill_rows` makes batches that every mesh can split."""
    finish: Callable[[Any, MetricWriter], None]
    """`finish(model, writer)`: test the final model and show what it does."""
    model: Any = None
    """A model to begin from, in place of a new one; training takes its arrays over."""
    better: Mapping[str, Literal["lower", "higher"]] = field(default_factory=lambda: {"loss": "lower"})
    """Which direction is better, of the metrics of `evaluate` that `train.monitor` may watch."""
    unit: str = "items"
    """What the objective counts, for the name of the speed of training."""
    step: OwnStep | None = None
    """A step of the task's own, in place of one made of its objective and the experiment's optimizer."""

    def __post_init__(self):
        if (self.objective is None) == (self.step is None):
            raise ValueError("a task has either an objective or its own step, got both or neither")


@frozen
class Experiment:
    """What every experiment has. A subclass adds its model and data, and makes the `Task`."""

    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = field(default_factory=MeshConfig)
    track: tuple[str, ...] = ()
    """Trackers to log to beside metrics.jsonl and TensorBoard: wandb, trackio."""

    def __post_init__(self):
        make_schedule(self.optimizer.schedule, self.optimizer.learning_rate, self.train.steps)
        unknown = [name for name in self.track if name not in ("wandb", "trackio")]
        if unknown:
            raise ValueError(f"track may name wandb and trackio, got {listed(unknown)}")

    def task(self, folder: RunFolder) -> Task:
        """Open the data and make what training needs."""
        raise TypeError(f"{type(self).__name__} does not say how to train: define its method `task`")


def make_writer(experiment: Experiment, folder: RunFolder, after: int) -> MetricWriter:
    """Open metrics.jsonl, TensorBoard and the trackers asked for; only process 0 writes.

    Args:
      after: the step a run resumes from; records of later steps are dropped, as they will be written again.
    """
    if jax.process_index() != 0:
        return Writers([])
    trackers = [Tracker(name, "flax_transformer", folder.root) for name in experiment.track]
    return Writers([JsonLines(folder.metrics, after=after), TensorBoard(folder.tensorboard, after=after), *trackers])


def train(
    experiment: Experiment, workdir: str | os.PathLike, *, profile: str = "", programs: str = "", workers: int = 0
) -> Any:
    """Run an experiment in a folder, from where it stands, and return the final model.

    Among several processes (`multihost.start`) all must call this, with one folder that all of them see.

    Args:
      profile: steps to trace, FROM:TO, into `profile` in the folder; none by default.
      programs: a folder of compiled steps: what is there is loaded, and what is not is compiled and added. They are
        code, which whoever can write there decides.
      workers: processes that lay out batches of training, beside this one; 0: threads of this one do.

    Raises:
      FolderError: when the folder holds another configuration or cannot be written.
      ValueError, FileNotFoundError: when the data or the settings cannot work.
      NotFinite, CheckpointError, Interrupted, Preempted: as `train.loop.fit` says.
    """
    traced = Profile.of(profile, Path(workdir) / PROFILE, experiment.train.steps) if profile else None
    kept = programs_folder(programs) if programs else None
    with preempted_at_once():
        mesh = make_mesh(experiment.mesh)
        if jax.process_count() > 1 and mesh.size < jax.device_count():
            raise ValueError(f"the mesh must use the devices of all processes, got {mesh.size} of {jax.device_count()}")
        with multihost.first("prepare"), _only_first_speaks(), gone_if_refused(workdir):
            folder = open_folder(workdir, experiment)
            task = experiment.task(folder)
            work_in(task.batches, workers)
        config = experiment.train
        mesh = mesh if mesh.size > 1 else None
        with Checkpoints(folder.checkpoints, keep=config.keep) as checkpoints:
            done = checkpoints.steps()
            with _closing(make_writer(experiment, folder, after=done[-1] if done else 0)) as writer:
                model = _fit(experiment, task, mesh, folder, checkpoints, writer, traced, kept)
                if jax.process_index() == 0:
                    task.finish(model, writer)
                multihost.barrier("finished")
        return model


def _fit(
    experiment: Experiment,
    task: Task,
    mesh: Any,
    folder: RunFolder,
    checkpoints: Checkpoints,
    writer: MetricWriter,
    profile: Profile | None,
    programs: Path | None,
) -> Any:
    """Train, and give the final model, which every process then holds by itself."""
    config = experiment.train
    state, carry, step = begin_training(experiment, task, mesh)
    step = skip_not_finite(step) if config.skip_not_finite else step
    trained = "" if task.step is not None else experiment.optimizer.trainable
    _introduce(folder, introduction(state.model, trained), mesh)
    schedule = make_schedule(experiment.optimizer.schedule, experiment.optimizer.learning_rate, config.steps)
    with closed(shared(task.batches, *multihost.row_parts(mesh))) as batches:
        state = fit(
            state,
            jit_train_step(step, state, mesh, programs),
            batches,
            config,
            checkpoints=checkpoints,
            evaluation=Evaluation(_within(mesh, task.evaluate, carry), task.better),
            reporting=Reporting(writer, schedule, task.unit, profile),
        )
    model = final_model(experiment, checkpoints, state, carry)
    return multihost.to_local_devices(multihost.whole(model)) if jax.process_count() > 1 else model


def begin_training(experiment: Experiment, task: Task, mesh: Any = None) -> tuple[TrainState, Carry, Step]:
    """Return the state that training begins in, what it carries, and the training step, not compiled.

    Raises:
      ValueError: a new model with batch norms, trained by an objective that does not carry their statistics.
    """
    optimizer, carry, step = _step(experiment, task)
    config = experiment.train
    if task.model is None and task.step is None:
        check_new_statistics(jax.eval_shape(task.init, jax.random.key(0)), carry)
    begin = partial(init_state, task.init) if task.model is None else partial(adopt_state, task.model)
    state = begin(optimizer, jax.random.key(config.seed), ema=config.ema > 0, carry=carry, mesh=mesh)
    return state, carry, step


def _step(experiment: Experiment, task: Task) -> tuple[Any, Carry, Step]:
    """Return what makes the optimizer's state, what is carried, and the training step."""
    config = experiment.train
    if task.step is not None:
        if config.accumulate > 1:
            raise ValueError(f"a task with a step of its own cuts no batches, got train.accumulate={config.accumulate}")
        return task.step, task.step.carry, make_own_step(task.step, ema=config.ema)
    optimizer = make_optimizer(experiment.optimizer, config.steps)
    objective = freeze(task.objective, experiment.optimizer.trainable)
    step = make_train_step(objective, optimizer, accumulate=config.accumulate, ema=config.ema)
    return optimizer, carry_of(objective), step


def _within(
    mesh: Any, evaluate: Callable[[Any, int], dict[str, float]], carry: Carry
) -> Callable[[TrainState, int], dict[str, float]]:
    """Use the devices of training for evaluation, laid out in the same way."""

    def run(state: TrainState, step: int) -> dict[str, float]:
        with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
            return evaluate(evaluated_model(state, carry), step)

    return run


@contextlib.contextmanager
def _closing(writer: MetricWriter) -> Iterator[MetricWriter]:
    """Close a writer at the end; what ended the run is told, not that a full disk takes no last line either."""
    try:
        yield writer
    except BaseException:
        with contextlib.suppress(OSError):
            writer.close()
        raise
    writer.close()


@contextlib.contextmanager
def _only_first_speaks() -> Iterator[None]:
    """Drop what processes print that prepare the same as process 0."""
    with contextlib.nullcontext() if jax.process_index() == 0 else contextlib.redirect_stdout(io.StringIO()):
        yield


def final_model(experiment: Experiment, checkpoints: Checkpoints, state: TrainState, carry: Carry = NOTHING) -> Any:
    """Choose the model a run ends with: its moving average, the average of its last checkpoints, or the last one."""
    from flax_transformer.train.checkpoint import average_models

    steps = checkpoints.steps()[-experiment.train.average :]
    if experiment.train.ema or len(steps) < 2:
        return evaluated_model(state, carry)
    return average_models(checkpoints, state.model, steps, carry, state.carried)


def introduction(model: Any, trained: str) -> str:
    """Return how large a model is and, where only parameters that match a pattern train, how many those are."""
    whole = f"{parameter_count(model):,} parameters"
    return f"{trained_count(trained, model):,} of {whole} train" if trained else whole


def _introduce(folder: RunFolder, model: str, mesh: Any) -> None:
    if jax.process_index() == 0:
        devices = "1 device" if mesh is None else " × ".join(f"{a} {n}" for a, n in mesh.shape.items() if n > 1)
        print(f"{model}, {jax.default_backend()}, {devices}, run folder {short_path(folder.root)}", flush=True)
        if hint := large_pages_hint():
            print(hint, flush=True)


def write_samples(folder: RunFolder, samples: list[dict]) -> None:
    """Write samples.jsonl, one object a line."""
    if jax.process_index() == 0:
        folder.samples.write_text("".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples))


BARE = {"bare": True}
"""Metadata of a field whose own fields are options without a prefix, as `--rows` and not `--examples.rows`."""


def option_type(experiment: Experiment) -> Any:
    """Return the type that tyro reads an experiment's options by."""
    import tyro

    kind = type(experiment)
    for each in fields(kind):
        if each.metadata.get("bare"):
            # Said here and not where the field is, so that a machine without tyro can import recipes.
            owner = next(base for base in kind.__mro__ if each.name in vars(base).get("__annotations__", {}))
            owner.__annotations__[each.name] = Annotated[Any, tyro.conf.arg(name="")]
    return tyro.conf.AvoidSubcommands[kind]


FAILURES = (FolderError, CheckpointError, NotFinite, ValueError, OSError)
"""What a user can mend: said in a sentence, without a traceback."""


def launch(default: Experiment | Mapping[str, Experiment], arguments: list[str] | None = None) -> None:
    """Run an experiment file: read its options from the command line, train, and leave with the right exit code.

    Of several experiments by name the first argument names one; without it the first is run.

    Options are the fields of `default`, as `--train.steps 100`, and `--workdir`; where nothing else tells the processes
    of a run about each other, `--multihost.coordinator`, `--multihost.processes` and `--multihost.index` do. A setting
    that cannot work ends with exit code 2, a failure while training with 1, Ctrl-C with 130, a preemption with 0.
    """
    import tyro

    arguments = sys.argv[1:] if arguments is None else arguments
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    if isinstance(default, Mapping):
        default, arguments = _named(default, arguments)
    elif arguments and vars(sys.modules["__main__"]).get(arguments[0]) is default:
        arguments = arguments[1:]  # the only one, by the name that its file has for it

    def command(
        workdir: str = f"runs/{name}",
        profile: str = "",
        programs: str = "",
        workers: int = 0,
        processes: Annotated[multihost.Multihost, tyro.conf.arg(name="multihost")] = multihost.Multihost(),
        experiment: Annotated[Any, tyro.conf.arg(name="")] = default,
    ) -> int:
        """Train.

        Args:
          workdir: Folder of the run; a run that is already there goes on.
          profile: Steps to trace, FROM:TO, into the folder `profile` of the run, for xprof and for the report.
          programs: Folder of compiled training steps, as plan --programs writes them: one that matches is loaded,
            another is compiled and added. They are code, which whoever can write there decides.
          workers: Processes that lay out batches of training, where threads, which share Python's lock, feed too few.
          processes: One process of several; on SLURM (srun), GKE and TPU machines this is found out.
          experiment: The experiment.
        """

        def body() -> None:
            multihost.start(processes)
            train(experiment, workdir, profile=profile, programs=programs, workers=workers)

        return guarded(body)

    command.__annotations__["experiment"] = Annotated[option_type(default), tyro.conf.arg(name="")]
    with quietly():
        try:
            with _functions_by_name():
                code = tyro.cli(command, args=arguments, description=sys.modules["__main__"].__doc__)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
    multihost.leave(code)


def _functions_by_name() -> Any:
    """Return what makes tyro read by its name what may also be a function, such as an activation."""
    import tyro

    names = tyro.constructors.ConstructorRegistry()

    @names.primitive_rule
    def by_name(field: Any) -> Any:
        if field.type != str | Callable:
            return None

        def spell(given):
            return [given if isinstance(given, str) else given.__qualname__]

        return tyro.constructors.PrimitiveConstructorSpec(1, "STR", operator.itemgetter(0), lambda given: True, spell)

    return names


def _named(experiments: Mapping[str, Experiment], arguments: list[str]) -> tuple[Experiment, list[str]]:
    """Take the experiment that the first argument names."""
    if not arguments or arguments[0].startswith("-"):
        return next(iter(experiments.values())), arguments
    if arguments[0] not in experiments:
        print(f"error: the first word must be one of {', '.join(experiments)}, got {arguments[0]!r}", file=sys.stderr)
        multihost.leave(2)
    return experiments[arguments[0]], arguments[1:]


def guarded(body: Callable[[], Any]) -> int:
    """Do what a person has asked for; say in a sentence what kept it from its end, and give the exit code for that."""
    try:
        body()
    except FAILURES as error:
        code = 2 if isinstance(error, FolderError | ValueError | FileNotFoundError) else 1
        if jax.distributed.is_initialized() and not isinstance(error, FolderError | CheckpointError | NotFinite):
            multihost.fail(error, code=code)  # nobody is at this terminal, so show where
        print(f"error: {error}", file=sys.stderr)
        # Others may wait for this process; what is left of a failed save may speak or hang when Python winds up.
        at_once = jax.distributed.is_initialized() or isinstance(error, CheckpointError)
        return multihost.end(code) if at_once else code
    except (Interrupted, Preempted) as stop:
        print(stop, file=sys.stderr)
        return 130 if isinstance(stop, Interrupted) else 0
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return multihost.end(130) if jax.distributed.is_initialized() else 130
    return 0
