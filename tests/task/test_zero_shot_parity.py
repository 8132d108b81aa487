"""Classes that nobody has trained, by entailment, against the pipeline of transformers."""

import json

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.task.zero_shot import choose_among
from tests.task.checkpoints import tokenizer_files

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("zero-shot classes of texts", "parity", "the zero-shot-classification pipeline, both ways"),
]

SMALL = {"vocab_size": 40, "pad_token_id": 3, "max_position_embeddings": 66}
NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"}}
NLI["label2id"] = {name: number for number, name in NLI["id2label"].items()}
TURNED = {"id2label": {0: "ENTAILMENT", 1: "NEUTRAL", 2: "CONTRADICTION"}}
TURNED["label2id"] = {name: number for number, name in TURNED["id2label"].items()}
TEXTS = ["one game of five", "they vote in may for a new man", "a" * 90]
CLASSES = ["sport", "politics", "food"]


def nli(folder, kind, labels):
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
    if kind == "bart":
        config = transformers.BartConfig(
            **SMALL, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, init_std=0.3,
            decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, bos_token_id=1, eos_token_id=2, **labels,
        )  # fmt: skip
        model = transformers.BartForSequenceClassification(config)
    else:
        config = transformers.RobertaConfig(**SMALL, **sizes, initializer_range=0.3, **labels)
        model = transformers.RobertaForSequenceClassification(config)
    model.eval().save_pretrained(folder)
    files = tokenizer_files("<s> $A </s>", model_max_length=60)
    engine = json.loads(files["tokenizer.json"])
    ends = [{"SpecialToken": {"id": "</s>", "type_id": 0}}] if kind == "roberta" else []
    single = engine["post_processor"]["single"]
    second = {"Sequence": {"id": "B", "type_id": 0}}
    engine["post_processor"]["pair"] = [*single, *ends, second, single[-1]]
    (folder / "tokenizer.json").write_text(json.dumps(engine))
    (folder / "tokenizer_config.json").write_text(files["tokenizer_config.json"])
    return folder


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("kind", "labels"), [("roberta", NLI), ("roberta", TURNED), ("bart", NLI)])
def test_entailment_is_that_of_the_pipeline(tmp_path, kind, labels, several):
    folder = nli(tmp_path, kind, labels)
    theirs = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    found = choose_among(hub.load(folder), TEXTS, CLASSES, template="this is {}.", several=several)
    for text, labels in zip(TEXTS, found, strict=True):
        expected = theirs(text, CLASSES, hypothesis_template="this is {}.", multi_label=several)
        assert [each.name for each in labels] == expected["labels"]
        np.testing.assert_allclose([each.probability for each in labels], expected["scores"], atol=1e-5)


def test_one_class_alone_has_a_probability_by_itself(tmp_path):
    folder = nli(tmp_path, "roberta", NLI)
    theirs = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    ((label,),) = choose_among(hub.load(folder), TEXTS[:1], CLASSES[:1], several=True)
    np.testing.assert_allclose(label.probability, theirs(TEXTS[0], CLASSES[:1])["scores"][0], atol=1e-5)
