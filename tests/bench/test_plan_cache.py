"""What the compiler told is told again of the same program alone, whatever file it was written in."""

import itertools
import os
import sys
from dataclasses import replace
from importlib.util import find_spec

import jax
import pytest

from flax_transformer.bench import compile_ahead
from flax_transformer.bench import plan as preflight
from flax_transformer.bench.compile_ahead import Case, Compiled
from flax_transformer.parallel import MeshConfig
from flax_transformer.train import compiled_step

EXPERIMENT = """
from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax_transformer.task.experiment import Experiment, Task
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from width_of_it import WIDTH

class Rows(Iterator):
    def __next__(self): return {"rows": np.ones((8, WIDTH), np.float32)}
    def get_state(self): return {}
    def set_state(self, state): pass

def objective(model, batch, *, key):
    loss = jnp.sum((batch["rows"] @ model["down"]["kernel"]) ** 2)
    return loss, {"count": jnp.float32(8), "loss": loss}

@dataclass(frozen=True, kw_only=True)
class Own(Experiment):
    def task(self, folder):
        init = lambda key: {"down": {"kernel": jnp.ones((WIDTH, 128))}}
        return Task(init=init, objective=objective, batches=Rows(), evaluate=lambda *_: {}, finish=lambda *_: None)

EXPERIMENT = Own(optimizer=OptimizerConfig(), train=TrainConfig())
"""


@pytest.fixture
def case(tmp_path, monkeypatch):
    """An experiment that imports a module of its own, for a slice of one chip."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text(EXPERIMENT)
    write(tmp_path, 128)
    return Case(target=str(tmp_path / "own.py"), topology="v5e:1x1", mesh=MeshConfig(data=1))


SECONDS = itertools.count(1)
"""Times of files: Python takes a compiled module for that of any file of the same second and size."""


def write(folder, width, comment=""):
    path = folder / "width_of_it.py"
    path.write_text(f"WIDTH = {width}  # {comment}\n")
    os.utime(path, (next(SECONDS),) * 2)
    sys.modules.pop("width_of_it", None)


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Plan in this process, by a compiler that tells nothing; give whether it was not asked."""
    monkeypatch.setattr(compile_ahead, "topology_devices", lambda topology: jax.devices()[:1])
    monkeypatch.setattr(compiled_step, "version", lambda name: "1.0")
    monkeypatch.setattr(compile_ahead, "_tell", lambda *_: {"seconds": 1.0, "used": 1, "limit": 2})

    def call(case, *, fresh=False):
        return compile_ahead._kept(compile_ahead._compile(case, tmp_path / "kept", fresh=fresh)).earlier

    return call


def test_the_same_program_is_compiled_once(case, ask):
    assert [ask(case), ask(case), ask(case, fresh=True), ask(case)] == [False, True, False, True]


def test_another_program_is_compiled_wherever_the_change_was(case, ask, tmp_path):
    assert not ask(case)
    write(tmp_path, 256)
    assert not ask(case)
    write(tmp_path, 128, "said otherwise")
    assert ask(case)


def test_another_compiler_slice_or_option_is_asked_anew(case, ask, monkeypatch):
    assert not ask(case)
    assert not ask(replace(case, topology="v6e:1x1"))
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=1024")
    assert not ask(case)
    monkeypatch.setattr(compiled_step, "version", lambda name: "1.1")
    assert not ask(case)
    assert ask(case)


def test_what_was_not_kept_whole_is_compiled_anew(case, ask, tmp_path):
    assert not ask(case)
    (file,) = (tmp_path / "kept").iterdir()
    file.write_text(file.read_text()[:5])
    assert not ask(case)
    assert ask(case)


def test_a_plan_says_that_it_was_compiled_earlier(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []

    def compiled(case, kept, *, fresh):
        asked.append((kept, fresh))
        size = {
            "parameters": 1,
            "shape": {},
            "dtype": "float32",
            "items": None,
            "flops": 1,
            "minimum": {},
            "arguments": 1,
        }
        return Compiled(**size, seconds=2.0, earlier=not fresh)

    monkeypatch.setattr(preflight, "compile_case", compiled)
    case = Case(target="transformer_tiny", topology="v5e:1x1")
    assert "earlier" in preflight.render(preflight.plan(case))
    assert "earlier" not in preflight.render(preflight.plan(case, fresh=True))
    assert asked == [(tmp_path / "flax_transformer" / "plan", False), (tmp_path / "flax_transformer" / "plan", True)]


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
@pytest.mark.slow
def test_a_changed_import_changes_the_plan(case, tmp_path):
    first = preflight.plan(case)
    again = preflight.plan(case)
    write(tmp_path, 256)
    changed = preflight.plan(case)
    assert [plan.compiled.earlier for plan in (first, again, changed)] == [False, True, False]
    assert first == again
    assert changed.compiled.parameters == 2 * first.compiled.parameters
    assert not preflight.plan(case, fresh=True).compiled.earlier
