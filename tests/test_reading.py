"""The page that says where to read: every call is there, and comes in the order of its table."""

import ast
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from experiments.translate_numbers import EXPERIMENT
from flax_transformer import hub
from flax_transformer.data.synthetic import numbers
from flax_transformer.data.text.parallel import TextCorpus
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.nn import with_fields
from flax_transformer.task.experiment import train

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "flax_transformer"
SMALL = {"embed": 16, "heads": 2, "inner": 32}


def tables():
    """Return (file, call) of each section of the page."""
    page = (ROOT / "docs/reading.md").read_text()
    found = (re.match(r"(.*)", part).group(1) for part in re.split(r"^## ", page, flags=re.M)[1:])
    rows = (re.findall(r"^\| `(.+?)` \| `(.+?)` \|", part, re.M) for part in re.split(r"^## ", page, flags=re.M)[1:])
    return dict(zip(found, rows, strict=True))


TABLES = tables()


def calls(file):
    """Return the qualified names of the functions of a file."""
    found = {}

    def visit(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{inside}{child.name}"
                found[name] = child
                visit(child, f"{name}." + ("<locals>." if isinstance(child, ast.FunctionDef) else ""))

    visit(ast.parse((PACKAGE / file).read_text()), "")
    return found


def traced(function, wanted):
    """Run a function; return the calls of what is wanted, in any thread, in their order."""
    seen = []

    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            key = str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname
            if key in wanted:
                seen.append(key)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


def forward(_):
    config = with_fields(find_preset("gpt2")(), **SMALL, vocab=32, depth=2)
    model = nnx.eval_shape(lambda: config.build(nnx.Rngs(0)))
    jax.eval_shape(lambda model, ids: model.hidden_states(ids), model, jnp.arange(8)[None])


def step(folder):
    pairs = numbers(60)
    for split in ("train", "val", "test"):
        (folder / f"{split}.en").write_text("\n".join(pairs["source"]) + "\n")
        (folder / f"{split}.de").write_text("\n".join(pairs["target"]) + "\n")
    data = TextCorpus(root=str(folder), source="en", target="de", validation="val", test="test")
    train(
        replace(
            EXPERIMENT,
            data=data,
            evaluators=(),
            model=with_fields(EXPERIMENT.model, **SMALL, depth=1),
            optimizer=with_fields(EXPERIMENT.optimizer, warmup=1),
            train=replace(EXPERIMENT.train, steps=1, eval_every=1, checkpoint_every=1, log_every=1),
        ),
        folder / "run",
    )


def load(_):
    abstract.cache_clear()  # another test of this process may have loaded the same
    hub.load(ROOT / "tests/hub/golden/gpt2")


RUNS = dict(zip(TABLES, (forward, step, load), strict=False))


@pytest.mark.parametrize("title", TABLES)
def test_a_table_has_ten_files_at_most_and_names_what_is_there(title):
    rows = TABLES[title]
    assert 3 <= len(rows) <= 10
    for file, call in rows:
        assert call in calls(file), f"{file} has no {call}"


@pytest.mark.rotates
@pytest.mark.parametrize("title", RUNS)
def test_the_calls_come_in_the_order_of_the_table(title, tmp_path):
    rows = TABLES[title]
    rest = iter(traced(lambda: RUNS[title](tmp_path), set(rows)))
    assert [row for row in rows if row not in rest] == []  # each is found after the one before
