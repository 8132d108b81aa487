import copy
import dataclasses
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flax_transformer.data.synthetic import numbers
from flax_transformer.data.text import train_byte_bpe, train_word_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer, load_hub_tokenizer

PAIRS = numbers(200)
TEXTS = [*PAIRS["source"], *PAIRS["target"]]
OURS = train_byte_bpe(TEXTS, vocab_size=400)
BYTES = HubTokenizer.of(OURS)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "##ty", "three", ",", "how", "many", "t", "##h"]
BERT_CONFIG = {"tokenizer_class": "BertTokenizer", "model_max_length": 16, "do_lower_case": True}
ROBERTA = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 6, "Ġ": 7, "ab": 8}


def _write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        content = content if isinstance(content, str | bytes) else json.dumps(content)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


BERT_FILES = {"vocab.txt": "\n".join(WORDS) + "\n", "tokenizer_config.json": BERT_CONFIG}
ROBERTA_FILES = {"vocab.json": ROBERTA, "merges.txt": "#version: 0.2\na b\n", "config.json": {"model_type": "roberta"}}


@pytest.fixture
def bert(tmp_path):
    return load_hub_tokenizer(_write(tmp_path / "bert", BERT_FILES))


def test_inputs_by_hand(bert):
    inputs = bert(["One twoty", "three"], ["how, many", "[MASK]"])
    np.testing.assert_array_equal(inputs["input_ids"], [[2, 5, 6, 7, 3, 10, 9, 11, 3], [2, 8, 3, 4, 3, 0, 0, 0, 0]])
    np.testing.assert_array_equal(inputs["token_type_ids"], [[0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(inputs["attention_mask"].sum(1), [9, 5])
    assert bert.decode(inputs["input_ids"]) == ["one twoty how, many", "three"]
    assert (bert.pad, bert.unk, bert.cls, bert.sep, bert.mask, bert.bos, bert.eos) == (0, 1, 2, 3, 4, None, None)
    assert (bert.vocab_size, bert.model_max_length, bert.padding_side) == (14, 16, "right")


def test_padding_to_a_side_and_a_length(bert):
    for side, place in (("left", slice(3, 6)), ("right", slice(0, 3))):
        inputs = bert(["one"], padding=6, side=side)
        np.testing.assert_array_equal(inputs["input_ids"][0, place], [2, 5, 3])
        assert inputs["attention_mask"].sum() == 3 == inputs["attention_mask"][0, place].sum()
    assert bert(["one", "two"], padding=None)["input_ids"].shape == (2, 3)
    assert bert([])["input_ids"].shape == (0, 0)
    with pytest.raises(ValueError, match=r"one number of tokens, got \[3, 4\]"):
        bert(["one", "two two"], padding=None)
    with pytest.raises(ValueError, match=r"at most 3 tokens, got \[4\]"):
        bert(["two two"], padding=3)


def test_long_inputs_are_refused_unless_cut(bert):
    with pytest.raises(ValueError, match="at most 4 tokens, got 6 in text 1"):
        bert(["one", "one one one one"], max_length=4)
    np.testing.assert_array_equal(bert(["one two three"], max_length=4, truncate=True)["input_ids"], [[2, 5, 6, 3]])
    assert bert(["one " * 50], truncate=True)["input_ids"].shape == (1, 16)  # model_max_length
    assert bert(["one " * 50])["input_ids"].shape == (1, 52)  # and a cut leaves nothing behind
    with pytest.raises(ValueError, match="exceed the 2 special tokens, got 2"):
        bert(["one"], max_length=2, truncate=True)
    with pytest.raises(ValueError, match="truncate needs max_length"):
        BYTES(["one"], truncate=True)


def test_a_tokenizer_without_pad_pads_with_what_it_is_given(tmp_path):
    vocabulary = {"a": 0, "b": 1, "<|endoftext|>": 2}
    gpt2 = load_hub_tokenizer(_write(tmp_path, {"vocab.json": vocabulary, "merges.txt": "#version: 0.2\n"}))
    assert (gpt2.pad, gpt2.bos, gpt2.eos, gpt2.unk) == (None, 2, 2, 2)
    np.testing.assert_array_equal(gpt2(["ab", "ba"])["input_ids"], [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="padding needs a pad token"):
        gpt2(["ab", "a"])
    padded = dataclasses.replace(gpt2, pad=gpt2.eos)
    np.testing.assert_array_equal(padded(["ab", "a"], side="left")["input_ids"], [[0, 1], [2, 0]])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4))
def test_bytes_are_lossless_in_a_checkpoints_form(texts):
    inputs = BYTES(texts)
    assert BYTES.decode(inputs["input_ids"]) == texts
    assert BYTES.encode(texts) == OURS.encode(texts)
    assert [row.count(1) for row in inputs["attention_mask"].tolist()] == [len(row) for row in OURS.encode(texts)]


def test_a_trained_tokenizer_survives_its_folder(tmp_path):
    for trained in (OURS, train_word_bpe(TEXTS, merges=100)):
        ours = HubTokenizer.of(trained)
        ours.save(tmp_path / "out")
        loaded = load_hub_tokenizer(tmp_path / "out")
        assert (loaded.pad, loaded.bos, loaded.eos, loaded.unk) == (0, 1, 2, 3)
        assert loaded.encode([*TEXTS, "</s> <pad>"]) == trained.encode([*TEXTS, "</s> <pad>"])
        assert set(loaded(["one"])) == {"input_ids", "attention_mask"}
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


def test_saving_keeps_files_byte_for_byte_with_the_chat_template(tmp_path):
    template = b"{{ raise_exception('never run') }}\r\n"
    config = json.dumps(BERT_CONFIG | {"chat_template": "{{ 1 / 0 }}", "x_unknown": [1]}, indent=7)
    files = BERT_FILES | {"tokenizer_config.json": config, "chat_template.jinja": template, "README.md": "no"}
    folder = _write(tmp_path / "in", files)
    load_hub_tokenizer(folder).save(tmp_path / "deep" / "out")
    saved = {path.name: path.read_bytes() for path in (tmp_path / "deep" / "out").iterdir()}
    assert saved == {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "README.md"}


def test_windows_cover_the_passage_and_point_into_it(bert):
    context = " ".join(["one", "two,", "three", "how", "many"] * 4)
    windows = bert.encode_windows("how many", context, 16, 3)
    ids, inside, offsets = windows.inputs["input_ids"], windows.inside, windows.offsets
    assert len(ids) > 2
    covered = np.zeros(len(context), bool)
    for row in range(len(ids)):
        np.testing.assert_array_equal(ids[row, :4], [2, 10, 11, 3])
        spans = offsets[row][inside[row]]
        assert [context[a:b] for a, b in spans] == bert.tokens(ids[row][inside[row]])
        assert (offsets[row][~inside[row]] == 0).all()
        for a, b in spans:
            covered[a:b] = True
    assert "".join(letter for letter, there in zip(context, covered, strict=True) if there) == context.replace(" ", "")
    shared = np.count_nonzero((offsets[1][inside[1]][:, None] == offsets[0][inside[0]][None]).all(-1))
    assert shared == 3
    with pytest.raises(ValueError, match="more than stride=12 tokens beside the 5 of the question, got 16"):
        bert.encode_windows("how many", context, 16, 12)


def test_bad_calls_say_what_is_wrong(bert):
    with pytest.raises(ValueError, match=r"beside one text stands one text, .* got one string 'one'"):
        bert("one", ["two"])
    for texts in (None, 7, b"one", {"one": 1}):
        with pytest.raises(ValueError, match="texts must be one string or a sequence of them, got"):
            bert(texts)
    with pytest.raises(ValueError, match="2 texts, 1 pairs"):
        bert(["one", "two"], ["one"])
    with pytest.raises(ValueError, match="lone surrogates"):
        bert(["a\ud800"])
    with pytest.raises(ValueError, match="must not be negative, got -100"):
        bert.decode([[2, -100]])
    with pytest.raises(ValueError, match="got 'longest', 'middle'"):
        bert(["one"], side="middle")
    with pytest.raises(ValueError, match="got 'widest', None"):
        bert(["one"], padding="widest")
    assert bert.decode(jnp.array([[5, 6], [5, 0]])) == ["one two", "one"]
    assert bert.decode([[5, 10**9], []]) == ["one", ""]
    assert bert.tokens([5, 99]) == ["one", None]


def test_folders_without_tokenizer_files(tmp_path):
    assert load_hub_tokenizer(_write(tmp_path / "bare", {"config.json": {}, "merges.txt": ""})) is None
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_hub_tokenizer(tmp_path / "nowhere")


def test_tokenizers_are_hashable_and_copyable(bert):
    assert hash(bert) == hash(bert)
    assert bert != dataclasses.replace(bert)
    assert copy.deepcopy(bert)(["one"])["input_ids"].tolist() == [[2, 5, 3]]


def test_sentencepiece_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for files in ({"spiece.model": b"x"}, {"source.spm": b"x", "target.spm": b"x", "vocab.json": {}}):
        with pytest.raises(ValueError, match=r"pip install 'flax-transformer\[sentencepiece\]'"):
            load_hub_tokenizer(_write(tmp_path / next(iter(files)), files))


def _json(change):
    content = json.loads(OURS.json())
    change(content)
    return json.dumps(content)


def _tokenizer(content):
    return {"tokenizer.json": content}


def _bert(**config):
    return BERT_FILES | {"tokenizer_config.json": BERT_CONFIG | config}


def _roberta(**files):
    return ROBERTA_FILES | {name.replace("__", "."): content for name, content in files.items()}


CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
REGEX = {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
TEMPLATE = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [],
    "special_tokens": {},
}  # fmt: skip
BAD_TOKENIZER = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "not utf-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "truncated": OURS.json()[:-300],
    "no model": _json(lambda c: c.pop("model")),
    "model type": _json(lambda c: c["model"].update(type="Magic")),
    "no merges": _json(lambda c: c["model"].pop("merges")),
    "merge of nothing": _json(lambda c: c["model"]["merges"].append(["no such", "piece"])),
    "vocabulary list": _json(lambda c: c["model"].update(vocab=["a"])),
    "negative id": _json(lambda c: c["model"]["vocab"].update(a=-1)),
    "huge id": _json(lambda c: c["model"]["vocab"].update(a=2**40)),
    "text id": _json(lambda c: c["model"]["vocab"].update(a="7")),
    "added text": _json(lambda c: c.update(added_tokens="x")),
    "added without id": _json(lambda c: c["added_tokens"][0].pop("id")),
    "unigram": _json(lambda c: c["model"].update(type="Unigram", vocab=[], unk_id=5)),
    "charsmap": _json(lambda c: c.update(normalizer=CHARSMAP, added_tokens=[])),
    "template": _json(lambda c: c.update(post_processor=TEMPLATE)),
    "normalizer": _json(lambda c: c.update(normalizer=7)),
    "regex": _json(lambda c: c.update(pre_tokenizer=REGEX)),
}  # fmt: skip
BAD_FOLDER = {
    **{name: _tokenizer(content) for name, content in BAD_TOKENIZER.items()},
    "config text": BERT_FILES | {"tokenizer_config.json": "{"},
    "config list": BERT_FILES | {"tokenizer_config.json": []},
    "config utf-16": BERT_FILES | {"tokenizer_config.json": '{"a": 1}'.encode("utf-16")},
    "pad number": _bert(pad_token=7),
    "pad without content": _bert(pad_token={"lstrip": True}),
    "pad flag": _bert(pad_token={"content": "[PAD]", "lstrip": "yes"}),
    "pad unknown": _bert(pad_token="[NOPAD]"),
    "no unk": _bert(unk_token=None),
    "extra unknown": _bert(additional_special_tokens=["<x>"]),
    "extra number": _bert(additional_special_tokens=3),
    "added list": _bert(added_tokens_decoder=[1]),
    "added id": _bert(added_tokens_decoder={"x": {"content": "one"}}),
    "added field": _bert(added_tokens_decoder={"5": {"content": 1}}),
    "added gap": _bert(added_tokens_decoder={"99": {"content": "new"}}),
    "side": _bert(padding_side="up"),
    "length text": _bert(model_max_length="long"),
    "length negative": _bert(model_max_length=-1),
    "length nan": BERT_FILES | {"tokenizer_config.json": '{"model_max_length": NaN}'},
    "case": _bert(do_lower_case="no"),
    "names": _bert(pad_token=["[PAD]"]),
    "vocab utf-8": BERT_FILES | {"vocab.txt": b"\xff\xff\n"},
    "vocab empty": BERT_FILES | {"vocab.txt": b""},
    "vocab without unk": BERT_FILES | {"vocab.txt": "[CLS]\n[SEP]\na\n"},
    "map number": BERT_FILES | {"special_tokens_map.json": {"mask_token": 1}},
    "added huge": BERT_FILES | {"added_tokens.json": {"new": 2**60}},
    "added bool": BERT_FILES | {"added_tokens.json": {"new": True}},
    "model config": BERT_FILES | {"config.json": "]"},
    "json vocab list": _roberta(vocab__json=["a"]),
    "json vocab id": _roberta(vocab__json=ROBERTA | {"c": -3}),
    "json vocab text id": _roberta(vocab__json=ROBERTA | {"c": "3"}),
    "json vocab without cls": _roberta(vocab__json={"a": 0, "b": 1, "ab": 2}),
    "merges three": _roberta(merges__txt="a b c\n"),
    "merges unknown": _roberta(merges__txt="x y\n"),
    "merges utf-8": _roberta(merges__txt=b"\xff \xfe\n"),
    "merges missing": {name: ROBERTA_FILES[name] for name in ("vocab.json", "config.json")},
    "fairseq pieces": {"sentencepiece.bpe.model": b"x", "config.json": {"model_type": "xlm-roberta"}},
    "json vocab of a stranger": _roberta(config__json={"model_type": "qwen2", "tokenizer_class": "OtherTokenizer"}),
}  # fmt: skip


@pytest.mark.parametrize("files", BAD_FOLDER.values(), ids=BAD_FOLDER)
def test_malformed_folders_are_value_errors_that_name_them(tmp_path, files):
    folder = _write(tmp_path / "broken", files)
    with pytest.raises(ValueError, match=r"broken"):
        load_hub_tokenizer(folder)


@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "PhobertTokenizer", "BertweetTokenizer", "ByT5Tokenizer"])
@pytest.mark.parametrize("files", [BERT_FILES, {"tokenizer.json": OURS.json()}], ids=["vocabulary", "tokenizer.json"])
def test_classes_that_split_text_by_a_program_are_refused(tmp_path, name, files):
    with pytest.raises(ValueError, match=f"a {name} splits text by a program of its own"):
        load_hub_tokenizer(_write(tmp_path, files | {"tokenizer_config.json": {"tokenizer_class": name}}))


