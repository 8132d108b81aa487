"""What a checkpoint may be called with: ids and shapes refused at the door, NaN where a transform hides them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.call import images_of
from flax_transformer.hub.check import check_pixels
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.task.checkpoint import require_use

pytestmark = pytest.mark.proves("misuse", "ids, positions and masks that a checkpoint cannot take")

GOLDEN = Path(__file__).parent / "golden"
IDS = np.arange(4, 14).reshape(2, 5)


@pytest.fixture(scope="module")
def opened():
    return {name: hub.load(GOLDEN / name) for name in ("bert", "roberta", "gpt2", "llama", "bart", "distilbert")}


def head(pretrained, architecture, **fields):
    """Return a checkpoint another class; its head is new."""
    folder = GOLDEN / pretrained.config["model_type"]
    lenient = hub.Lenient(architecture=architecture, config=fields, initialise=("score", "class", "pooler", "outputs"))
    return hub.load(folder, lenient=lenient)


# family, input, what it has rows for, what is beside it
LOOKED_UP = [
    ("bert", "token_type_ids", "type_vocab_size", "token types"),
    ("bert", "position_ids", "max_position_embeddings", "positions"),
    ("roberta", "token_type_ids", "type_vocab_size", "token types"),
    ("roberta", "position_ids", "max_position_embeddings", "positions"),
    ("gpt2", "position_ids", "n_positions", "positions"),
    ("gpt2", "token_type_ids", "vocab_size", "token types"),
    ("distilbert", "position_ids", "max_position_embeddings", "positions"),
    ("bart", "decoder_input_ids", "vocab_size", "token ids"),
    ("llama", "input_ids", "vocab_size", "token ids"),
]


def called(pretrained, name, ids):
    inputs = {"input_ids": IDS, name: ids}
    if "bart" in pretrained.config["model_type"]:
        inputs = {"decoder_input_ids": IDS, **inputs}
    return inputs


@pytest.mark.parametrize(("family", "name", "field", "words"), LOOKED_UP)
@pytest.mark.parametrize("bad", [-1, 0, 2**32])
def test_an_id_without_a_row_is_refused_at_the_door(opened, family, name, field, words, bad):
    """Negative ids would take another row, 64 bits would be cut to 32, and the first that is too large gives NaN."""
    pretrained = opened[family]
    rows = pretrained.config[field]
    ids = np.full(IDS.shape, min(4, rows - 1))
    worst = -1 if bad < 0 else rows + bad
    ids[1, 2] = worst
    given = [ids, ids.tolist()] if bad > 0 else [ids, jnp.asarray(ids), ids.tolist()]
    for each in given:
        with pytest.raises(ValueError, match=rf"{words} must be in \[0, {rows}\), {name} has {worst}$"):
            pretrained(**called(pretrained, name, each))


@pytest.mark.rotates
@pytest.mark.parametrize(("family", "name", "field", "words"), LOOKED_UP)
def test_inside_a_transform_an_id_without_a_row_gives_nan_and_the_last_row_does_not(opened, family, name, field, words):
    pretrained, run = opened[family], jax.jit(lambda p, inputs: p(**inputs).last_hidden_state)
    rows = pretrained.config[field]
    for value, finite in ((rows - 1, True), (rows, False), (-1, False)):
        ids = np.full(IDS.shape, min(4, rows - 1))
        ids[1, 2] = value
        found = run(pretrained, called(pretrained, name, ids))
        assert bool(jnp.isfinite(found).all()) == finite, value
        assert bool(jnp.isfinite(found[0]).all())


def test_a_position_of_rotary_needs_no_row_but_32_bits(opened):
    positions = np.array([[0, 1, 2, 3, 5000]])
    assert bool(jnp.isfinite(opened["llama"](input_ids=IDS, position_ids=positions).logits).all())
    with pytest.raises(
        ValueError, match=r"positions must be in \[-2147483648, 2147483648\), position_ids has 4294967296"
    ):
        opened["llama"](input_ids=IDS, position_ids=positions + np.array([0, 0, 0, 0, 2**32 - 5000]))


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ({"input_ids": IDS.astype(np.float32)}, "token ids must be whole numbers, input_ids is float32"),
        ({"input_ids": IDS, "token_type_ids": IDS > 5}, "token types must be whole numbers, token_type_ids is bool"),
        ({"input_ids": IDS[:0]}, r"at least one row of at least one token, input_ids is of shape \(0, 5\)"),
        ({"input_ids": IDS[:, :0]}, r"at least one row of at least one token, input_ids is of shape \(2, 0\)"),
        ({"input_ids": IDS, "attention_mask": IDS[:, 1:]}, r"attention_mask must broadcast to \(2, 5\), got \(2, 4\)"),
        ({"input_ids": IDS, "token_type_ids": 0 * IDS.T}, r"token_type_ids must broadcast to \(2, 5\), got \(5, 2\)"),
        ({"input_ids": IDS, "position_ids": IDS[:, None]}, r"position_ids must broadcast to \(2, 5\), got \(2, 1, 5\)"),
    ],
)
def test_inputs_of_another_kind_or_shape_get_a_sentence(opened, inputs, match):
    with pytest.raises(ValueError, match=match):
        opened["bert"](**inputs)


def test_what_a_model_returns_is_not_taken_by_number(opened):
    with pytest.raises(TypeError, match=r"by name, .*prediction_logits.*, got 0"):
        opened["bert"](input_ids=IDS)[0]


@pytest.mark.rotates
@pytest.mark.parametrize(("family", "architecture"), [("llama", "LlamaFor{}"), ("gpt2", "GPT2For{}")])
def test_the_last_token_of_several_rows_needs_a_padding_token(opened, family, architecture):
    """Other heads of the same model, and a single row, do not."""
    classifier = head(opened[family], architecture.format("SequenceClassification"), pad_token_id=None)
    for call in (classifier, jax.jit(lambda input_ids: classifier(input_ids=input_ids))):
        with pytest.raises(ValueError, match=r"must give pad_token_id, it has none; got input_ids of shape \(2, 5\)"):
            call(input_ids=IDS)
        assert call(input_ids=IDS[:1]).logits.shape == (1, 2)
    tokens = head(opened[family], architecture.format("TokenClassification"), pad_token_id=None)
    assert tokens(input_ids=IDS).logits.shape == (2, 5, 2)


@pytest.mark.rotates
def test_rows_are_classified_by_their_last_end_tokens_only_where_all_have_as_many(opened):
    bart = opened["bart"]
    end = bart.config["eos_token_id"]
    classifier, span = head(bart, "BartForSequenceClassification"), head(bart, "BartForQuestionAnswering")
    run = jax.jit(lambda p, ids: p(input_ids=ids).logits)
    for ends, times in (([4, 3], None), ([4, -1], r"\[0, 1\]"), ([-1, -1], r"\[0\]"), ([(1, 4), 3], r"\[1, 2\]")):
        ids = IDS.copy()
        for row, at in enumerate(ends):
            ids[row, list(np.ravel(at)) if at != -1 else []] = end
        assert span(input_ids=ids).start_logits.shape == IDS.shape
        if times is None:
            np.testing.assert_array_equal(run(classifier, ids), classifier(input_ids=ids).logits)
            assert bool(jnp.isfinite(run(classifier, ids)).all())
            continue
        with pytest.raises(ValueError, match=rf"end token, all as many, got eos_token_id={end} {times} times"):
            classifier(input_ids=ids)
        assert bool(jnp.isnan(run(classifier, ids)).all())


def test_a_model_is_given_what_it_reads(opened):
    model = opened["bert"]
    pixels = np.zeros((1, 3, 8, 8), np.float32)
    with pytest.raises(
        ValueError, match=r"a BertForPreTraining is given input_ids and perhaps attention_mask, .*; got pix"
    ):
        model(pixel_values=pixels)
    with pytest.raises(ValueError, match="got pixel_values, no input_ids"):
        model(pixel_values=pixels)
    with pytest.raises(ValueError, match="got decoder_input_ids"):
        model(input_ids=np.ones((1, 3), int), decoder_input_ids=np.ones((1, 3), int))
    with pytest.raises(ValueError, match="a BertForPreTraining reads text, it was given images"):
        require_use(model, "fill-mask", "images")
    with pytest.raises(ValueError, match=r"inputs must be among input_ids, .*, got audio"):
        Signature(("audio",))


@pytest.mark.parametrize(
    ("pixels", "mask", "rule"),
    [
        (np.zeros((2, 8, 8, 3)), None, r"must be \[B, 3, H, W\], channels before rows, got \[2, 8, 8, 3\]"),
        (np.zeros((2, 1, 8, 8)), None, r"must be \[B, 3, H, W\], .* got \[2, 1, 8, 8\]"),
        (np.zeros((3, 8, 8)), None, r"got \[3, 8, 8\]"),
        (np.zeros((0, 3, 8, 8)), None, r"got \[0, 3, 8, 8\]"),
        (np.zeros((2, 3, 8, 8), np.uint8), None, "what a processor makes of images, floats, got uint8"),
        (np.zeros((2, 3, 8, 6)), np.ones((2, 6, 8)), r"pixel_mask must be .*\[2, 8, 6\], got \[2, 6, 8\]"),
    ],
)
def test_pictures_that_are_none_are_refused(pixels, mask, rule):
    with pytest.raises(ValueError, match=rule):
        check_pixels(Inputs(pixel_values=pixels, pixel_mask=mask), Fields.of({"num_channels": 3}))


def test_pictures_come_with_channels_last():
    pixels = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    given = Inputs(pixel_values=jnp.asarray(pixels), pixel_mask=np.ones((2, 4, 5)))
    check_pixels(given, Fields.of({}))
    np.testing.assert_array_equal(images_of(given), pixels.transpose(0, 2, 3, 1))
