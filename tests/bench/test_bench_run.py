"""Targets found by name or file, and measured from end to end on small shapes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from fake_devices import FLAGS, on_eight
from flax import nnx

from flax_transformer.bench import attention as attention_bench
from flax_transformer.bench.attention import attention_flops, bench_attention, render_attention
from flax_transformer.bench.experiment import count_items
from flax_transformer.bench.report import render
from flax_transformer.bench.run import RefusedError, attention_said, benchmark
from flax_transformer.bench.target import find_experiment, find_target
from flax_transformer.bench.workload import Size
from flax_transformer.models import preset
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.bert import bert_base_uncased
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import Attention, AttentionConfig, with_fields, with_precision
from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import MeshConfig, abstract_mesh

ROOT = Path(__file__).parent.parent.parent
SMALL = Size(batch=2, length=4, vocab=16)


def small(vocab: int = 16) -> Seq2SeqConfig:
    return with_fields(transformer_tiny(vocab), embed=16, heads=2, inner=32, depth=1)


@pytest.fixture(autouse=True)
def _small_preset_and_known_peak(monkeypatch):
    """Measure no large matrix products in tests."""
    monkeypatch.setattr("flax_transformer.bench.device.measured_peak", lambda dtype: 1e12)
    monkeypatch.setattr(preset, "presets", lambda: {"small": small, "transformer_tiny": transformer_tiny})


@pytest.mark.slow
def test_forward_train_and_decode_of_a_preset():
    record = benchmark("small", SMALL, steps=2)
    assert json.loads(json.dumps(record)) == record
    assert list(record["programs"]) == ["forward", "train", "decode"]
    assert record["target"]["shape"] == {"rows": 2, "source": 4, "target": 4, "vocab": 16}
    for program in record["programs"].values():
        assert program["recompiles"] == 0
        assert (program["items"], program["unit"]) == (8, "tokens")
        assert program["items_per_second"] == 8 / program["step"]["median"]
        assert program["mfu"] == program["flops"] / program["step"]["median"] / 1e12
        assert 0 < program["step"]["low"] <= program["step"]["median"] <= program["step"]["high"]
        assert program["compile_cached"] is not None
    assert record["programs"]["train"]["argument_bytes"] > 3 * record["programs"]["forward"]["argument_bytes"] * 0.9
    assert "recompilations" in render(record)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["forward", "decode"])
def test_each_program_alone_in_bfloat16(what):
    record = benchmark("small", Size(batch=1, length=2, vocab=8, dtype="bfloat16"), what=(what,), steps=1)
    assert list(record["programs"]) == [what]
    assert record["target"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("transformer_tinny", "no preset is called 'transformer_tinny'; did you mean transformer_tiny"),
        ("qqq", "no preset is called 'qqq'; there are small, transformer_tiny"),
        ("nowhere/x.py", "must be a Python file, there is none at nowhere/x.py"),
        (str(ROOT / "experiments/wmt14.py"), "has the experiments base, big; say which"),
        (str(ROOT / "experiments/wmt14.py:small"), "base, big; it has no 'small'"),
        (str(ROOT / "benchmarks/depth.py"), "must define an Experiment"),
    ],
)
def test_unknown_targets_are_answered_with_the_right_names(target, message):
    with pytest.raises(ValueError, match=message):
        find_target(target, Size())


@pytest.mark.parametrize(("name", "least"), [("batch", 1), ("length", 1), ("documents", 1), ("vocab", 2)])
def test_sizes_are_positive(name, least):
    with pytest.raises(ValueError, match=f"{name} must be at least {least}, got 0"):
        Size(**{name: 0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a positive number, got 0"),
        ({"what": ("fly",)}, "what is measured of small must be some of forward, train, decode, got fly"),
    ],
)
def test_options_are_checked_before_the_wait(options, message):
    with pytest.raises(RefusedError, match=message):
        benchmark("small", SMALL, **options)


def test_a_program_that_a_model_does_not_have_is_refused(monkeypatch):
    monkeypatch.setattr(preset, "presets", lambda: {"bert": bert_base_uncased})
    with pytest.raises(RefusedError, match="what is measured of bert must be some of forward, train, got decode"):
        benchmark("bert", SMALL, what=("forward", "decode"))


def test_a_translation_experiment_gives_its_longest_batches_and_reads_no_data():
    workload = find_target(f"{ROOT}/experiments/wmt14.py:base", Size())
    experiment = find_experiment(ROOT / "experiments/wmt14.py", "base")
    batch = experiment.examples.batch
    assert workload.shape["source"] == workload.shape["target"] == batch.max_tokens
    assert workload.shape["rows"] == batch.tokens // batch.max_tokens // 8 * 8
    assert workload.shape["vocab"] == 37_260  # 260 bytes and marks, 37,000 merges
    assert workload.dtype == "bfloat16"
    assert workload.optimizer == experiment.optimizer
    assert workload.objective == TokenLoss(label_smoothing=0.1, chunk=4096)


@pytest.mark.rotates
def test_any_experiment_is_measured_on_its_own_batches():
    target = f"{ROOT}/experiments/forkme.py"
    workload = find_target(target, Size())
    assert workload.shape == {"rows": 128, "source": 13, "target": 13, "vocab": 16}
    with pytest.raises(ValueError, match="decides its own shapes"):
        find_target(target, Size(batch=3))
    assert jax.eval_shape(
        workload.objective, jax.eval_shape(workload.init, jax.random.key(0)), workload.batch, key=None
    )


MINE = """
from dataclasses import dataclass
import jax, numpy as np
from flax import nnx
from flax_transformer.task.experiment import Experiment, Task