def test_a_vocabulary_of_an_unknown_class_is_refused_and_its_tokenizer_json_read(tmp_path):
    declared = {"tokenizer_config.json": {"tokenizer_class": "OtherTokenizer"}}
    with pytest.raises(ValueError, match=r"vocab\.txt is read for bert, distilbert and electra, got OtherTokenizer"):
        load_hub_tokenizer(_write(tmp_path / "words", BERT_FILES | declared))
    other = load_hub_tokenizer(_write(tmp_path / "json", {"tokenizer.json": OURS.json()} | declared))
    assert other.encode(["one two"]) == OURS.encode(["one two"])


def test_a_vocabulary_of_another_kind_than_its_class_is_refused(tmp_path):
    config = {"tokenizer_class": "BertTokenizer"}
    with pytest.raises(ValueError, match=r"a vocabulary of bert must be WordPiece, tokenizer\.json has BPE"):
        load_hub_tokenizer(_write(tmp_path, {"tokenizer.json": OURS.json(), "tokenizer_config.json": config}))


def test_an_unknown_special_token_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"special tokens must be in the vocabulary, got '\[NOPAD\]'"):
        load_hub_tokenizer(_write(tmp_path, _bert(pad_token="[NOPAD]")))


def test_fixed_padding_in_a_file_costs_no_memory(tmp_path):
    padding = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "<pad>"}  # fmt: skip
    cut = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    files = {"tokenizer.json": _json(lambda c: c.update(padding=padding, truncation=cut))}
    assert load_hub_tokenizer(_write(tmp_path, files)).encode(["one two"]) == OURS.encode(["one two"])


