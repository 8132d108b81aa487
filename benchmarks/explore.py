"""How long the explorer takes: to draw, and to answer.

    python benchmarks/explore.py [--rounds 7] [--json FILE]

Drawn is a page with 12 layers of 12 heads over 128 tokens in headless Chromium, from its data to two frames later. An
answer is a look at a text that was not seen before, of a length that was, from the request to JSON: of the demo's
Transformer, which also writes 24 tokens, and of GPT-2's smallest size over 128 tokens. Parameters are random. The bars:
1 s to draw; 0.2 s and 2 s to answer on two cores, once programs are compiled. Drawing needs Chromium.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from results import arguments, write

from flax_transformer import hub
from flax_transformer.models.causal import Causal
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.gpt2 import gpt2
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_fields
from flax_transformer.report.explore import write_explore_page
from flax_transformer.task.explore.explorer import Explorer
from flax_transformer.task.explore.server import to_json

ROOT = Path(__file__).parent.parent
SEED = 0
VOCABULARY = 461
"""Of the demo: bytes, 200 merges and the special tokens."""
BARS = {"draw": 1.0, "demo": 0.2, "gpt2": 2.0}
"""Seconds."""


def random_gpt2() -> Explorer:
    """Return GPT-2's smallest size."""
    model = jax.jit(lambda: Causal(gpt2(), rngs=nnx.Rngs(SEED)))()
    return Explorer(hub.wrap(model, "GPT2LMHeadModel", bos_token_id=0, eos_token_id=1), "gpt2")


def random_demo() -> Explorer:
    """Return the model that `make demo` trains, which never ends by itself."""
    config = with_fields(transformer_tiny(VOCABULARY, dropout=0.1), depth=2)
    fields = {"decoder_start_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    model = jax.jit(lambda: Seq2Seq(config, rngs=nnx.Rngs(SEED)))()
    return Explorer(hub.wrap(model, "MarianMTModel", **fields), "demo")


def texts(explorer: Explorer, length: int, rounds: int) -> list[dict[str, Any]]:
    """Return requests for different random texts of one length."""
    rng, vocabulary = np.random.default_rng(SEED), explorer.program.pretrained.vocabulary
    drawn = rng.integers(3, vocabulary, (rounds + 2, length))
    return [{"input": {"text": " ".join(map(str, row))}} for row in drawn]


def answer(explorer: Explorer, length: int, rounds: int) -> tuple[list[float], list[float], dict[str, Any]]:
    """Return seconds of the clock and of the processor for each round after compiling, and one look."""
    wall, cpu, found = [], [], {}
    for number, request in enumerate(texts(explorer, length, rounds)):
        began = time.perf_counter(), time.process_time()
        found = explorer.ask("look", request)
        to_json(found)
        if number > 1:  # the first compiles, the second finds out what more there is to
            wall.append(time.perf_counter() - began[0])
            cpu.append(time.process_time() - began[1])
    return wall, cpu, found


def processor_seconds(root: int) -> float:
    """Return what a process and all that it has started have computed."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        spent[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ours(pid: int) -> bool:
        return pid == root or (pid in parents and ours(parents[pid]))

    return sum(seconds for pid, seconds in spent.items() if ours(pid))


def draw(explorer: Explorer, look: dict[str, Any], rounds: int) -> tuple[list[float], list[float]]:
    """Return seconds from a page's data to what is drawn two frames later: by the clock, and of all processes."""
    sys.path.insert(0, str(ROOT))
    from tests.chromium import Page, executable

    script = """(async () => {
      const began = performance.now();
      for (const kind of shown.look.kinds) { delete kind.at; delete kind.drawn; }
      draw();
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      return (performance.now() - began) / 1000;
    })()"""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = write_explore_page(Path(folder) / "page.html", explorer.facts(), {"input": {"text": ""}, "look": look})
        page = Page(executable(), Path(folder) / "profile")
        page.open(path)
        assert page.run("document.querySelectorAll('.grid button').length") == 12 * 14
        wall, cpu = [], []
        for _ in range(rounds):
            before = processor_seconds(page.pid)
            wall.append(page.run(script))
            cpu.append(processor_seconds(page.pid) - before)
        page.close()
    return wall, cpu


def main() -> None:
    options = arguments(__doc__, 7)
    results, began = [], (time.perf_counter(), time.process_time())
    for name, explorer, length in (("demo", random_demo(), 16), ("gpt2", random_gpt2(), 128)):
        wall, cpu, look = answer(explorer, length, options.rounds)
        results.append(row(f"answer, {name}", wall, cpu, BARS[name], tokens=length))
    drawn = draw(explorer, look, options.rounds)
    results.append(row("draw, 12 layers of 12 heads", *drawn, BARS["draw"], tokens=128))
    for each in results:
        took = f"{each['seconds']:.3f} s, {each['cpu_seconds']:.3f} s of processors"
        print(f"{each['case']}: {took} (bar {each['bar']} s)")
    spent = {"wall_seconds": time.perf_counter() - began[0], "cpu_seconds": time.process_time() - began[1]}
    command = f"python benchmarks/explore.py --rounds {options.rounds}"
    said = {"command": command, "seed": SEED, **spent, "load": "beside other work on the machine"}
    write(options.json, [*results, said], proves=("explorer", "seconds to draw and to answer"))


def row(case: str, wall: list[float], cpu: list[float], bar: float, **more: Any) -> dict[str, Any]:
    """Return one line of the result: medians, and the range of single rounds."""
    spread = {"seconds": statistics.median(wall), "range": [min(wall), max(wall)]}
    spent = {"cpu_seconds": statistics.median(cpu), "cpu_range": [min(cpu), max(cpu)]}
    return {"case": case, "rounds": len(wall), "bar": bar, **spread, **spent, **more}


if __name__ == "__main__":
    main()
