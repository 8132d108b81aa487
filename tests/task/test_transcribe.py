"""Speech written down, from files: what is printed is what the model says of its windows."""

import itertools
import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.audio import Waveform, decode_audio
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.ctc_vocabulary import letters_of
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.registry import find_architecture
from flax_transformer.task.speech_recognition import transcribe
from tests.contract.golden import GOLDEN as FOLDERS
from tests.data.audio.test_sound import wav

GOLDEN = FOLDERS[0].parent

RATE, WORDS = 2_000, 265
END, START, EN, DE, TRANSCRIBE, NONE, FIRST = range(WORDS, WORDS + 7)
CONFIG = {
    "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "vocab_size": FIRST + 51,
    "num_mel_bins": 6, "d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_source_positions": 50,
    "max_target_positions": 20, "init_std": 0.6, "eos_token_id": END, "pad_token_id": END, "bos_token_id": END,
    "decoder_start_token_id": START,
}  # fmt: skip
GENERATION = {
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE}, "task_to_id": {"transcribe": TRANSCRIBE}, "is_multilingual": True,
    "no_timestamps_token_id": NONE, "begin_suppress_tokens": [END], "max_length": 20, "eos_token_id": END,
    "pad_token_id": END, "decoder_start_token_id": START,
}  # fmt: skip
HEARS = {
    "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 6, "sampling_rate": RATE, "hop_length": 20,
    "n_fft": 64, "chunk_length": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def whisper():
    config = find_architecture("WhisperForConditionalGeneration")[1].config(Fields.of(CONFIG))
    model = jax.jit(lambda: config.build(nnx.Rngs(3)))()
    tokenizer = HubTokenizer.of(train_byte_bpe(["the dog barks"] * 3, vocab_size=WORDS))
    return hub.Pretrained(model, Fields.of(CONFIG), tokenizer, Fields.of(GENERATION), AudioProcessor.of(HEARS))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("recordings"), np.random.default_rng(0)
    for name, seconds in (("short", 0.7), ("long", 3.3)):
        (folder / f"{name}.wav").write_bytes(wav(draw.uniform(-0.5, 0.5, (int(RATE * seconds), 1)), rate=RATE))
    return folder


@pytest.fixture(scope="module")
def folder(whisper, tmp_path_factory):
    place = tmp_path_factory.mktemp("whisper")
    hub.save(whisper, place)
    return place


@pytest.mark.rotates
def test_a_short_sound_is_what_one_call_gives(whisper, files):
    (found,) = transcribe(whisper, [files / "short.wav"], language="de")
    frames = whisper.processor(files / "short.wav")["input_features"]
    tokens = np.asarray(whisper.generate(frames, language="de", return_timestamps=False))[0]
    assert found.text == whisper.tokenizer.decode([token for token in tokens.tolist() if token < END]).strip()
    assert found.text
    assert found.segments == ()


@pytest.mark.slow
def test_pieces_of_a_long_sound_are_in_order_and_make_its_text(whisper, files):
    (found,) = transcribe(whisper, [files / "long.wav"], language="de", timestamps=True)
    starts, ends = [each.start for each in found.segments], [each.end for each in found.segments]
    assert starts == sorted(starts)
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    assert max(ends) > 1  # beyond the first window
    assert len(found.segments) > 1
    assert found.segments[0].text in found.text


@pytest.mark.slow
def test_a_sound_at_another_rate_is_heard_as_the_resampled_one(whisper):
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, RATE).astype(np.float32)
    (given,) = transcribe(whisper, [samples], sampling_rate=2 * RATE, language="en")
    (same,) = transcribe(whisper, [Waveform(samples, 2 * RATE)], language="en")
    assert given == same


@pytest.mark.rotates
def test_a_checkpoint_of_another_kind_is_refused(whisper):
    with pytest.raises(
        ValueError, match="a recording needs a feature extractor, the checkpoint has no preprocessor_config"
    ):
        transcribe(replace(whisper, processor=None), [np.zeros(9)])
    with pytest.raises(ValueError, match="text needs a tokenizer"):
        transcribe(replace(whisper, tokenizer=None), [np.zeros(9)])


