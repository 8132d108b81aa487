"""Recipes of speech: what a run measures, that it resumes as if uninterrupted, and that its export hears the same."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import AudioData, SpokenStringConfig, SpokenStringData, TouchTones
from flax_transformer.metric.edit_distance import word_edits
from flax_transformer.models.head import head_of, with_head
from flax_transformer.models.speech.ctc import TranscriberConfig
from flax_transformer.models.speech.wav2vec2 import Wav2Vec2Config
from flax_transformer.nn import FeatureExtractorConfig, transformer_block, with_fields
from flax_transformer.task.audio_classification import classify_audio
from flax_transformer.task.experiment import train
from flax_transformer.task.opened import Context
from flax_transformer.task.speech_recognition import Transcripts, transcribe
from flax_transformer.task.translator import Search
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.test_classify_images import experiments

pytestmark = pytest.mark.rotates

TONES = TouchTones(voices=1, takes=7)
STRINGS = SpokenStringData(tones=TONES, how=SpokenStringConfig(most=2, seconds=1.0, longest=0.05), train=30, held_out=5)
SMALL = {"embed": 8, "heads": 2, "inner": 8, "depth": 1}


def model(kind, recipe):
    """Return a tiny model of the recipe's kind."""
    if kind != "ctc":
        whisper = with_fields(experiments("recognise_speech")["seq2seq"].model, **SMALL)
        return whisper if kind == "seq2seq" else with_head(
            whisper.encoder, outputs=2, pool="mean", dense="identity", dense_width=6
        )  # fmt: skip
    block = transformer_block(embed=8, heads=2, inner=8, activation="gelu", norm_position="pre", init_std=0.02)
    front = FeatureExtractorConfig(embed=8, windows=(20, 8), strides=(20, 8), norm="every")
    backbone = Wav2Vec2Config(block=block, depth=1, front=front, window=4, groups=2)
    return TranscriberConfig(backbone=backbone, head=head_of(backbone, outputs=32))


def short(kind, steps):
    recipe = experiments("recognise_speech")[kind]
    data = AudioData(tones=TONES) if kind == "digits" else STRINGS
    schedule = ScheduleConfig(name="constant")
    return replace(
        recipe, model=model(kind, recipe), data=data, examples=replace(recipe.examples, rows=4, seconds=1),
        optimizer=replace(recipe.optimizer, schedule=schedule),
        train=TrainConfig(steps=steps, log_every=1, eval_every=2, checkpoint_every=2),
    )  # fmt: skip


