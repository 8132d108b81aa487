"""Compare five kinds of models of images: accuracy over the number of training images, at one budget of FLOPs.

    python experiments/compare_vision.py --workdir runs/compare --data.root FASHION_MNIST

Every model of `classify_images.py` is trained with as many steps as its model FLOPs, forward and backward, fit into
the budget, on some of the training images and on all, from several seeds; the test images are the same for all.
Each run has a folder of its own. A series that was cut off goes on where it was, and one that asks for more models,
images or seeds makes those runs alone. What came out is written to `comparison.json`, `comparison.md` and, as a
figure, `comparison.png`.

Of Fashion-MNIST's test images, in percent, by the command above: means and standard deviations of three seeds (45
runs, about 4 minutes each on one core with other work beside, 2026-11-26).

                            steps  1,000 images  5,000 images  54,000 images
    ViT                       334      78.9 ± 0.3      79.3 ± 0.1       80.3 ± 0.2
    ViT after convolutions    657      82.8 ± 0.0      89.1 ± 0.2       90.6 ± 0.1
    Swin                      323      83.5 ± 0.3      84.2 ± 0.5       84.3 ± 0.2
    Mixer                     604      80.5 ± 0.4      85.0 ± 0.2       85.9 ± 0.1
    ResNet                    847      85.1 ± 0.1      90.1 ± 0.3       91.8 ± 0.1
"""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.bench.experiment import from_experiment
from flax_transformer.bench.target import find_experiment
from flax_transformer.bench.workload import Size
from flax_transformer.data.synthetic import LabelledImageData
from flax_transformer.frozen import frozen
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.series import launch_series, scheduled, train_all

RECIPES = Path(__file__).with_name("classify_images.py")
NAMES = {"vit": "ViT", "cct": "ViT after convolutions", "swin": "Swin", "mixer": "Mixer", "resnet": "ResNet"}


@frozen
class Comparison:
    """What is compared."""

    workdir: str = "runs/compare_vision"
    """Folder of the series."""
    data: LabelledImageData = LabelledImageData()
    """The images."""
    models: tuple[str, ...] = tuple(NAMES)
    """Names of `classify_images.py`."""
    images: tuple[int, ...] = (1_000, 5_000, 60_000)
    """Training images of a run; of more than there are, all."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """What runs begin from."""
    tera: float = 12.0
    """Model FLOPs of a run, in 10^12."""
    rows: int = 128
    """Images a batch."""


def experiments(asked: Comparison) -> dict[str, Recipe]:
    """Return the recipe of every run by the name of its folder."""
    found = {}
    available = len(asked.data.open().splits["train"])
    counts = {number: min(number, available) for number in asked.images}
    for model in asked.models:
        recipe = replace(find_experiment(RECIPES, model), data=asked.data)
        recipe = replace(recipe, examples=replace(recipe.examples, rows=asked.rows))
        flops = from_experiment(model, recipe, Size()).facts(["train"]).flops["train"].model
        steps = max(round(asked.tera * 1e12 / flops), 1)
        for number in dict.fromkeys(counts.values()):
            limited = replace(recipe, data=replace(asked.data, limit=None if number == available else number))
            for seed in asked.seeds:
                found[f"{model}-{number}-{seed}"] = scheduled(
                    limited, steps, seed, checkpoint_every=max(steps // 3, 1), ema=0.0
                )
    return found


def summary(tests: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the seeds of each model and number of images."""
    groups: dict[tuple[str, int], list[dict]] = {}
    for name, test in tests.items():
        model, number, _ = name.split("-")
        groups.setdefault((model, int(number)), []).append(test)
    return [
        {
            "model": model, "pictures": number, "steps": runs[0]["step"], "seeds": len(runs),
            "accuracy": statistics.mean(run["accuracy"] for run in runs),
            "spread": statistics.stdev(run["accuracy"] for run in runs) if len(runs) > 1 else None,
        }
        for (model, number), runs in groups.items()
    ]  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Write accuracies in percent as Markdown, a model a line, ± the standard deviation over seeds."""
    numbers = sorted({row["pictures"] for row in rows})
    cells = {(row["model"], row["pictures"]): row for row in rows}
    lines = [["model", "steps", *(f"{number:,} images" for number in numbers)], ["---"] * (2 + len(numbers))]
    for model in dict.fromkeys(row["model"] for row in rows):
        found = [cells.get((model, number)) for number in numbers]
        steps = next(row["steps"] for row in found if row)
        lines.append([NAMES.get(model, model), f"{steps:,}", *map(percent, found)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def percent(row: dict[str, Any] | None) -> str:
    """Write an accuracy and its spread in percent."""
    if row is None:
        return "–"
    spread = "" if row["spread"] is None else f" ± {100 * row['spread']:.1f}"
    return f"{100 * row['accuracy']:.1f}{spread}"


def draw(rows: list[dict[str, Any]], path: Path, tera: float) -> None:
    """Draw accuracy over the number of training images, a line a model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for model in dict.fromkeys(row["model"] for row in rows):
        points = sorted((row for row in rows if row["model"] == model), key=lambda row: row["pictures"])
        axes.errorbar(
            [row["pictures"] for row in points], [100 * row["accuracy"] for row in points],
            [100 * (row["spread"] or 0) for row in points], marker="o", capsize=3, label=NAMES.get(model, model),
        )  # fmt: skip
    numbers = sorted({row["pictures"] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.minorticks_off()
    axes.set(xlabel="training images", ylabel="test accuracy, %", title=f"{tera:g} TFLOP of training a run")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=150)


def compare(asked: Comparison) -> None:
    """Make the runs that are missing, and the table and the figure of all."""
    root = Path(asked.workdir)
    rows = summary(train_all(experiments(asked), root))
    (root / "comparison.json").write_text(json.dumps(rows, indent=1) + "\n")
    (root / "comparison.md").write_text(table(rows))
    draw(rows, root / "comparison.png", asked.tera)
    print(f"\n{table(rows)}\n{root / 'comparison.png'}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Read what is asked for, and make the series."""
    launch_series(Comparison(), compare, arguments)


if __name__ == "__main__":
    main()
