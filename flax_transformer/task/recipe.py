"""A recipe: everything an experiment is, as one value, and what becomes of it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.compress.straight_through import Ranged, check_trainable, round_in_training, settle
from flax_transformer.frozen import frozen
from flax_transformer.hub.convert import describe
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.quantized.model import dequantize_model, plain, quantized_kernels
from flax_transformer.hub.registry import families, find_uses
from flax_transformer.listing import short_path
from flax_transformer.objective import check_parts
from flax_transformer.parallel import MeshConfig
from flax_transformer.task.adapter import write_adapter
from flax_transformer.task.evaluator import Finished, Shown, check_held_out, evaluate
from flax_transformer.task.experiment import BARE, Experiment, Task, write_samples
from flax_transformer.task.model_card import write_card
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.report import write_report
from flax_transformer.task.run import EXPORT, write_model_config
from flax_transformer.task.spec import Spec, check_length, longest_sides, reaching, sized
from flax_transformer.task.start import StartConfig, load_start
from flax_transformer.task.warm_start import take_tokenizer, warm_start
from flax_transformer.train.carry import Carry, carry_of, on_model
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.lora import Adapted, LoraConfig, adapt, init_lora, merge_lora
from flax_transformer.train.metrics import MetricWriter
from flax_transformer.train.state import parameter_count

FACTORS = "adapter"
"""What of a run's folder has the low-rank factors alone, as PEFT has them."""