def _places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _small(model):
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = tokenizers.normalizers.BertNormalizer()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.BertPreTokenizer(), tokenizers.pre_tokenizers.Metaspace()]
    )
    inner.decoder = tokenizers.decoders.WordPiece()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[C] $A", pair="[C] $A $B:1", special_tokens=[("[C]", 1)]
    )
    inner.add_special_tokens(["[C]"])
    return json.loads(inner.to_str())


FUZZED = [
    _small(tokenizers.models.WordPiece({"[UNK]": 0, "[C]": 1, "a": 2, "##b": 3}, unk_token="[UNK]")),
    _small(tokenizers.models.BPE({"a": 0, "[C]": 1, "b": 2, "ab": 3}, [("a", "b")])),
    _small(tokenizers.models.Unigram([("<unk>", 0.0), ("[C]", 0.0), ("a", -1.0)], unk_id=0)),
]
FOREIGN = [None, True, -1, 0, 3, 2**31, 2**63, 1e308, "", "a", "[C]", [], [[]], {}, {"type": "BPE"}, ["a", "b"]]


@pytest.mark.rotates
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_a_value_error_or_harmless(tmp_path, data):
    content = copy.deepcopy(data.draw(st.sampled_from(FUZZED)))
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from(list(_places(content))[1:]))
        place = content
        for key in way:
            place = place[key]
        if data.draw(st.booleans()):
            place[last] = copy.deepcopy(data.draw(st.sampled_from(FOREIGN)))
        else:
            del place[last]
    folder = _write(tmp_path, {"tokenizer.json": content})
    message = ""
    try:
        ours = dataclasses.replace(load_hub_tokenizer(folder), pad=0)
        inputs = ours(["a b, ab", "", "[C] ☃"], ["b", "a" * 300, ""])
        ours.decode(inputs["input_ids"])
        ours.encode_windows("a", "b " * 30, 30, 2)
    except ValueError as error:
        message = str(error)
    assert not message or str(folder) in message or "max_length" in message
