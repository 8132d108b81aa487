"""One call for a task: one input, lists and iterators; what is refused."""

import itertools

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.task.embedding import embed
from flax_transformer.task.pipeline import pipeline
from tests.task.checkpoints import checkpoint

IMAGE = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 26, 3), dtype=np.uint8))
SOUND = np.random.default_rng(0).normal(size=1_400).astype(np.float32)


@pytest.mark.rotates
@pytest.mark.proves("pipelines", "one input, lists, iterators that are read no further than they are answered")
def test_one_input_a_list_and_an_iterator(tmp_path):
    folder = checkpoint("roberta", tmp_path / "roberta")
    pipe = pipeline("fill-mask", folder, top_k=2, batch=2)
    one = pipe("one<mask>")
    assert [set(each) for each in one] == [{"score", "token_str", "sequence"}] * 2
    assert len(pipe("one<mask>", top_k=3)) == 3
    assert pipe(["one<mask>", "two<mask>", "one<mask>"])[::2] == [one, one]
    assert pipe([]) == []
    read = itertools.count()
    found = pipe(f"one<mask>{'a' * next(read)}" for _ in range(100))
    assert next(read) == 0
    assert next(found) != one
    assert next(read) == 3  # a batch of two after the one that was read here


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("task", "kind", "asked", "options", "keys"),
    [
        ("translation", "marian", "one", {}, {"translation_text"}),
        ("summarization", "bart", "one two", {}, {"summary_text"}),
        ("text2text-generation", "t5", "one", {"max_new_tokens": 3}, {"generated_text"}),
        ("image-to-text", "vision-encoder-decoder", IMAGE, {"max_new_tokens": 3}, {"generated_text"}),
        ("zero-shot-image-classification", "clip", IMAGE, {"candidate_labels": ["one", "two"]}, {"score", "label"}),
        ("automatic-speech-recognition", "wav2vec2", SOUND, {}, {"text"}),
        ("automatic-speech-recognition", "whisper", SOUND, {"language": "en"}, {"text"}),
    ],
)
def test_results_have_the_hub_s_keys(tmp_path, task, kind, asked, options, keys):
    found = pipeline(task, checkpoint(kind, tmp_path / kind), **options)(asked)
    for each in found if isinstance(found, list) else [found]:
        assert set(each) == keys


def test_vectors_are_those_of_embed(tmp_path):
    pretrained = hub.load(checkpoint("bert", tmp_path / "bert"))
    np.testing.assert_array_equal(pipeline("feature-extraction", pretrained)("one"), embed(pretrained, ["one"])[0])


@pytest.mark.parametrize(
    ("task", "asked", "message"),
    [
        ("fill-masks", "a", "a task must be one of text-classification, .* got 'fill-masks'"),
        ("question-answering", "a", "to answer questions takes a checkpoint that can, got a RobertaForMaskedLM"),
        ("image-classification", "https://a.de/b.png", "download 'https://a.de/b.png' first"),
    ],
)
def test_what_is_refused(tmp_path, task, asked, message):
    folder = checkpoint("roberta", tmp_path / "roberta")
    with pytest.raises(ValueError, match=message):
        pipeline(task, folder)({"question": "a", "context": "b"} if task == "question-answering" else asked)
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        pipeline("fill-mask", folder, batch=0)
    with pytest.raises(ValueError, match="takes a folder or hub id"):
        pipeline("translation", hub.load(folder))
