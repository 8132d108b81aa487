"""LXMERT against transformers: every class, odd sizes, padding on both sides, every layer, and the round trip."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from flax_transformer import hub  # noqa: E402
from flax_transformer.models.multimodal.lxmert import lxmert_base_uncased  # noqa: E402
from flax_transformer.models.preset import abstract  # noqa: E402
from tests.hub.oracle import padded, random_ids  # noqa: E402
from tests.hub.pictures import compare, make  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("lxmert", "parity", "every class and layer")]

SMALL = {"vocab_size": 50, "num_qa_labels": 7, "num_object_labels": 5, "num_attr_labels": 3}
CONFIGS = {
    "plain": {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 40, "l_layers": 3, "r_layers": 1,
              "x_layers": 2, "visual_feat_dim": 12},
    "odd": {"hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 22, "l_layers": 1, "r_layers": 2,
            "x_layers": 1, "visual_feat_dim": 9, "hidden_act": "relu", "type_vocab_size": 3,
            "max_position_embeddings": 9},
    "one head": {"hidden_size": 14, "num_attention_heads": 1, "intermediate_size": 50, "l_layers": 2, "r_layers": 3,
                 "x_layers": 3, "visual_feat_dim": 5, "visual_pos_dim": 6},
}  # fmt: skip
KINDS = ("LxmertModel", "LxmertForPreTraining", "LxmertForQuestionAnswering")


def given(name):
    options, draw = CONFIGS[name], np.random.default_rng(3)
    ids = random_ids(50, 2, 9)
    return {
        "input_ids": ids, "attention_mask": padded([9, 6], 9), "token_type_ids": ids % 2,
        "visual_feats": draw.normal(size=(2, 7, options["visual_feat_dim"])).astype(np.float32),
        "visual_pos": draw.random((2, 7, options.get("visual_pos_dim", 4)), dtype=np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_class_equals_transformers(tmp_path, name, kind):
    compare(make(kind, "LxmertConfig", **SMALL, **CONFIGS[name]), tmp_path, **given(name))


def test_regions_that_are_padding_are_not_seen(tmp_path):
    model = make("LxmertForQuestionAnswering", "LxmertConfig", **SMALL, **CONFIGS["plain"])
    inputs = {**given("plain"), "visual_attention_mask": padded([7, 4], 7)}
    ours, got = compare(model, tmp_path, **inputs)
    inputs["visual_feats"][1, 4:] += 1
    np.testing.assert_allclose(ours(**inputs).question_answering_score, got.question_answering_score, rtol=1e-5)


def test_attention_weights_are_transformers(tmp_path):
    model = make("LxmertModel", "LxmertConfig", attn_implementation="eager", **SMALL, **CONFIGS["plain"]).eval()
    model.save_pretrained(tmp_path)
    inputs = given("plain")
    with torch.no_grad():
        expected = model(**{name: torch.as_tensor(x) for name, x in inputs.items()}, output_attentions=True)
    got = hub.load(tmp_path)(**inputs, output_attentions=True)
    for name in ("language_attentions", "vision_attentions", "cross_encoder_attentions"):
        assert len(got[name]) == len(expected[name])
        for mine, theirs in zip(got[name], expected[name], strict=True):
            np.testing.assert_allclose(mine[:1], theirs[:1], rtol=1e-5, atol=1e-6)


def test_parameters_are_as_many_as_transformers_has():
    with torch.device("meta"):
        theirs = transformers.LxmertForPreTraining(transformers.LxmertConfig())
    count = sum(leaf.size for leaf in jax.tree.leaves(abstract(lxmert_base_uncased())))
    assert count == sum(parameter.numel() for parameter in theirs.parameters())
