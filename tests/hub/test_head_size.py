"""A head of another size: one way for every classifier, and labels that agree in what is saved."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registry import families, find_architecture
from flax_transformer.models.preset import abstract
from flax_transformer.parallel import path_name

GOLDEN = Path(__file__).parent / "golden"
KINDS = [kind for kind in families() if (GOLDEN / kind).is_dir()]
HEAD = (r"^(score|(cls_|distillation_|(decode|auxiliary)_head\.)?classifier|classification_head|head)\.",)
NEW = (*HEAD, r"^pre_classifier\.", r"pooler\.", r"^projector\.", r"^(decode_head|auxiliary_head|fpn\d)\.")
UNREAD = {
    "clip": ("vision_model.post_layernorm.",),
    "siglip": ("vision_model.head.",),
    "siglip2": ("vision_model.head.",),
    "big_bird": ("bert.pooler.",),
}
"""What classifiers of theirs have and do not use, which is not written again."""
IDS = np.array([[4, 5, 6, 7, 2], [8, 9, 4, 5, 2]])


def classifiers():
    """Name every class that has as many outputs as there are labels, of the families that have a golden checkpoint."""
    for kind in KINDS:
        family = families()[kind]
        if kind.startswith("timm_"):
            continue  # whose config.json says classes otherwise: test_timm_folder
        if family.composed is not None:
            continue  # of which config.json must say what they are made of
        for name, architecture in family.architectures.items():
            if "text-generation" in architecture.uses:
                continue  # an encoder's config.json says whether it is a decoder
            made = [architecture.config(Fields.of({"model_type": kind, "num_labels": n})) for n in (7, 9)]
            if [getattr(getattr(config, "head", None), "outputs", None) for config in made] == [7, 9]:
                yield kind, name


CLASSIFIERS = list(classifiers())


@pytest.fixture
def folder(request, tmp_path):
    """Return a classifier of two named classes."""
    kind, name = request.param
    given = {"model_type": kind, "id2label": {0: "bad", 1: "good"}}
    lenient = hub.Lenient(architecture=name, config=given, initialise=NEW, ignore=("^qa_outputs",))
    made = Path(shutil.copytree(GOLDEN / kind, tmp_path / "golden"))
    hub.save(hub.load(made, lenient=lenient), tmp_path / "two")
    config = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (config["num_labels"], config["label2id"]) == (2, {"bad": 0, "good": 1})
    return tmp_path / "two"


NAMES = [name for _, name in CLASSIFIERS]
every = pytest.mark.parametrize("folder", CLASSIFIERS, ids=NAMES, indirect=True)
FEW = [pytest.param(one, marks=() if at % 12 == 0 else pytest.mark.slow) for at, one in enumerate(CLASSIFIERS)]


def test_all_that_classify_are_here():
    assert {kind for kind, _ in CLASSIFIERS} == set(KINDS) - {
        "dpr",
        "led",
        "m2m_100",
        "marian",
        "pegasus",
        "vit_mae",
        "detr",
        "upernet",
        "mask2former",
        "decision_transformer",
        "lxmert",
        "vision-encoder-decoder",
        "encoder-decoder",
        "blip",
        "git",
        "qwen2_vl",
        "qwen2_5_vl",
        "dit",
        "autoencoder-kl",
        "timm_vit",
        "timm_eva",
        "timm_convnext",
    }


def output(pretrained):
    """Return the kernel of a classifier's output layer."""
    head = pretrained.model.head
    return getattr(head, "scores", head).output.kernel[...]


@pytest.mark.rotates
@pytest.mark.parametrize("folder", FEW, ids=NAMES, indirect=True)
def test_a_head_of_another_size_is_new_and_the_rest_is_kept(folder, tmp_path):
    before, after = hub.load(folder), hub.load(folder, lenient=hub.Lenient(config={"num_labels": 5}, initialise=HEAD))
    assert output(after).shape[-1] == 5
    kept = [
        {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(each.model)}
        for each in (before, after)
    ]
    assert kept[0].keys() == kept[1].keys()
    for name in kept[0]:
        if not re.search(r"head\.(scores\.)?output\.", name):
            np.testing.assert_array_equal(kept[0][name], kept[1][name], err_msg=name)
    hub.save(after, tmp_path / "five")
    config = json.loads((tmp_path / "five" / "config.json").read_text())
    assert config["num_labels"] == 5
    assert config["id2label"] == {str(i): f"LABEL_{i}" for i in range(5)}
    assert config["label2id"] == {f"LABEL_{i}": i for i in range(5)}
    again = hub.load(tmp_path / "five")
    np.testing.assert_array_equal(output(again), output(after))


THEIRS = [
    (kind, name)
    for kind, name in CLASSIFIERS
    if kind not in ("mixer", "cct")
    and name not in ("ViltForImagesAndTextClassification", "DINOv3ViTForImageClassification")
]
"""Of transformers, which has no such class of DINOv3, and not of more images a text than the config.json says."""


@pytest.mark.rotates
@pytest.mark.parity
@pytest.mark.parametrize("folder", THEIRS, indirect=True)
def test_a_head_of_another_size_opens_in_transformers(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    names = {"0": "no", "1": "maybe", "2": "yes"}
    ours = hub.load(folder, lenient=hub.Lenient(config={"id2label": names}, initialise=HEAD))
    hub.save(ours, tmp_path / "three")
    kind = getattr(transformers, ours.config["architectures"][0])
    theirs, loading = kind.from_pretrained(tmp_path / "three", output_loading_info=True)
    lost = {*loading["missing_keys"], *loading["unexpected_keys"], *loading["mismatched_keys"]}
    assert not {name for name in lost if not name.startswith(UNREAD.get(ours.config["model_type"], ()))}, loading
    assert theirs.config.num_labels == 3
    assert theirs.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    assert theirs.config.label2id == {"no": 0, "maybe": 1, "yes": 2}


one = pytest.mark.parametrize("folder", [("distilbert", "DistilBertForSequenceClassification")], indirect=True)


@one
def test_labels_of_another_number_without_a_new_head_are_refused(folder):
    with pytest.raises(ValueError, match=r"misshapen: classifier\.weight is \[2, 16\], must be \[5, 16\]"):
        hub.load(folder, lenient=hub.Lenient(config={"num_labels": 5}))


@one
def test_as_many_labels_keep_their_names_and_their_head(folder):
    before, after = hub.load(folder), hub.load(folder, lenient=hub.Lenient(config={"num_labels": 2}, initialise=HEAD))
    assert after.config["id2label"] == {"0": "bad", "1": "good"}
    np.testing.assert_array_equal(after(input_ids=IDS).logits, before(input_ids=IDS).logits)


@one
def test_names_of_another_number_than_is_given_are_refused(folder):
    lenient = hub.Lenient(config={"num_labels": 5, "id2label": {0: "a", 1: "b"}}, initialise=HEAD)
    with pytest.raises(ValueError, match="num_labels must be how many names id2label has, got 5 and 2"):
        hub.load(folder, lenient=lenient)


def test_a_classifier_made_here_says_its_labels_alike():
    _, architecture = find_architecture("BertForTokenClassification")
    fields = Fields.of(json.loads((GOLDEN / "bert" / "config.json").read_text())).updated({"num_labels": 4})
    model = abstract(architecture.config(fields))
    assert hub.wrap(model, "BertForTokenClassification").config["label2id"] == {f"LABEL_{i}": i for i in range(4)}
    with pytest.raises(ValueError, match="num_labels must be how many names id2label has, got 4 and 2"):
        hub.wrap(model, "BertForTokenClassification", id2label={0: "a", 1: "b"})
