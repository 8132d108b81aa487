"""How long a search among many vectors takes: in float32 and in int8, beside NumPy's product and selection.

python benchmarks/vector_search.py [--json FILE]
"""

import jax
import jax.numpy as jnp
import numpy as np
from results import arguments, ratios, spell, turns, write

from flax_transformer.ops.nearest import nearest, round_vectors

COUNT, WIDTH, TOP = 1_000_000, 384, 10


def main() -> None:
    """Search for one query, by turns."""
    options = arguments(__doc__, rounds=9)
    draw = np.random.default_rng(0)
    vectors = draw.standard_normal((COUNT, WIDTH), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors[5:6] + 0.05
    whole, rounded = jnp.asarray(vectors), jax.jit(round_vectors)(vectors)

    def by_hand() -> np.ndarray:
        scores = vectors @ query[0]
        best = np.argpartition(-scores, TOP)[:TOP]
        return best[np.argsort(-scores[best])]

    runs = {
        "float32": lambda: jax.block_until_ready(nearest(whole, query, TOP)),
        "int8": lambda: jax.block_until_ready(nearest(rounded, query, TOP)),
        "numpy": by_hand,
    }
    exact = by_hand().tolist()
    same = {who: len({*np.asarray(runs[who]()[1])[0].tolist()} & {*exact}) for who in ("float32", "int8")}
    seconds = turns(runs, options.rounds)
    found = ratios(seconds, "float32")
    for who, each in seconds.items():
        print(f"{who}: {1e3 * min(each):.1f} ms, {same.get(who, TOP)} of {TOP} the nearest")
    print("times as long as float32:", ", ".join(f"{who} {spell(each)}" for who, each in found.items()))
    result = {
        "vectors": COUNT, "width": WIDTH, "top": TOP, "smallest_ms": {who: 1e3 * min(t) for who, t in seconds.items()},
        "nearest_found": same, "times_as_long_as_float32": found,
    }  # fmt: skip
    write(options.json, [result], proves=("retrieval of texts", "search among a million vectors: time"))


if __name__ == "__main__":
    main()
