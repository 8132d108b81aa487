"""Tokenizers of mBART, mBART-50, NLLB, M2M-100, PEGASUS and MPNet against transformers, and the languages they mark."""

import json
import warnings

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from flax_transformer.hub.processor.language import between, languages
from flax_transformer.hub.processor.language_code import M2M100
from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
from tests.hub.test_hub_tokenizer_parity import CORPUS, ODD, _same, _train_sentencepiece

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("tokenizers of checkpoints", "marks of languages, PEGASUS's and MPNet's, as `transformers`"),
]

FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
EVERY = [*ODD, "de_DE x __de__ y", "one\n\n two   three", "</s> a <pad>b", " <mask> c"]


def write(folder, declared, **options):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": declared, **options}))


def charsmap(folder):
    from sentencepiece import sentencepiece_model_pb2

    content = (folder / "m").read_bytes()
    (folder / "m").unlink()
    return sentencepiece_model_pb2.ModelProto.FromString(content)


def make_mbart(folder, declared="MBartTokenizer"):
    """As published: a tokenizer.json with the map of characters and the marks of one language."""
    codes = getattr(transformers, declared)().lang_code_to_id
    _train_sentencepiece(folder / "m", vocab_size=250)
    proto = charsmap(folder)
    pieces = [(token, 0.0) for token in FAIRSEQ] + [(p.piece, p.score) for p in proto.pieces[3:]]
    pieces += [(token, 0.0) for token in (*codes, "<mask>")]
    engine = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    engine.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.add_special_tokens([*FAIRSEQ, *codes, tokenizers.AddedToken("<mask>", lstrip=True)])
    engine.save(str(folder / "tokenizer.json"))
    write(folder, declared)


def make_mbart50(folder):
    make_mbart(folder, "MBart50Tokenizer")


def make_mbart50_pieces(folder):
    _train_sentencepiece(folder / "sentencepiece.bpe.model", vocab_size=250)
    write(folder, "MBart50Tokenizer", src_lang="ro_RO", tgt_lang="de_DE")


def make_nllb(folder, **options):
    _train_sentencepiece(folder / "m", vocab_size=300, model_type="bpe")
    proto = charsmap(folder)
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    inner.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=FAIRSEQ, show_progress=False)
    inner.train_from_iterator(CORPUS, trainer)
    codes = ["deu_Latn", "eng_Latn", "zho_Hans"]
    inner.add_special_tokens([*codes, tokenizers.AddedToken("<mask>", lstrip=True)])
    inner.save(str(folder / "tokenizer.json"))
    write(folder, "NllbTokenizer", additional_special_tokens=codes, **options)


def make_nllb_of_old(folder):
    make_nllb(folder, legacy_behaviour=True, src_lang="deu_Latn")


def make_m2m100(folder):
    _train_sentencepiece(folder / "sentencepiece.bpe.model", vocab_size=250)
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    pieces = [model.id_to_piece(i) for i in range(3, len(model)) if model.id_to_piece(i) != "▁one"]
    vocabulary = {token: i for i, token in enumerate([*FAIRSEQ, *pieces])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    write(folder, "M2M100Tokenizer", additional_special_tokens=[f"__{code}__" for code in M2M100])


def make_pegasus(folder):
    _train_sentencepiece(folder / "spiece.model", vocab_size=250, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(folder, "PegasusTokenizer", mask_token="<mask_2>", mask_token_sent="<mask_1>", offset=9)


def make_mpnet(folder):
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
    inner.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=260, special_tokens=special))
    inner.save(str(folder / "tokenizer.json"))
    write(folder, "MPNetTokenizer", do_lower_case=True)


MADE = [
    make_mbart, make_mbart50, make_mbart50_pieces, make_nllb, make_nllb_of_old, make_m2m100, make_pegasus, make_mpnet,
]  # fmt: skip


