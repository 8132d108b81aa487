"""`flax-transformer generate` with the model spread over eight devices."""

import json

import pytest

from flax_transformer import hub
from tests.fake_devices import on_eight
from tests.task.test_use import CAUSAL, PLAIN, HubTokenizer, make

pytestmark = [pytest.mark.slow, pytest.mark.proves("checkpoints", "`generate` on a mesh from the command line")]

CODE = """
import contextlib, io, json, sys
import jax
from flax_transformer import cli
from flax_transformer.task import text_generation

folder, options = sys.argv[2], json.loads(sys.argv[3])
seen = []

class Spy(text_generation.TextGenerator):
    def __init__(self, pretrained, *rest):
        super().__init__(pretrained, *rest)
        leaves = jax.tree.leaves(pretrained.model)
        seen.append(min(leaf.addressable_shards[0].data.nbytes / leaf.nbytes for leaf in leaves if leaf.ndim > 2))

text_generation.TextGenerator = Spy
found = []
for each in options:
    out, sys.stdin = io.StringIO(), io.TextIOWrapper(io.BytesIO(b"the dog\\nbarks\\nthe cat\\n"))
    with contextlib.redirect_stdout(out):
        cli.main(["generate", folder, "--jsonl", *each])
    found.append([json.loads(line) for line in out.getvalue().splitlines()])
print(json.dumps({"texts": found, "parts": seen}))
"""


def test_the_texts_of_a_mesh_are_those_of_one_device(tmp_path):
    hub.save(make("GPT2LMHeadModel", HubTokenizer.of(PLAIN), **CAUSAL), tmp_path / "model")
    meshes = [[], ["--mesh.tensor", "2", "--mesh.fsdp", "4"], ["--mesh.data", "4", "--mesh.tensor", "2"]]
    kinds = [[], ["--temperature", "1.5"], ["--num-beams", "3"]]
    options = [[*mesh, *kind, "--max-new-tokens", "8"] for kind in kinds for mesh in meshes]
    found, _ = on_eight("-c", CODE, tmp_path / "model", json.dumps(options))
    for i in range(0, len(options), len(meshes)):
        alone, *spread = found["texts"][i : i + len(meshes)]
        assert len(alone) == 3
        assert spread == [alone, alone]
    assert found["parts"][:3] == [1, 1 / 8, 1 / 2]


def test_images_and_stages_are_refused(run, tmp_path):
    hub.save(make("GPT2LMHeadModel", HubTokenizer.of(PLAIN), **CAUSAL), tmp_path / "model")
    code, _, err = run("generate", tmp_path / "model", "--images", 2, "--mesh.tensor", 2)
    assert code
    assert "--mesh is for text, images are generated on one device" in err
    code, _, err = run("generate", tmp_path / "model", "the dog", "--mesh.pipeline", 2)
    assert code
    assert "layers are in stages for training alone, got --mesh.pipeline 2" in err
