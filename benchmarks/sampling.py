"""Drawing tokens from large vocabularies: filters beside none, and beside those of `transformers`, in one process.

    pip install torch==2.13.0 transformers
    python benchmarks/sampling.py [--rounds 30] [--json FILE]

Eight rows of float32 logits for 152,000 tokens, drawn with a standard deviation of 1 (flat) and of 3. Ours is compiled,
with the numbers of the filters as arguments; theirs are the processors that `generate` calls, and `torch.multinomial`.
Turns alternate. `plain` says how many times as long as drawing without filters ours takes (bars: 3 for top-k 50 with
top-p 0.9, 5 for top-p alone), `transformers` how many times as long as ours theirs take.
"""

import os

import jax
import numpy as np
import torch
from results import arguments, ratios, spell, turns, write
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from flax_transformer.decode import Sampling
from flax_transformer.ops.sampling import sample_logits

V, ROWS = 152_000, 8
CASES = {
    "no filter": ({}, []),
    "top-k 50": ({"top_k": 50}, [TopKLogitsWarper(50)]),
    "top-k 50, top-p 0.9": ({"top_k": 50, "top_p": 0.9}, [TopKLogitsWarper(50), TopPLogitsWarper(0.9)]),
    "top-p 0.9": ({"top_p": 0.9}, [TopPLogitsWarper(0.9)]),
    "min-p 0.05": ({"min_p": 0.05}, [MinPLogitsWarper(0.05)]),
    "typical-p 0.9": ({"typical_p": 0.9}, [TypicalLogitsWarper(0.9)]),
}


@jax.jit
def draw(key: jax.Array, logits: jax.Array, config: Sampling) -> jax.Array:
    return sample_logits(key, logits, **config.filters)


def runners(name: str, logits: np.ndarray) -> dict:
    options, processors = CASES[name]
    here, there, key = jax.device_put(logits), torch.as_tensor(logits), jax.random.key(0)
    config, plain = (Sampling(max_length=1, eos=(), **given) for given in (options, {}))

    @torch.inference_mode()
    def theirs():
        scores = there
        for processor in processors:
            scores = processor(None, scores)
        return torch.multinomial(torch.softmax(scores, -1), 1)

    return {
        "ours": lambda: jax.block_until_ready(draw(key, here, config)),
        "plain": lambda: jax.block_until_ready(draw(key, here, plain)),
        "transformers": theirs,
    }


def main() -> None:
    options = arguments(__doc__, 30)
    torch.set_num_threads(os.cpu_count() or 1)
    results = []
    for scale in (1.0, 3.0):
        logits = scale * np.random.default_rng(0).standard_normal((ROWS, V), np.float32)
        for name in CASES:
            runs = runners(name, logits)
            for run in runs.values():
                run()
            found = ratios(turns(runs, options.rounds))
            plain = {
                "ratio": 1 / found["plain"]["ratio"],
                "ratio_range": sorted(1 / x for x in found["plain"]["ratio_range"]),
            }
            result = {"case": name, "deviation": scale, "plain": plain, "transformers": found["transformers"]}
            results.append({**result, "rounds": options.rounds})
            print(
                f"{name}, deviation {scale:g}: {spell(plain)} of plain, theirs {spell(found['transformers'])}",
                flush=True,
            )
    said = "filters of 152,000 tokens beside those of `transformers`"
    write(options.json, results, compared=("torch", "transformers"), proves=("generation", said))


if __name__ == "__main__":
    main()
