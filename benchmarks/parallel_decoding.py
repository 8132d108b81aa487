"""Seconds to translate: token by token, greedily and by beam search, beside all at once, by turns in one process.

    python benchmarks/parallel_decoding.py [--rounds 5] [--json FILE]

Models of one size (4+4 layers, D = 128, V = 8,000), random weights, float32: 24 source tokens, 32 written. Mask-predict
tries `LENGTHS` lengths; the translator by CTC writes at 3 positions for each source token. A ratio above 1 says that it
takes longer than greedy search.
"""

import jax
import numpy as np
from flax import nnx
from results import arguments, ratios, spell, turns, write

from flax_transformer.decode import Beam, Greedy, Parallel
from flax_transformer.models.text.conditional_masked import mask_predict_tiny
from flax_transformer.models.text.ctc_translator import ctc_translator_tiny
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.task.translator import decode_batch, ready

VOCAB, SOURCE, WRITTEN, LENGTHS = 8_000, 24, 32, 3
CASES = {
    "greedy": (transformer_tiny, Greedy(max_length=WRITTEN, eos=())),
    "beam 4": (transformer_tiny, Beam(max_length=WRITTEN, eos=(), beams=4)),
    "mask-predict, 4 passes": (
        mask_predict_tiny, Parallel(max_length=WRITTEN, mask=1, iterations=4, beams=LENGTHS, never=(0, 1, 2))
    ),
    "mask-predict, 10 passes": (
        mask_predict_tiny, Parallel(max_length=WRITTEN, mask=1, iterations=10, beams=LENGTHS, never=(0, 1, 2))
    ),
    "CTC": (ctc_translator_tiny, Parallel(max_length=WRITTEN, mask=1, iterations=1)),
}  # fmt: skip


def compare(rows: int, rounds: int) -> list[dict]:
    """Time every case on so many sentences."""
    source = np.random.default_rng(0).integers(4, VOCAB, (rows, SOURCE)).astype(np.int32)
    lengths, runs = np.full(rows, SOURCE, np.int32), {}
    for name, (preset, config) in CASES.items():
        cfg = preset(VOCAB)
        model = ready(jax.jit(lambda cfg=cfg: cfg.build(nnx.Rngs(0)))())
        run = decode_batch.lower(model, source, lengths, config=config, bos=1).compile()
        runs[name] = lambda run=run, model=model: jax.block_until_ready(run(model, source, lengths))
        runs[name]()
    seconds = turns(runs, rounds)
    times = ratios(seconds, ours="greedy")
    return [
        {"case": name, "sentences": rows, "rounds": rounds, "seconds": float(np.median(each)), **times.get(name, {})}
        for name, each in seconds.items()
    ]


def main() -> None:
    options = arguments(__doc__, 5)
    results = []
    for rows in (1, 32):
        for result in compare(rows, options.rounds):
            results.append(result)
            beside = f", {spell(result)} of greedy" if "ratio" in result else ""
            print(f"{rows} sentences, {result['case']}: {1000 * result['seconds']:.1f} ms{beside}", flush=True)
    write(options.json, results, proves=("decoding all tokens at once", "seconds beside greedy and beam search"))


if __name__ == "__main__":
    main()
