"""Time per decoded token at a maximum length of 1,024 beside 256, alternating in one process.

    python benchmarks/decode_length.py [--rounds 3] [--json FILE]

Twice: for 200 generated tokens, where a longer limit should cost nothing, and for as many tokens as the limit allows,
where attention really reads more. Random weights, V = 8,000, float32; the end token is put where it is wanted. A
ratio of 1 says that a token costs the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from results import arguments, ratios, spell, turns, write

from flax_transformer.decode import Beam, Decoded, Greedy, beam_search, greedy
from flax_transformer.models.seq2seq import DecoderCache, Seq2Seq
from flax_transformer.models.text.transformer import transformer_base, transformer_tiny

VOCAB, SOURCE, END, GENERATED = 8_000, 24, 2, 200
PRESETS = {"transformer_tiny": transformer_tiny, "transformer_base": transformer_base}


def decode(model: Seq2Seq, source: jax.Array, config: Greedy, stop: int) -> Decoded:
    """Decode, and force the end token at position `stop`."""

    def end(logits, tokens, t):
        return jnp.where((jnp.arange(VOCAB) == END) == (t + 1 >= stop), logits, -1e9)

    beams = config.beams if isinstance(config, Beam) else 1
    cache = model.init_cache(model.encode(source), None, config.stages[0], beams=beams)
    prompt = jnp.full(source.shape[:1], 1)
    if beams > 1:
        reorder, grow = DecoderCache.reorder, DecoderCache.grow
        return beam_search(model.step, cache, prompt, config, reorder=reorder, grow=grow, process=end)
    return greedy(model.step, cache, prompt, config, process=end, grow=DecoderCache.grow)


def compare(name: str, rows: int, beams: int, full: bool, rounds: int) -> dict:
    model = jax.jit(lambda: Seq2Seq(PRESETS[name](VOCAB), rngs=nnx.Rngs(0)).for_decoding())()
    source = np.random.default_rng(0).integers(4, VOCAB, (rows, SOURCE))
    runs, tokens = {}, {}
    for limit in (256, 1024):
        limits = {"max_length": limit, "eos": END, "pad": 0}
        config = Beam(**limits, beams=beams, early_stopping=True) if beams > 1 else Greedy(**limits)
        stop = limit if full else GENERATED
        run = jax.jit(decode, static_argnums=(2, 3)).lower(model, source, config, stop).compile()
        tokens[limit] = int(run(model, source).lengths.max())
        runs[limit] = lambda run=run: jax.block_until_ready(run(model, source))
    seconds = {limit: [s / tokens[limit] for s in times] for limit, times in turns(runs, rounds).items()}
    return {
        "case": name, "sentences": rows, "beams": beams, "tokens": tokens, "rounds": rounds,
        **ratios(seconds, ours=256)[1024],
    }  # fmt: skip


def main() -> None:
    options = arguments(__doc__, 3)
    results = []
    for name in PRESETS:
        for rows, beams in ((1, 1), (8, 1), (1, 4)):
            for full in (False, True):
                result = compare(name, rows, beams, full, options.rounds)
                results.append(result)
                short, long = result["tokens"].values()
                print(
                    f"{name}, {rows} sentences, {beams} beams, {short} and {long} tokens: {spell(result)}", flush=True
                )
    write(options.json, results)


if __name__ == "__main__":
    main()
