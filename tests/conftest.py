import datetime
import gc
import io
import os
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import jax
import pytest
from fake_devices import QUICK, share_programs
from hypothesis import settings

if not shutil.which("nvidia-smi"):
    # Asked for first, so that flags of one's own win.
    os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}".strip()

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch, whose threads wait for each other where workers share cores
os.environ["FLAX_TRANSFORMER_PROGRAMS"] = ""  # commands leave nothing behind, here and in processes that tests start

gc.set_threshold(200_000, 20, 100)  # tracing makes many small objects, and few cycles
share_programs()
jax.config.update("jax_numpy_rank_promotion", "allow")

# However slow the machine; the same examples every time, or new ones.
settings.register_profile("new", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")


MAPPED = Path("/proc/self/maps")

collect_ignore_glob = ["*/conftest.py"]
"""They hold no examples for doctest, which would take the one of a folder for that of another."""

FIRST = ("reliability", "parallel", "security", "launch", "task")
"""Folders of tests that take long, as they start processes or train: at the end they would keep one worker alone."""


TURNS = 60
TURN = int(os.environ.setdefault("TURN", str(datetime.date.today().toordinal()))) % TURNS
"""Which sixtieth of the tests marked `rotates` runs: another one every day, or the one that is asked for."""


CASES = 3
"""Of the cases of a test against torch or transformers a third runs, another one every day, and one at least."""


def pytest_report_header():
    """Say which of the long tests run."""
    some = f"of the long tests, those of turn {TURN} of {TURNS} (TURN={TURN}), and a third of the cases of parity"
    return f"{some}; make slow and make parity PARITY=parity run all"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Begin with what takes long, and leave long tests to their turn.

    What is parametrised over a registry goes by its parameter, so that a family is loaded once; others go by file.
    """
    items.sort(key=lambda item: not set(FIRST) & set(item.path.parts))
    if "slow" in config.option.markexpr.replace("not slow", ""):
        return
    for groups in _rotating(items):
        for number, name in enumerate(sorted(groups)):
            if number % TURNS != TURN:
                for item in groups[name]:
                    item.add_marker("slow")
    for item in _later_cases(items):
        item.add_marker("slow")


def _rotating(items):
    """Return the long tests by their parameter, and those of functions with few parameters by their file.

    Whatever is loaded for a parameter, or trained for a file, serves all of its tests on the same day.
    """
    parameters, files = defaultdict(list), defaultdict(list)
    rotating = [item for item in items if item.get_closest_marker("rotates")]
    count = Counter(item.function for item in rotating)
    for item in rotating:
        if count[item.function] >= TURNS:
            parameters[item.callspec.id].append(item)
        else:
            files[item.path].append(item)
    return parameters, files


def _later_cases(items):
    """Return the cases of parity tests whose day is another one."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("parity") and not item.get_closest_marker("rotates") and hasattr(item, "callspec"):
            cases[item.path, item.function].append(item)
    for each in cases.values():
        turns = min(CASES, len(each))
        yield from (item for number, item in enumerate(each) if number % turns != TURN % turns)


MAPS = 20_000
"""Regions of memory after which compiled programs are forgotten: each has some, and Linux grants 65,530 a process."""


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_functions():
    """Free compiled programs after a file when there are many, so that a long run does not fill memory."""
    yield
    if not MAPPED.exists() or MAPPED.read_bytes().count(b"\n") > MAPS:
        jax.clear_caches()


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the command line; give its exit code and what it said."""
    from flax_transformer import cli

    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments, stdin=b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        try:
            cli.main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return call
