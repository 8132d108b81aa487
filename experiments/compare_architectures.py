"""Compare architectures of translators: before attention, attention, and beyond it, at one budget of CPU time.

    python experiments/compare_architectures.py --workdir runs/architectures --data.root MULTI30K \\
        --data.train train.tok --data.validation val.tok --data.test test_2016_flickr.tok

Every model of `translate_text.py` is trained for as many steps as fit into the budget, from several seeds, each run in
a folder of its own. First a step of each is measured on the data, compiling left out, so that the learning rate of each
falls to its end just when the budget does; evaluations and the test come on top. Then all are shown beside each other,
as `flax-transformer compare` does, in `comparison.html` and, as a table, `comparison.txt`.

With --tokens 2048 --buckets 3 --merges 3000 on one core of an AMD EPYC, 12 minutes gave `luong` 36.6 BLEU, `evolved`
34.4, `bahdanau` 33.7, `transformer` 33.1, `universal` 33.0, and `mask_predict` and `ctc`, without a teacher, 19.7 and
11.6 (2026-11-29; docs/translation.md has seeds).

The same command goes on where a series was cut off; with more models or seeds it makes those runs alone. Models that
learn from a teacher's words are named by `--students`, `--taught` is the folder of that corpus, and `--teacher` is the
run they begin with the parameters of.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.bench.comparison import compare
from flax_transformer.bench.target import find_experiments
from flax_transformer.data.synthetic import Numbers
from flax_transformer.data.text.parallel import TextCorpus
from flax_transformer.frozen import frozen
from flax_transformer.nn import with_fields
from flax_transformer.nn.config import check_at_least
from flax_transformer.report.comparison_page import comparison_table
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.series import budgeted_steps, launch_series, scheduled, train_all
from flax_transformer.task.start import StartConfig
from flax_transformer.train import OptimizerConfig, ScheduleConfig

RECIPES = Path(__file__).with_name("translate_text.py")
FROM_SCRATCH = {
    name: recipe for name, recipe in find_experiments(RECIPES).items() if not isinstance(recipe.model, StartConfig)
}
"""Its models that begin with nothing."""
WARMUP = 5
"""The learning rate rises in one of so many steps, and then falls to nothing."""


@frozen
class Comparison:
    """What is compared."""

    workdir: str = "runs/compare_architectures"
    """Folder of the series."""
    data: TextCorpus = TextCorpus()
    """The corpus; without a root or a TFDS name it is number words."""
    models: tuple[str, ...] = tuple(FROM_SCRATCH)
    """Names of `translate_text.py`."""
    seeds: tuple[int, ...] = (0,)
    """What runs begin from."""
    minutes: float = 12.0
    """CPU time that the steps of a run take, of all processors together."""
    steps: int | None = None
    """Steps of every run, in place of minutes."""
    tokens: int | None = 4_096
    """Padded tokens a batch; the recipe's own if None."""
    buckets: int | None = None
    """Lengths there are batches of; the recipe's own if None."""
    dropout: float | None = 0.0
    """Every rate of it but that of attention's weights; the recipe's own if None. A budget that ends after a few
    epochs leaves nothing to overfit."""
    optimizer: OptimizerConfig = OptimizerConfig(
        name="muon", learning_rate=0.01, schedule=ScheduleConfig(name="linear"), b2=0.98, clip_norm=1.0
    )
    """Of every model; how long its learning rate rises follows from the steps."""
    merges: int | None = None
    """Of byte pairs; the recipe's own if None."""
    evaluations: int = 5
    """How often a run is measured on validation data."""
    average: int = 3
    """Checkpoints that are averaged into the final model, a twentieth of the run apart."""
    students: tuple[str, ...] = ()
    """Models that are trained on `taught`."""
    taught: str = ""
    """Folder of a corpus with a teacher's words: `train`, `validation`, `test`."""
    teacher: str = ""
    """Run that students begin with the parameters and the tokenizer of."""

    def __post_init__(self):
        check_at_least(self, 1, "steps", "evaluations", "average")
        if unknown := [name for name in (*self.models, *self.students) if name not in FROM_SCRATCH]:
            raise ValueError(f"models must be of {', '.join(FROM_SCRATCH)}, got {', '.join(unknown)}")
        if self.minutes <= 0:
            raise ValueError(f"minutes must be above 0, got {self.minutes}")
        if bool(self.students) != bool(self.taught):
            raise ValueError(f"students and taught go together, got {self.students} and {self.taught!r}")
        if self.teacher and not self.students:
            raise ValueError(f"a teacher is of students, got {self.teacher!r} and none")


def recipes(asked: Comparison) -> dict[str, Recipe]:
    """Return the recipe of every model, without its steps."""
    found = {}
    for name in asked.models:
        recipe = FROM_SCRATCH[name]
        changes = {"tokens": asked.tokens, "buckets": asked.buckets, "merges": asked.merges}
        changes = {field: value for field, value in changes.items() if value is not None}
        found[name] = replace(
            recipe,
            model=recipe.model if asked.dropout is None else with_fields(recipe.model, dropout=asked.dropout),
            data=corpus(asked, name),
            examples=with_fields(recipe.examples, **changes) if changes else recipe.examples,
            optimizer=asked.optimizer,
            warm_start=asked.teacher if name in asked.students else "",
        )
    return found


def corpus(asked: Comparison, name: str) -> Any:
    """Return what a model is trained on."""
    if name in asked.students:
        splits = {"train": "train", "validation": "validation", "test": "test"}
        return replace(asked.data, root=asked.taught, tfds="", **splits)
    return asked.data if asked.data.root or asked.data.tfds else Numbers()


def experiments(asked: Comparison) -> dict[str, Recipe]:
    """Return the recipe of every run by the name of its folder: seed by seed, so that what stands early is of all."""
    found = {}
    made = recipes(asked)
    counts = {
        name: asked.steps or budgeted_steps(name, recipe, asked.minutes, asked.workdir) for name, recipe in made.items()
    }
    for seed in asked.seeds:
        for name, recipe in made.items():
            steps = counts[name]
            found[f"{name}-{seed}"] = scheduled(
                recipe, steps, seed, warmup=WARMUP, evaluations=asked.evaluations,
                checkpoint_every=max(steps // 20, 1), keep=asked.average, average=asked.average,
            )  # fmt: skip
    return found


def run(asked: Comparison) -> None:
    """Make the runs that are missing, and the page and the table of all."""
    root, found = Path(asked.workdir), experiments(asked)
    train_all(found, root, programs=str(root / "programs"))
    if len(found) == 1:
        return
    comparison, page = compare([root / name for name in found], root / "comparison.html")
    table = comparison_table(comparison)
    (root / "comparison.txt").write_text(table + "\n")
    print(f"\n{table}\n\n{page}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Read what is asked for, and make the series."""
    launch_series(Comparison(), run, arguments)


if __name__ == "__main__":
    main()
