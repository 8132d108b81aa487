"""The command `compress`: a checkpoint made smaller, and what that costs."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from flax_transformer.cli.read import Folder


@dataclass(frozen=True)
class Weights:
    """`compress.Quantization`, spelled again so that `--help` needs no JAX."""

    weights: Literal["int8", "int4", "float8_e4m3fn", "none"] = "int8"
    """What kernels are rounded to, if at all."""
    group: int | None = None
    """Inputs that share a scale; by default all of an output's, and of int4 64."""
    method: Literal["round", "mse", "gptq", "awq", "smoothquant"] = "round"
    """How values are chosen: the nearest, with the range of the least squared error, or with --calibrate by GPTQ, AWQ
    or SmoothQuant."""
    activations: Literal["int8", "float8_e4m3fn"] | None = None
    """What the inputs of products are rounded to; not at all by default."""
    ranges: Literal["dynamic", "absmax", "percentile", "mse"] = "dynamic"
    """The scale of inputs: each row's own, or one of a layer, which needs --calibrate."""
    percentile: float = 99.99
    """Of absolute values within the range, where --ranges is percentile."""
    embeddings: bool = False
    """Whether tables of tokens and of their positions have few bits too."""
    pattern: str = ""
    """Kernels to round, and tables with --embeddings, by path; by default all but heads, routers and patches."""


@dataclass(frozen=True)
class Removal:
    """What is removed before anything is rounded: layers, then heads, then neurons, so that programs shrink, then
    values."""

    layers: tuple[int, ...] = ()
    """The layers that are kept, as 0 2 4; all by default."""
    stacks: str = ""
    """Of which stacks, by path, as decoder; of all by default."""
    heads: float = 0.0
    """The share of heads that are removed, those on which the loss of --calibrate depends least."""
    neurons: float = 0.0
    """The share of neurons of feed-forward layers that are removed."""
    prune: float = 0.0
    """The share of kernels' values that become zero, the smallest."""
    scope: Literal["layer", "model"] = "layer"
    """That share of each layer's kernel, or of all of them together."""
    block: tuple[int, int] | None = None
    """N and M of a pattern N:M in its place, as 2 4: M consecutive inputs keep the N largest."""
    like: str | None = None
    """A checkpoint whose zeros this one gets in their place, as the early step of a run those of its end."""

    @property
    def shrinks(self) -> bool:
        """Whether something is removed that makes programs smaller."""
        return bool(self.layers or self.heads or self.neurons)