@frozen
class Recipe(Experiment):
    """Train a model on data by an objective, and test it.

    The finished model, where it has a family, is saved to `export` in the run's folder, as a checkpoint that
    `transformers` opens too.
    """

    model: Any = None
    """Config of a new model; its vocabulary and classes are those of the data, whatever stands here. Of one that `init`
    gives, its rates of dropout, number format (`compute`) and recomputation (`remat`) alone; a `StartConfig` says these
    of one that always begins with a checkpoint."""
    family: str = ""
    """The model type of the checkpoint that a new model is exported as, such as bert; one of no family is not."""
    init: str = ""
    """Checkpoint to begin with, a folder or hub id, or the `export` of a run; a new model if empty."""
    warm_start: str = ""
    """Folder of a run whose tokenizer a new model has, and with whose parameters it begins wherever path and shape are
    the same, as a student does with its teacher's encoder; none if empty."""
    lora: LoraConfig | None = None
    """Train low-rank factors of the checkpoint's kernels in place of the kernels."""
    quantization: Quantization = Quantization(weights=None)
    """Train with kernels rounded in the forward pass (quantization-aware training); the export has few bits. With
    `lora` they are rounded once and frozen (QLoRA, Dettmers et al. 2023), and the export is whole."""
    data: Any
    """Where data come from."""
    examples: Any = field(metadata=BARE)
    """How data become examples and batches: a frozen value with `open`, such as `LabelledImages`."""
    objective: Any
    """What is minimised: see `objective`."""
    evaluators: tuple[Any, ...] = ()
    """What the finished model is tested and shown by: see `task.evaluator`."""

    def __post_init__(self):
        super().__post_init__()
        check_parts(self.objective, self.train.accumulate, "train.accumulate")
        if self.optimizer.sparsity.changes and self.train.ema:
            raise ValueError(
                f"a moving average of parameters has no zeros, got sparsity and train.ema={self.train.ema}"
            )
        if self.quantization.weights is not None:
            check_trainable(self.quantization)
        self._check_own_step()
        watched = self.train.keep_best or self.train.patience is not None
        if watched and self.train.monitor not in self.better:
            raise ValueError(f"train.monitor must be one of {', '.join(self.better)}, got {self.train.monitor!r}")
        if not self.init:
            check_length(self.examples, self.model)
        elif self.warm_start:
            raise ValueError(
                f"training begins with a checkpoint or a run, got init={self.init}, warm_start={self.warm_start}"
            )

    def _check_own_step(self) -> None:
        """Refuse what changes the one step of a model, where the objective has a step of its own."""
        if not hasattr(self.objective, "own_step"):
            return
        changes = {
            "lora": self.lora is not None, "quantization.weights": self.quantization.weights is not None,
            "optimizer.trainable": self.optimizer.trainable, "optimizer.sparsity": self.optimizer.sparsity.changes,
            "init": self.init, "train.accumulate": self.train.accumulate > 1,
        }  # fmt: skip
        if given := [name for name, changed in changes.items() if changed]:
            raise ValueError(f"{type(self.objective).__name__} trains by a step of its own, got {', '.join(given)}")

    @property
    def better(self) -> dict[str, str]:
        """Which direction is better, of the metrics of validation that `train.monitor` may watch."""
        return {**self.objective.better, **{each.metric: each.better for each in self.evaluators if each.validates}}

    @property
    def exports(self) -> bool:
        """Whether the finished model is a checkpoint of some family."""
        return bool(self.family or self.init)

    def rounded(self, objective: Any) -> Any:
        """Return an objective of a model that is rounded in training, where this says so."""
        if self.lora is not None or self.quantization.weights is None:
            return objective
        return round_in_training(objective, self.quantization)

    @property
    def carry(self) -> Carry:
        """What training carries beside the model."""
        return carry_of(self.rounded(self.objective))

    def finished(self, model: Any) -> Any:
        """Return what a trained model becomes: with low-rank factors in its kernels, or with kernels of few bits."""
        if self.lora is not None or self.quantization.weights is None:
            return _merged(model)
        if isinstance(model, Ranged):
            return settle(model.model, self.quantization, model.ranges)
        return settle(model, self.quantization)

    def task(self, folder: RunFolder) -> Task:
        """Open the data, size the model by them, or load the checkpoint to begin with."""
        new = self.model is not None and not isinstance(self.model, StartConfig)
        if not self.init and (not new or self.lora is not None):
            raise ValueError("nothing to adapt: give --init FOLDER, a checkpoint such as a run's export")
        if self.family and self.family not in families():
            raise ValueError(f"family must be one of {', '.join(families())}, or empty, got {self.family!r}")
        if not self.exports and (asking := [each for each in self.evaluators if each.exported]):
            raise ValueError(f"{type(asking[0]).__name__} tests a checkpoint, which takes a family, got an empty one")
        if (untrained := getattr(self.model, "untrained", ())) and not self.warm_start:
            raise ValueError(
                f"{' and '.join(untrained)} must be another run's: give --warm-start RUN, which trained it"
            )
        if self.warm_start:
            take_tokenizer(self.warm_start, folder)
        context = Context(
            folder=folder,
            seed=self.train.seed,
            init=self.init,
            multiple=rows_of(self.mesh) * self.train.accumulate,
            accumulate=self.train.accumulate,
            objective=self.objective,
        )
        opened = self.examples.open(self.data, context)
        check_held_out(self.evaluators, opened.held)
        known = self._start(opened) if self.init else None
        if known is not None:
            check_length(self.examples, known.model.cfg)
            _check_texts(opened.spec, known.model.cfg)
        length = getattr(self.examples, "positions", None) or 0
        config = reaching(sized(self.model, opened.spec), length) if known is None else known.model.cfg
        _check_objects(opened.spec, config)
        recipe = replace(self, objective=replace(self.objective, **opened.objective)) if opened.objective else self
        run = _Run(recipe, folder, opened, config, known)
        if self.lora is None:
            run.describe()
        return run.task()

    def _start(self, opened: Opened) -> hub.Pretrained:
        start = getattr(self.examples, "start", load_start)
        return start(self.init, opened.spec, self.model, seed=self.train.seed, keep=self.lora is not None)