@pytest.mark.slow
def test_the_command_prints_what_the_function_gives(run, whisper, folder, files):
    short, long = (str(files / f"{name}.wav") for name in ("short", "long"))
    found = transcribe(whisper, [short, long], language="de")
    code, out, err = run("transcribe", folder, short, long, "--language", "de")
    assert (code, err) == (0, "")
    said = [(name, " ".join(each.text.split())) for name, each in zip((short, long), found, strict=True)]
    assert out == "".join(f"{name}\t{text}\n" for name, text in said)
    assert run("transcribe", folder, short, "--language", "de")[1] == f"{said[0][1]}\n"
    told = transcribe(whisper, [long], language="de", timestamps=True)[0]
    lines = run("transcribe", folder, long, "--language", "de", "--timestamps")[1].splitlines()
    assert [line.split("\t")[:2] for line in lines] == [[f"{s.start:.2f}", f"{s.end:.2f}"] for s in told.segments]
    (line,) = run("transcribe", folder, "--language", "de", "--timestamps", "--jsonl", stdin=long.encode())[
        1
    ].splitlines()
    assert json.loads(line)["segments"][0]["start"] == told.segments[0].start


@pytest.mark.rotates
def test_the_command_says_what_is_wrong_in_a_sentence(run, folder, files, tmp_path):
    (tmp_path / "no.wav").write_bytes(b"nothing")
    for arguments, message in (
        ((tmp_path / "no.wav",), "no.wav is no "),
        ((tmp_path / "none.wav",), "there is no file"),
        ((files / "short.wav", "--language", "xx"), "language must be one of de, en, got 'xx'"),
    ):
        code, out, err = run("transcribe", folder, *arguments)
        assert (code, out) == (1, "")
        assert message in err


SPELLED = "etaonri"


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Return the folder of a wav2vec 2.0 with a head, a feature extractor and a vocabulary of letters."""
    place = tmp_path_factory.mktemp("letters")
    golden = hub.load(GOLDEN / "wav2vec2")
    processor = AudioProcessor.of({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": RATE})
    hub.save(replace(golden, tokenizer=letters_of([SPELLED]), processor=processor), place)
    return place


def best_letters(pretrained, samples):
    """Return by hand the best letter of every position, each stretch of it once, without those for none."""
    heard = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
    best = np.asarray(pretrained(input_values=heard[None]).logits[0].argmax(-1))
    kept = [token for token, _ in itertools.groupby(best.tolist()) if token]
    names = [name for name in pretrained.tokenizer.tokens(kept) if name is not None and len(name) == 1]
    return "".join(names).replace("|", " ").strip()


@pytest.mark.rotates
def test_letters_are_the_best_of_every_position(letters, files):
    pretrained = hub.load(letters)
    names = [files / "short.wav", files / "long.wav"]
    found = transcribe(pretrained, names)
    assert [each.text for each in found] == [best_letters(pretrained, decode_audio(name).samples) for name in names]
    assert all(each.text and set(each.text) <= {*SPELLED, " "} for each in found)
    assert found[0].text != found[1].text
    half = decode_audio(files / "long.wav").samples
    (slower,) = transcribe(pretrained, [half], sampling_rate=2 * RATE)
    assert slower == transcribe(pretrained, [Waveform(half, 2 * RATE)])[0] != found[1]


@pytest.mark.rotates
def test_the_command_prints_letters_and_refuses_what_is_whispers_alone(run, letters, files):
    short, long = files / "short.wav", files / "long.wav"
    pretrained = hub.load(letters)
    said = [" ".join(each.text.split()) for each in transcribe(pretrained, [short, long])]
    code, out, err = run("transcribe", letters, short, long)
    assert (code, err) == (0, "")
    assert out == f"{short}\t{said[0]}\n{long}\t{said[1]}\n"
    for arguments in (("--language", "de"), ("--timestamps",), ("--task", "translate"), ("--num-beams", "3")):
        code, out, err = run("transcribe", letters, short, *arguments)
        assert (code, out) == (1, "")
        assert "a Wav2Vec2ForCTC gives the best letters and nothing else, got" in err
