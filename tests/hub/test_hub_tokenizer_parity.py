"""Against transformers' own tokenizers, on small vocabularies trained here."""

import json
import warnings

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from flax_transformer.data.synthetic import numbers
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer, load_hub_tokenizer

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves(
        "tokenizers of checkpoints", "WordPiece, byte-level BPE, Unigram, SentencePiece, as `transformers`"
    ),
]

PAIRS = numbers(300)
CORPUS = [*PAIRS["source"], *PAIRS["target"], "Hello, world! Don't stop. naïve café 東京 ☃ 1234 <mask> tokens' end"]
ODD = [
    "",
    " ",
    "  two  leading spaces",
    "Hello, world! Don't.",
    "ÉCOLE naïve ＡＢＣ ﬁ",
    "東京タワー",
    "👩‍👩‍👧 ☃\ufe0f",
    "a\u0000b\tc\nd\r\ne",
    "[CLS] in [SEP] text [MASK]",
    "<s>one</s> <pad> <mask>two <unk>",
    "<|endoftext|>one <|endoftext|>",
    "\u200bzero\u00a0width",
    "one hundred and twenty-three",
    "e\u0301 \u0627\u0644 \U00010348",
    "<extra_id_0> and <extra_id_1>.",
    ">>fra<< three",
]
ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
    "unk_token": "<unk>",
}  # fmt: skip
BERT = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}


def _byte_level(special, size=400):
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=sorted(alphabet), show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    return inner


def _template(inner, single, pair, *names):
    known = [(name, inner.token_to_id(name)) for name in names]
    inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)


def _wordpiece(lower=True):
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=lower)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(BERT.values()), show_progress=False)
    inner.train_from_iterator(CORPUS, trainer)
    return inner


def make_bert(folder):
    inner = _wordpiece()
    _template(inner, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=64, **BERT).save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "BertTokenizer"}))


def make_gpt2(folder):
    inner = _byte_level(["<|endoftext|>"])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|endoftext|>", eos_token="<|endoftext|>", padding_side="left",
        pad_token="<|endoftext|>", model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip


def make_roberta(folder):
    inner = _byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    inner.add_special_tokens([mask])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, mask_token=mask, model_input_names=["input_ids", "attention_mask"], **ROBERTA
    ).save_pretrained(folder)


def make_t5(folder):
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.normalizer = normalizers.NFKC()
    spaces = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    inner.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    sentinels = [f"<extra_id_{i}>" for i in range(4)]
    trainer = trainers.UnigramTrainer(
        vocab_size=250, special_tokens=["<pad>", "</s>", "<unk>", *sentinels], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    _template(inner, "$A </s>", "$A </s> $B </s>", "</s>")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
        extra_special_tokens=sentinels, model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip


def make_generic(folder):
    make_bert(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))


def make_cleaning(folder):
    make_bert(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"clean_up_tokenization_spaces": True, "truncation_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def make_old_bert(folder):
    vocabulary = _wordpiece().get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.get)))
    (folder / "config.json").write_text('{"model_type": "bert"}')


def make_old_cased_bert(folder):
    vocabulary = _wordpiece(lower=False).get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.get)))
    (folder / "tokenizer_config.json").write_text(
        '{"do_lower_case": false, "tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": false}'
    )
    (folder / "added_tokens.json").write_text(json.dumps({"twenty-three": len(vocabulary), "[X]": len(vocabulary) + 1}))
    (folder / "special_tokens_map.json").write_text(json.dumps(BERT))