class Batches:
    def __iter__(self): return self
    def __next__(self): return {"x": np.ones((4, 3), np.float32)}
    def get_state(self): return {}
    def set_state(self, state): pass

def objective(model, batch, *, key=None):
    return (model(batch["x"]) ** 2).sum(), {"count": jax.numpy.float32(4)}

@dataclass(frozen=True, kw_only=True)
class Mine(Experiment):
    def task(self, folder):
        return Task(lambda key: nnx.Linear(3, 2, rngs=nnx.Rngs(key)), objective, Batches(), print, print)

EXPERIMENT = Mine()
"""


@pytest.mark.rotates
def test_an_experiment_of_an_unknown_model_has_all_that_a_known_one_has(tmp_path):
    """Four rows are what its objective counts; no gradient goes to its inputs."""
    (tmp_path / "mine.py").write_text(MINE)
    record = benchmark(str(tmp_path / "mine.py"), Size(), steps=1)
    assert list(record["programs"]) == ["forward", "train"]
    product = 2 * 4 * 3 * 2
    for name, flops in (("forward", product), ("train", 2 * product)):
        program = record["programs"][name]
        assert (program["items"], program["unit"], program["flops"]) == (4, "items", flops)
        assert program["mfu"] == flops / program["step"]["median"] / 1e12
    assert record["target"]["shape"] == {"rows": 4}
    assert record["target"]["dtype"] == "float32"


def test_items_are_counted_without_a_model_where_they_can_be():
    model, batch = {"w": jax.ShapeDtypeStruct((3,), "float32")}, {"weights": np.array([1.0, 0.0, 1.0], np.float32)}
    by_batch = lambda model, batch, *, key: (model["w"].sum(), {"count": batch["weights"].sum()})  # noqa: E731
    by_model = lambda model, batch, *, key: (model["w"].sum(), {"count": model["w"].max()})  # noqa: E731
    assert count_items(by_batch, model, batch) == 2
    assert count_items(by_model, model, batch) is None


def test_compute_type_changes_everywhere():
    config = with_precision(transformer_tiny(), compute="bfloat16")
    encoder, decoder = config.encoder.block, config.decoder.block
    parts = (config.embedding, encoder.attention, encoder.feedforward, encoder.residual, decoder.cross)
    assert {part.precision.compute for part in parts} == {"bfloat16"}
    assert with_precision(transformer_tiny()) == transformer_tiny()


@pytest.mark.rotates
def test_attention_backends_are_timed_or_say_why_not():
    record = bench_attention((8, 16), batch=2, heads=4, kv_heads=2, width=8, causal=True, budget=0.0)
    assert json.loads(json.dumps(record)) == record
    served = {(r["length"], r["backend"]) for r in record["results"] if "forward" in r}
    assert served == {(n, backend) for n in (8, 16) for backend in ("xla", "blockwise")}
    said = render_attention(record)
    assert "cudnn cannot: it needs an NVIDIA GPU, the platform is 'cpu' (length 8, 16)" in said
    assert "xla*" in said
    with pytest.raises(ValueError, match="length must be a positive number, got 0"):
        bench_attention((8, 0))
    with pytest.raises(ValueError, match="dtype must be one of float16, bfloat16, float32, got 'int8'"):
        bench_attention((8,), dtype="int8")


def test_causal_attention_needs_half():
    assert attention_flops(2, 8, 4, 16, causal=True) == 2 * 2 * 8 * 8 * 4 * 16


EIGHT = """
import json
from flax_transformer.bench.run import benchmark
from flax_transformer.bench.workload import Size
from flax_transformer.nn import with_fields
from flax_transformer.parallel import MeshConfig
import flax_transformer.bench.device as device
from flax_transformer.models import preset
from flax_transformer.models.text.transformer import transformer_tiny
device.measured_peak = lambda dtype: 1e12
shallow = lambda vocab=16: with_fields(transformer_tiny(vocab), depth=1)
preset.presets = lambda: {"shallow": shallow}
record = benchmark("shallow", Size(batch=8, length=4, vocab=16), steps=1, mesh=MeshConfig(data=2, fsdp=4))
try:
    benchmark("shallow", Size(batch=4, length=4, vocab=16), steps=1)
