"""What a name stands for: functions of files, and checkpoints by their config.json alone."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.bench.run import RefusedError, benchmark
from flax_transformer.bench.target import find_target, find_workload
from flax_transformer.bench.workload import Size, Workload
from flax_transformer.hub.registry import families, find_family
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.objective import OBJECTIVES
from tests.contract.golden import DECODERS
from tests.models.families import AUDIO_FILES, IMAGES, TEXTS
from tests.shares import share

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

GOLDEN = Path(__file__).parent.parent / "hub" / "golden"
SMALL = Size(batch=2, length=8)
MINE = """
import jax
import jax.numpy as jnp
from flax import nnx
from beside_mine import WIDTH

class Net(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(WIDTH, 8, rngs=rngs)

    def __call__(self, x):
        return jnp.tanh(self.inner(x))

@jax.jit
def step(net, x):
    slopes = jax.grad(lambda net: (net(x) ** 2).sum())(net)
    return jax.tree.map(lambda p, g: p - 0.1 * g, net, slopes)

def train():
    net = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    return step, (net, jax.ShapeDtypeStruct((3, WIDTH), jnp.float32))

def wrong():
    return step, 3

def broken():
    return (lambda x: x @ x), (jnp.ones((2, 3)),)
"""


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(TEXTS, 1, of=9))
def test_every_preset_is_fed_trained_and_made_to_generate(name):
    work = find_target(name, SMALL)
    model = abstract(find_preset(name)())
    logits = jax.eval_shape(work.forward, model, work.batch)
    assert jax.tree.leaves(logits)[0].shape[0] == work.shape["rows"] == 2
    assert jnp.issubdtype(logits.dtype, jnp.floating)
    loss, metrics = jax.eval_shape(work.objective, model, work.batch, key=jax.random.key(0))
    assert loss.shape == metrics["count"].shape == ()
    assert (work.items, work.unit) == (16, "tokens")
    if "decode" in work.programs:
        decoded = jax.eval_shape(work.decode, model, work.batch)
        wider = getattr(model.cfg, "spread", 1)  # of a best path, before repeated tokens are merged
        assert decoded.tokens.shape == (2, 1, 8 * wider)


@pytest.mark.rotates
@pytest.mark.parametrize("name", share(IMAGES, 0, of=3))
def test_a_preset_of_every_family_of_pictures_is_fed_and_trained(name):
    work = find_target(name, Size(batch=2))
    model = abstract(find_preset(name)())
    assert jax.tree.leaves(jax.eval_shape(work.forward, model, work.batch))[0].shape[0] == 2
    assert (work.items, work.unit) == (2, "images")
    if "train" in work.programs:
        loss, metrics = jax.eval_shape(work.objective, model, work.batch, key=jax.random.key(0))
        assert loss.shape == metrics["count"].shape == ()


@pytest.mark.rotates
@pytest.mark.parametrize("name", AUDIO_FILES)
def test_a_preset_of_every_family_of_sounds_is_fed_and_trained(name):
    work = find_target(name, SMALL)
    model = abstract(find_preset(name)())
    assert jax.tree.leaves(jax.eval_shape(work.forward, model, work.batch))[0].shape[0] == 2
    if "train" in work.programs:
        loss, metrics = jax.eval_shape(work.objective, model, work.batch, key=jax.random.key(0))
        assert loss.shape == metrics["count"].shape == ()


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr("flax_transformer.bench.device.measured_peak", lambda dtype: 1e12)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside_mine.py").write_text("WIDTH = 5")
    return tmp_path / "mine.py"


@pytest.mark.rotates
def test_a_module_of_ones_own_is_measured_by_file_and_function(mine):
    record = benchmark(f"{mine}:train", Size(), steps=2)
    program = record["programs"]["train"]
    assert program["flops"] == 2 * (2 * 3 * 5 * 8)  # forward, and the gradient of the kernel
    assert record["target"]["shape"] == {"arrays": 3, "numbers": 5 * 8 + 8 + 3 * 5}
    assert program["recompiles"] == 0
    json.dumps(record)


@pytest.mark.rotates
def test_a_name_of_an_experiment_may_be_that_of_a_function_too():
    found = find_target(f"{EXPERIMENTS}/classify_images.py:cct", Size())
    assert isinstance(found, Workload)
    assert found.objective is not None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (":wrong", {}, r"must return a function and a tuple of its arguments, .*, got PjitFunction, int"),
        (":nothing", {}, "must define a function or an Experiment as a global nothing"),
        ("", {}, "a function is named, .*mine.py:NAME"),
        (":train", {"size": Size(batch=3)}, "decides on its own arguments: sizes and options are for models"),
        (":train", {"what": ("forward",)}, "it takes no options, got what is measured, forward"),
        (":train", {"steps": 0}, "steps must be a positive number, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_reason(mine, name, options, message):
    with pytest.raises(RefusedError, match=message):
        benchmark(f"{mine}{name}", options.pop("size", Size()), **options)


def test_only_models_are_laid_out_by_the_table(mine):
    with pytest.raises(ValueError, match="must be a model with a training step, it is a function"):
        find_workload(f"{mine}:train", Size())


def test_an_error_of_ones_own_is_left_as_it_is(mine):
    with pytest.raises(TypeError, match="dot_general"):
        benchmark(f"{mine}:broken", Size(), steps=1)


ARCHITECTURES = [
    (folder.name, architecture)
    for folder in sorted(GOLDEN.iterdir())
    if "model_type" in (config := json.loads((folder / "config.json").read_text()))  # not a folder of diffusers
    for architecture in families()[config["model_type"]].architectures
]


@pytest.mark.rotates
@pytest.mark.parametrize(("family", "architecture"), share(ARCHITECTURES, 0, of=24))
def test_config_json_alone_makes_a_model_of_every_architecture(family, architecture, tmp_path):
    fields = json.loads((GOLDEN / family / "config.json").read_text())
    if {*DECODERS} & {*families()[fields["model_type"]].architectures}:
        fields["is_decoder"] = architecture in DECODERS
    (tmp_path / "config.json").write_text(json.dumps({**fields, "architectures": [architecture]}))
    known = find_family({**fields, "architectures": [architecture]})[1]
    pictures = "pixel_values" in known.inputs.needs
    alone = known.inputs.reads == ("audio",) and "decoder_input_ids" not in known.inputs.needs
    work = find_target(str(tmp_path), Size(batch=2) if pictures or alone else SMALL)
    counted = work.facts(work.programs).flops
    assert counted["forward"].model > 0
    rows = [leaf.shape[0] for leaf in jax.tree.leaves(work.batch)]
    assert {*rows} == {2}
    both = pictures or "regions" in known.inputs.reads
    if both or alone:
        units = {("images",): "images", ("videos",): "videos", ("audio",): "recordings"}
        expected = (64, "tokens") if "decode" in work.programs else (2, units.get(known.inputs.reads, "pairs"))
    else:
        texts = 1 if {"sentence-similarity", "passage-retrieval"}.isdisjoint(known.uses) else 2  # in a row
        expected = (16 * texts, "steps" if known.inputs.reads == ("trajectories",) else "tokens")
    assert (work.items, work.unit) == expected
    trained = (
        {*OBJECTIVES}
        - ({"fill-mask"} if pictures else set())
        - ({"visual-reasoning"} if known.inputs.several else set())
    )
    assert ("train" in work.programs) >= bool({*known.uses} & trained)
    assert ("train" in work.programs) <= (
        {"question-answering", "multiple-choice", "replaced-token-detection"}.isdisjoint(known.uses)
    )
    if "train" in work.programs:
        assert counted["train"].model > counted["forward"].model


@pytest.mark.rotates
def test_a_checkpoint_costs_what_its_preset_does(tmp_path):
    """The fields of GPT-2's own config.json, and no weights."""
    fields = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50_257, "n_positions": 1024,
        "n_embd": 768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    counted = []
    for name in (str(tmp_path), "gpt2"):
        work = find_target(name, SMALL)
        facts = work.facts(work.programs)
        counted.append((facts.parameters, facts.flops))
    assert counted[0] == counted[1]
    assert counted[0][0] == 124_439_808


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/such/place", "no folder no/such/place, and no hub id"),
        ("tests", "a checkpoint has a config.json, there is none in tests"),
    ],
)
def test_what_is_no_checkpoint_is_said(name, message, monkeypatch):
    monkeypatch.chdir(GOLDEN.parent.parent.parent)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        find_target(name, Size())


def test_a_checkpoint_decides_on_its_vocabulary():
    with pytest.raises(ValueError, match=r"config.json decides on the vocabulary of .*gpt2, got vocab=100"):
        find_target(str(GOLDEN / "gpt2"), Size(vocab=100))


def test_of_a_hub_id_one_file_is_fetched(monkeypatch):
    asked = []

    def download(name, revision, allow_patterns):
        asked.append((name, revision, allow_patterns))
        return str(GOLDEN / "gpt2")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    work = find_target("owner/name@v1", SMALL)
    assert asked == [("owner/name", "v1", ["config.json"])]
    assert work.programs == ("forward", "train", "decode")