def _old_bpe(folder, special, model):
    content = json.loads(_byte_level(special).to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(content["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in content["merges"]))
    (folder / "config.json").write_text(json.dumps({"model_type": model}))


def make_old_gpt2(folder):
    _old_bpe(folder, ["<|endoftext|>"], "gpt2")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1024, "add_prefix_space": true}')
    (folder / "special_tokens_map.json").write_text('{"pad_token": "<|endoftext|>"}')


def make_old_roberta(folder):
    _old_bpe(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "roberta")


def make_old_bart(folder):
    _old_bpe(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "bart")
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": True}
    (folder / "special_tokens_map.json").write_text(json.dumps(ROBERTA | {"mask_token": mask}))


def make_ours(folder):
    HubTokenizer.of(train_byte_bpe(CORPUS, vocab_size=400)).save(folder)


def _train_sentencepiece(path, **options):
    spm = pytest.importorskip("sentencepiece")
    sentences = path.parent / "corpus"
    sentences.write_text("\n".join(CORPUS * 3))
    spm.SentencePieceTrainer.train(
        input=str(sentences), model_prefix=str(path), minloglevel=2, hard_vocab_limit=False, num_threads=1, **options
    )
    sentences.unlink()
    path.with_suffix(path.suffix + ".vocab").unlink()
    path.with_suffix(path.suffix + ".model").rename(path)


def make_spm_t5(folder):
    _train_sentencepiece(folder / "spiece.model", vocab_size=250, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "config.json").write_text('{"model_type": "t5"}')


def make_spm_llama(folder):
    _train_sentencepiece(
        folder / "tokenizer.model", vocab_size=500, model_type="bpe", byte_fallback=True, pad_id=-1,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "pad_token": "</s>"})
    )
    (folder / "config.json").write_text('{"model_type": "llama"}')


def make_marian(folder):
    spm = pytest.importorskip("sentencepiece")
    for name, size in (("source.spm", 200), ("target.spm", 220)):
        _train_sentencepiece(folder / name, vocab_size=size, bos_id=-1)
    pieces = [spm.SentencePieceProcessor(model_file=str(folder / name)) for name in ("source.spm", "target.spm")]
    names = {piece for model in pieces for piece in (model.id_to_piece(i) for i in range(len(model)))}
    names = ["</s>", "<unk>", *sorted(names - {"</s>", "<unk>", "▁one"}), ">>fra<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer", "model_max_length": 512}')
    (folder / "config.json").write_text('{"model_type": "marian"}')


RUST = [
    make_bert,
    make_generic,
    make_gpt2,
    make_roberta,
    make_t5,
    make_cleaning,
    make_old_bert,
    make_old_cased_bert,
    make_old_gpt2,
    make_old_roberta,
    make_old_bart,
    make_ours,
    make_spm_t5,
    make_spm_llama,
]


