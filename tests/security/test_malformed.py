"""Damaged files are refused in a clear sentence, or were not damaged: no crash, no hang, no silent success."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.shares import only

HERE = Path(__file__).parent
FAMILIES = tuple(f"config-{family.name}" for family in sorted((HERE.parent / "hub" / "golden").iterdir()))
GROUPS = {
    "weights": (6, 60, 100, ("weights", "shards", "flax", "adapter", "generation")),
    "configs": (1, 72, 20, FAMILIES[::26]),
    "other configs": (0, 72, 0, tuple(name for name in FAMILIES if name not in FAMILIES[::26])),
    "tokenizers": (8, 96, 150, ("tokenizer", "wordpiece", "byte-bpe", "chat", "chat-config", "own-tokenizer")),
    "image-processors": (10, 60, 15, ("preprocessor_config.json", "processor_config.json")),
    "runs": (1, 18, 400, ("run", "checkpoints", "unsealed")),
    "data": (8, 48, 150, ("tfds", "text", "arrays")),
    "records": (20, 100, 250, ("csv", "jsonl", "arrow", "parquet")),
    "media": (12, 80, 150, ("episodes", "skeletons", "vectors", "inputs", "audio")),
    "pictures": (4, 60, 30, ("images", "scenes", "idx")),
}
"""For each, how many changes of each kind, few and many, how many files the few make at least, and the corpora."""
QUICK = ("weights", "configs", "tokenizers", "image-processors", "pictures", "records", "media")
"""What is not trained or kept by JAX's own tools."""


def open_damaged(folder, seed, amount, corpora):
    """Open everything damaged; give how often each verdict fell, and what is wrong."""
    done = subprocess.run(
        [sys.executable, HERE / "worker.py", str(folder), str(seed), str(amount), *corpora],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent)])},
        capture_output=True,
        text=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(('{"case"', '{"verdict"'))]
    assert told, done.stderr[-3000:]
    verdicts = list(zip(told[::2], told[1::2], strict=False))
    wrong = [
        f"{case['case']}: {each['verdict']}"
        for case, each in verdicts
        if each["verdict"] not in ("refused", "same", "legal")
    ]
    if done.returncode:
        wrong.append(f"{told[-1]}: died with {done.returncode}, {done.stderr[-3000:]}")
    return Counter(each["verdict"] for _, each in verdicts), wrong


@pytest.mark.rotates
@pytest.mark.parametrize("group", only([group for group in GROUPS if group != "other configs"], *QUICK))
def test_damaged_files_are_refused_or_harmless(tmp_path, group):
    amount, _, least, corpora = GROUPS[group]
    verdicts, wrong = open_damaged(tmp_path, 0, amount, corpora)
    assert not wrong, "\n".join(wrong)
    assert verdicts.total() >= least, verdicts
    assert verdicts["refused"] > verdicts.total() / 4, verdicts


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_many_more_damaged_files_are_refused_or_harmless(tmp_path, group):
    _, amount, _, corpora = GROUPS[group]
    _, wrong = open_damaged(tmp_path, 1, amount, corpora)
    assert not wrong, "\n".join(wrong)