@dataclass(frozen=True, eq=False)
class _Run:
    """A recipe whose data are open."""

    recipe: Recipe
    folder: RunFolder
    opened: Opened
    config: Any
    """Of the model, sized."""
    known: hub.Pretrained | None
    """What training begins with."""

    def task(self) -> Task:
        """Make what training needs."""
        recipe, objective = self.recipe, self.recipe.objective
        model, before = (None, {}) if self.known is None else (self.known.model, {})
        if recipe.warm_start:
            new = jax.jit(self.init)(jax.random.key(recipe.train.seed))
            model = warm_start(new, recipe.warm_start, getattr(self.config, "untrained", ()))
        if recipe.lora is not None:
            if recipe.quantization.weights is not None and not quantized_kernels(model):
                model = quantize_model(model, recipe.quantization)
            before = evaluate(objective, model, self.opened.validation())
            config, key = hub.find_targets(recipe.lora, self.known), jax.random.key(recipe.train.seed)
            model = Adapted(model, init_lora(plain(model), config, key))
            objective = on_model(adapt(objective), _with_whole_base)
            trained, whole = parameter_count(model.lora), parameter_count(model.base)
            print(f"{trained:,} parameters are trained, {100 * trained / whole:.1f} % of the model's", flush=True)
            print(f"validation loss before: {before['loss']:.4f}", flush=True)
        elif recipe.quantization.weights is not None:
            objective = recipe.rounded(objective)
        own = hasattr(objective, "own_step")
        return Task(
            init=self.init,
            objective=None if own else objective,
            step=objective.own_step(recipe.optimizer, recipe.train.steps) if own else None,
            batches=self.opened.batches,
            evaluate=lambda model, step: self.validate(recipe.finished(model), step),
            finish=partial(self.finish, before),
            model=model,
            better=recipe.better,
            unit=recipe.objective.unit,
        )

    def validate(self, model: Any, step: int) -> dict[str, float]:
        """Measure a model on validation data, and let evaluators look at it."""
        held, metrics, recipe = self.opened.validation, {}, self.recipe
        now = Finished(
            model=model, pretrained=None, opened=self.opened, objective=recipe.objective, folder=self.folder,
            seed=recipe.train.seed,
        )  # fmt: skip
        for evaluator in recipe.evaluators:
            metrics |= evaluator.validate(model, held()) if evaluator.validates else {}
            metrics |= evaluator.watch(now, step)
        return {**evaluate(recipe.objective, model, held()), **metrics}

    def init(self, key: jax.Array) -> Any:
        """Make a new model."""
        return self.config.build(nnx.Rngs(key))

    def describe(self) -> None:
        """Write what the checkpoints are of into the run's folder."""
        if jax.process_index() != 0:
            return
        write_model_config(self.folder, self.config)
        if not self.recipe.exports:
            return
        exported = self.export(nnx.eval_shape(self.init, jax.random.key(0)))
        if exported.model.cfg == self.config:  # a family may want its parameters in another order
            describe(exported, self.folder.root / EXPORT)

    def export(self, model: Any) -> hub.Pretrained:
        """Wrap a model as a checkpoint: all of it, or the part that it says is `exported`."""
        made, said = self._checkpoint(model), self.opened.generation
        return replace(made, generation=Fields.of(said)) if said else made

    def _checkpoint(self, model: Any) -> hub.Pretrained:
        """Wrap a model as a checkpoint that does not say yet how it generates."""
        opened, known = self.opened, self.known
        model = model.exported() if hasattr(model, "exported") else model
        if known is not None and not opened.spec.classes:
            return _continued(known, model, opened)
        own = opened.published or opened.tokenizer
        own = own if own is None or isinstance(own, HubTokenizer) else HubTokenizer.of(own)
        roles = () if own is None else ("pad", "bos", "eos")
        fields: Mapping[str, Any] = {f"{role}_token_id": getattr(own, role) for role in roles}
        family = self.recipe.family
        if known is not None:
            family = known.config["model_type"]
        head = getattr(model.cfg, "head", None)
        rate = {"classifier_dropout": head.dropout} if hasattr(head, "dropout") else {}
        said = {"tokenizer": own, "processor": opened.processor, **fields, **rate, **opened.fields}
        return _wrapped(model, find_uses(family, *opened.spec.uses), said)

    def finish(self, before: Mapping[str, float], model: Any, writer: MetricWriter) -> None:
        """Export the finished model, test it and show it."""
        folder, recipe = self.folder, self.recipe
        if recipe.lora is not None:
            write_adapter(model.lora, self.known, recipe.init, recipe.model, folder.root / FACTORS)
        model = recipe.finished(model)
        exported = self.export(model) if recipe.exports else None
        finished = Finished(
            model=model, pretrained=exported, opened=self.opened, objective=recipe.objective, folder=folder,
            seed=recipe.train.seed, before=before,
        )  # fmt: skip
        if exported is not None:
            hub.save(exported, folder.root / EXPORT)
        shown = [evaluator(finished) for evaluator in recipe.evaluators]
        metrics = {name: value for each in shown for name, value in each.metrics.items()}
        last = _last_step(folder)
        writer.write(last, "test", metrics)
        if exported is not None and jax.process_index() == 0:
            write_card(exported, folder, folder.root / EXPORT, {"step": last, **metrics})
        write_samples(folder, [sample for each in shown for sample in each.samples])
        report = write_report(folder, recipe.evaluators, model, self.opened.tokenizer, pretrained=exported)
        for line in _last_words(shown, folder, report):
            print(line, flush=True)


