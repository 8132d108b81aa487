"""What the families are: the page on checkpoints names every class that is read, and that is not; activations."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.hub.fields import ACTIVATIONS
from flax_transformer.hub.registration import Architecture
from flax_transformer.hub.registry import families, find_use
from flax_transformer.ops import activation

PAGE = (Path(__file__).parent.parent.parent / "docs" / "checkpoints.md").read_text()
FAMILIES = families()
START = {kind: re.sub(r"(Model|For\w+)$", "", min(family.architectures, key=len)) for kind, family in FAMILIES.items()}
START |= {"gemma3_text": "Gemma3", "mask2former": "Mask2Former"}
OTHERS = {"HF_ColBERT", "DPREncoders", "DINOv3ViTForImageClassification"}
"""Classes of checkpoints that transformers does not have."""
ELSEWHERE = ("mixer", "cct", "dit", "autoencoder-kl", "timm_vit", "timm_eva", "timm_convnext")
"""Families that are not of `transformers`."""


def test_the_page_lists_what_is_read():
    whole = {name for family in FAMILIES.values() for name in family.architectures}
    listed = {}
    for kinds, classes in re.findall(r"^\| (`.*`) \| (.*) \|$", PAGE, re.MULTILINE):
        names = re.findall(
            r"\w*(?:Model(?:WithProjection)?|Backbone)\b|\w*For[A-Z]\w+|HF_\w+|AutoencoderKL|DPR\w+", classes
        )
        for kind in START.keys() & set(re.findall(r"`([\w-]+)`", kinds)):
            listed[kind] = {name if name in whole else START[kind] + name for name in names}
    assert listed == {kind: set(family.architectures) for kind, family in FAMILIES.items()}


SAID = {
    "LMHeadModel": {"text-generation"},
    "ForCausalLM": {"text-generation"},
    "ForCausalImageModeling": {"text-generation"},
    "ForConditionalGeneration": {"text2text-generation"},
    "VisionEncoderDecoderModel": {"text2text-generation"},
    "EncoderDecoderModel": {"text2text-generation"},
    "MTModel": {"text2text-generation"},
    "ForMaskedLM": {"fill-mask"},
    "ForPreTraining": {"fill-mask", "next-sentence-prediction"},
    "ElectraForPreTraining": {"replaced-token-detection"},
    "ForNextSentencePrediction": {"classification", "next-sentence-prediction"},
    "ForSequenceClassification": {"classification"},
    "ForTokenClassification": {"token-classification"},
    "ForQuestionAnswering": {"question-answering"},
    "ForMultipleChoice": {"multiple-choice"},
    "Model": {"feature-extraction"},
    "CLIPModel": {"retrieval"},
    "WithProjection": {"retrieval"},
    "DecisionTransformerModel": {"reinforcement-learning"},
    "SiglipModel": {"retrieval"},
    "Siglip2Model": {"retrieval"},
    "Siglip2TextModel": {"retrieval"},
    "Siglip2VisionModel": {"retrieval"},
    "SiglipTextModel": {"retrieval"},
    "SiglipVisionModel": {"retrieval"},
    "BlipModel": {"retrieval"},
    "ForImageTextRetrieval": {"retrieval"},
    "Qwen2VLForConditionalGeneration": {"text-generation"},
    "Qwen2_5_VLForConditionalGeneration": {"text-generation"},
    "BlipForQuestionAnswering": {"text2text-generation"},
    "ViltForQuestionAnswering": {"visual-question-answering"},
    "LxmertForQuestionAnswering": {"visual-question-answering"},
    "ForImageAndTextRetrieval": {"visual-reasoning"},
    "ForImagesAndTextClassification": {"visual-reasoning"},
    "ForImageClassification": {"classification"},
    "ForVideoClassification": {"classification"},
    "ForImageClassificationWithTeacher": {"classification"},
    "ForAudioClassification": {"classification"},
    "ForAudioFrameClassification": {"frame-classification"},
    "ForXVector": {"speaker-verification"},
    "Wav2Vec2ForPreTraining": {"contrastive-pretraining"},
    "Backbone": {"feature-maps"},
    "ForCTC": {"automatic-speech-recognition"},
    "ForMaskedImageModeling": {"fill-mask"},
    "ViTMAEForPreTraining": {"fill-mask"},
    "VideoMAEForPreTraining": {"fill-mask"},
    "ForObjectDetection": {"object-detection"},
    "ForSemanticSegmentation": {"image-segmentation"},
    "DetrForSegmentation": {"image-segmentation", "object-detection"},
    "ForUniversalSegmentation": {"image-segmentation"},
    "HF_ColBERT": {"late-interaction"},
    "QuestionEncoder": {"sentence-similarity"},
    "ContextEncoder": {"sentence-similarity"},
    "DPRReader": {"question-answering"},
    "DPREncoders": {"passage-retrieval"},
    "DiTTransformer2DModel": {"image-generation"},
    "AutoencoderKL": {"image-reconstruction"},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_class_can_do_what_its_name_says(kind):
    for name, architecture in FAMILIES[kind].architectures.items():
        longest = max((ending for ending in SAID if name.endswith(ending)), key=len)
        assert set(architecture.uses) == SAID[longest], name
        found = find_use(kind, *architecture.uses)
        assert set(FAMILIES[kind].architectures[found].uses) == SAID[longest]


def test_what_no_class_can_do_is_answered_with_what_they_can():
    assert find_use("bert", "next-sentence-prediction", "fill-mask") == "BertForPreTraining"
    with pytest.raises(
        ValueError, match=r"no architecture of bert does text2text-generation; there are .*BertForMaskedLM: fill-mask"
    ):
        find_use("bert", "text2text-generation")
    with pytest.raises(ValueError, match="no family is called 'brt'"):
        find_use("brt", "fill-mask")
    with pytest.raises(ValueError, match=r"uses must be among text-generation, .*, got sing"):
        Architecture(dict, dict, uses=("sing",))


@pytest.mark.parity
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in ELSEWHERE])
def test_the_page_lists_what_is_not(kind):
    pytest.importorskip("transformers")
    name = kind.replace("-", "_")
    theirs = pytest.importorskip(f"transformers.models.{name}.modeling_{name}").__all__
    classes = {
        each
        for each in theirs
        if re.search(r"Model$|Backbone$|For[A-Z]|^DPR\w*(Encoder|Reader)$", each)
        and not re.search("PreTrainedM|Pretrained", each)
    }
    known = {each for family in FAMILIES.values() for each in family.architectures}
    missing = {each for each in classes - known if not each.endswith("ForCausalLM")}
    assert all(f"`{each}`" in PAGE for each in missing), missing
    assert not set(FAMILIES[kind].architectures) - classes - OTHERS


@pytest.mark.parity
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_what_transformers_means_by_its_name(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    x = np.linspace(-6, 6, 241, dtype=np.float32)
    expected = transformers.activations.ACT2FN[name](torch.tensor(x)).numpy()
    np.testing.assert_allclose(activation(ACTIVATIONS[name])(jnp.asarray(x)), expected, atol=2e-6)
