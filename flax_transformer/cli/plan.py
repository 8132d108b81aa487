"""The preflight command: `plan`."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from flax_transformer.cli.bench import BenchSize
from flax_transformer.cli.mesh import Mesh, asked_mesh
from flax_transformer.cli.read import Folder, Options


def plan(
    target: Folder,
    options: Options = (),
    /,
    topology: str = "v5e:4x4",
    what: Literal["forward", "train", "decode"] = "train",
    mesh: Mesh = Mesh(),
    size: Annotated[BenchSize, tyro.conf.arg(name="")] = BenchSize(),
    tokens: float = 0.0,
    price: float = 0.0,
    search: bool = False,
    tries: int = 24,
    programs: str = "",
    fresh: bool = False,
    json: Path | None = None,
) -> None:
    """Compile a step, or a function, for TPUs or GPUs that are not here: memory, bounds of its speed, cost.

    Needs the compiler of TPUs or of GPUs, which run on any machine: pip install 'flax_transformer[tpu]' or '[gpu]'. A
    plan for GPUs is an estimate. Answers are kept in ~/.cache/flax_transformer/plan.

    Args:
      target: What bench takes: a preset such as transformer_base; an experiment file, FILE:NAME for one of several in
        it; a Hugging Face folder or hub id; or FILE.py:FUNCTION.
      options: Of several experiments the NAME, if not said yet; and arguments of the experiment, after --, as in:
        -- --init FOLDER.
      topology: GENERATION:AxB or AxBxC chips, of v4, v5e, v5p, v6e, tpu7x; or GPU:N, of a100, h100, h200, b200, in
        hosts of 8, or else GPU:HOSTSxN.
      what: The program, as bench has them: a step of training; the forward pass; or a step of decoding, one token of
        every row with room for --length positions in the cache.
      mesh: Devices along each axis; the experiment's own by default.
      size: Shapes and types; the experiment's own by default.
      tokens: To train on in all, for the cost.
      price: Of one chip for an hour, for the cost.
      search: Try meshes, remat policies, batch sizes and accumulation for the fastest that fits, and write the command
        that starts it; Ctrl-C gives the best so far.
      tries: Ways that a search compiles at the most.
      programs: Folder to keep the compiled step of an experiment in, which on such a slice loads it from there by its
        own --programs, and need not compile it.
      fresh: Compile even what was compiled before; else only another program is, or for others, or by another compiler.
      json: File to write the plan to, or the one that a search has chosen.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing runs on what is here
    from flax_transformer.bench.compile_ahead import Case
    from flax_transformer.bench.record import check_file
    from flax_transformer.bench.run import exit_on_error
    from flax_transformer.task.command import spelled

    say = partial(print, file=sys.stderr, flush=True)
    changes = {name: value for name, value in asdict(size).items() if value is not None}
    with exit_on_error():
        check_file(json)
        devices = asked_mesh(mesh)
        target, options = spelled(target, options)
        case = Case(target=target, options=options, topology=topology, mesh=devices, size=changes, what=what)
        how = {"programs": programs, "fresh": fresh}
        best = _search(case, say, tries=tries, **how) if search else _plan(case, say, tokens=tokens, price=price, **how)
        if json is not None and best is not None:
            best.save(json)


def _plan(case: Any, say: Callable[[str], None], *, programs: str, fresh: bool, **cost: float) -> Any:
    """Compile a program, and print what the plan says."""
    from flax_transformer.bench import plan as ahead

    best = ahead.plan(replace(case, programs=programs), say, fresh=fresh)
    print(ahead.render(best, **cost))
    return best


def _search(case: Any, say: Callable[[str], None], *, tries: int, programs: str, fresh: bool) -> Any:
    """Search for the fastest plan that fits, keep its compiled step where asked to, and print what was tried."""
    from flax_transformer.bench import plan as ahead
    from flax_transformer.bench import search as searching

    if case.what != "train":
        raise ValueError(f"ways to train are searched, got --search of --what {case.what}")
    found = searching.search(case, say, tries=tries, fresh=fresh)
    best = searching.chosen(found)
    if best is not None and programs:
        best = ahead.plan(replace(best.case, programs=programs), say)
    print(searching.render_search(found, best and searching.command(best)))
    return best
