"""Vectors of texts beside `SentenceTransformer.encode`, equal weights, alternating in one process.

    pip install torch==2.13.0 transformers sentence-transformers
    python benchmarks/embed_peer.py [--rounds 5] [--json FILE]

The texts are docstrings of Python's standard library, of 3 to 256 tokens; the model has the sizes of all-MiniLM-L6-v2
(6 layers, 384 wide, mean pooling, length 1) and random weights, float32, on the CPU, on the cores that the process may
use. Both sides tokenise, sort, pad and run the model; both must give the same vectors. The programs of ours are
compiled before; how long that takes is said. A ratio above 1 says how many times faster ours is: medians of runs that
took turns.
"""

import ast
import collections
import json
import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from results import arguments, ratios, spell, turns, write
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from flax_transformer import hub
from flax_transformer.data.text.plain import standard_library
from flax_transformer.task.embedding import embed

TEXTS, MOST = 256, 256


def docstrings(documents: list[str]) -> list[str]:
    """Find the docstrings of functions and classes."""
    found = {}
    for document in documents:
        for node in ast.walk(ast.parse(document)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                found[text] = None
    return list(found)


def save_model(folder: Path, documents: list[str], width: int = 384, layers: int = 6, heads: int = 12) -> None:
    """Write a random model, by default of MiniLM's sizes, with a vocabulary of the documents' words and of letters."""
    torch.manual_seed(0)
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,()_=:'\"[]{}-+*/\\<>|!?`@#$%&;~^"]
    words = collections.Counter(re.findall(r"[a-z]+", " ".join(documents).lower()))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters[:36])]
    tokens += [word for word, _ in words.most_common(12_000) if len(word) > 1]
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    config = transformers.BertConfig(**sizes, intermediate_size=4 * width)
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(folder)


def main() -> None:
    options = arguments(__doc__, 5)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.logging.set_verbosity_error()
    documents = list(standard_library())
    texts = docstrings(documents)
    texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:TEXTS]]
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), documents)
        modules = [Transformer(folder, max_seq_length=MOST), Pooling(384, pooling_mode="mean"), Normalize()]
        theirs = SentenceTransformer(modules=modules, device="cpu")
        theirs.save(f"{folder}/saved")
        ours = hub.load(f"{folder}/saved")
    tokens = sum(len(row) for row in theirs.tokenizer(texts, truncation=True, max_length=MOST)["input_ids"])
    runs = {
        "ours": lambda: embed(ours, texts),
        "sentence_transformers": lambda: theirs.encode(texts, show_progress_bar=False),
    }
    began = time.perf_counter()
    found = {"ours": runs["ours"]()}
    first = time.perf_counter() - began
    found["sentence_transformers"] = runs["sentence_transformers"]()
    seconds = turns(runs, options.rounds, warm=True)
    result = {
        "case": "MiniLM-size encoder", "texts": len(texts), "tokens": tokens, "rounds": options.rounds,
        "threads": torch.get_num_threads(), "first_call_seconds": first,
        "tokens_per_second": {who: tokens / float(np.median(each)) for who, each in seconds.items()},
        "sentence_transformers": {
            **ratios(seconds)["sentence_transformers"],
            "largest_difference": float(np.abs(found["ours"] - found["sentence_transformers"]).max()),
        },
    }  # fmt: skip
    print(json.dumps(result["tokens_per_second"]), spell(result["sentence_transformers"]), flush=True)
    write(options.json, [result], compared=("torch", "transformers", "sentence-transformers"),
          proves=("sentence", f"{result['sentence_transformers']['ratio']:.1f} times the tokens a second of "
                  "SentenceTransformer.encode on a CPU"))  # fmt: skip


if __name__ == "__main__":
    main()
