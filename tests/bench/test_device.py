import json

import jax
import pytest

from flax_transformer.bench import device_peak, environment, known_peak, measured_peak
from flax_transformer.bench.environment import VARIABLES, describe


@pytest.mark.parametrize(
    ("kind", "dtype", "tera"),
    [
        ("TPU v2", "bfloat16", 22.5),
        ("TPU v3", "bfloat16", 61.5),
        ("TPU v4", "bfloat16", 275),
        ("TPU v5 lite", "bfloat16", 197),
        ("TPU v5e", "bfloat16", 197),
        ("TPU v5", "bfloat16", 459),
        ("TPU v5p", "bfloat16", 459),
        ("TPU v6 lite", "bfloat16", 918),
        ("TPU v6e", "float32", 918),
        ("TPU7x", "bfloat16", 1153.5),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla V100-PCIE-16GB", "float16", 112),
        ("Tesla T4", "float16", 65),
        ("NVIDIA A10", "bfloat16", 125),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "float32", 156),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 80GB HBM3", "float32", 494.7),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA H100 NVL", "float16", 835),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA B200", "bfloat16", 2250),
        ("TPU v4", "int8", 275),
        ("TPU v5 lite", "int8", 394),
        ("TPU v5", "int8", 918),
        ("TPU v6 lite", "int8", 1836),
        ("TPU v6 lite", "float8_e4m3fn", 918),
        ("TPU7x", "float8_e4m3fn", 2307),
        ("NVIDIA A100-SXM4-40GB", "int8", 624),
        ("NVIDIA H100 80GB HBM3", "int8", 1978.9),
        ("NVIDIA H100 80GB HBM3", "float8_e4m3fn", 1978.9),
    ],
)
def test_device_kinds_as_jax_spells_them_are_known(kind, dtype, tera):
    assert known_peak(kind, dtype) == tera * 1e12


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A10G", "NVIDIA L40S", "NVIDIA GeForce RTX 4090", "TPU v99"])
def test_devices_not_in_the_table_are_not_taken_for_others(kind):
    assert known_peak(kind, "bfloat16") is None


def test_a_type_without_a_fast_path_has_no_peak():
    assert known_peak("Tesla T4", "bfloat16") is None
    assert known_peak("TPU v3", "int8") is known_peak("TPU7x", "int8") is None
    assert known_peak("NVIDIA A100-SXM4-40GB", "float8_e4m3fn") is None


@pytest.mark.parametrize(
    ("kind", "version", "cores"),
    [
        ("TPU v4", "TPU_V4", 2),  # cores of one JAX device
        ("TPU v5 lite", "TPU_V5E", 1),
        ("TPU v5p", "TPU_V5P", 2),
        ("TPU v6 lite", "TPU_V6E", 1),
        ("TPU7x", "TPU_7X", 1),
    ],
)
def test_tpu_numbers_agree_with_jax(kind, version, cores):
    from jax.experimental.pallas import tpu

    core = tpu.get_tpu_info_for_chip(tpu.ChipVersion[version], cores)
    assert known_peak(kind, "bfloat16") == pytest.approx(core.bf16_ops_per_second * cores, rel=0.01)


@pytest.mark.rotates
def test_a_cpu_is_measured_and_shared_by_all_its_devices():
    one = measured_peak("float32", seconds=0.01)
    assert one > 1e8
    eight = device_peak("float32", 8)
    assert "measured here" in eight.source
    assert eight.flops < 8 * one * 10


def test_the_environment_is_json_and_one_line():
    where = environment()
    assert json.loads(json.dumps(where)) == where
    assert where["jax"] == jax.__version__
    assert where["devices"] == jax.device_count()
    assert where["cpu"]
    assert "\n" not in describe(where)


def test_variables_that_move_speed_are_kept_and_secrets_are_not(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("MY_TOKEN", "x")
    kept = environment()["variables"]
    assert kept["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert "XLA_FLAGS" in kept
    assert all(VARIABLES.match(name) for name in kept)
    assert "MY_TOKEN" not in kept
