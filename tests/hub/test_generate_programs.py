"""Few programs serve all prompts and settings, what they pad prompts with changes nothing, and values are checked."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.bench import Compilations
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.generate import stream_tokens
from flax_transformer.hub.generation_input import padded_length
from flax_transformer.hub.settings import make_settings
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.ops.sampling import row_keys
from tests.shares import only, share

pytestmark = pytest.mark.proves("generation", "few programs for all lengths and settings")

V = 31
KEY = jax.random.key(5)
IDS = np.random.default_rng(1).integers(4, V, (3, 60))


@pytest.fixture(scope="module")
def pretrained():
    model = jax.jit(lambda: Causal(gpt2_tiny(vocab=V), rngs=nnx.Rngs(0)))()
    return hub.wrap(jax.tree.map(lambda x: 3 * x, model), "GPT2LMHeadModel", eos_token_id=2, pad_token_id=3)


def sampled(**settings):
    return {"do_sample": True, "key": KEY, **settings}


SECOND = {
    "greedy": ({"max_new_tokens": 9}, {"max_new_tokens": 12}),
    "beam": ({"max_new_tokens": 9, "num_beams": 3}, {"max_new_tokens": 12, "num_beams": 3}),
    "sample": (
        sampled(max_new_tokens=9, temperature=0.7, top_k=9, top_p=0.9, repetition_penalty=1.2, min_new_tokens=2),
        sampled(max_new_tokens=12, temperature=1.3, top_k=17, top_p=0.6, repetition_penalty=0.9, min_new_tokens=4),
    ),
}


@pytest.mark.rotates
@pytest.mark.parametrize("kind", only(SECOND, "sample"))
def test_a_second_length_and_other_numbers_compile_nothing(pretrained, kind):
    first, second = SECOND[kind]
    pretrained.generate(IDS[:, :5], **first)
    with Compilations() as fresh:
        for length in (1, 7, 23, 32):
            pretrained.generate(IDS[:, :length], **second)
    assert fresh.count == 0


@pytest.mark.rotates
def test_whatever_numbers_sampling_has_one_program_serves_them(pretrained):
    pretrained.generate(IDS[:, :5], **sampled())
    with Compilations() as fresh:
        for numbers in (
            {"temperature": 0.8}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.9},
            {"repetition_penalty": 1.3}, {"min_new_tokens": 3}, {"max_new_tokens": 7, "min_length": 8},
            {"temperature": 1.5, "top_k": 60, "top_p": 0.5, "min_p": 0.02, "repetition_penalty": 0.8},
        ):  # fmt: skip
            pretrained.generate(IDS[:, :5], **sampled(**numbers))
    assert fresh.count == 0


WAYS = {
    "cutoffs": (sampled(epsilon_cutoff=0.01), [{"epsilon_cutoff": 0.02}, {"epsilon_cutoff": 0.0, "eta_cutoff": 0.1}]),
    "top-h": (sampled(top_h=0.4), [{"top_h": 0.7}, {"top_h": 0.9, "eta_cutoff": 0.1}]),
    "assistant": (
        sampled(num_assistant_tokens=2),
        [{"temperature": 0.7}, {"top_k": 9, "top_p": 0.9}, {"min_new_tokens": 3}],
    ),
    "lookup": ({"prompt_lookup_num_tokens": 2}, [{"max_new_tokens": 9}, {"max_new_tokens": 12}]),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, [{"penalty_alpha": 0.2}, {"max_new_tokens": 9}]),
}


@pytest.mark.rotates
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_choosing_has_one_program_for_its_numbers(pretrained, way):
    first, others = WAYS[way]
    given = {"assistant_model": pretrained} if way == "assistant" else {}
    pretrained.generate(IDS[:, :5], **first, **given)
    with Compilations() as fresh:
        for length, numbers in zip((1, 7, 30), others, strict=False):
            pretrained.generate(IDS[:, :length], **{**first, **numbers}, **given)
    assert fresh.count == 0


@pytest.mark.rotates
def test_a_second_stream_compiles_nothing(pretrained):
    first, second = SECOND["sample"]
    list(stream_tokens(pretrained, IDS[:1, :5], chunk=4, **first))
    with Compilations() as fresh:
        list(stream_tokens(pretrained, IDS[:1, :9], chunk=4, **second))
    assert fresh.count == 0


def test_lengths_are_few_and_waste_little():
    lengths = np.arange(1, 4097)
    padded = np.array([padded_length(n) for n in lengths.tolist()])
    assert (padded >= lengths).all()
    assert (padded[127:] < 1.5 * lengths[127:]).all()
    assert len(set(padded.tolist())) <= 4 + 2 * np.log2(4096 / 128)


@pytest.mark.rotates
@pytest.mark.parametrize(("kind", "length"), share(product(SECOND, [1, 6, 32, 33]), 0, of=12))
def test_what_prompts_are_padded_with_changes_nothing(pretrained, kind, length):
    """Inside a transform nothing is padded: the same tokens come out."""
    settings = {**SECOND[kind][0], "no_repeat_ngram_size": 3}
    key = settings.pop("key", None)
    run = jax.jit(lambda pretrained, ids, key: pretrained.generate(ids, key=key, **settings))
    want = np.asarray(run(pretrained, IDS[:, :length], key))
    got = np.asarray(pretrained.generate(IDS[:, :length], key=key, **settings))
    np.testing.assert_array_equal(got, want[:, : got.shape[1]])


@pytest.mark.slow
def test_rows_draw_the_same_in_any_batch_padding_and_place(pretrained):
    settings = {"do_sample": True, "max_new_tokens": 8, "eos_token_id": ()}
    mask = np.arange(12) >= np.array([[0], [5], [9]])
    whole = np.asarray(pretrained.generate(IDS[:, :12], mask, key=KEY, num_return_sequences=2, **settings))
    new = whole[:, 12:].reshape(3, 2, 8)
    for row, start in enumerate((0, 5, 9)):
        key = row_keys(KEY, np.array([row]))
        alone = np.asarray(pretrained.generate(IDS[row : row + 1, start:12], key=key, **settings))
        np.testing.assert_array_equal(alone[:, 12 - start :], new[row, :1])
    assert (new[:, 0] != new[:, 1]).any(-1).all()


@pytest.mark.rotates
def test_padding_is_inferred_from_the_padding_token(pretrained):
    padded = np.where(np.arange(9) >= np.array([[0], [4], [8]]), IDS[:, :9], 3)
    given = pretrained.generate(padded, padded != 3, max_new_tokens=6)
    np.testing.assert_array_equal(pretrained.generate(padded, max_new_tokens=6), given)
    traced = jax.jit(lambda p, ids: p.generate(ids, max_new_tokens=6))(pretrained, padded)
    np.testing.assert_array_equal(traced[:, : given.shape[1]], given)
    # An end token is text, also where it is the padding token.
    read = pretrained.generate(padded, np.ones_like(padded), max_new_tokens=6, eos_token_id=3)
    np.testing.assert_array_equal(pretrained.generate(padded, max_new_tokens=6, eos_token_id=3), read)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": "0.7"}, "temperature must be float, .* got '0.7'"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be int | None, .* got 2.5"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"num_beams": "4"}, "num_beams must be int, .* got '4'"),
        ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
        ({"bad_words_ids": 4}, "bad_words_ids must be"),
        ({"do_sample": True, "min_p": 1.5}, "min_p must be between 0 and 1, got 1.5"),
    ],
)
def test_values_of_another_kind_are_named(pretrained, settings, message):
    with pytest.raises(ValueError, match=message):
        pretrained.generate(IDS[:1, :4], **{"key": KEY, **settings})


@pytest.mark.rotates
def test_a_function_of_logits_comes_after_the_settings(pretrained):
    only = lambda logits, tokens, t: jnp.where(jnp.arange(V) == 7 + t, logits, -jnp.inf)  # noqa: E731
    options = {"max_new_tokens": 4, "eos_token_id": (), "process": only}
    for more in ({}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}, sampled(), {"assistant_model": pretrained}):
        got = np.asarray(pretrained.generate(IDS[:2, :4], **options, **more))
        np.testing.assert_array_equal(got[:, 4:], [[7, 8, 9, 10]] * 2)


class Kept:
    """What a streamer of transformers is, keeping what it is given."""

    def __init__(self):
        self.given = []

    def put(self, tokens):
        self.given.append(np.asarray(tokens).tolist())

    def end(self):
        self.given.append("end")


class Digits:
    """A tokenizer whose tokens are numbers of two digits."""

    def encode(self, text, add_special_tokens=True):
        return []

    def decode(self, ids, skip_special_tokens=True):
        return "".join(f"{id:02}" for id in ids)


@pytest.mark.rotates
@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "key": KEY}])
def test_a_streamer_is_given_prompts_and_each_token(pretrained, settings):
    kept = Kept()
    found = np.asarray(pretrained.generate(IDS[:2, :4], max_new_tokens=5, eos_token_id=(), streamer=kept, **settings))
    np.testing.assert_array_equal(
        found, pretrained.generate(IDS[:2, :4], max_new_tokens=5, eos_token_id=(), **settings)
    )
    assert kept.given == [IDS[:2, :4].tolist(), *found[:, 4:].T.tolist(), "end"]


@pytest.mark.rotates
@pytest.mark.parametrize("place", [1, 2, 20])
def test_a_text_ends_its_row_within_the_token_that_completes_it(pretrained, place):
    options = {"max_new_tokens": 24, "eos_token_id": (), "repetition_penalty": 5.0}
    whole = np.asarray(pretrained.generate(IDS[:2, :4], **options))
    text = Digits().decode(whole[0])
    end = 2 * (4 + place)
    stop = text[end - 4 : end - 1]  # the last token's first digit is the last of the text
    found = np.asarray(pretrained.generate(IDS[:1, :4], stop_strings=stop, tokenizer=Digits(), **options))
    count = next(n for n in range(5, 29) if stop in text[2 * n - 4 - 1 : 2 * n])
    np.testing.assert_array_equal(found, whole[:1, :count])
    both = np.asarray(pretrained.generate(IDS[:2, :4], stop_strings=[stop, "none"], tokenizer=Digits(), **options))
    assert (both[0, count:] == 3).all()


@pytest.mark.rotates
def test_a_generation_config_is_what_it_says_and_words_beside_it_are_stronger(pretrained, tmp_path):
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 3, "use_cache": true, "top_h": null}')
    for config in ({"max_new_tokens": 3, "_from_model_config": True}, tmp_path, tmp_path / "generation_config.json"):
        assert pretrained.generate(IDS[:1, :4], generation_config=config, eos_token_id=()).shape == (1, 7)
    given = pretrained.generate(IDS[:1, :4], generation_config=tmp_path, max_new_tokens=2, eos_token_id=())
    assert given.shape == (1, 6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"key": 0, "do_sample": True}, r"key must be one of JAX, as jax.random.key\(0\), got 0"),
        ({"streamer": print}, r"a streamer has put\(tokens\) and end\(\); hub.generate.stream_tokens"),
        ({"stop_strings": "x"}, "stop_strings need a tokenizer, the checkpoint has none"),
        ({"stop_strings": ["x", ""], "tokenizer": Digits()}, "stop_strings must be texts of at least one character"),
        ({"stop_strings": "x", "tokenizer": Digits(), "num_beams": 2}, "beam search cannot be streamed"),
        ({"streamer": Kept(), "return_dict_in_generate": True}, "go without return_dict_in_generate"),
        ({"streamer": Kept(), "prompt_lookup_num_tokens": 2}, "go without proposed tokens"),
        ({"generation_config": 5}, "generation_config must be an object of transformers, a mapping or a file, got 5"),
        ({"logits_processor": [1]}, "no setting logits_processor; process="),
        ({"output_scores": True}, "no setting output_scores; return_dict_in_generate=True gives the transition_scores"),
    ],
)
def test_words_of_transformers_that_are_not_understood_get_a_sentence(pretrained, words, message):
    with pytest.raises(ValueError, match=message):
        pretrained.generate(IDS[:1, :4], **words)
    with pytest.raises(ValueError, match="prompts are token ids: generate"):
        pretrained.generate("one")


def test_no_prompts_at_all_are_named(pretrained):
    with pytest.raises(ValueError, match=r"one or more rows of at least one token, .* of shape \(0, 4\)"):
        pretrained.generate(np.zeros((0, 4), int))


@pytest.mark.rotates
def test_numbers_of_numpy_and_jax_are_numbers(pretrained):
    settings = {"max_new_tokens": np.int64(3), "repetition_penalty": jnp.float32(1.5), "suppress_tokens": np.array([4])}
    plain = pretrained.generate(IDS[:1, :4], max_new_tokens=3, repetition_penalty=1.5, suppress_tokens=[4])
    np.testing.assert_array_equal(pretrained.generate(IDS[:1, :4], **settings), plain)


def test_what_changes_nothing_is_not_refused():
    stored = Fields.of({"min_p": 0.1, "typical_p": 0.9, "num_beam_groups": 1, "pad_token_id": -1})
    chosen = make_settings(Fields("{}"), stored, {"eos_token_id": 5})
    assert (chosen.min_p, chosen.typical_p, chosen.padding, chosen.filler) == (0.1, 0.9, None, 5)
    with pytest.raises(ValueError, match=r"has diversity_penalty=0\.5, which is not supported"):
        make_settings(Fields("{}"), Fields.of({"diversity_penalty": 0.5}), {})


@pytest.mark.rotates
def test_without_a_number_tokens_end_with_the_positions(pretrained):
    positions = pretrained.model.cfg.embedding.max_length
    ids = np.resize(IDS, (1, positions - 4))
    assert pretrained.generate(ids, eos_token_id=()).shape == (1, positions)


def test_parameters_that_are_not_finite_are_an_error(pretrained):
    bad = jax.tree.map(lambda x: x * jnp.nan, pretrained)
    with pytest.raises(ValueError, match="logits must be numbers, those of row 0 are NaN"):
        bad.generate(IDS[:, :5], max_new_tokens=3)