def compress(
    checkpoint: Folder,
    /,
    output: Path,
    how: Annotated[Weights, tyro.conf.arg(name="")] = Weights(),
    removal: Annotated[Removal, tyro.conf.arg(name="")] = Removal(),
    calibrate: Path | None = None,
    rows: int = 128,
    data: Path | None = None,
    split: str | None = None,
    revision: str | None = None,
) -> None:
    """Write a checkpoint with fewer bits, zeros, or parts, and say what it costs: size, speed here, score.

    The output is a folder that every command takes and, but for kernels that `transformers` does not keep as linear
    layers (GPT-2's), `transformers` with compressed-tensors; compression.html in it shows the error of every layer.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      output: Folder to write, new or empty.
      how: What kernels become.
      removal: What is removed.
      calibrate: File or folder, of any form that `evaluate` takes, whose inputs layers are observed on.
      rows: Rows of it that are read.
      data: File or folder to measure the score on, before and after, as `evaluate` does.
      split: Of that folder.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer import hub
    from flax_transformer.cli.programs import keep_programs
    from flax_transformer.compress.prune import zero_share
    from flax_transformer.listing import short_path
    from flax_transformer.report.compression import write_compression
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.compression import quantize_checkpoint

    rule, pruning = _rules(how, removal)
    _check_paths(output, rule, removal, calibrate, data)
    keep_programs()
    pretrained = open_checkpoint(checkpoint, revision=revision)
    calls = _calls(pretrained, rule.calibrated or removal.heads, calibrate or data, rows)
    pruned, heads = _pruned(pretrained, removal, pruning, calls if calibrate else [])
    smaller = pruned if rule.weights is None else quantize_checkpoint(pruned, rule, calls, tell)
    tell("writing")
    hub.save(smaller, output)
    record = {
        "checkpoint": short_path(Path(checkpoint)) if Path(checkpoint).exists() else checkpoint,
        "rule": {**_said(rule), **_said(pruning), **{name: getattr(removal, name) for name in _given(removal)}},
        **_compared(pretrained, smaller, calls), **heads,
    }  # fmt: skip
    if pruning.changes or removal.like is not None:
        record["before"]["zeros"], record["after"]["zeros"] = (zero_share(each.model) for each in (pretrained, pruned))
    record["after"]["disk"] = sum(file.stat().st_size for file in output.glob("*.safetensors"))
    if data is not None:
        record |= {"score": _scores(checkpoint, output, data, split, revision)}
    page = write_compression(output / "compression.html", record)
    print(page.text)
    print(f"\ncheckpoint: {short_path(output)}\npage: {short_path(page.path)}")


def _rules(how: Weights, removal: Removal) -> tuple[Any, Any]:
    """Return what becomes of kernels, and which of their values become zero."""
    from dataclasses import asdict

    from flax_transformer.compress import Pruning, Quantization
    from flax_transformer.compress.quantize import GROUP

    pruning = Pruning(share=removal.prune, scope=removal.scope, block=removal.block, pattern=how.pattern)
    options = {**asdict(how), "weights": None if how.weights == "none" else how.weights}
    rule = Quantization(**{**options, "group": GROUP if how.weights == "int4" and how.group is None else how.group})
    for name in ("heads", "neurons"):
        if not 0 <= getattr(removal, name) < 1:
            raise ValueError(f"--{name} must be a share in [0, 1), got {getattr(removal, name)}")
    if removal.like is not None and pruning.changes:
        raise ValueError("zeros are those of another checkpoint or new ones: give --like, or --prune or --block")
    if removal.stacks and not removal.layers:
        raise ValueError(f"--stacks says of which the --layers are, got {removal.stacks} and no layers")
    if rule.weights is None and not pruning.changes and not removal.shrinks and removal.like is None:
        raise ValueError(
            "nothing becomes smaller: give --weights, --layers, --heads, --neurons, --prune, --block or --like"
        )
    return rule, pruning


def _check_paths(output: Path, rule: Any, removal: Removal, calibrate: Path | None, data: Path | None) -> None:
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"the output must be a new or empty folder, got {output}")
    if rule.calibrated and calibrate is None:
        raise ValueError(f"method {rule.method} with ranges {rule.ranges} needs --calibrate FILE, got none")
    if removal.heads and calibrate is None:
        raise ValueError("heads are weighed by a loss of data: --heads needs --calibrate FILE, got none")
    if missing := [str(path) for path in (calibrate, data) if path is not None and not path.exists()]:
        raise FileNotFoundError(f"there is no file or folder {missing[0]}")


def _calls(pretrained: Any, needed: Any, source: Path | None, rows: int) -> list[dict[str, Any]]:
    """Return the inputs that layers are observed on, where that is needed, and calls are timed with."""
    from flax_transformer.task.compression import answers_at_once, calibration

    if source is None or not (needed or answers_at_once(pretrained)):
        return []
    trained = source.is_dir() and any(each.stem == "train" for each in source.iterdir())
    return calibration(pretrained, source, rows=rows, split="train" if trained else None)


def _pruned(pretrained: Any, removal: Removal, pruning: Any, calls: list[dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """Return a checkpoint with fewer layers, heads and neurons, zeros in what is left, and what heads were weighed."""
    from dataclasses import replace

    from flax_transformer.compress import prune_model, rewind
    from flax_transformer.compress.heads import kept_heads
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.compression import (
        fewer_heads_checkpoint,
        narrow_checkpoint,
        shallow_checkpoint,
        weigh_heads,
    )

    record = {}
    if removal.layers:
        pretrained = shallow_checkpoint(pretrained, removal.layers, removal.stacks)
    if removal.heads:
        weights = weigh_heads(pretrained, calls, tell)
        kept = kept_heads(pretrained.model, removal.heads, weights)
        pretrained = fewer_heads_checkpoint(pretrained, removal.heads, weights)
        record = {"heads": {path: _rows(weights[path]) for path in kept}, "kept": {p: _rows(kept[p]) for p in kept}}
    if removal.neurons:
        pretrained = narrow_checkpoint(pretrained, removal.neurons, calls, tell)
    if removal.like is not None:
        pretrained = replace(pretrained, model=rewind(pretrained.model, open_checkpoint(removal.like).model))
    model = prune_model(pretrained.model, pruning) if pruning.changes else pretrained.model
    return replace(pretrained, model=model), record


def _rows(values: Any) -> list[list[Any]]:
    """Return what layers have, a list each; of a layer without a stack, one."""
    import numpy as np

    return np.asarray(values).reshape(-1, values.shape[-1]).tolist()


def _given(removal: Removal) -> list[str]:
    """Name what is removed besides values."""
    return [name for name in ("layers", "stacks", "heads", "neurons", "like") if getattr(removal, name)]


def _compared(before: Any, after: Any, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what two checkpoints cost, and how far the kernels of one are from the other's."""
    from flax_transformer.task.compression import kernel_errors

    errors = kernel_errors(before.model, after.model)
    found: dict[str, Any] = {
        "before": _costs(before, calls), "after": _costs(after, calls),
        "errors": {path: each.reshape(-1).tolist() for path, each in errors.items()},
    }  # fmt: skip
    if calls:
        _time(found, before, after, calls[len(calls) // 2])
    return found


def _said(config: Any) -> dict[str, Any]:
    """Return the fields of a config that are other than by default, and what weights become."""
    from dataclasses import fields

    return {
        each.name: getattr(config, each.name)
        for each in fields(config)
        if each.name == "weights" or getattr(config, each.name) != each.default
    }


def tell(text: str) -> None:
    """Say what is being done, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _costs(pretrained: Any, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the bytes of parameters, and where there is data the FLOPs and memory of a call."""
    import jax

    from flax_transformer.bench.flops import count_flops
    from flax_transformer.hub.quantized.model import plain, quantized_kernels
    from flax_transformer.nn.quantized import stored_bytes

    whole = jax.tree.leaves(plain(pretrained.model) if quantized_kernels(pretrained.model) else pretrained.model)
    stored = sum(stored_bytes(leaf.size, leaf.dtype) for leaf in jax.tree.leaves(pretrained.model))
    count = sum(leaf.size for leaf in whole)
    found = {"parameters": count, "bytes": stored, "bits": 8 * stored / count, "disk": stored}
    if calls:
        call = calls[len(calls) // 2]
        program = jax.jit(lambda model, call: _run(pretrained, model, call)).lower(pretrained.model, call).compile()
        memory = program.memory_analysis()
        found["flops"] = count_flops(lambda model, call: _run(pretrained, model, call), pretrained.model, call).model
        found["memory"] = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    return found


def _run(pretrained: Any, model: Any, call: Any) -> Any:
    from dataclasses import replace

    return replace(pretrained, model=model)(**call)


def _time(record: dict[str, Any], before: Any, after: Any, call: dict[str, Any]) -> None:
    """Time calls of both by turns."""
    import statistics

    from flax_transformer.bench.timing import time_calls

    tell("timing")
    calls: dict[str, Callable] = {"before": lambda: before(**call), "after": lambda: after(**call)}
    times: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(5):
        for name, each in calls.items():
            times[name].append(time_calls(each, seconds=0.2).median)
    for name, each in times.items():
        record[name]["seconds"] = statistics.median(each)


def _scores(checkpoint: str, output: Path, data: Path, split: str | None, revision: str | None) -> dict[str, Any]:
    from flax_transformer.cli.run import Translating, score
    from flax_transformer.cli.unreadable import Refused

    found = {}
    for name, folder, version in (("before", checkpoint, revision), ("after", str(output), None)):
        tell(f"score {name}")
        metrics = score(_exported(folder), data, split, Translating(), Refused(), revision=version)
        found[name] = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    return found


def _exported(folder: str) -> str:
    """Return the checkpoint of a run, so that both are measured alike."""
    from flax_transformer.hub.file import CONFIG
    from flax_transformer.task.run import EXPORT

    inside = Path(folder) / EXPORT
    return str(inside) if (inside / CONFIG).is_file() else folder