def records(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=["digits", pytest.param("ctc", marks=pytest.mark.slow), "seq2seq"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def finished(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / kind
    return folder, train(short(kind, 4), folder)


def heard(folder, kind, names):
    """Let the export tell of the files of some samples."""
    pretrained = hub.load(folder / "export")
    files = [folder / each for each in names]
    if kind == "digits":
        return [labels[0].name for labels in classify_audio(pretrained, files)]
    return [each.text for each in transcribe(pretrained, files)]


@pytest.mark.proves("whisper", "train", "[`recognise_speech`](../experiments/recognise_speech.py)")
@pytest.mark.proves(("wav2vec2", "ctc"), "train", "[`recognise_speech`](../experiments/recognise_speech.py)")
def test_a_run_measures_what_it_hears_and_shows_it(kind, finished):
    folder, _ = finished
    test, shown = records(folder)[-1], samples(folder)
    assert test["split"] == "test"
    assert all((folder / each[name]).is_file() for each in shown for name in ("picture", "audio"))
    if kind == "digits":
        counts = json.loads((folder / "confusion.json").read_text())["counts"]
        assert np.sum(counts) == 50
        assert test["accuracy"] == pytest.approx(np.trace(counts) / 50)
    else:
        assert len(shown) == 5  # all there are
        edits = word_edits([each["target"] for each in shown], [each["hypothesis"] for each in shown])
        assert test["wer"] == pytest.approx(100 * edits.rate)
        assert test["exact_match"] == 20 * sum(each["target"] == each["hypothesis"] for each in shown)
    page = (folder / "report.html").read_text()
    assert "data:audio/wav" in page
    assert "There are no" not in page


def test_the_export_hears_what_the_run_heard(kind, finished):
    folder, _ = finished
    some = samples(folder)[:5]
    assert heard(folder, kind, [each["audio"] for each in some]) == [each["hypothesis"] for each in some]


@pytest.mark.parametrize(
    "kind", ["digits", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ctc", "seq2seq"))], indirect=True
)
def test_a_resumed_run_is_the_uninterrupted_one(kind, finished, tmp_path):
    train(short(kind, 2), tmp_path)
    train(short(kind, 4), tmp_path)
    again = [each for each in records(tmp_path) if each["split"] == "train" and each["step"] > 2]
    assert again == [each for each in records(finished[0]) if each["split"] == "train" and each["step"] > 2]
    assert len(again) == 2


def test_the_command_tells_what_the_function_does(kind, finished, run):
    folder, _ = finished
    file = folder / samples(folder)[0]["audio"]
    code, out, err = run("classify" if kind == "digits" else "transcribe", folder, file)
    assert (code, err) == (0, "")
    (said,) = heard(folder, kind, [file])
    assert out.splitlines()[0].partition("\t")[2 if kind == "digits" else 0] == said
    if kind == "digits":
        code, _, err = run("classify", folder, folder / "none.wav")
        assert (code, len(err.splitlines())) == (1, 1)
        assert "reads recordings, and there is no file" in err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seq2seq"], indirect=True)
def test_beams_find_what_the_export_finds_with_as_many(finished):
    folder, trained = finished
    opened = short("seq2seq", 4).examples.open(STRINGS, Context(folder=RunFolder(folder)))
    found = SimpleNamespace(opened=opened, model=trained)
    texts = list(Transcripts(search=Search(beams=3)).hypotheses_of(found))
    sounds = [opened.held.table[number]["audio"] for number in range(5)]
    assert texts == [each.text for each in transcribe(hub.load(folder / "export"), sounds, num_beams=3)]


@pytest.mark.rotates
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_transformers_opens_the_export_and_hears_the_same(kind, finished):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder, _ = finished
    ours, place = hub.load(folder / "export"), folder / "export"
    extractor = transformers.AutoFeatureExtractor.from_pretrained(place)
    sound = ours.processor.read(folder / samples(folder)[0]["audio"])
    inputs = extractor(sound, sampling_rate=ours.processor.rate, return_tensors="pt")
    made = ours.processor(sound)
    for name, value in made.items():
        np.testing.assert_allclose(inputs[name].numpy(), value, atol=1e-5)
    auto = {"digits": "AudioClassification", "ctc": "CTC", "seq2seq": "SpeechSeq2Seq"}[kind]
    theirs = getattr(transformers, f"AutoModelFor{auto}").from_pretrained(place).eval()
    assert type(theirs).__name__ == ours.config["architectures"][0]
    with torch.no_grad():
        if kind == "seq2seq":
            tokens = theirs.generate(**inputs).numpy()[0].tolist()
            mine = np.asarray(ours.generate(made["input_features"]))[0].tolist()
            tokenizer = transformers.AutoTokenizer.from_pretrained(place)
            said = ours.tokenizer.decode([token for token in mine if token > 3])
            assert tokenizer.decode(tokens, skip_special_tokens=True).strip() == said.strip()
        else:
            expected = theirs(**inputs).logits.numpy()
            np.testing.assert_allclose(ours(**made).logits, expected, rtol=1e-4, atol=1e-5)
    if kind == "ctc":
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        assert type(tokenizer).__name__ == "Wav2Vec2CTCTokenizer"
        said = tokenizer.decode(expected[0].argmax(-1))
        assert said.strip() == transcribe(ours, [sound])[0].text
        assert tokenizer("nine")["input_ids"] == ours.tokenizer.encode(["nine"])[0]
