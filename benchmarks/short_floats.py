"""bfloat16 beside float32: the same programs of a preset in turns, the parameters float32 in both.

    python benchmarks/short_floats.py [--rounds 8] [--json benchmarks/results/short-floats-cpu.json]

Products of 1,024 × 512 × 2,048; forward and training steps (Adam, dropout as preset) of the base 2017 Transformer on
8 × 64 tokens a side, and of ViT-B/16 on 4 images of 224 × 224. A ratio above 1 says how many times as fast bfloat16 is:
medians of runs that took turns. With torch installed, ViT-B/16 of `transformers` follows, forward, in its bfloat16 and
float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from results import arguments, ratios, spell, turns, write

from flax_transformer.bench.workload import Size, from_config
from flax_transformer.models.text.transformer import transformer_base
from flax_transformer.models.vision.vit import vit_base_patch16
from flax_transformer.ops.float32 import product
from flax_transformer.ops.rounded_product import rounded_product
from flax_transformer.train.optimizer import make_optimizer
from flax_transformer.train.state import init_state

CASES = {
    "2017 Transformer base": (transformer_base(), Size(batch=8, length=64)),
    "ViT-B/16": (vit_base_patch16(), Size(batch=4)),
}
KINDS = ("bfloat16", "float32")


def programs(name: str, kind: str) -> dict:
    config, size = CASES[name]
    workload = from_config(name, config, Size(batch=size.batch, length=size.length, dtype=kind))
    optimizer = make_optimizer(workload.optimizer, workload.train.steps)
    state = init_state(workload.init, optimizer, jax.random.key(0))
    batch = jax.device_put(workload.batch)
    run_forward = jax.jit(workload.forward)
    step = jax.jit(workload.step, donate_argnums=0)
    held = [state]

    def forward():
        return jax.block_until_ready(run_forward(held[0].model, batch))

    def train():
        held[0], metrics = step(held[0], batch)
        return float(metrics["loss"])

    return {"forward": forward, "train": train}


def products() -> dict:
    """Return a product and the gradient of its kernel, of float32, of bfloat16 by XLA, and as layers multiply it."""
    random = np.random.default_rng(0)
    x, y, pull = (random.normal(size=shape).astype(np.float32) for shape in ((1024, 512), (512, 2048), (1024, 2048)))
    plain = {"forward": lambda x, y, pull: x @ y, "kernel": lambda x, y, pull: jnp.einsum("mk,mn->kn", x, pull)}
    ours = {
        "forward": lambda x, y, pull: rounded_product("mk,kn->mn", x, y),
        "kernel": lambda x, y, pull: product("mk,mn->kn", x, pull),
    }
    made = {}
    for what in plain:
        ways = {"float32": (plain, "float32"), "bfloat16 by XLA": (plain, "bfloat16"), "ours": (ours, "bfloat16")}
        for who, (function, kind) in ways.items():
            given = jax.device_put([each.astype(kind) for each in (x, y, pull)])
            compiled = jax.jit(function[what]).lower(*given).compile()
            made[what, who] = lambda compiled=compiled, given=given: jax.block_until_ready(
                [compiled(*given) for _ in range(20)]
            )
    return made


def theirs() -> dict:
    import torch
    import transformers

    torch.manual_seed(0)
    found = {}
    pixels = torch.as_tensor(np.random.default_rng(0).normal(size=(4, 3, 224, 224)).astype(np.float32))
    for kind in KINDS:
        number = getattr(torch, kind)
        model = transformers.ViTForImageClassification(
            transformers.ViTConfig(num_labels=1000, attn_implementation="sdpa")
        ).eval().to(number)  # fmt: skip

        @torch.inference_mode()
        def run(model=model, given=pixels.to(number)):
            return model(pixel_values=given).logits.float().numpy()

        found[f"torch {kind}"] = run
    return found


def main() -> None:
    given, results = arguments(__doc__, 8), []
    made = products()
    for what in ("forward", "kernel"):
        runs = {who: run for (name, who), run in made.items() if name == what}
        for run in runs.values():
            run()
        found = ratios(turns(runs, given.rounds))
        results.append({"case": "product", "program": what, "ratios": found})
        print(f"product, {what}: " + ", ".join(f"{who} {spell(value)}" for who, value in found.items()), flush=True)
    for name in CASES:
        made = {kind: programs(name, kind) for kind in KINDS}
        for what in ("forward", "train"):
            runs = {kind: made[kind][what] for kind in KINDS}
            if what == "forward" and name == "ViT-B/16":
                try:
                    runs |= theirs()
                except ImportError:
                    print("torch and transformers are not installed: not compared")
            for run in runs.values():
                run(), run()
            seconds = turns(runs, given.rounds)
            found = ratios(seconds, "bfloat16")
            medians = {who: float(np.median(times)) for who, times in seconds.items()}
            results.append({"case": name, "program": what, "seconds": medians, "ratios": found})
            print(f"{name}, {what}: " + ", ".join(f"{who} {spell(value)}" for who, value in found.items()), flush=True)
    write(given.json, results, proves=("short floats", "bfloat16 beside float32 on a CPU, forward and training"))


if __name__ == "__main__":
    main()
