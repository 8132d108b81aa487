"""ColBERT against a model of torch's own that does as its authors' code says."""

import json
import string

import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.task.late_interaction import passage_vectors, query_vectors, token_relevance
from flax_transformer.task.reranking import relevance

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.parity, pytest.mark.proves("late interaction", "ColBERT's vectors and scores, against torch")]

WORDS = ["alpha", "beta", "gamma", "delta", "nu", "xi", ",", ".", "?"]
QUERIES = ["alpha beta", "nu xi gamma alpha " * 12]
TEXTS = ["gamma, alpha. beta", "xi nu?", "delta " * 60, "beta beta"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("colbert")
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"]
    (root / "vocab.txt").write_text("\n".join([*marks, *WORDS]) + "\n")
    transformers.BertTokenizerFast(str(root / "vocab.txt")).save_pretrained(root)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(marks) + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=48,
    )  # fmt: skip
    model = torch.nn.Module()
    model.bert = transformers.BertModel(config, add_pooling_layer=False)
    model.linear = torch.nn.Linear(16, 8, bias=False)
    from safetensors.torch import save_file

    save_file({name: each.contiguous() for name, each in model.state_dict().items()}, root / "model.safetensors")
    said = {**config.to_dict(), "architectures": ["HF_ColBERT"], "dim": 8}
    (root / "config.json").write_text(json.dumps(said))
    return root, model.eval()


def _theirs(folder, texts, mark, *, query):
    """Encode texts as ColBERT's query and document tokenizers do, and its model."""
    root, model = folder
    tokenizer = transformers.AutoTokenizer.from_pretrained(root)
    room = 32 if query else 48
    rows = tokenizer([f". {text}" for text in texts], padding="max_length" if query else "longest", max_length=room,
                     truncation=True, return_tensors="pt")  # fmt: skip
    ids, mask = rows["input_ids"], rows["attention_mask"]
    ids[:, 1] = tokenizer.convert_tokens_to_ids(mark)
    if query:
        ids[ids == tokenizer.pad_token_id] = tokenizer.mask_token_id
    with torch.no_grad():
        vectors = model.linear(model.bert(ids, attention_mask=mask)[0])
    vectors = torch.nn.functional.normalize(vectors, p=2, dim=2)
    skip = {tokenizer.encode(symbol, add_special_tokens=False)[0] for symbol in string.punctuation}
    counts = (mask > 0) & ~torch.tensor([[int(token) in skip for token in row] for row in ids.tolist()])
    return vectors.numpy(), counts.numpy()


def test_vectors_and_scores_are_theirs(folder):
    pretrained = hub.load(folder[0])
    ours = query_vectors(pretrained, QUERIES)
    asked, _ = _theirs(folder, QUERIES, "[unused0]", query=True)
    np.testing.assert_allclose(ours, asked, atol=1e-5)
    vectors, counts = passage_vectors(pretrained, TEXTS)
    theirs, real = _theirs(folder, TEXTS, "[unused1]", query=False)
    width = theirs.shape[1]
    # The unknown token stands for all punctuation that the vocabulary lacks, and no text here has it.
    np.testing.assert_array_equal(counts[:, :width], real)
    assert not counts[:, width:].any()
    np.testing.assert_allclose(vectors[:, :width][real], theirs[real], atol=1e-5)
    for query, tokens in zip(QUERIES, asked, strict=True):
        products = np.einsum("td,nsd->nts", tokens, theirs)
        expected = np.where(real[:, None], products, -np.inf).max(-1).sum(-1)
        np.testing.assert_allclose(token_relevance(pretrained, query, TEXTS), expected, atol=1e-4)
        np.testing.assert_array_equal(relevance(pretrained, query, TEXTS), token_relevance(pretrained, query, TEXTS))


def test_what_is_saved_is_what_was_read(folder, tmp_path):
    hub.save(hub.load(folder[0]), tmp_path)
    theirs, ours = load_file(folder[0] / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert theirs.keys() == ours.keys()
    for name, each in theirs.items():
        np.testing.assert_array_equal(ours[name], each)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["HF_ColBERT"]


def test_bad_input_is_refused(folder):
    pretrained = hub.load(folder[0])
    with pytest.raises(ValueError, match="texts to compare must be there and not empty"):
        query_vectors(pretrained, [" "])
