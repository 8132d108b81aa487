"""One text, one id, single tokens: what a tokenizer is asked in the words of transformers, against its own classes."""

import json
import string

import numpy as np
import pytest
import tokenizers

from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
from tests.hub.test_hub_tokenizer_parity import CORPUS, ROBERTA, _byte_level, _wordpiece

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

END = "<|endoftext|>"


def bert():
    return transformers.BertTokenizer(vocab=_wordpiece().get_vocab())


def gpt2():
    ends = {"bos_token": END, "eos_token": END, "unk_token": END}
    return transformers.GPT2Tokenizer(**_bpe([END]), **ends)


def roberta():
    return transformers.RobertaTokenizer(**_bpe(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), **ROBERTA)


def t5():
    words = sorted({f"▁{word}" for line in CORPUS for word in line.split()})
    pieces = ["<pad>", "</s>", "<unk>", "▁", *words, *string.ascii_letters, *string.punctuation]
    return transformers.T5Tokenizer(vocab=[(piece, -float(i)) for i, piece in enumerate(pieces)], extra_ids=4)


def clip():
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), "on", "one</w>", "<|startoftext|>", END]
    merges = [("o", "n"), ("on", "e</w>")]
    return transformers.CLIPTokenizer(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges)


def whisper():
    special = [END, "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    return transformers.WhisperTokenizer(**_bpe(special), unk_token=END, bos_token=END, eos_token=END)


def _bpe(special):
    model = json.loads(_byte_level(special).to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *string.ascii_uppercase, "'"]
CTC = {
    "wav2vec2": (LETTERS, {}),
    "lower": (LETTERS, {"do_lower_case": True}),
    "written otherwise": (LETTERS, {"replace_word_delimiter_char": "_"}),
    "space": ([" ", *string.ascii_lowercase, "[UNK]", "[PAD]"], {
        "word_delimiter_token": " ", "unk_token": "[UNK]", "pad_token": "[PAD]",
    }),
    "several characters": ([*string.ascii_uppercase, "<w>", "<unk>", "<pad>", "CH"], {"word_delimiter_token": "<w>"}),
    "no marks": (["|", *string.ascii_uppercase, "<unk>", "<pad>"], {"bos_token": None, "eos_token": None}),
}  # fmt: skip
MAKE = {"bert": bert, "gpt2": gpt2, "roberta": roberta, "t5": t5, "clip": clip, "whisper": whisper}
TEXTS = ["one hundred and twenty-three", "HALL WO R", "it's  two", "A", "naïve ☃"]


def letters(folder, name):
    vocabulary, options = CTC[name]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    return transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json", **options)


@pytest.fixture(scope="module", params=[*MAKE, "wav2vec2"])
def pair(request, tmp_path_factory):
    """Return our reading of what theirs saves, and theirs."""
    folder = tmp_path_factory.mktemp("tokenizer")
    theirs = letters(folder, request.param) if request.param in CTC else MAKE[request.param]()
    theirs.save_pretrained(folder)
    return load_hub_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_one_text_is_one_text(pair, text):
    ours, theirs = pair
    assert ours.encode(text) == theirs.encode(text)
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.encode([text, text]) == [theirs.encode(text, add_special_tokens=False)] * 2
    assert ours.tokenize(text) == theirs.tokenize(text)
    found, expected = ours(text, return_tensors="np"), theirs(text, return_tensors="np")
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert {name: value.tolist() for name, value in ours([text]).items()} == {
        name: value.tolist() for name, value in found.items()
    }


def test_two_texts_in_one_input_are_one_pair(pair):
    ours, theirs = pair
    if hasattr(ours.engine, "blank"):
        with pytest.raises(ValueError, match="a CTC tokenizer reads single texts, got a pair"):
            ours(TEXTS[0], TEXTS[2])
    else:
        expected = theirs(TEXTS[0], TEXTS[2])["input_ids"]
        assert ours.encode(TEXTS[0], TEXTS[2]) == expected
        for found in (ours(TEXTS[0], TEXTS[2]), ours([(TEXTS[0], TEXTS[2])]), ours([TEXTS[0]], [TEXTS[2]])):
            assert found["input_ids"].tolist() == [expected]
    assert ours(TEXTS[0], "")["input_ids"].tolist() == [theirs(TEXTS[0], "")["input_ids"]]


def test_tokens_are_called_alike(pair):
    ours, theirs = pair
    for role in ("pad", "bos", "eos", "unk", "cls", "sep", "mask"):
        for name in (f"{role}_token", f"{role}_token_id"):
            assert getattr(ours, name) == getattr(theirs, name), name
    assert (len(ours), ours.get_vocab()) == (len(theirs), theirs.get_vocab())
    assert ours.special_tokens_map.items() <= theirs.special_tokens_map.items()
    row = theirs.encode(TEXTS[0])
    assert ours.convert_ids_to_tokens(row) == theirs.convert_ids_to_tokens(row)
    assert ours.convert_ids_to_tokens(row[0]) == theirs.convert_ids_to_tokens(row[0])
    spelled = [*theirs.convert_ids_to_tokens(row), "no such token"]
    assert ours.convert_tokens_to_ids(spelled) == theirs.convert_tokens_to_ids(spelled)
    assert ours.convert_tokens_to_ids(spelled[0]) == theirs.convert_tokens_to_ids(spelled[0])


def test_ids_are_decoded_alike_one_or_many(pair):
    ours, theirs = pair
    row = theirs.encode(TEXTS[0])
    for skip in (True, False):
        text = theirs.decode(
            row, skip_special_tokens=skip, **({"group_tokens": False} if hasattr(ours.engine, "blank") else {})
        )
        for ids in (row, np.array(row), tuple(row)):
            assert ours.decode(ids, skip_special_tokens=skip) == text
    for one in (row[1], np.int64(row[1]), np.array(row[1])):
        assert ours.decode(one, skip_special_tokens=False) == theirs.decode([row[1]])
    assert ours.decode([]) == theirs.decode([])
    assert ours.batch_decode([]) == theirs.batch_decode([]) == []
    rows = [row, row[:3]]
    assert ours.batch_decode(rows, skip_special_tokens=False) == theirs.batch_decode(rows)


@pytest.mark.parametrize("name", CTC)
def test_speech_keeps_its_spaces(tmp_path, name):
    theirs = letters(tmp_path, name)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    between = config["word_delimiter_token"]
    draw = np.random.default_rng(0)
    rows = [np.repeat(draw.integers(0, len(CTC[name][0]), 40), draw.integers(1, 3, 40)) for _ in range(20)]
    rows += [theirs("HALL WO R".lower() if name == "space" else "HALL WO R")["input_ids"]]
    without = {
        key: value for key, value in config.items() if key not in ("word_delimiter_token", "added_tokens_decoder")
    }
    for places in (
        {"word_delimiter_token": between},
        {"word_delimiter_token": {"content": between, "lstrip": False, "normalized": False}},
        {"extra_special_tokens": {"word_delimiter_token": between}},
        {"model_specific_special_tokens": {"word_delimiter_token": between}},
    ):
        for listed in ({}, {"added_tokens_decoder": config["added_tokens_decoder"]}):
            (tmp_path / "tokenizer_config.json").write_text(json.dumps({**without, **places, **listed}))
            ours = load_hub_tokenizer(tmp_path)
            assert ours.batch_decode(rows, skip_special_tokens=False) == theirs.batch_decode(rows)
            for skip in (True, False):
                expected = theirs.batch_decode(rows, group_tokens=False, skip_special_tokens=skip)
                assert ours.decode(rows, skip_special_tokens=skip) == expected
    if name != "several characters":  # theirs makes the characters of the delimiter unknown ones
        for text in ("HALL WO R", "hall wo r", "a<s>b", " ch "):
            assert ours.encode(text) == theirs.encode(text)
    word = "one two" if name == "space" else "ONE TWO"
    spaced = config.get("replace_word_delimiter_char", " ")
    assert ours.decode(ours.encode(word)).upper() == word.upper().replace(" ", spaced)


def test_letters_of_older_folders_have_the_delimiter_too(tmp_path):
    """Before added tokens were listed: the marks in a file of their own, beside a vocabulary without them."""
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<pad>", "|", *string.ascii_uppercase])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<s>": len(vocabulary), "</s>": len(vocabulary) + 1}))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    (tmp_path / "config.json").write_text('{"model_type": "wav2vec2"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Wav2Vec2CTCTokenizer"}')
    ours, theirs = load_hub_tokenizer(tmp_path), transformers.Wav2Vec2CTCTokenizer.from_pretrained(tmp_path)
    assert ours.get_vocab() == theirs.get_vocab()
    ids = theirs("HALL WO R")["input_ids"]
    assert ours.encode("HALL WO R") == ids
    assert ours.decode(ids) == "HALL WO R"
