"""An index of 100,000 passages beside `SentenceTransformer.encode` of the same: equal weights, by turns in one process.

    pip install torch==2.13.0 transformers sentence-transformers
    python benchmarks/index_peer.py [--rounds 2] [--json FILE]

The passages are the files of Python's standard library, cut at 48 tokens of which neighbours share 16; the model is a
small BERT (2 layers, 128 wide, mean pooling, length 1) with random weights, float32, on the CPU, on the cores that the
process may use. Ours is `task.text_index.embed_passages`, as `flax-transformer index` calls it. A ratio above 1 says
how many times faster ours is: medians of runs that took turns.
"""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from embed_peer import save_model
from results import arguments, ratios, spell, turns, write
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from flax_transformer import hub
from flax_transformer.data.text.passage import Document, PassageConfig
from flax_transformer.data.text.plain import standard_library
from flax_transformer.task.text_index import embed_passages, passages_of

PASSAGES, WIDTH = 100_000, 128


def main() -> None:
    options = arguments(__doc__, 2)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.logging.set_verbosity_error()
    documents = list(standard_library())
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), documents, width=WIDTH, layers=2, heads=2)
        modules = [Transformer(folder, max_seq_length=64), Pooling(WIDTH, pooling_mode="mean"), Normalize()]
        theirs = SentenceTransformer(modules=modules, device="cpu")
        theirs.save(f"{folder}/saved")
        ours = hub.load(f"{folder}/saved")
    named = (Document(str(n), text) for n, text in enumerate(documents) if text.strip())
    passages = passages_of(ours, named, PassageConfig(tokens=48, overlap=16))[:PASSAGES]
    texts = [each.text for each in passages]
    runs = {
        "ours": lambda: np.asarray(embed_passages(ours, passages).vectors),
        "sentence_transformers": lambda: theirs.encode(texts, show_progress_bar=False),
    }
    tokens = sum(len(row) for row in theirs.tokenizer(texts, truncation=True, max_length=64)["input_ids"])
    some = slice(0, 4_096)
    found = np.asarray(embed_passages(ours, passages[some]).vectors)  # compiles, too
    apart = float(np.abs(found - theirs.encode(texts[some], show_progress_bar=False)).max())
    seconds = turns(runs, options.rounds)
    result = {
        "case": "small BERT", "passages": len(passages), "tokens": tokens, "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "tokens_per_second": {who: tokens / float(np.median(each)) for who, each in seconds.items()},
        "sentence_transformers": {**ratios(seconds)["sentence_transformers"], "largest_difference": apart},
    }  # fmt: skip
    print(json.dumps(result["tokens_per_second"]), spell(result["sentence_transformers"]), flush=True)
    write(options.json, [result], compared=("torch", "transformers", "sentence-transformers"),
          proves=("retrieval of texts", f"an index of {len(passages):,} passages by a small encoder, "
                  f"{result['sentence_transformers']['ratio']:.1f} times the tokens a second of "
                  "SentenceTransformer.encode on a CPU"))  # fmt: skip


if __name__ == "__main__":
    main()
