"""Collectives are found, counted and weighed in programs whose traffic is known by hand."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from flax_transformer.parallel.collectives import KINDS, collective_bytes, collectives_of

HERE = Path(__file__).parent
# Eight devices hold x [64, 4] in float32: 1024 bytes in all, 128 each.
WHOLE, PART = 1024, 128


@cache
def programs() -> dict[str, str]:
    flags = "--xla_force_host_platform_device_count=8"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, str(HERE / "small_programs.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("psum", [("all-reduce", PART, 1)]),
        ("all_gather", [("all-gather", WHOLE, 1)]),
        ("psum_scatter", [("reduce-scatter", PART, 1)]),
        ("ppermute", [("collective-permute", PART, 1)]),
        ("all_to_all", [("all-to-all", PART, 1)]),
        ("scan", [("all-reduce", PART, 5)]),
        ("nested scan", [("all-gather", WHOLE, 12), ("collective-permute", PART, 3)]),
        ("while", [("all-reduce", PART, 1)]),
        ("cond", [("all-reduce", PART, 1)]),
        ("nothing", []),
    ],
)
def test_what_is_said_is_known_by_hand(program, expected):
    found = collectives_of(programs()[program])
    assert sorted((c.kind, c.bytes, c.times) for c in found) == sorted(expected)


@pytest.mark.rotates
def test_several_arrays_in_one_collective_add_up():
    found = collective_bytes(collectives_of(programs()["two arrays"]))
    assert found == {**dict.fromkeys(KINDS, 0), "all-reduce": PART + 16 * 4}


@pytest.mark.rotates
def test_bytes_are_multiplied_by_turns():
    found = collectives_of(programs()["nested scan"])
    assert collective_bytes(found)["all-gather"] == 12 * WHOLE
    assert "all_gather" in next(c.origin for c in found if c.kind == "all-gather")


TPU = """
HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %c = f32[]{:T(128)} add(%a, %b)
}

%all-reduce-scatter (p: bf16[16,128]) -> bf16[4,128] {
  %p = bf16[16,128]{1,0:T(8,128)(2,1)} parameter(0)
  %all-reduce.1 = bf16[16,128]{1,0:T(8,128)(2,1)} all-reduce(%p), channel_id=1, to_apply=%add
  %i = s32[]{:T(128)} constant(0)
  ROOT %s = bf16[4,128]{1,0:T(8,128)(2,1)} dynamic-slice(%all-reduce.1, %i, %i), dynamic_slice_sizes={4,128}
}

%async_collective_fusion (q: bf16[4,128]) -> bf16[16,128] {
  %q = bf16[4,128]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-gather.2 = bf16[16,128]{1,0:T(8,128)(2,1)} all-gather(%q), channel_id=7, dimensions={0}, frontend_attributes={chain_id="18"}
}

%windowed_condition (t: (u32[], bf16[4,128])) -> pred[] {
  %m = u32[]{:T(128)} constant(8)
  %t = (u32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) parameter(0)
  %k = u32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %lt = pred[]{:T(512)} compare(%k, %m), direction=LT
}

%windowed_body (t: (u32[], bf16[4,128])) -> (u32[], bf16[4,128]) {
  %t = (u32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) parameter(0)
  %k = u32[]{:T(128)} get-tuple-element(%t), index=0
  %y = bf16[4,128]{1,0:T(8,128)(2,1)} get-tuple-element(%t), index=1
  %two = u32[]{:T(128)} constant(2)
  %next = u32[]{:T(128)} add(%k, %two)
  %start = (bf16[4,128]{1,0}, bf16[4,128]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%y), channel_id=8
  %done = bf16[4,128]{1,0:T(8,128)(2,1)} collective-permute-done(%start)
  ROOT %r = (u32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) tuple(%next, %done)
}

%condition (t: (s32[], bf16[4,128])) -> pred[] {
  %t = (s32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) parameter(0)
  %n = s32[]{:T(128)} constant(7)
  %j = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %lt = pred[]{:T(512)} compare(%j, %n), direction=LT
}

%body (t: (s32[], bf16[4,128])) -> (s32[], bf16[4,128]) {
  %t = (s32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) parameter(0)
  %x = bf16[4,128]{1,0:T(8,128)(2,1)} get-tuple-element(%t), index=1
  %z = (u32[]{:T(128)}, bf16[4,128]{1,0}) while(%t), condition=%windowed_condition, body=%windowed_body
  %also = bf16[16,128]{1,0:T(8,128)(2,1)} fusion(%x), kind=kOutput, calls=%async_collective_fusion
  %again = bf16[16,128]{1,0:T(8,128)(2,1)} fusion(%x), kind=kOutput, calls=%async_collective_fusion
  %all-gather-start = (bf16[4,128]{1,0:T(8,128)(2,1)}, bf16[16,128]{1,0:T(8,128)(2,1)}) all-gather-start(%x), dimensions={0}
  %all-gather-done = bf16[16,128]{1,0:T(8,128)(2,1)} all-gather-done(%all-gather-start)
  ROOT %f = (s32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) fusion(%all-gather-done), kind=kCustom, calls=%all-reduce-scatter
}

ENTRY %main (t: (s32[], bf16[4,128])) -> (s32[], bf16[4,128]) {
  %t = (s32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) parameter(0)
  ROOT %w = (s32[]{:T(128)}, bf16[4,128]{1,0:T(8,128)(2,1)}) while(%t), condition=%condition, body=%body
}
"""  # noqa: E501


def test_tpu_programs_are_read_too():
    """Asynchronous pairs and parts count once, and loops say their length by a counter, here 8 in steps of 2."""
    whole, part = 16 * 128 * 2, 4 * 128 * 2
    assert sorted((c.kind, c.bytes, c.times) for c in collectives_of(TPU)) == [
        ("all-gather", whole, 7),
        ("all-gather", whole, 7),
        ("collective-permute", part, 28),
        ("reduce-scatter", whole, 7),
    ]
