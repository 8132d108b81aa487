"""What tokenizer_config.json says beside tokenizer.json, against transformers' own classes."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
from tests.hub.test_hub_tokenizer_parity import BERT, CORPUS, ODD, ROBERTA, _byte_level, _template, _wordpiece

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

END = "<|endoftext|>"
GPT2 = {"bos_token": END, "eos_token": END, "unk_token": END}
LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEXTS = [*ODD, " leading", "UPPER lower ÀÉ 東京", "Hello <mask> [SEP] </s> x", "you 're here , friend ."]


def bert(lower):
    inner = _wordpiece(lower)
    _template(inner, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")
    return inner, BERT


def gpt2():
    return _byte_level([END]), GPT2


def roberta():
    return _byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), ROBERTA | {"mask_token": "<mask>"}


def llama():
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    # Few merges within a text without spaces: every text is one word here.
    inner.train_from_iterator(
        [word for line in CORPUS for word in line.split()],
        trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False),
    )
    _template(inner, "<s> $A", "<s> $A <s>:1 $B:1", "<s>")
    return inner, LLAMA


def pieces(special=("<s>", "<pad>", "</s>", "<unk>")):
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=250, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    return inner, ROBERTA | {"mask_token": "<mask>"}


def t5():
    inner, _ = pieces(("<pad>", "</s>", "<unk>", "<extra_id_0>"))
    return inner, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


CASES = {
    "case kept": (lambda: bert(True), "BertTokenizer", "bert", {"do_lower_case": False}),
    "case lost": (lambda: bert(False), "BertTokenizerFast", "bert", {"do_lower_case": True}),
    "case by default": (lambda: bert(False), None, "bert", {}),
    "accents kept": (lambda: bert(True), "BertTokenizer", "bert", {"strip_accents": False}),
    "accents lost": (lambda: bert(False), "ElectraTokenizer", "bert", {"do_lower_case": False, "strip_accents": True}),
    "Chinese whole": (lambda: bert(True), "DistilBertTokenizer", "distilbert", {"tokenize_chinese_chars": False}),
    "any class": (lambda: bert(True), "PreTrainedTokenizerFast", "bert", {"do_lower_case": False}),
    "gpt2 prefix": (gpt2, "GPT2Tokenizer", "gpt2", {"add_prefix_space": True}),
    "gpt2 prefix by another class": (gpt2, "PreTrainedTokenizerFast", "gpt2", {"add_prefix_space": True}),
    "roberta prefix": (roberta, "RobertaTokenizer", "roberta", {"add_prefix_space": True, "trim_offsets": False}),
    "bart prefix": (roberta, "BartTokenizerFast", "bart", {"add_prefix_space": True}),
    "llama": (llama, "LlamaTokenizerFast", "llama", {"legacy": True}),
    "llama without prefix": (llama, "LlamaTokenizer", "llama", {"add_prefix_space": False}),
    "llama of mistral": (llama, "LlamaTokenizer", "mistral", {"add_prefix_space": False}),
    "llama in bytes": (gpt2, "LlamaTokenizer", "llama", GPT2),
    "t5": (t5, "T5Tokenizer", "t5", {"extra_ids": 1, "additional_special_tokens": ["<extra_id_0>"]}),
    "xlm-roberta": (pieces, None, "xlm-roberta", {}),
    "xlm-roberta without prefix": (pieces, "XLMRobertaTokenizer", "xlm-roberta", {"add_prefix_space": False}),
    "camembert": (pieces, "CamembertTokenizer", "camembert", {"additional_special_tokens": []}),
    "qwen2 of another class": (gpt2, "GPT2Tokenizer", "qwen2", {"add_prefix_space": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_options_beside_a_tokenizer_are_theirs(tmp_path, case):
    make, declared, model_type, options = CASES[case]
    inner, special = make()
    inner.save(str(tmp_path / "tokenizer.json"))
    config = {**special, **options} | ({} if declared is None else {"tokenizer_class": declared})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    _same(tmp_path, TEXTS)


def test_a_change_of_options_changes_ids(tmp_path):
    inner, special = bert(True)
    inner.save(str(tmp_path / "tokenizer.json"))
    ids = []
    for lower in (True, False):
        config = {**special, "tokenizer_class": "BertTokenizer", "do_lower_case": lower}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        ids.append(load_hub_tokenizer(tmp_path).encode(["UPPER"])[0])
    assert ids[0] != ids[1]


def test_qwen_is_read_from_its_own_vocabulary(tmp_path):
    content = json.loads(_byte_level([]).to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in content["merges"]))
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    names = {
        str(len(content["vocab"]) + i): {"content": name, **flags} for i, name in enumerate((END, "<|im_end|>", "<x>"))
    }
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "added_tokens_decoder": names}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    _same(tmp_path, [*TEXTS, "one<|im_end|> two <x>"])


def _same(folder, texts):
    ours, theirs = load_hub_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in texts:
        ids = theirs(text)["input_ids"]
        assert ours([text])["input_ids"][0].tolist() == ids, text
        assert ours.decode([ids]) == [theirs.decode(ids, skip_special_tokens=True)]
    assert ours(["one two"], ["three"])["input_ids"][0].tolist() == theirs("one two", "three")["input_ids"]
    for role in ("pad", "bos", "eos", "unk", "cls", "sep", "mask"):
        assert getattr(ours, role) == getattr(theirs, f"{role}_token_id"), role
