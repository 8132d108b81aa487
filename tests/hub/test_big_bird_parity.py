"""BigBird against transformers: every class, in blocks and in full, blocks drawn as in training, padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.hub.family.big_bird import FAMILIES, read
from flax_transformer.hub.fields import Fields
from flax_transformer.nn import with_fields
from flax_transformer.ops import Mask
from tests.hub import oracle
from tests.hub.oracle import close, compare, compare_made, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("big_bird", "parity", "every class but `BigBirdForCausalLM`, every layer, drawn blocks too"),
]

V, T = 61, 41
CONFIGS = {
    "blocks": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "block_size": 4,
        "num_random_blocks": 1,
    },
    "odd": {
        "hidden_size": 15, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 22, "block_size": 3,
        "num_random_blocks": 2, "hidden_act": "relu", "use_bias": False, "rescale_embeddings": True,
    },
    "full": {
        "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 9, "block_size": 2,
        "num_random_blocks": 0, "layer_norm_eps": 0.1, "attention_type": "original_full",
    },
}  # fmt: skip


def forward(model, inputs, forward=oracle.forward):
    """Call transformers, and cut what it gives of layers to the text, as it does the rest: it fills up whole blocks."""
    found, length = forward(model, inputs), inputs["input_ids"].shape[-1]
    if "hidden_states" in found:
        found["hidden_states"] = tuple(each[:, :length] for each in found["hidden_states"])
    return found


@pytest.fixture(autouse=True)
def without_filling(monkeypatch):
    monkeypatch.setattr(oracle, "forward", forward)


def make(kind, **options):
    torch.manual_seed(1)
    config = transformers.BigBirdConfig(vocab_size=V, max_position_embeddings=60, initializer_range=0.3, **options)
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # biases and norms, which begin at 0 and 1, shall say something too
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch(lengths=(T, 22, 3), length=T):
    mask = padded(lengths, length)
    types = random_ids(2, len(lengths), length, low=0)
    return {"input_ids": random_ids(V, len(lengths), length) * mask, "attention_mask": mask, "token_type_ids": types}


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_masked_lm_equals_transformers(tmp_path, options):
    compare(make("BigBirdForMaskedLM", **options), tmp_path, **batch())


@pytest.mark.parametrize("kind", ["BigBirdModel", "BigBirdForPreTraining", "BigBirdForSequenceClassification"])
def test_classes_equal_transformers(tmp_path, kind):
    compare(make(kind, **CONFIGS["odd"], num_labels=5), tmp_path, **batch())


def test_words_are_labelled_as_transformers_does(tmp_path):
    model = make("BigBirdForTokenClassification", **CONFIGS["blocks"], num_labels=3)
    compare(model, tmp_path, **batch())


def test_choices_equal_transformers(tmp_path):
    inputs = {name: value.reshape(2, 2, T) for name, value in batch((T, T, T, T)).items()}
    compare(make("BigBirdForMultipleChoice", **CONFIGS["blocks"]), tmp_path, **inputs)


def test_a_short_text_is_attended_to_in_full(tmp_path):
    """5 + 2R blocks are short, one position more is not; transformers, once it has seen such a text, stays so."""
    options = CONFIGS["blocks"]
    compare(make("BigBirdModel", **options), tmp_path / "short", **batch((28, 9), 28))
    compare(make("BigBirdModel", **options), tmp_path / "long", **batch((29, 9), 29))


def test_answers_are_sought_after_the_question(tmp_path):
    model, inputs = make("BigBirdForQuestionAnswering", **CONFIGS["blocks"], sep_token_id=2), batch()
    inputs["input_ids"] = np.where(inputs["input_ids"] == 2, 3, inputs["input_ids"])
    inputs["input_ids"][:, 5], inputs["input_ids"][2] = 2, inputs["input_ids"][0]
    inputs["attention_mask"][2] = 1
    del inputs["token_type_ids"]
    _, found = compare(model, tmp_path, **inputs)
    assert (np.asarray(found.start_logits)[:, 1:6] < -9e5).all()
    for name, expected in forward(model, inputs).items():  # those of the text alone, which are not large
        if name.endswith("logits"):
            close(name, expected[:, 6:], found[name][:, 6:], {"attention_mask": inputs["attention_mask"][:, 6:]})


@pytest.mark.parametrize(("name", "length"), [("blocks", T), ("odd", T), ("odd", 30)])
def test_blocks_are_drawn_as_in_training(tmp_path, name, length):
    """With dropouts of 0, transformers' own training mode differs from ours by rounding alone, and from evaluation."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, inputs = make("BigBirdModel", **CONFIGS[name], **still), batch((length, 22), length)
    model.save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    expected = forward(model.train(), inputs)["last_hidden_state"]
    close("trained", expected, ours(**inputs, key=jax.random.key(0)).last_hidden_state, inputs)
    quiet = np.asarray(ours(**inputs).last_hidden_state)
    assert np.abs(quiet - expected)[0].max() > 1e-2
    fields = with_fields(ours.model.cfg.backbone, drawn="always")
    always = nnx.eval_shape(lambda: fields.build(nnx.Rngs(0)))
    always = jax.tree.unflatten(jax.tree.structure(always), jax.tree.leaves(ours.model.backbone))
    given = {name: jnp.asarray(value) for name, value in inputs.items()}
    mask = Mask(dense=(given["attention_mask"] != 0)[:, None, None, :])
    found = always(given["input_ids"], mask=mask, types=given["token_type_ids"])
    close("always", expected, found, inputs)


@pytest.mark.parametrize("kind", ["BigBirdForPreTraining", "BigBirdForQuestionAnswering"])
def test_a_model_made_here_opens_in_transformers(tmp_path, kind):
    fields = Fields.of(make("BigBirdModel", **CONFIGS["odd"]).config.to_dict())
    config, inputs = FAMILIES["big_bird"].architectures[kind].config(fields), batch((T, T))
    compare_made(config, kind, tmp_path, **inputs)


def test_missing_fields_are_those_of_transformers():
    assert read(Fields.of({})) == read(Fields.of(transformers.BigBirdConfig().to_dict()))


def test_unsupported_options_are_named():
    with pytest.raises(ValueError, match="attention_type='longer'; supported are block_sparse, original_full"):
        read(Fields.of({"attention_type": "longer"}))
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        read(Fields.of({"block_size": 0}))