def read(folder, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoTokenizer.from_pretrained(folder, **options)


@pytest.fixture(scope="module", params=MADE, ids=lambda make: make.__name__.removeprefix("make_"))
def pair(request, tmp_path_factory):
    """Return our reading of a folder and theirs."""
    folder = tmp_path_factory.mktemp("checkpoint")
    request.param(folder)
    return load_hub_tokenizer(folder), read(folder)


def test_special_tokens_are_theirs(pair):
    ours, theirs = pair
    swapped = type(theirs).__name__ == "PegasusTokenizer"  # masks, by transformers 5, not by what was published
    for role in ("pad", "eos", "unk", "cls", "sep", *["mask"] * (not swapped)):
        assert getattr(ours, role) == getattr(theirs, f"{role}_token_id"), role
    assert ours.vocab_size == len(theirs)
    assert not ours.types


@pytest.mark.parametrize("length", [None, 6, 300])
def test_inputs_are_theirs(pair, length):
    ours, theirs = pair
    cut = {} if length is None else {"truncation": True, "max_length": length}
    expected = theirs(EVERY, padding=True, return_tensors="np", return_token_type_ids=False, **cut)
    _same(ours(EVERY, max_length=length, truncate=length is not None), expected)


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_is_theirs(pair, skip):
    ours, theirs = pair
    generator = np.random.default_rng(0)
    rows = [theirs(text)["input_ids"] for text in [*EVERY, *CORPUS[-40:]] if text]
    rows += [generator.integers(4, ours.vocab_size, size).tolist() for size in range(40)]
    assert ours.decode(rows, skip_special_tokens=skip) == [theirs.decode(row, skip_special_tokens=skip) for row in rows]


def make_marian_apart(folder):
    """As published of two vocabularies: ids of either language are of its own file."""
    import sentencepiece

    for side, size, name in (("source", 200, "vocab"), ("target", 220, "target_vocab")):
        _train_sentencepiece(folder / f"{side}.spm", vocab_size=size, bos_id=-1)
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces = sorted({model.id_to_piece(i) for i in range(len(model))} - {"</s>", "<unk>", "▁one"})
        names = ["</s>", "<unk>", *(pieces if side == "source" else pieces[::-1]), "<pad>"]
        (folder / f"{name}.json").write_text(json.dumps({token: i for i, token in enumerate(names)}))
    write(folder, "MarianTokenizer", separate_vocabs=True)
    (folder / "config.json").write_text('{"model_type": "marian"}')


def test_a_marian_of_two_vocabularies_reads_and_writes_with_either(tmp_path):
    make_marian_apart(tmp_path)
    ours, theirs = load_hub_tokenizer(tmp_path), read(tmp_path)
    _same(ours(CORPUS), theirs(CORPUS, padding=True, return_tensors="np"))
    targets = theirs(text_target=CORPUS, padding=True, return_tensors="np")
    _same(ours.target(CORPUS), targets)
    rows = [row[:count].tolist() for row, count in zip(*_rows(ours.target(CORPUS)), strict=True)]
    assert ours.target.decode(rows) == [theirs.decode(row, skip_special_tokens=True) for row in rows]
    assert ours.target(["two"])["input_ids"].tolist() != ours(["two"])["input_ids"].tolist()


SOME = {
    make_mbart: ("ro_RO", "de_DE"), make_mbart50_pieces: ("sl_SI", "xh_ZA"), make_nllb: ("zho_Hans", "deu_Latn"),
    make_nllb_of_old: ("zho_Hans", "deu_Latn"), make_m2m100: ("fr", "zu"),
}  # fmt: skip


@pytest.mark.parametrize("make", SOME, ids=lambda make: make.__name__.removeprefix("make_"))
def test_languages_mark_texts_as_theirs(tmp_path, make):
    make(tmp_path)
    source, target = SOME[make]
    ours = between(load_hub_tokenizer(tmp_path), source, target, {})
    theirs = read(tmp_path, src_lang=source, tgt_lang=target)
    _same(ours(EVERY), theirs(EVERY, padding=True, return_tensors="np"))
    token = languages(ours)[target]
    assert ours.convert_tokens_to_ids(token) == theirs.convert_tokens_to_ids(token) != ours.unk
    bare = theirs(EVERY, add_special_tokens=False)["input_ids"]
    ids = [row[:count].tolist() for row, count in zip(*_rows(ours.target(EVERY)), strict=True)]
    assert ids == [[ours.convert_tokens_to_ids(token), *row, ours.eos] for row in bare]
    with pytest.raises(ValueError, match=r"the target language must be one of .*, got 'xx'"):
        between(ours, source, "xx", {})


def _rows(inputs):
    return inputs["input_ids"], inputs["attention_mask"].sum(1)
