"""Any checkpoint that answers texts is a translator: Marian, T5 by its prefixes; what it lacks is said."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.embedding import embed
from flax_transformer.task.translation import CheckpointTranslator, open_any_translator
from flax_transformer.task.translator import Search
from tests.task.test_use import make

GOLDEN = Path(__file__).parent.parent / "hub" / "golden"
WORDS = HubTokenizer.of(train_byte_bpe(["the dog barks"], vocab_size=270), single="$A </s>")
T5 = {
    "vocab_size": 270, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "pad_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 0, "max_new_tokens": 4,
}  # fmt: skip
TASKS = {
    "summarization": {"prefix": "summarize: "},
    "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 2},
    "translation_en_to_fr": {"prefix": "translate English to French: "},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("t5")
    hub.save(make("T5ForConditionalGeneration", WORDS, **T5, task_specific_params=TASKS), root / "t5")
    return root / "t5"


def test_a_folder_without_a_tokenizer_says_so(run, tmp_path):
    for name in ("marian", "t5"):
        folder = shutil.copytree(GOLDEN / name, tmp_path / name)
        code, out, err = run("translate", folder, "hello")
        assert (code, out) == (1, "")
        assert err == "error: text needs a tokenizer, the checkpoint has no tokenizer files, such as a tokenizer.json\n"


@pytest.mark.rotates
def test_a_t5_is_told_what_its_config_says(folder):
    translator, search = open_any_translator(str(folder), source="en", target="de")
    assert (translator.prefix, search.beams) == ("translate English to German: ", 2)
    assert open_any_translator(str(folder), prefix="x: ")[0].prefix == "x: "
    for source, target in ((None, None), ("de", "en"), ("en", None)):
        with pytest.raises(ValueError, match="how to translate from en to de, en to fr: give these as --source-lang"):
            open_any_translator(str(folder), source=source, target=target)


@pytest.mark.rotates
def test_translations_are_those_of_generation_with_their_probability(folder):
    pretrained = hub.load(folder)
    translator = CheckpointTranslator(pretrained, prefix="say: ", settings={"max_new_tokens": 4})
    (found,), empty = (
        rows for rows in (translator(["the dog", ""], Search(beams=2, n_best=2))[i : i + 1] for i in (0, 1))
    )
    assert [each.text for each in empty[0]] == ["", ""]
    inputs = WORDS(["say: the dog"])
    rows = pretrained.generate(**inputs, num_beams=2, num_return_sequences=2, max_new_tokens=4, do_sample=False)
    assert [each.text for each in found] == [text.strip() for text in WORDS.decode(np.asarray(rows))]
    assert found[0].score < 0


@pytest.mark.rotates
def test_sentences_are_arguments_or_lines(run, folder):
    told = ("--prefix", "say: ", "--jsonl")
    arguments = run("translate", folder, "the dog", "barks", *told)[1]
    assert arguments == run("translate", folder, *told, stdin=b"the dog\nbarks\n")[1]
    assert [json.loads(line)["source"] for line in arguments.splitlines()] == ["the dog", "barks"]
    code, _, err = run("translate", folder, "the dog", "--input", "x")
    assert (code, "arguments or lines of --input" in err) == (1, True)


@pytest.mark.rotates
def test_texts_are_embedded_by_the_states_asked_for(folder):
    model = hub.load(folder)
    inputs = WORDS(["the dog"])
    states = np.asarray(
        model(**inputs, decoder_input_ids=np.zeros((1, 1), np.int32)).encoder_last_hidden_state, np.float32
    )[0]
    wanted = {"mean": states.mean(0), "first": states[0], "last": states[-1]}
    for pooling, vector in wanted.items():
        found = embed(model, ["the dog", "the dog barks the dog"], pooling)
        np.testing.assert_allclose(found[0], vector, rtol=1e-4, atol=1e-5)
        unit = embed(model, ["the dog"], pooling, normalise=True)
        np.testing.assert_allclose(unit[0], vector / np.linalg.norm(vector), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="must not be empty"):
        embed(model, [" "])


@pytest.mark.rotates
def test_a_checkpoint_translates_with_a_cache_of_int8(folder, run):
    code, out, err = run("translate", folder, "the dog", "--prefix", "say: ", "--cache", "int8", "--beam", 1)
    assert (code, err) == (0, "")
    translator = open_any_translator(str(folder), prefix="say: ")[0]
    (few,) = translator(["the dog"], Search(beams=1, cache="int8"))
    assert out == f"{few[0].text}\n"
