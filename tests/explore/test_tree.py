"""The tree that the explorer draws: its leaves are what `generate` returns; a node is where one goes on from."""

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.task.explore.case import make_case
from flax_transformer.task.explore.explorer import Explorer
from flax_transformer.task.explore.tree import tree_of, writes
from tests.contract.golden import GOLDEN

pytestmark = pytest.mark.proves("explorer", "beams as a tree whose leaves are those of generate")
TEXT = {"gpt2": "5 9 2", "marian": "5 9 2 5 1", "t5": "5 9 2 5 1"}


def golden(name):
    return hub.load(next(folder for folder in GOLDEN if folder.name == name))


@pytest.fixture(scope="module")
def explorers():
    return {name: Explorer(golden(name)) for name in ("gpt2", "marian")}


def way(nodes, node):
    found = [node]
    while found[0]["parent"] >= 0:
        found.insert(0, nodes[found[0]["parent"]])
    return [each["id"] for each in found]


def check_leaves(explorer, text, beams, tokens):
    request = {"input": {"text": text}, "beams": beams, "tokens": tokens}
    nodes = explorer.ask("tree", request)["nodes"]
    leaves = sorted((node for node in nodes if node["rank"] >= 0), key=lambda node: node["rank"])
    pretrained, ids = explorer.program.pretrained, np.array([[int(part) for part in text.split()]])
    rows = np.asarray(
        pretrained.generate(ids, num_beams=beams, num_return_sequences=beams, max_new_tokens=tokens, do_sample=False)
    )
    before = ids.shape[1] if "text-generation" in pretrained.architecture.uses else 1
    assert len(leaves) == beams
    for leaf, row in zip(leaves, rows, strict=True):
        path = way(nodes, leaf)
        assert row[before : before + len(path)].tolist() == path
        assert leaf["kept"]


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_leaves_are_what_generate_returns(explorers, name):
    check_leaves(explorers[name], TEXT[name], 3, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "mistral", "big_bird_decoder"])
@pytest.mark.parametrize("beams", [2, 4])
def test_leaves_are_what_generate_returns_of_other_families(name, beams):
    check_leaves(Explorer(golden(name)), TEXT.get(name, "5 9 2"), beams, 9)


@pytest.mark.rotates
def test_going_on_from_a_node_is_the_text_with_its_tokens(explorers):
    explorer, request = explorers["gpt2"], {"input": {"text": "5 9 2"}, "beams": 3, "tokens": 6}
    nodes = explorer.ask("tree", request)["nodes"]
    node = next(each for each in nodes if each["depth"] == 2 and each["kept"])
    seen = explorer.ask("look", {"input": {"text": "5 9 2", "written": way(nodes, node)}})
    assert list(seen["source"]) == ["5", "9", "2", *map(str, way(nodes, node))]
    following = {each["id"]: each["p"] for each in nodes if each["parent"] == nodes.index(node)}
    told = {each["id"]: each["p"] for each in seen["answer"]["after"]["tops"][-1]}
    assert following.keys() & told.keys()
    for token in following.keys() & told.keys():
        assert told[token] == pytest.approx(following[token], abs=1e-4)


def test_tokens_that_the_model_does_not_know_are_refused():
    with pytest.raises(ValueError, match="99999"):
        make_case(golden("gpt2"), "5 9", written=[99999])
    with pytest.raises(ValueError, match="1 to 128 tokens, got 202 with those that were written"):
        make_case(golden("gpt2"), "5 9", written=[1] * 200)


@pytest.mark.parametrize(
    ("more", "rule"),
    [({"beams": 1}, "a tree has 2 to 8 beams, got 1"), ({"beams": True}, "got True"), ({"beams": "4"}, "got '4'"),
     ({"tokens": 25}, "a tree has 1 to 24 tokens, got 25"), ({"tokens": 0}, "got 0")],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(explorers, more, rule):
    with pytest.raises(ValueError, match=rule):
        explorers["gpt2"].ask("tree", {"input": {"text": "5 9"}, **more})


def test_only_what_writes_has_a_tree():
    assert [writes(golden(name)) for name in ("gpt2", "marian", "bert", "vit")] == [True, True, False, False]
    with pytest.raises(ValueError, match="a ViTForImageClassification generates no text"):
        tree_of(golden("vit"), {"pixel_values": np.zeros((1, 1, 12, 12), np.float32)}, 2, 2)
