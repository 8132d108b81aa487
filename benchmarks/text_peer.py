"""BERT and GPT-2 beside PyTorch and Hugging Face, equal weights, alternating in one process.

    pip install torch==2.13.0 transformers
    python benchmarks/text_peer.py [--rounds 8] [--json FILE]

BERT-base reads 8 rows of 128 tokens; GPT-2 (124 M parameters) continues prompts of 32 tokens by 64, greedily, one
prompt and eight. Random weights, float32, on the CPU; both sides must give the same logits and tokens. A ratio above 1
says how many times faster ours is: medians of runs that took turns.
"""

import os
import tempfile

import numpy as np
import torch
import transformers
from results import arguments, ratios, spell, turns, write

from flax_transformer import hub

PROMPT, NEW = 32, 64


def opened(model: torch.nn.Module) -> hub.Pretrained:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return hub.load(folder)


def bert(rows: int) -> tuple[dict, dict]:
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(attn_implementation="eager")).eval()
    sdpa = transformers.BertModel(transformers.BertConfig(attn_implementation="sdpa")).eval()
    sdpa.load_state_dict(theirs.state_dict())
    ours = opened(theirs)
    ids = np.random.default_rng(0).integers(1_000, 30_000, (rows, 128))
    tensor = torch.as_tensor(ids)

    def torch_runner(model):
        @torch.inference_mode()
        def run():
            return model(input_ids=tensor).last_hidden_state.numpy()

        return run

    runs = {
        "ours": lambda: np.asarray(ours(input_ids=ids).last_hidden_state),
        "torch_eager": torch_runner(theirs),
        "torch_sdpa": torch_runner(sdpa),
    }
    return runs, {"case": "bert_base forward", "rows": rows, "length": 128}


def gpt2(rows: int) -> tuple[dict, dict]:
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(initializer_range=0.06)).eval()
    theirs.generation_config.eos_token_id = None
    ours = opened(theirs)
    ids = np.random.default_rng(0).integers(0, 50_000, (rows, PROMPT))
    tensor, seen = torch.as_tensor(ids), torch.ones((rows, PROMPT), dtype=torch.long)

    @torch.inference_mode()
    def hugging_face():
        options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        return theirs.generate(tensor, attention_mask=seen, **options).numpy()

    runs = {
        "ours": lambda: np.asarray(ours.generate(ids, max_new_tokens=NEW, eos_token_id=())),
        "hugging_face": hugging_face,
    }
    return runs, {"case": "gpt2 greedy", "rows": rows, "prompt": PROMPT, "new": NEW}


def compare(runs: dict, case: dict, rounds: int) -> dict:
    found = {who: run() for who, run in runs.items()}
    result = {**case, "rounds": rounds}
    for peer, value in ratios(turns(runs, rounds, warm=True)).items():
        if found["ours"].dtype.kind == "i":
            same = {"same_tokens": float((found[peer] == found["ours"]).mean())}
        else:
            same = {"relative_error": float(np.abs(found[peer] - found["ours"]).max() / np.abs(found[peer]).max())}
        result[peer] = {**value, **same}
    return result


def main() -> None:
    options = arguments(__doc__, 8)
    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    results = []
    for runs, case in (make(rows) for make, rows in ((bert, 8), (gpt2, 1), (gpt2, 8))):
        results.append(compare(runs, case, options.rounds))
        for peer, value in results[-1].items():
            if isinstance(value, dict):
                rest = {name: number for name, number in value.items() if not name.startswith("ratio")}
                print(f"{case['case']}, {case['rows']} rows, {peer}: {spell(value)}, {rest}", flush=True)
    write(options.json, results, compared=("torch", "transformers"))


if __name__ == "__main__":
    main()
