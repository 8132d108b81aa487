"""Whisper against transformers: every class, odd sizes, the round trip; tokens of greedy and beam search, times,
long recordings window by window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.decode import Timestamps
from flax_transformer.hub.fallback import compression_ratio
from flax_transformer.hub.family.whisper import read
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.speech import Speech, _Writer, segments
from tests.hub.oracle import compare, padded, random_ids

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("whisper", "parity", "every class but `WhisperForCausalLM`, every layer"),
]

V, END, START, NONE = 60, 40, 41, 49
SPEECH = {
    "lang_to_id": {"<|en|>": 42, "<|de|>": 43, "<|fr|>": 44}, "task_to_id": {"translate": 45, "transcribe": 46},
    "no_timestamps_token_id": NONE, "is_multilingual": True, "max_initial_timestamp_index": 3,
    "suppress_tokens": [1, 2, 44], "begin_suppress_tokens": [5, END], "max_length": 40,
}  # fmt: skip
CONFIGS = {
    "plain": {"bins": 7, "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "heads": (4, 3), "positions": 9},
    "odd": {"bins": 5, "d_model": 10, "encoder_layers": 1, "decoder_layers": 1, "heads": (5, 1), "positions": 7},
    "wide": {"bins": 13, "d_model": 30, "encoder_layers": 3, "decoder_layers": 1, "heads": (3, 5), "positions": 1},
    "relu": {"bins": 1, "d_model": 12, "encoder_layers": 1, "decoder_layers": 2, "heads": (1, 2), "positions": 5,
             "activation_function": "relu"},
}  # fmt: skip


def make(kind, *, bins, heads, positions, seed=1, **options):
    torch.manual_seed(seed)
    config = transformers.WhisperConfig(
        vocab_size=V, num_mel_bins=bins, encoder_attention_heads=heads[0], decoder_attention_heads=heads[1],
        encoder_ffn_dim=17, decoder_ffn_dim=21, max_source_positions=positions, max_target_positions=40, init_std=0.3,
        pad_token_id=END, bos_token_id=END, eos_token_id=END, decoder_start_token_id=START, suppress_tokens=None,
        begin_suppress_tokens=None, num_labels=3, classifier_proj_size=6, **options,
    )  # fmt: skip
    model = getattr(transformers, kind)(config)
    with torch.no_grad():  # what begins at 0 or 1 says something too, and ties decide nothing
        for name, each in model.named_parameters():
            each.add_(0.3 * torch.randn(each.shape) * (name != "model.encoder.embed_positions.weight"))
    return model


def sounds(bins, frames, rows=3):
    return np.random.default_rng(0).normal(size=(rows, bins, frames)).astype(np.float32)


@pytest.mark.parametrize("kind", ["WhisperForConditionalGeneration", "WhisperModel"])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_class_equals_transformers(tmp_path, options, kind):
    frames, ids = sounds(options["bins"], 2 * options["positions"]), random_ids(V, 3, 6)
    compare(make(kind, **options), tmp_path, input_features=frames, decoder_input_ids=ids)


def test_a_padded_text_equals_transformers(tmp_path):
    given = {"input_features": sounds(7, 18), "decoder_input_ids": random_ids(V, 3, 6)}
    model = make("WhisperForConditionalGeneration", **CONFIGS["plain"])
    compare(model, tmp_path, **given, decoder_attention_mask=padded([6, 1, 3], 6))


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_a_classifier_equals_transformers(tmp_path, options):
    model = make("WhisperForAudioClassification", **options)
    compare(model, tmp_path, input_features=sounds(options["bins"], 2 * options["positions"]))


def test_a_copy_of_the_output_layer_loads_and_another_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    make("WhisperForConditionalGeneration", **CONFIGS["odd"]).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["proj_out.weight"] = tensors["model.decoder.embed_tokens.weight"].clone()
    save_file(tensors, file)
    hub.load(tmp_path)
    tensors["proj_out.weight"] += 1
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"not a copy: proj_out.weight must equal model.decoder.embed_tokens.weight"):
        hub.load(tmp_path)


def test_what_is_not_supported_is_refused_by_name():
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        read(Fields.of({"tie_word_embeddings": False}))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    theirs = make("WhisperForConditionalGeneration", seed=0, **CONFIGS["plain"]).eval()
    said = {**SPEECH, "pad_token_id": END, "eos_token_id": END, "bos_token_id": END, "decoder_start_token_id": START}
    vars(theirs.generation_config).update(said)
    folder = tmp_path_factory.mktemp("whisper")
    theirs.save_pretrained(folder)
    return theirs, hub.load(folder)


WORDS = {"suppress_tokens": [1, 2, 44, *range(NONE + 1, V)]}
"""No times where none are asked for: with those of a random model transformers may hear one window for ever."""
CASES = {
    "detected": WORDS,
    "translated": {**WORDS, "language": "de", "task": "translate"},
    "each its own": {**WORDS, "language": ["en", "de", "fr"], "max_new_tokens": 7},
    "times": {"language": "en", "return_timestamps": True},
    "beams": {**WORDS, "num_beams": 3},
    "times by beams": {"num_beams": 3, "task": "transcribe", "return_timestamps": True},
    "after a prompt": {**WORDS, "prompt_ids": [3, 4, 7], "repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
}


@pytest.mark.proves("whisper", "decode", "greedy and beams, languages, tasks, times and windows, as `generate`")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tokens_equal_those_of_transformers(both, case):
    theirs, ours = both
    frames = sounds(7, 18)
    asked = {name: torch.tensor(value) if name == "prompt_ids" else value for name, value in case.items()}
    expected = theirs.generate(torch.tensor(frames), **asked).numpy()
    np.testing.assert_array_equal(ours.generate(frames, **case), expected)


QUIET = {"words": WORDS, "times": {"return_timestamps": True}}


@pytest.mark.proves("whisper", "decode", "windows in which nobody speaks left out, by the thresholds of `generate`")
@pytest.mark.parametrize("case", QUIET.values(), ids=QUIET)
def test_what_nobody_says_is_left_out_as_in_transformers(both, case, monkeypatch):
    theirs, ours = both
    means, write = [], _Writer._write

    def kept(*given):
        found = write(*given)
        means.extend(map(float, found[1]))
        return found

    monkeypatch.setattr(_Writer, "_write", kept)
    options = {**case, "language": "en", "temperature": 0.0}
    ours.generate(sounds(7, 18), **options, logprob_threshold=-9.0)
    first, second, third = sorted(means)
    left = []
    for threshold in (first - 0.01, (first + second) / 2, (second + third) / 2, third + 0.01):
        said = {**options, "logprob_threshold": threshold, "no_speech_threshold": 1e-9}
        expected = theirs.generate(torch.tensor(sounds(7, 18)), **said).numpy()
        got = np.asarray(ours.generate(sounds(7, 18), **said))
        np.testing.assert_array_equal(got, expected)
        left.append(int((got != END).any(axis=1).sum()))
    assert left == [3, 2, 1, 0]


def test_how_well_a_text_compresses_is_what_transformers_says():
    for tokens in ([7] * 40, list(range(40)), [1, 2, 3] * 9):
        theirs = transformers.WhisperForConditionalGeneration._retrieve_compression_ratio(torch.tensor(tokens), 51_865)
        assert compression_ratio(tokens, 51_865) == theirs


@pytest.mark.parametrize("forced", [[[1, 43], [2, 45]], [[1, None], [2, 46], [3, NONE]]])
def test_forced_tokens_begin_a_text_as_in_transformers(both, forced):
    theirs, ours = both
    theirs.generation_config.forced_decoder_ids = forced
    generation = ours.generation.updated({"forced_decoder_ids": forced})
    ours = type(ours)(ours.model, ours.config, generation=generation)
    expected = theirs.generate(torch.tensor(sounds(7, 18)), max_new_tokens=7, **WORDS).numpy()
    theirs.generation_config.forced_decoder_ids = None
    np.testing.assert_array_equal(ours.generate(sounds(7, 18), max_new_tokens=7, **WORDS), expected)


@pytest.mark.parametrize("case", [{}, {"num_beams": 2, "max_new_tokens": 9}], ids=["greedy", "beams"])
def test_a_long_sound_is_cut_where_transformers_cuts_it(both, case):
    theirs, ours = both
    frames = sounds(7, 125, rows=1)
    expected = theirs.generate(torch.tensor(frames), return_segments=True, language="de", **case)["segments"][0]
    (found,) = segments(ours, frames, None, Speech(language="de"), case)
    assert [each.tokens for each in found] == [tuple(each["tokens"].tolist()) for each in expected]
    for name in ("start", "end"):
        np.testing.assert_allclose([getattr(each, name) for each in found], [float(each[name]) for each in expected])
    assert len(found) > 125 / 18


def test_long_sounds_of_several_lengths_are_those_of_transformers(both):
    theirs, ours = both
    frames, mask = sounds(7, 60), padded([60, 25, 41], 60)
    expected = theirs.generate(
        torch.tensor(frames), attention_mask=torch.tensor(mask), language="en", max_new_tokens=12
    ).numpy()
    np.testing.assert_array_equal(ours.generate(frames, mask, language="en", max_new_tokens=12), expected)


@pytest.mark.parametrize("latest", [None, 0, 3])
def test_times_are_forbidden_as_in_transformers(latest):
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    said = transformers.GenerationConfig(eos_token_id=20, bos_token_id=20)
    said.no_timestamps_token_id, said.max_initial_timestamp_index = 25, latest
    theirs, ours = WhisperTimeStampLogitsProcessor(said, begin_index=3), Timestamps(begin=26, end=20, latest=latest)
    ours, draw = jax.jit(ours), np.random.default_rng(0)
    for t in (*range(9), *range(9)):
        words, times = draw.integers(0, 20, (60, 9)), draw.integers(26, V, (60, 9))
        tokens = np.where(draw.random((60, 9)) < 0.5, words, np.sort(times) if t % 2 else times)
        logits = draw.normal(size=(60, V)).astype(np.float32) - np.where(np.arange(V) > 25, draw.choice([0, 2, 4]), 0)
        logits = logits.astype(np.float32)
        before = np.concatenate([np.full((60, 3), 21), tokens[:, :t]], axis=1)
        expected = theirs(torch.tensor(before), torch.tensor(logits)).numpy()
        np.testing.assert_array_equal(ours(jnp.asarray(logits), jnp.asarray(tokens), t), expected)