except ValueError as error:
    record["error"] = str(error)
print(json.dumps(record))
"""


@pytest.mark.slow
def test_a_mesh_splits_the_parameters_of_every_program():
    record, _ = on_eight("-c", EIGHT)
    assert record["target"]["mesh"] == {"data": 2, "pipeline": 1, "fsdp": 4, "expert": 1, "tensor": 1, "sequence": 1}
    assert record["environment"]["variables"]["XLA_FLAGS"] == FLAGS
    whole = 4 * record["target"]["parameters"]
    for name, program in record["programs"].items():
        assert program["recompiles"] == 0, name
        assert program["argument_bytes"] < whole * (3 if name == "train" else 1) / 3, name
    assert "rows must be a multiple of 8 × 1 (data × fsdp × expert, and accumulate), got 4" in record["error"]


def test_a_sequence_mesh_that_runs_no_ring_is_told():
    layer = nnx.eval_shape(lambda: Attention(AttentionConfig(embed=8, heads=2), rngs=nnx.Rngs(0)))
    with jax.sharding.use_abstract_mesh(abstract_mesh(MeshConfig(sequence=8), 8)):
        for length, words in ((15, ["multiples of 2 × sequence = 16, got T=15"]), (16, [])):
            with attention_said() as said:
                jax.eval_shape(lambda layer, x: layer(x), layer, jax.ShapeDtypeStruct((2, length, 8), "float32"))
            start = "attention of 15 × 15 positions, split over devices, is xla and no ring: lengths must be "
            assert said == [start + each for each in words]


HEAVY = "tensorflow_datasets grain tokenizers sacrebleu huggingface_hub tyro tensorboardX matplotlib array_record torch"
LIGHT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HEAVY.split():
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import flax_transformer.bench.run, flax_transformer.bench.attention
"""


@pytest.mark.slow
def test_a_machine_with_only_jax_and_flax_can_measure():
    code = f"HEAVY = {HEAVY!r}\n{LIGHT}"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_backend_that_runs_out_of_memory_does_not_end_the_benchmark(monkeypatch):
    def time(q, k, v, mask, backend, budget):
        if backend == "xla":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 34426847232 bytes.")
        return measured(q, k, v, mask, backend, budget)

    measured = attention_bench._time
    monkeypatch.setattr(attention_bench, "_time", time)
    record = bench_attention((8,), heads=2, width=8, budget=0.0)
    verdicts = {each["backend"]: each["verdict"] for each in record["results"]}
    assert verdicts["xla"].startswith("cannot: the program needs more memory than there is: RESOURCE_EXHAUSTED")
    assert any("forward" in each for each in record["results"])
    assert "xla cannot: the program needs more memory" in render_attention(record)
