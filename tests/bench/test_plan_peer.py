"""A training step of Llama 2 7B keeps fewer temporaries than MaxText's of the same model, slice and batch.

MaxText 0.2.5's were compiled by jax 0.11.1 (docs/scaling.md has the table and how). The compiler decides what is kept,
so this holds for the newest one alone.
"""

from importlib.metadata import version
from importlib.util import find_spec

import pytest

from flax_transformer.bench.chip import GIB
from flax_transformer.bench.compile_ahead import Case, compile_case
from flax_transformer.parallel import MeshConfig

NEWEST = tuple(map(int, version("jax").split(".")[:2])) >= (0, 12)

pytestmark = [
    pytest.mark.proves("plan", "temporaries of Llama 2 7B's training step, at most MaxText's"),
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("libtpu") is None or not NEWEST, reason="needs the TPU compiler and jax 0.12"),
]


@pytest.mark.parametrize(
    ("topology", "mesh", "rows", "remat", "theirs"),
    [
        ("v5p:4x4x4", MeshConfig(data=4, fsdp=16), 64, "full", 5.96),
        ("v5p:4x4x4", MeshConfig(data=4, fsdp=16), 64, "dots", 16.10),
        ("v5e:16x16", MeshConfig(data=1, fsdp=256), 256, "full", 3.75),
    ],
    ids=["v5p full", "v5p dots", "v5e full"],
)
def test_temporaries_are_at_most_those_of_maxtext(topology, mesh, rows, remat, theirs):
    size = {"batch": rows, "length": 4_096, "dtype": "bfloat16", "remat": remat}
    known = compile_case(Case(target="llama2_7b", topology=topology, mesh=mesh, size=size))
    assert known.temporaries <= theirs * GIB
    assert known.fits
