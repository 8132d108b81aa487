"""A sharded training step compiles for every generation of TPUs, with whatever compiler is installed."""

from importlib.util import find_spec

import pytest

from flax_transformer.bench.compile_ahead import Case, compile_case
from flax_transformer.parallel import MeshConfig

pytestmark = pytest.mark.proves(
    "plan", "training steps for v4, v5e, v5p, v6e and tpu7x by the oldest and the newest compiler"
)

SLICES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x1x1"}


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
@pytest.mark.slow
@pytest.mark.parametrize("generation", SLICES)
def test_a_sharded_step_compiles(generation):
    size = {"batch": 32, "length": 64, "vocab": 512, "dtype": "bfloat16"}
    mesh = MeshConfig(data=1, fsdp=4)
    known = compile_case(Case(target="transformer_tiny", topology=SLICES[generation], mesh=mesh, size=size))
    assert known.fits
    assert {"all-gather", "all-reduce"} <= {each["kind"] for each in known.collectives}
    assert known.rematerialized == 0
