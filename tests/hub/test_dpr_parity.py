"""DPR against transformers: both encoders, with a projection and without, and the reader."""

import numpy as np
import pytest

from flax_transformer.hub.family.dpr import FAMILIES
from flax_transformer.hub.fields import Fields
from tests.hub.oracle import compare, compare_made, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("dpr", "parity", "every class, every layer")]

V = 61
ENCODERS = ("DPRQuestionEncoder", "DPRContextEncoder")
SMALL = {
    "vocab_size": V, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 20, "initializer_range": 0.3,
}  # fmt: skip


def make(kind, **options):
    torch.manual_seed(1)
    model = getattr(transformers, kind)(transformers.DPRConfig(**{**SMALL, **options}))
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch():
    mask = padded((9, 4, 1), 9)
    return {"input_ids": np.where(mask, random_ids(V, 3, 9, low=6), 0), "attention_mask": mask}


@pytest.mark.parametrize("width", [0, 7])
@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders_equal_transformers(tmp_path, kind, width):
    types = {"token_type_ids": random_ids(2, 3, 9, low=0)}
    ours, got = compare(make(kind, projection_dim=width), tmp_path, **batch(), **types)
    assert ours.config["projection_dim"] == width
    np.testing.assert_array_equal(got.sentence_embedding, got.pooler_output)


def test_padding_is_found_without_a_mask(tmp_path):
    model, inputs = make("DPRContextEncoder"), batch()
    ours, got = compare(model, tmp_path, input_ids=inputs["input_ids"])
    np.testing.assert_allclose(ours(**inputs).pooler_output, got.pooler_output, rtol=1e-5, atol=1e-6)


def test_readers_equal_transformers(tmp_path):
    compare(make("DPRReader", layer_norm_eps=0.1, hidden_act="relu"), tmp_path, **batch())


@pytest.mark.parametrize("kind", [*ENCODERS, "DPRReader"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    options = {} if kind == "DPRReader" else {"projection_dim": 5}
    fields = Fields.of(make(kind, **options).config.to_dict())
    config, inputs = FAMILIES["dpr"].architectures[kind].config(fields), batch()
    compare_made(config, kind, tmp_path, **inputs)


def test_missing_fields_are_those_of_transformers():
    config = FAMILIES["dpr"].architectures["DPRQuestionEncoder"].config
    assert config(Fields.of({})) == config(Fields.of(transformers.DPRConfig().to_dict()))
