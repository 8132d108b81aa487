"""Scores and sizes of checkpoints with kernels of few bits: every rule on every checkpoint that is named.

    python benchmarks/few_bits.py NAME=CHECKPOINT=CALIBRATION=DATA … [--rows 128] [--json FILE]

CHECKPOINT is a folder, CALIBRATION and DATA what `flax-transformer evaluate` takes, the first for calibration alone. A
row is the metrics of the whole data set, and the bytes of the written safetensors beside those of float32. Tables of
tokens have few bits too, where there are any. A NAME may come several times, with checkpoints of several seeds: at the
end a table of means and standard deviations is printed. A method that a model has no place for, as nothing before its
kernels can be scaled, says so in place of a row.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
from results import write

from flax_transformer import hub
from flax_transformer.cli.run import Translating, score
from flax_transformer.cli.unreadable import Refused
from flax_transformer.compress import Quantization
from flax_transformer.hub import Pretrained
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.compression import calibration, quantize_checkpoint

INT4 = {"weights": "int4", "group": 32, "embeddings": True}
RULES = {
    "int8": Quantization(embeddings=True),
    "int8, inputs int8, dynamic": Quantization(embeddings=True, activations="int8"),
    "int8, inputs int8, largest": Quantization(embeddings=True, activations="int8", ranges="absmax"),
    "int8, inputs int8, percentile": Quantization(embeddings=True, activations="int8", ranges="percentile"),
    "int8, inputs int8, squared error": Quantization(embeddings=True, activations="int8", ranges="mse"),
    "int8, inputs int8, SmoothQuant": Quantization(embeddings=True, activations="int8", method="smoothquant"),
    "float8": Quantization(weights="float8_e4m3fn", embeddings=True),
    "int4 in groups of 32, nearest": Quantization(**INT4),
    "int4 in groups of 32, squared error": Quantization(**INT4, method="mse"),
    "int4 in groups of 32, GPTQ": Quantization(**INT4, method="gptq"),
    "int4 in groups of 32, AWQ": Quantization(**INT4, method="awq"),
}


def disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def measured(folder: Path, data: Path) -> dict[str, float]:
    found = score(str(folder), data, None, Translating(), Refused())
    return {key: value for key, value in found.items() if isinstance(value, float) and "per_second" not in key}


def pair_loss(pretrained: Pretrained, pairs: Path) -> dict[str, float]:
    """Return the mean loss of the targets' tokens given those before them, of a translator; nothing of others."""
    if "text2text-generation" not in pretrained.architecture.uses or pairs.is_dir():
        return {}
    padding, total, count = pretrained.config["pad_token_id"], 0.0, 0
    run = jax.jit(lambda model, call: replace(pretrained, model=model)(**call).logits)
    for call in calibration(pretrained, pairs, rows=10**9):
        # Few lengths are few programs.
        call = {name: np.pad(x, ((0, 0), (0, -x.shape[1] % 16)), constant_values=padding * (name != "attention_mask"))
                for name, x in call.items()}  # fmt: skip
        ids = call["decoder_input_ids"]
        labels = np.concatenate([ids[:, 1:], np.full((len(ids), 1), padding, ids.dtype)], axis=1)
        losses = optax.softmax_cross_entropy_with_integer_labels(run(pretrained.model, call), labels)
        total, count = total + float((losses * (labels != padding)).sum()), count + int((labels != padding).sum())
    return {"loss": total / count}


def rows_of(name: str, checkpoint: str, calibrated: Path, data: Path, rows: int) -> list[dict]:
    pretrained, found = open_checkpoint(checkpoint), []
    calls = calibration(pretrained, calibrated, rows=rows, split="train" if calibrated.is_dir() else None)
    with tempfile.TemporaryDirectory() as made:
        for rule in ("float32", *RULES):
            folder = Path(made) / str(len(found))
            try:
                smaller = pretrained if rule == "float32" else quantize_checkpoint(pretrained, RULES[rule], calls)
            except ValueError as error:
                print(f"{name}  {rule:38} {error}", flush=True)
                continue
            hub.save(smaller, folder)
            found.append(
                {
                    "checkpoint": name,
                    "folder": Path(checkpoint).name,
                    "rule": rule,
                    "bytes": disk(folder),
                    **measured(folder, data),
                    **pair_loss(smaller, data),
                }
            )
            jax.clear_caches()  # every rule is other programs, whose memory maps are counted
            share = found[-1]["bytes"] / found[0]["bytes"]
            print(f"{name}  {rule:38} {share:.3f}×  {measured_text(found[-1])}", flush=True)
    return found


def measured_text(row: dict) -> str:
    return "  ".join(f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float))


def table(results: list[dict]) -> str:
    """Return means and standard deviations over the checkpoints of a name, a rule a line."""
    lines = []
    for name, rule in dict.fromkeys((row["checkpoint"], row["rule"]) for row in results):
        rows = [row for row in results if (row["checkpoint"], row["rule"]) == (name, rule)]
        whole = [row for row in results if row["checkpoint"] == name and row["rule"] == "float32"]
        size = np.mean([row["bytes"] for row in rows]) / np.mean([row["bytes"] for row in whole])
        parts = [f"{name:12} {rule:38} {size:.3f}×"]
        for key in (key for key, value in rows[0].items() if isinstance(value, float)):
            values, before = (np.array([row[key] for row in each]) for each in (rows, whole))
            change = values - before
            parts.append(
                f"{key} {values.mean():.4f} ± {values.std():.4f}, change {change.mean():+.4f} ± {change.std():.4f}"
            )
        lines.append("  ".join(parts))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = []
    for each in options.checkpoints:
        name, checkpoint, calibrated, data = each.split("=")
        results += rows_of(name, checkpoint, Path(calibrated), Path(data), options.rows)
        write(options.json, results, proves=("kernels of few bits", "scores of int8, int4 and float8 beside float32"))
    print(table(results))


if __name__ == "__main__":
    main()
