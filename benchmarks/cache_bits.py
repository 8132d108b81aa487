"""Scores of checkpoints that decode with keys and values of few bits, beside caches of float32, and the caches' bytes.

    python benchmarks/cache_bits.py LANGUAGE_MODEL=TEXT TRANSLATOR=PAIRS [--json FILE]

LANGUAGE_MODEL and TRANSLATOR are folders, TEXT a file, PAIRS a file of two columns. Of the language model, the loss of
all tokens but the first of each window as long as its positions, each token read by a step of decoding; of the
translator, BLEU, greedily and with five beams. Bytes are those of keys and values of one row and position, a memory's
included: of every layer, with the scales.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from results import write

from flax_transformer.cli.run import Translating, score
from flax_transformer.cli.unreadable import Refused
from flax_transformer.nn import cache_bytes, quantize_cache
from flax_transformer.nn.quantized import ACTIVATIONS
from flax_transformer.task.checkpoint import open_checkpoint

ROWS = 64


@jax.jit
def losses(model, cache, tokens):
    def step(cache, pair):
        token, following = pair
        logits, cache = model.step(cache, token)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), following[:, None], axis=-1)
        return cache, -chosen[:, 0]

    return jax.lax.scan(step, cache, (tokens[:, :-1].T, tokens[:, 1:].T))[1]


def loss(pretrained, text: Path, kind: str | None) -> dict:
    model = pretrained.model
    length = model.cfg.embedding.max_length
    ids = np.asarray(pretrained.tokenizer([text.read_text()])["input_ids"][0])
    rows = ids[: len(ids) // (length * ROWS) * length * ROWS].reshape(-1, ROWS, length)
    cache = quantize_cache(model.init_cache(ROWS, length), kind)
    total = np.concatenate([np.asarray(losses(model, cache, jnp.asarray(part))).ravel() for part in rows])
    return {"loss": float(total.mean()), "tokens": total.size, "bytes_a_position": cache_bytes(cache) / ROWS / length}


def bleu(folder: str, pairs: Path, kind: str | None, beam: int) -> dict:
    found = score(folder, pairs, None, Translating(beam=beam, cache=kind), Refused())
    return {"beam": beam, "bleu": found["bleu"], "sentences": found["sentences"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language")
    parser.add_argument("translator")
    parser.add_argument("--json")
    options = parser.parse_args()
    (folder, text), (translator, pairs) = options.language.split("="), options.translator.split("=")
    results = []
    for kind in (None, *ACTIVATIONS):
        name = {"cache": kind or "float32"}
        results.append({**name, "checkpoint": "shakespeare", **loss(open_checkpoint(folder), Path(text), kind)})
        print(results[-1], flush=True)
        for beam in (1, 5):
            results.append({**name, "checkpoint": "multi30k", **bleu(translator, Path(pairs), kind, beam)})
            print(results[-1], flush=True)
            jax.clear_caches()
    write(options.json, results, proves=("cache", "scores of keys and values of int8 and float8 beside float32"))


if __name__ == "__main__":
    main()
