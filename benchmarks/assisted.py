"""Tokens a pass and time of decoding with a draft, beside decoding without one.

    python benchmarks/assisted.py LARGE SMALL TEXT [--json FILE]

LARGE and SMALL are run folders or checkpoints of language models with one tokenizer, TEXT is a file, of which 16 pieces
of the last tenth are prompts of 32 tokens. Each is continued by 64, greedily and drawn at temperature 0.8: by LARGE
alone, with SMALL proposing 2 to 8 tokens at a time, and with tokens looked up in the prompt and what was written. One
prompt at a time and 8; functions take turns in three rounds, and the ratio is that of their median times.
"""

import argparse
import statistics
import time
from pathlib import Path

import jax
import numpy as np
from results import turns, write

from flax_transformer.task.checkpoint import open_checkpoint

PROMPTS, PROMPT, NEW = 16, 32, 64
COUNTS = (2, 3, 5, 8)
ROUNDS = 3
KINDS = {"greedy": {}, "drawn": {"do_sample": True, "temperature": 0.8, "top_k": 0}}


def prompts(pretrained, text: Path) -> np.ndarray:
    """Return pieces of the last tenth of a text."""
    whole = text.read_text()
    ids = np.asarray(pretrained.tokenizer([whole[-len(whole) // 10 :]])["input_ids"][0])
    return np.stack([ids[at : at + PROMPT] for at in np.linspace(0, len(ids) - PROMPT, PROMPTS, dtype=int)])


def measure(large, small, ids: np.ndarray, rows: int, kind: str) -> list[dict]:
    """Return a result for each way, of batches of so many rows."""
    settings = {"max_new_tokens": NEW, "eos_token_id": (), "return_dict_in_generate": True, **KINDS[kind]}
    ways = {"alone": {}}
    ways |= {f"draft {count}": {"assistant_model": small, "num_assistant_tokens": count} for count in COUNTS}
    ways |= {f"lookup {count}": {"prompt_lookup_num_tokens": count} for count in (4,)}

    def run(way):
        found = []
        for i in range(0, len(ids), rows):
            given = {"key": jax.random.key(i)} if kind == "drawn" else {}
            found.append(jax.block_until_ready(large.generate(ids[i : i + rows], **settings, **given, **ways[way])))
        return found

    first = {way: run(way) for way in ways}
    clock, cpu = turns({way: lambda way=way: run(way) for way in ways}, ROUNDS), {}
    for way in ways:
        began = time.process_time()
        run(way)
        cpu[way] = time.process_time() - began
    results, alone = [], np.concatenate([np.asarray(each.sequences) for each in first["alone"]])
    for way in ways:
        tokens = np.concatenate([np.asarray(each.sequences) for each in first[way]])
        passes = None if way == "alone" else np.concatenate([np.asarray(each.passes) for each in first[way]])
        accepted = 0 if way == "alone" else sum(float(np.asarray(each.accepted).sum()) for each in first[way])
        results.append({
            "kind": kind, "rows": rows, "way": way,
            "tokens_a_pass": 1.0 if passes is None else NEW * PROMPTS / float(passes.sum()),
            "accepted_a_pass": 0.0 if passes is None else accepted / float(passes.sum()),
            "wall_s": statistics.median(clock[way]), "cpu_s": cpu[way],
            "speedup": statistics.median(clock["alone"]) / statistics.median(clock[way]),
            "same_tokens": bool((tokens == alone).all()) if kind == "greedy" else None,
        })  # fmt: skip
        print(results[-1], flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("large")
    parser.add_argument("small")
    parser.add_argument("text")
    parser.add_argument("--json")
    options = parser.parse_args()
    large, small = open_checkpoint(options.large), open_checkpoint(options.small)
    ids, sizes = prompts(large, Path(options.text)), [
        sum(leaf.size for leaf in jax.tree.leaves(each)) for each in (large, small)
    ]  # fmt: skip
    results = [{"parameters": sizes, "prompts": PROMPTS, "prompt_tokens": PROMPT, "new_tokens": NEW}]
    for kind in KINDS:
        for rows in (1, 8):
            results += measure(large, small, ids, rows, kind)
    write(options.json, results, proves=("generation", "tokens a pass and time of drafts and prompt lookup"))


if __name__ == "__main__":
    main()
