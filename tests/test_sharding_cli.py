"""`flax-transformer sharding` as it is typed."""

import re

import pytest


def lines(out, start):
    """Return the columns of every line that begins so."""
    return [re.split(r"\s{2,}", line) for line in out.splitlines() if line.startswith(start)]


def test_every_parameter_with_its_axes_and_bytes(run):
    code, out, err = run("sharding", "transformer_tiny", "--mesh.fsdp", 4, "--mesh.tensor", 2)
    assert (code, err) == (0, "")
    assert re.match(r"[\d,]+ parameters on 8 devices: fsdp 4 × tensor 2\n", out)
    assert lines(out, "decoder.blocks.cross.query.kernel") == [
        ["decoder.blocks.cross.query.kernel", "4×128×4×32", "layers embed→fsdp heads→tensor –", "32.8 kB"]
    ]
    assert lines(out, "decoder.blocks.cross_residual.norm.scale") == [
        ["decoder.blocks.cross_residual.norm.scale", "4×128", "layers –", "2.05 kB"]
    ]


def test_sums_of_a_device(run):
    """A Llama of 6.74 G parameters: four bytes each, twice that for Adam's moments, shared out evenly but for norms."""
    code, out, err = run("sharding", "llama2_7b", "--mesh.fsdp", 16, "--mesh.tensor", 4, "--mesh.pipeline", 4)
    assert (code, err) == (0, "")
    assert "6,738,415,616 parameters on 256 devices: pipeline 4 × fsdp 16 × tensor 4" in out
    assert lines(out, "trunk.blocks.feedforward.up.kernel")[0][2:] == [
        "layers→pipeline embed→fsdp inner→tensor",
        "22.5 MB",
    ]
    assert [row[-2:] for row in lines(out, ("parameters ", "gradients", "optimizer", "in all"))] == [
        ["27 GB", "118 MB"],
        ["27 GB", "118 MB"],
        ["53.9 GB", "236 MB"],
        ["108 GB", "471 MB"],
    ]


def test_columns_are_aligned_and_fit_a_terminal(run):
    _, out, _ = run("sharding", "transformer_base", "--mesh.fsdp", 8)
    table = out.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 100
    assert len({len(line) for line in table}) == 1
    assert len({line.index("layers") for line in table if "layers" in line}) == 1


def test_an_experiment_brings_its_mesh_and_average(run, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from flax_transformer.parallel import MeshConfig\n"
        "from flax_transformer.task.sentence_pair import SentencePairs\n"
        "from flax_transformer.task.recipe import Recipe\n"
        "from flax_transformer.objective import TokenLoss\n"
        "from flax_transformer.train.loop import TrainConfig\n"
        "from flax_transformer.data.text.parallel import TextCorpus\n"
        "from flax_transformer.models.text.transformer import transformer_tiny\n"
        "mesh, train = MeshConfig(data=2, fsdp=4), TrainConfig(ema=0.99)\n"
        "experiment = Recipe(family='marian', model=transformer_tiny(), data=TextCorpus(tfds='none'), mesh=mesh,\n"
        "                    examples=SentencePairs(), objective=TokenLoss(), train=train)\n"
    )
    code, out, err = run("sharding", file)
    assert (code, err) == (0, "")
    assert "on 8 devices: data 2 × fsdp 4" in out
    assert "average" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("transformer_huge",), "error: no preset is called 'transformer_huge'"),
        (("none.py",), "error: a target that ends in .py must be a Python file"),
        (("transformer_base", "--mesh.pipeline", 4), "layers must be a multiple of its mesh axis: .* layers=6, pipe"),
        (("transformer_base", "--mesh.fsdp", 8, "--devices", 12), "error: the mesh must use all devices"),
        (("transformer_base", "--mesh.data", 3, "--mesh.slices", 2), "error: data must be a multiple of slices"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(run, arguments, message):
    code, out, err = run("sharding", *arguments)
    assert (code, out) == (1, "")
    assert re.match(f".*{message}", err)
    assert err.count("\n") == 1


def test_of_few_bits_there_is_nothing_that_trains(run):
    code, out, err = run("sharding", "llama2_7b", "--weights", "int4", "--group", 128, "--mesh.tensor", 2)
    assert (code, err) == (0, "")
    whole = lines(out, "trunk.blocks.feedforward.down.kernel.values")[0]
    assert whole == [
        "trunk.blocks.feedforward.down.kernel.values", "32×11008×4096", "layers inner→tensor embed", "361 MB"
    ]  # fmt: skip
    assert lines(out, ("gradients", "optimizer")) == []
