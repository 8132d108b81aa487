"""A layer of experts: each computing the tokens that chose it, beside every one computing all, a capacity, and torch's.

    python benchmarks/experts.py [--rounds 6] [--json FILE]

Cases are a long text and a decoding step of one token, of few large experts (as Mixtral's, narrower) and of many small
ones (as Qwen3's): forward, and the gradient for the text, in float32, in turns. `dropless` is the layer without a
capacity; `all` computes every token at every expert and adds up what was asked for; `places` has a capacity of 1.25;
`transformers` is its `MixtralSparseMoeBlock` in torch's eager mode, with the same kernels. A ratio is how many times as
long as `dropless` each takes; all but `places`, which drops tokens, give the same numbers. Memory is the compiler's
plan, beside arguments and results.
"""

import jax
import numpy as np
import torch
from flax import nnx
from results import arguments, ratios, turns, write
from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralSparseMoeBlock

from flax_transformer.nn import Experts, ExpertsConfig, with_fields
from flax_transformer.ops.dropless import all_at_once

FORMS = {"few large": (512, 1024, 8, 2), "many small": (512, 192, 64, 8)}
"""Width, inner width, experts, experts of a token."""
LENGTHS = (1024, 1)


def every(layer: Experts, x: jax.Array) -> jax.Array:
    with all_at_once():
        return layer(x)


def theirs(layer: Experts) -> MixtralSparseMoeBlock:
    cfg = layer.cfg
    block = MixtralSparseMoeBlock(
        MixtralConfig(
            hidden_size=cfg.embed, intermediate_size=cfg.inner, num_local_experts=cfg.experts,
            num_experts_per_tok=cfg.active, experts_implementation="eager",
        )
    )  # fmt: skip
    kernels = {
        name: np.asarray(getattr(layer.experts, name).kernel[...]).swapaxes(1, 2) for name in ("gate", "up", "down")
    }
    with torch.no_grad():
        block.gate.weight.copy_(torch.tensor(np.asarray(layer.router.kernel[...]).T))
        block.experts.gate_up_proj.copy_(torch.tensor(np.concatenate([kernels["gate"], kernels["up"]], axis=1)))
        block.experts.down_proj.copy_(torch.tensor(kernels["down"]))
    return block


def compare(form: str, length: int, backward: bool, rounds: int) -> dict:
    embed, inner, experts, active = FORMS[form]
    config = ExpertsConfig(
        embed=embed, inner=inner, experts=experts, active=active, gated=True, activation="silu", bias=False
    )
    layer = Experts(config, rngs=nnx.Rngs(0))
    placed = nnx.merge(nnx.graphdef(Experts(with_fields(config, capacity=1.25), rngs=nnx.Rngs(0))), nnx.state(layer))
    x = jax.random.normal(jax.random.key(1), (1, length, embed))
    functions = {
        "dropless": (lambda layer, x: layer(x), layer),
        "all": (every, layer),
        "places": (lambda layer, x: layer(x), placed),
    }
    programs, memory, values = {}, {}, {}
    for name, (function, given) in functions.items():
        run = jax.grad(lambda layer, x, f=function: (f(layer, x) ** 2).sum(), (0, 1)) if backward else function
        compiled = jax.jit(run).lower(given, x).compile()
        programs[name] = lambda compiled=compiled, given=given: jax.block_until_ready(compiled(given, x))
        memory[name] = compiled.memory_analysis().temp_size_in_bytes
        values[name] = jax.jit(function)(given, x)
    block, tokens = theirs(layer), torch.tensor(np.asarray(x), requires_grad=backward)

    def torch_run() -> None:
        if not backward:
            with torch.no_grad():
                block(tokens)
            return
        block.zero_grad()
        (block(tokens) ** 2).sum().backward()

    with torch.no_grad():
        values["transformers"] = block(tokens).numpy()
    apart = {name: float(np.abs(values[name] - values["dropless"]).max()) for name in ("all", "transformers")}
    seconds = turns({**programs, "transformers": torch_run}, rounds, warm=True)
    return {
        "form": form, "embed": embed, "inner": inner, "experts": experts, "active": active, "tokens": length,
        "backward": backward, "ratios": ratios(seconds, "dropless"), "temporaries": memory, "largest_difference": apart,
    }  # fmt: skip


def main() -> None:
    options = arguments(__doc__, 6)
    results = []
    for form in FORMS:
        for length, backward in ((LENGTHS[0], False), (LENGTHS[0], True), (LENGTHS[1], False)):
            results.append(compare(form, length, backward, options.rounds))
            print(results[-1], flush=True)
    write(
        options.json, results, compared=("torch", "transformers"),
        proves=("experts", "dropless, beside every expert at every token, a capacity, and transformers' block"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