def rows_of(mesh: MeshConfig) -> int:
    """Count the parts that a mesh splits a batch into."""
    fixed = math.prod(size for size in mesh.sizes() if size > 0)
    sizes = (jax.device_count() // fixed if size == -1 else size for size in (mesh.data, mesh.fsdp, mesh.expert))
    return math.prod(sizes)


def _check_texts(spec: Spec, config: Any) -> None:
    """Refuse texts that are longer than the positions of a checkpoint's model."""
    room = longest_sides(config)[0]
    if spec.length is not None and room is not None and spec.length > room:
        raise ValueError(
            f"texts must not have more tokens than the checkpoint's model has positions, got up to {spec.length} with "
            f"their marks, {room} positions"
        )


def _check_objects(spec: Spec, config: Any) -> None:
    """Refuse images of more objects than a model has queries."""
    queries = getattr(config, "queries", None)
    if spec.objects is not None and queries is not None and spec.objects[0] > queries:
        most, name = spec.objects
        raise ValueError(
            f"an image must not have more objects than the model has queries (--model.queries), got {most} in {name}, "
            f"{queries} queries"
        )


def _continued(known: hub.Pretrained, model: Any, opened: Opened) -> hub.Pretrained:
    """Wrap a trained model as the checkpoint that it began with; what the data say of it is added."""
    generation = known.generation
    if generation:
        named = {name: value for name, value in opened.fields.items() if name.endswith("token_id")}
        generation = generation.updated(named)
    tokenizer = opened.published or opened.tokenizer
    return replace(
        known,
        model=model,
        config=known.config.updated(opened.fields),
        generation=generation,
        tokenizer=known.tokenizer if tokenizer is None else tokenizer,
        processor=opened.processor or known.processor,
    )


def _wrapped(model: Any, architectures: list[str], said: Mapping[str, Any]) -> hub.Pretrained:
    """Wrap a model as the first of some architectures that it can be; raise the first one's error if it is none."""
    refused = []
    for name in architectures:
        try:
            return hub.wrap(model, name, **said)
        except ValueError as error:
            refused.append(error)
    raise refused[0]


def _merged(model: Any) -> Any:
    """Return the model that is tested: that which is trained, or what is merged of it."""
    if not isinstance(model, Adapted):
        return model
    return jax.jit(lambda model: merge_lora(model.base, model.lora))(_with_whole_base(model))


def _with_whole_base(model: Adapted) -> Adapted:
    """Return a model whose frozen kernels are whole."""
    return replace(model, base=dequantize_model(model.base))


def _last_words(shown: list[Shown], folder: RunFolder, report: Path) -> list[str]:
    lines = [line for each in shown for line in each.lines]
    export = folder.root / EXPORT
    saved = ("checkpoint", export) if export.is_dir() else ("checkpoints", folder.checkpoints)
    paths = ("run folder", folder.root), saved, ("report", report)
    where = ["", *(f"{name}: {short_path(path)}" for name, path in paths)]
    return [*lines, *where, *(line for each in shown for line in each.last)]


def _last_step(folder: RunFolder) -> int:
    """Find the step of a run's newest record."""
    steps = [json.loads(line)["step"] for line in Path(folder.metrics).read_text().splitlines()]
    return max(steps, default=0)
