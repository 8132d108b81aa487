"""The WMT14 experiment: published sizes, and a short run on generated data in the format of TFDS's wmt14_translate."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from flax import nnx

from flax_transformer.data.synthetic import numbers
from flax_transformer.data.text import build_pairs
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.task.sentence_pair import VOCAB_MULTIPLE
from flax_transformer.task.spec import Spec, sized
from flax_transformer.train.state import parameter_count

pytestmark = [pytest.mark.slow, pytest.mark.proves("transformer", "train", "[`wmt14`](../experiments/wmt14.py)")]

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "wmt14.py"


@pytest.mark.parametrize(("name", "published"), [("base", 65e6), ("big", 213e6)])
def test_sizes_are_those_of_the_paper(name, published):
    """Within 4 %: the paper rounds, and does not say how many rows its embedding has beyond the 37,000 merges."""
    config = runpy.run_path(str(EXPERIMENT))["EXPERIMENTS"][name].model
    config = sized(config, Spec(uses=("text2text-generation",), vocab=37_260, multiple=VOCAB_MULTIPLE))
    count = parameter_count(jax.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0))))
    assert abs(count / published - 1) < 0.04


def test_two_steps_on_data_in_the_same_format(tmp_path):
    splits = {name: numbers(40, split=name) for name in ("train", "validation", "test")}
    build_pairs("wmt14_translate/de-en", splits, source="en", target="de", data_dir=tmp_path / "tfds")
    parts = ("encoder.block.attention", "encoder.block.feedforward", "encoder.block.residual")
    parts += (*(part.replace("encoder", "decoder") for part in parts), "decoder.block.cross")
    small = [f"--model.{part}.embed=32" for part in parts]
    small += [
        f"--model.{side}.{name}"
        for side in ("encoder", "decoder")
        for name in ("depth=1", "block.feedforward.inner=64")
    ]
    run = subprocess.run(
        [
            sys.executable, EXPERIMENT, "base", "--workdir", tmp_path / "run", "--data.data-dir", tmp_path / "tfds",
            "--train.steps", "2", "--optimizer.schedule.warmup", "1", "--batch.tokens", "512", "--bpe.merges", "50",
            "--model.embedding.embed", "32", *small,
        ],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "tensorflow" not in run.stderr.lower()
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["split"] for record in records] == ["train", "validation", "test"]
    assert "try next" in run.stdout
