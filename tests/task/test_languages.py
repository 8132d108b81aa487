"""A checkpoint with tokens of languages translates between those that are named, and lists them where none is."""

import json
import re

import numpy as np
import pytest
import tokenizers

from flax_transformer import hub
from flax_transformer.hub.processor.language import between, languages
from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
from flax_transformer.task.translation import open_any_translator
from flax_transformer.task.translator import Search
from tests.task.test_use import make

TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
CODES = ["deu_Latn", "eng_Latn", "fra_Latn"]
SIZES = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "decoder_start_token_id": 2, "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0, "init_std": 0.5,
}  # fmt: skip


def write_tokenizer(folder, declared="NllbTokenizer", **options):
    """Write a tokenizer as NLLB has it, of a few texts."""
    folder.mkdir(exist_ok=True)
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=TOKENS, show_progress=False)
    engine.train_from_iterator(["the dog barks", "ein Hund bellt", "un chien aboie"], trainer)
    engine.add_special_tokens([*CODES, "<mask>"])
    engine.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": declared, **options}))
    return load_hub_tokenizer(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("nllb")
    words = write_tokenizer(root / "words")
    hub.save(make("M2M100ForConditionalGeneration", words, **SIZES, max_new_tokens=5), root / "model")
    return root / "model"


@pytest.mark.rotates
def test_languages_are_marks_of_a_text(folder):
    words = hub.load(folder).tokenizer
    assert list(languages(words)) == CODES
    deu, eng, fra = words.convert_tokens_to_ids(CODES)
    assert words(["the dog"])["input_ids"][0, 0] == eng
    marked = between(words, "fra_Latn", "deu_Latn", {})
    for ids, first in ((marked(["the dog"]), fra), (marked.target(["the dog"]), deu), (words(["the dog"]), eng)):
        row = ids["input_ids"][0].tolist()
        assert (row[0], row[-1]) == (first, words.eos)
    assert marked.decode(marked(["the dog"])) == ["the dog"]


@pytest.mark.rotates
def test_a_target_language_begins_what_is_written(folder):
    translator, search = open_any_translator(str(folder), source="eng_Latn", target="deu_Latn")
    pretrained = translator.pretrained
    inputs = hub.load(folder).tokenizer(["the dog"])
    deu = pretrained.tokenizer.convert_tokens_to_ids("deu_Latn")
    rows = np.asarray(pretrained.generate(**inputs, num_beams=2, forced_bos_token_id=deu, max_new_tokens=5))
    assert rows[0, 1] == deu
    (found,) = translator(["the dog"], Search(beams=2, n_best=2))
    assert found[0].text == pretrained.tokenizer.decode(rows)[0].strip()
    assert search.beams == 1
    other = open_any_translator(str(folder), source="fra_Latn", target="deu_Latn")[0]
    assert other.pretrained.tokenizer.encode("the dog") != pretrained.tokenizer.encode("the dog")


@pytest.mark.rotates
def test_scores_are_of_the_texts_in_their_language(folder):
    """The log-probability of what is written behind the language, its end included."""
    translator, _ = open_any_translator(str(folder), source="eng_Latn", target="deu_Latn")
    pretrained, words = translator.pretrained, translator.pretrained.tokenizer
    written = words.target(["ein Hund"])["input_ids"]
    (found,) = translator._scores(["the dog"], [["ein Hund"]], Search(beams=1))
    read = np.concatenate([[[2]], written[:, :-1]], axis=1)
    logits = np.asarray(pretrained(**words(["the dog"]), decoder_input_ids=read).logits, np.float64)[0]
    each = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    count = written.shape[1] - 1
    np.testing.assert_allclose(found, [each[range(1, count + 1), written[0, 1:]].sum() / count], rtol=1e-5)


@pytest.mark.rotates
def test_the_command_takes_languages(run, folder):
    code, out, err = run("translate", folder, "the dog", "--source-lang", "eng_Latn", "--target-lang", "fra_Latn")
    assert (code, err) == (0, "")
    translator, search = open_any_translator(str(folder), source="eng_Latn", target="fra_Latn")
    assert out == f"{translator(['the dog'], search)[0][0].text}\n"


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (
            (),
            "deu_Latn, eng_Latn, fra_Latn: give two of them as --source-lang and --target-lang, got no source",
        ),
        (("--source-lang", "eng_Latn"), "got eng_Latn to no target"),
        (("--source-lang", "eng_Latn", "--target-lang", "de"), "target language must be one of deu_Latn, .*, got 'de'"),
    ],
)
def test_a_language_that_is_missing_or_unknown_is_answered_with_those_there_are(run, folder, given, rule):
    code, out, err = run("translate", folder, "the dog", *given)
    assert (code, out) == (1, "")
    assert re.search(rule, err)


@pytest.mark.rotates
def test_what_the_checkpoint_says_of_languages_is_followed(tmp_path):
    """A source language in tokenizer_config.json, and a target by the token that is forced."""
    words = write_tokenizer(tmp_path / "words", src_lang="fra_Latn")
    deu = words.convert_tokens_to_ids("deu_Latn")
    model = make("M2M100ForConditionalGeneration", words, **SIZES, max_new_tokens=5, forced_bos_token_id=deu)
    hub.save(model, tmp_path / "model")
    plain, _ = open_any_translator(str(tmp_path / "model"))
    assert (plain.settings, plain.pretrained.tokenizer.target) == ({}, None)
    other, _ = open_any_translator(str(tmp_path / "model"), source="eng_Latn")
    assert other.settings == {}
    assert other.pretrained.tokenizer.target(["x"])["input_ids"][0, 0] == deu
