"""From a command to its first token, with an empty folder of compiled programs and with a filled one.

    python benchmarks/first_token.py [--rounds 5] [--json FILE]

`flax-transformer generate FOLDER PROMPT` on a terminal, a new process each time: Python, imports, a random checkpoint
of GPT-2's size (124 M parameters), compiling or not, reading the prompt. The bar: twice as fast with a filled folder.
"""

import os
import pty
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import tokenizers
from flax import nnx
from results import arguments, write

from flax_transformer import hub
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2

PROMPT = "The quick brown fox"


def checkpoint(folder: Path) -> None:
    """Write a random GPT-2 that knows bytes and never ends."""
    model = jax.jit(lambda: Causal(gpt2(), rngs=nnx.Rngs(0)))()
    hub.save(hub.wrap(model, "GPT2LMHeadModel", bos_token_id=0, eos_token_id=None), folder)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {"<|endoftext|>": 0, **{letter: i for i, letter in enumerate(sorted(alphabet), start=1)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')


def first_token(folder: Path, programs: Path) -> float:
    """Return the seconds until something stands behind the prompt."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "flax_transformer.cli", "generate", str(folder), PROMPT, "--max-new-tokens", "30"]
    began, text, seconds = time.perf_counter(), b"", 0.0
    with subprocess.Popen(command, stdout=theirs, env={**os.environ, "FLAX_TRANSFORMER_PROGRAMS": str(programs)}):
        os.close(theirs)
        while True:
            try:
                text += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not seconds and len(text) > len(PROMPT):
                seconds = time.perf_counter() - began
    os.close(ours)
    return seconds


def main() -> None:
    options = arguments(__doc__, 5)
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as root:
        folder, programs = Path(root) / "gpt2", Path(root) / "programs"
        checkpoint(folder)
        for _ in range(options.rounds):
            shutil.rmtree(programs, ignore_errors=True)
            for which in seconds:
                seconds[which].append(first_token(folder, programs))
    medians = {which: statistics.median(times) for which, times in seconds.items()}
    ratios = [cold / warm for cold, warm in zip(seconds["cold"], seconds["warm"], strict=True)]
    ratio = {"ratio": medians["cold"] / medians["warm"], "ratio_range": [min(ratios), max(ratios)]}
    print(f"cold {medians['cold']:.2f} s, warm {medians['warm']:.2f} s: {ratio['ratio']:.2f}×")
    results = [{"case": "gpt2 generate", "rounds": options.rounds, "seconds": medians, **ratio}]
    write(options.json, results, proves=("generation", "the first token of a second process"))


if __name__ == "__main__":
    main()
