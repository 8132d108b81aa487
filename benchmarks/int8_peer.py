"""BERT-base with int8 kernels and inputs beside float32 and PyTorch's dynamic int8, equal weights, by turns.

    pip install torch==2.13.0 transformers
    python benchmarks/int8_peer.py [--rounds 8] [--json FILE]

Random weights, hidden states of 8 rows of 128 tokens, and of one, on the CPU. `torch_int8` is
`torch.ao.quantization.quantize_dynamic` of all linear layers: int8 kernels, inputs rounded by their whole range. A
ratio above 1 says how many times faster our int8 is: medians of runs that took turns.
"""

import os
import tempfile
import warnings
from dataclasses import replace

import numpy as np
import torch
import transformers
from results import arguments, ratios, spell, turns, write

from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model


def case(rows: int) -> tuple[dict, dict]:
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(attn_implementation="sdpa")).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = torch.ao.quantization.quantize_dynamic(theirs, {torch.nn.Linear}, dtype=torch.qint8)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        whole = hub.load(folder)
    ours = replace(whole, model=quantize_model(whole.model, Quantization(activations="int8")))
    ids = np.random.default_rng(0).integers(1_000, 30_000, (rows, 128))

    def torch_runner(model):
        tensor = torch.as_tensor(ids)

        @torch.inference_mode()
        def run():
            return model(input_ids=tensor).last_hidden_state.numpy()

        return run

    runs = {
        "ours": lambda: np.asarray(ours(input_ids=ids).last_hidden_state),
        "ours_float32": lambda: np.asarray(whole(input_ids=ids).last_hidden_state),
        "torch_float32": torch_runner(theirs),
        "torch_int8": torch_runner(few),
    }
    exact = runs["ours_float32"]()
    errors = {who: float(np.abs(run() - exact).max() / np.abs(exact).max()) for who, run in runs.items()}
    return runs, {"case": "bert_base forward", "rows": rows, "length": 128, "relative_error": errors}


def main() -> None:
    options = arguments(__doc__, rounds=8)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    results = []
    for rows in (8, 1):
        runs, about = case(rows)
        seconds = turns(runs, options.rounds, warm=True)
        results.append({**about, "seconds": seconds, "ratios": ratios(seconds)})
        for who, value in results[-1]["ratios"].items():
            print(f"{rows} rows  {who:14} {spell(value)}", flush=True)
        print(about["relative_error"], flush=True)
    write(
        options.json, results, compared=("torch", "transformers"),
        proves=("kernels of few bits", "BERT-base with int8 beside float32 and PyTorch's int8"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
