"""Scores and sizes of checkpoints with kernels of few bits: every rule on every checkpoint that is named.

    python benchmarks/few_bits.py NAME=CHECKPOINT=CALIBRATION=DATA … [--rows 128] [--json FILE]

CHECKPOINT is a folder, CALIBRATION and DATA what `flax-transformer evaluate` takes, the first for calibration alone. A
row is the metrics of the whole data set, and the bytes of the written safetensors beside those of float32. Tables of
tokens have few bits too, where there are any.
"""

import argparse
import tempfile
from pathlib import Path

import jax
from results import write

from flax_transformer import hub
from flax_transformer.cli.run import Translating, score
from flax_transformer.cli.unreadable import Refused
from flax_transformer.compress import Quantization
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.compression import calibration, quantize_checkpoint

INT4 = {"weights": "int4", "group": 32, "embeddings": True}
RULES = {
    "int8": Quantization(embeddings=True),
    "int8, inputs int8, dynamic": Quantization(embeddings=True, activations="int8"),
    "int8, inputs int8, largest": Quantization(embeddings=True, activations="int8", ranges="absmax"),
    "int8, inputs int8, percentile": Quantization(embeddings=True, activations="int8", ranges="percentile"),
    "int8, inputs int8, squared error": Quantization(embeddings=True, activations="int8", ranges="mse"),
    "float8": Quantization(weights="float8_e4m3fn", embeddings=True),
    "int4 in groups of 32, nearest": Quantization(**INT4),
    "int4 in groups of 32, squared error": Quantization(**INT4, method="mse"),
    "int4 in groups of 32, GPTQ": Quantization(**INT4, method="gptq"),
}


def disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def measured(folder: Path, data: Path) -> dict[str, float]:
    found = score(str(folder), data, None, Translating(), Refused())
    return {key: value for key, value in found.items() if isinstance(value, float) and "per_second" not in key}


def rows_of(name: str, checkpoint: str, calibrated: Path, data: Path, rows: int) -> list[dict]:
    pretrained, found = open_checkpoint(checkpoint), []
    calls = calibration(pretrained, calibrated, rows=rows, split="train" if calibrated.is_dir() else None)
    with tempfile.TemporaryDirectory() as made:
        for rule in ("float32", *RULES):
            folder = Path(made) / str(len(found))
            smaller = pretrained if rule == "float32" else quantize_checkpoint(pretrained, RULES[rule], calls)
            hub.save(smaller, folder)
            found.append({"checkpoint": name, "rule": rule, "bytes": disk(folder), **measured(folder, data)})
            jax.clear_caches()  # every rule is other programs, whose memory maps are counted
            share = found[-1]["bytes"] / found[0]["bytes"]
            print(f"{name}  {rule:38} {share:.3f}×  {measured_text(found[-1])}", flush=True)
    return found


def measured_text(row: dict) -> str:
    return "  ".join(f"{key} {value:.4g}" for key, value in row.items() if isinstance(value, float))


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


if __name__ == "__main__":
    main()
