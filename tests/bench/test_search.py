"""A search finds the fastest plan that fits, and compiles none that its bounds rule out."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jax
import pytest

from flax_transformer.bench import search as searching
from flax_transformer.bench.chip import GIB
from flax_transformer.bench.compile_ahead import Case, CompilerError
from flax_transformer.bench.plan import CompiledPlan
from flax_transformer.bench.search import KEPT, chosen, command, render_search, search, ways
from flax_transformer.bench.target import find_target
from flax_transformer.bench.workload import Size
from flax_transformer.nn.config import configs_in
from flax_transformer.parallel import MeshConfig
from tests.bench.test_plan import COMPILED

pytestmark = pytest.mark.proves("plan", "a search for the fastest way that fits, against trying every way")

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
CASE = Case(target="gpt2_tiny", topology="v5e:2x2", size={"batch": 16, "length": 32, "dtype": "bfloat16"})


def made(way, room=GIB):
    """Stand in for the compiler: a step takes 1 to 2 times its bound, and memory grows with what is kept and held."""
    size, mesh = way.case.size, way.case.mesh
    slower = 1 + ((mesh.fsdp * 3 + mesh.tensor + size["accumulate"]) % 7) / 7
    kept = (3 - KEPT.index(size["remat"])) * way.load * GIB // 8
    rows = size["batch"]
    flops = int(way.seconds * rows * slower * 4 * 197e12)
    known = replace(
        COMPILED, flops=flops, shape={"rows": rows}, items=rows, collectives=(), arguments=0, temporaries=0, used=kept,
        limit=room,
    )  # fmt: skip
    return CompiledPlan(case=way.case, compiled=known)


@pytest.fixture(scope="module")
def every():
    return ways(CASE)


@pytest.fixture
def compiled(monkeypatch, every):
    """Search by that compiler; give what it was asked for."""
    asked = []

    def plan(case, *, fresh):
        asked.append(case)
        return made(next(way for way in every if way.case == case))

    monkeypatch.setattr(searching, "ways", lambda case: every)
    monkeypatch.setattr(searching, "plan", plan)
    return asked


@pytest.mark.rotates
def test_a_search_tries_all_that_can_be(every):
    sizes = [
        (way.case.mesh, way.case.size["remat"], way.case.size["batch"], way.case.size["accumulate"]) for way in every
    ]
    assert len(set(sizes)) == len(sizes)
    assert {remat for _, remat, _, _ in sizes} == {*KEPT}
    assert {rows for _, _, rows, _ in sizes} == {16, 32}
    assert {parts for *_, parts in sizes} == {1, 2, 4}
    assert MeshConfig(data=1, fsdp=2, tensor=2) in {mesh for mesh, *_ in sizes}
    assert all(way.seconds <= other.seconds for way, other in pairwise(every))
    # Each device's part of the state, whole under data alone.
    whole, parts = (max(way.held for way in every if way.case.mesh.data == data) for data in (4, 1))
    assert 3 * parts < whole


@pytest.mark.rotates
def test_experts_are_shared_out_where_a_model_has_some(every):
    assert {way.case.mesh.expert for way in every} == {1}
    assert "mesh.expert" not in command(CompiledPlan(case=every[0].case, compiled=COMPILED))
    mixtral = ways(replace(CASE, target="mixtral_8x7b", topology="v5p:2x2x2"))
    assert {way.case.mesh.expert for way in mixtral} == {1, 2, 4, 8}
    held = {way.case.mesh: way.held for way in mixtral}
    assert held[MeshConfig(data=1, expert=8)] < held[MeshConfig(data=8)] / 4
    best = next(way for way in mixtral if way.case.mesh == MeshConfig(data=1, fsdp=4, expert=2))
    assert "--mesh.data 1 --mesh.fsdp 4 --mesh.expert 2 --batch" in command(
        CompiledPlan(case=best.case, compiled=COMPILED)
    )


@pytest.mark.rotates
def test_what_is_found_is_the_fastest_of_all_that_fit(compiled, every):
    found = search(CASE)
    plans = [made(way) for way in every]
    fastest = min(plan.bounds.step / plan.compiled.shape["rows"] for plan in plans if plan.compiled.fits)
    best = chosen(found)
    assert best.bounds.step / best.compiled.shape["rows"] == pytest.approx(fastest, rel=1e-3)
    assert len(compiled) == len(found) < len(every) / 4
    kinds = [2 if isinstance(plan, str) else 0 if plan.compiled.fits else 1 for _, plan in found]
    assert kinds == sorted(kinds)


@pytest.mark.rotates
def test_where_bounds_tell_nothing_a_search_ends_after_some_that_are_no_faster(monkeypatch, every):
    def plan(case, *, fresh):
        way = next(way for way in every if way.case == case)
        found = made(way)
        return replace(found, compiled=replace(found.compiled, flops=10**12 * case.size["batch"], used=0))

    monkeypatch.setattr(searching, "ways", lambda case: every)
    monkeypatch.setattr(searching, "plan", plan)
    said = []
    assert len(search(CASE, said.append)) == 1 + searching.PATIENCE
    assert "a row so far" not in said[0]
    assert all("a row so far" in line for line in said[1:])


def test_a_search_ends_after_so_many_tries(compiled):
    assert len(search(CASE, tries=3)) == len(compiled) == 3
    with pytest.raises(ValueError, match="tries must be at least 1, got 0"):
        search(CASE, tries=0)


def test_an_interrupted_search_gives_the_best_so_far(monkeypatch, every):
    asked = []

    def plan(case, *, fresh):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(case)
        return made(next(way for way in every if way.case == case), room=math.inf)

    monkeypatch.setattr(searching, "ways", lambda case: every)
    monkeypatch.setattr(searching, "plan", plan)
    said = []
    found = search(CASE, said.append)
    assert [entry.case for entry, _ in sorted(found, key=lambda entry: asked.index(entry[0].case))] == asked
    assert chosen(found) is not None
    assert said[-1] == "interrupted after 2: the best of them"
    with pytest.raises(KeyboardInterrupt):  # before anything is found
        search(replace(CASE), said.append)


def test_nothing_is_compiled_that_needs_more_than_what_did_not_fit(compiled):
    by_case = {id(way.case): way for way, _ in search(CASE)}
    large = [by_case[id(case)] for case in compiled if not made(by_case[id(case)]).compiled.fits]
    assert large
    assert not any(later.harder(sooner) for place, sooner in enumerate(large) for later in large[place + 1 :])


def test_where_nothing_fits_it_is_said(monkeypatch, every):
    few = every[:2]
    monkeypatch.setattr(searching, "ways", lambda case: few)
    monkeypatch.setattr(searching, "plan", lambda case, fresh: made(next(w for w in few if w.case == case), room=1))
    found = search(CASE)
    assert chosen(found) is None
    assert "Nothing that was tried fits." in render_search(found)
    assert "too much" in render_search(found)
    monkeypatch.setattr(searching, "ways", lambda case: [replace(way, held=math.inf) for way in few])
    assert search(CASE) == []


def test_a_missing_compiler_ends_a_search(monkeypatch, every):
    def plan(case, fresh):
        raise CompilerError("no compiler")

    monkeypatch.setattr(searching, "ways", lambda case: every)
    monkeypatch.setattr(searching, "plan", plan)
    with pytest.raises(CompilerError, match="no compiler"):
        search(CASE)


def test_a_function_is_not_searched(tmp_path):
    (tmp_path / "mine.py").write_text("def step():\n    return abs, (1,)\n")
    with pytest.raises(ValueError, match="sizes and options are for models"):
        ways(Case(target=f"{tmp_path}/mine.py:step", topology="v5e:2x2"))


def test_the_command_of_a_preset_measures_what_was_planned(compiled):
    best = chosen(search(CASE))
    text = command(best)
    assert text.startswith("flax-transformer bench gpt2_tiny --what train --mesh.data")
    assert f"--remat {best.case.size['remat']} --accumulate {best.case.size['accumulate']}" in text
    assert text in render_search(search(CASE), text)


def test_the_command_of_an_experiment_trains_as_planned():
    """Its options, given to the experiment, make the plan's own workload."""
    file = str(EXPERIMENTS / "translate_numbers.py")
    size = {"remat": "full", "dtype": "bfloat16", "accumulate": 2}
    case = Case(target=file, topology="v5e:2x2", mesh=MeshConfig(data=2, fsdp=2), size=size)
    start, _, options = command(CompiledPlan(case=case, compiled=COMPILED)).partition(" -- ")
    assert start == f"flax-transformer launch {file} --on queued-resource --tpu v5e:2x2 --workdir gs://BUCKET/mine"
    here = command(CompiledPlan(case=replace(case, topology="h100:4"), compiled=COMPILED))
    assert here == f"python {file} {options} --workdir runs/mine"
    made = find_target(file, Size(), tuple(options.split()))
    assert (made.train.accumulate, made.dtype, made.mesh.data, made.mesh.fsdp) == (2, "bfloat16", 2, 2)
    trunks = [
        config for config in configs_in(jax.eval_shape(made.init, jax.random.key(0)).cfg) if hasattr(config, "remat")
    ]
    assert {config.remat for config in trunks} == {"full"}


def test_parts_of_a_batch_are_taken_by_presets_and_experiments():
    assert find_target("gpt2_tiny", Size(accumulate=4)).train.accumulate == 4
    assert find_target(str(EXPERIMENTS / "translate_numbers.py"), Size(accumulate=4)).train.accumulate == 4
    with pytest.raises(ValueError, match="accumulate must be at least 1, got 0"):
        Size(accumulate=0)