@pytest.fixture(scope="module", params=[*RUST, make_marian], ids=lambda make: make.__name__.removeprefix("make_"))
def pair(request, tmp_path_factory):
    """Return our reading of a folder and theirs."""
    folder = tmp_path_factory.mktemp("checkpoint")
    request.param(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Marian's recommends a package
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert files == {path.name: path.read_bytes() for path in folder.iterdir()}
    return load_hub_tokenizer(folder), theirs


def _same(ours, theirs):
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        assert value.dtype == np.int32
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def _names(ours):
    return {"return_token_type_ids": ours.types, "return_tensors": "np"}


def test_special_tokens_and_limits_are_theirs(pair):
    ours, theirs = pair
    for role in ("pad", "bos", "eos", "unk", "cls", "sep", "mask"):
        assert getattr(ours, role) == getattr(theirs, f"{role}_token_id"), role
    assert ours.vocab_size == len(theirs)
    assert ours.padding_side == theirs.padding_side
    assert ours.truncation_side == theirs.truncation_side
    assert (ours.model_max_length or 10**30) == min(theirs.model_max_length, 10**30)
    if type(theirs).__name__ != "TokenizersBackend":  # which says nothing of the model
        assert ours.types == ("token_type_ids" in theirs.model_input_names)


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_inputs_are_theirs(pair, side):
    ours, theirs = pair
    _same(ours(ODD, side=side), theirs(ODD, padding=True, padding_side=side, **_names(ours)))
    widest = theirs(ODD, padding="max_length", max_length=300, padding_side=side, **_names(ours))
    _same(ours(ODD, padding=300, side=side), widest)


@pytest.mark.parametrize("length", [5, 9, 32])
def test_truncation_is_theirs(pair, length):
    ours, theirs = pair
    expected = theirs(ODD, padding=True, truncation=True, max_length=length, **_names(ours))
    _same(ours(ODD, max_length=length, truncate=True), expected)


def test_pairs_are_theirs(pair):
    ours, theirs = pair
    if not theirs.is_fast:
        with pytest.raises(ValueError, match="reads single texts"):
            ours(["one"], ["two"])
        return
    texts, others = [*ODD, *ODD[:6]], [*ODD[::-1], *["one hundred and one"] * 6]
    _same(ours(texts, others), theirs(texts, others, padding=True, **_names(ours)))
    cut = theirs(texts, others, padding=True, truncation=True, max_length=11, **_names(ours))
    _same(ours(texts, others, max_length=11, truncate=True), cut)


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_is_theirs(pair, skip):
    ours, theirs = pair
    generator = np.random.default_rng(0)
    rows = [theirs(text)["input_ids"] for text in [*ODD, *CORPUS[-60:]] if text]
    rows += [generator.integers(0, ours.vocab_size, size).tolist() for size in range(40)]
    assert ours.decode(rows, skip_special_tokens=skip) == [theirs.decode(row, skip_special_tokens=skip) for row in rows]
    assert ours.tokens(rows[3]) == theirs.convert_ids_to_tokens(rows[3])
    assert ours.encode(ODD) == theirs(ODD, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("length", "stride"), [(40, 0), (48, 7), (400, 3)])
def test_windows_are_theirs(pair, length, stride):
    ours, theirs = pair
    if not theirs.is_fast:
        with pytest.raises(ValueError, match="reads single texts"):
            ours.encode_windows("one", "two", length, stride)
        return
    question, context = "How many — twenty?", " ".join([*ODD[3:8], "  ", *CORPUS[:9]])
    theirs.truncation_side = "right"  # ours are in reading order, whichever end is cut elsewhere
    windows = ours.encode_windows(question, context, length, stride)
    expected = theirs(
        question, context, truncation="only_second", max_length=length, stride=stride, padding=True,
        return_overflowing_tokens=True, return_offsets_mapping=True, **_names(ours),
    )  # fmt: skip
    offsets = expected.pop("offset_mapping")
    expected.pop("overflow_to_sample_mapping")
    _same(windows.inputs, expected)
    inside = np.array([[s == 1 for s in expected.sequence_ids(i)] for i in range(len(offsets))])
    np.testing.assert_array_equal(windows.inside, inside)
    np.testing.assert_array_equal(windows.offsets, np.where(inside[..., None], offsets, 0))


def test_saving_keeps_every_byte(pair, tmp_path):
    ours, _ = pair
    ours.save(tmp_path)
    if (ours.folder / "config.json").exists():  # the model's, not the tokenizer's
        (tmp_path / "config.json").write_bytes((ours.folder / "config.json").read_bytes())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in ours.folder.iterdir()
    }
    assert load_hub_tokenizer(tmp_path).encode(ODD) == ours.encode(ODD)


def test_the_target_language_has_its_own_pieces(tmp_path):
    make_marian(tmp_path)
    ours = load_hub_tokenizer(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs(text_target=CORPUS, padding=True, **_names(ours))
    _same(ours.target(CORPUS), expected)
    assert ours.target.encode(CORPUS) != ours.encode(CORPUS)


@pytest.mark.parametrize("make", [make_spm_t5, make_spm_llama, make_marian])
def test_damaged_sentencepiece_models_are_value_errors_that_name_them(tmp_path, make):
    make(tmp_path)
    generator = np.random.default_rng(0)
    for path in [path for path in tmp_path.iterdir() if path.suffix in (".model", ".spm")]:
        whole = path.read_bytes()
        path.write_bytes(b"no model")
        with pytest.raises(ValueError, match=path.name):
            load_hub_tokenizer(tmp_path)
        for _ in range(20):
            damaged = np.frombuffer(whole[: generator.integers(1, len(whole))], np.uint8).copy()
            damaged[generator.integers(0, len(damaged), 5)] = generator.integers(0, 256, 5)
            path.write_bytes(damaged.tobytes())
            message = ""
            try:
                load_hub_tokenizer(tmp_path)(["one two"])
            except ValueError as error:
                message = str(error)
            assert not message or str(tmp_path) in message
        path.write_bytes(whole)
