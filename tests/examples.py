"""The examples of CONTRIBUTING.md, made small; as a program with eight devices it prints how two of them train."""

import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flax_transformer.data.synthetic import Numbers
from flax_transformer.hub import registry
from flax_transformer.nn import with_fields
from flax_transformer.parallel import MeshConfig
from flax_transformer.task.experiment import train
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.sentence_pair import Batching
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import Search

FOLDER = Path(__file__).parent.parent / "docs" / "examples"
sys.path.append(str(FOLDER))
import classify_dna  # noqa: E402
import classify_series  # noqa: E402
import recurrent  # noqa: E402
import two_towers  # noqa: E402


@contextmanager
def registered(name: str = "albert") -> Iterator[ModuleType]:
    """Import the example of a family; other tests, of the package's families, are not to see what it registers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registered", {})
        example = importlib.import_module(name)
        registry.register(example.FAMILIES)
        yield example


def shortened(recipe: Recipe, **changes) -> Recipe:
    """Make a recipe of a few steps, at a rate for them."""
    steps = {"steps": 4, "log_every": 1, "eval_every": 4, "checkpoint_every": 4, **changes.pop("train", {})}
    schedule = replace(recipe.optimizer.schedule, warmup=min(2, steps["steps"] - 1))
    optimizer = replace(recipe.optimizer, schedule=schedule)
    return replace(recipe, optimizer=optimizer, train=replace(recipe.train, **steps), **changes)


DNA = shortened(
    classify_dna.EXPERIMENT,
    data=classify_dna.Pieces(train=3_000, validation=200, test=400, length=40),
    model=with_fields(classify_dna.EXPERIMENT.model, dropout=0.0, attention_dropout=0.0, embed=32, inner=32),
    examples=replace(classify_dna.EXPERIMENT.examples, length=32),
    train={"steps": 60, "log_every": 30, "eval_every": 60, "checkpoint_every": 60},
)
SERIES = shortened(
    classify_series.EXPERIMENT,
    data=classify_series.Waves(train=1_000, held_out=100, length=96),
    train={"steps": 60, "log_every": 30, "eval_every": 60, "checkpoint_every": 60},
)
NUMBERS = Numbers(train=200, validation=32, test=32)
TOWERS = shortened(
    two_towers.EXPERIMENT,
    model=with_fields(two_towers.EXPERIMENT.model, embed=16, heads=2, inner=16),
    data=NUMBERS,
    examples=two_towers.Partners(rows=16, length=40),
)
RECURRENT = shortened(
    recurrent.EXPERIMENT,
    model=with_fields(recurrent.EXPERIMENT.model, embed=16, dropout=0.0),
    data=NUMBERS,
    examples=replace(recurrent.EXPERIMENT.examples, batch=Batching(tokens=320, buckets=1, max_tokens=40)),
    evaluators=(Translations(search=Search(beams=2), headline="exact_match", count=2),),
)


def records(folder: Path) -> list[dict]:
    """Read what a run has measured, but for its speed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


def main() -> None:
    """Train on a mesh."""
    found = []
    for recipe in (TOWERS, RECURRENT):
        with tempfile.TemporaryDirectory() as folder:
            train(replace(recipe, mesh=MeshConfig(data=2, fsdp=4)), folder)
            found.append(records(Path(folder)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
