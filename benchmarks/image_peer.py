"""Models of images beside PyTorch and Hugging Face, equal weights, alternating in one process.

    pip install torch==2.13.0 transformers
    python benchmarks/image_peer.py [--rounds 6] [--json FILE]

Forward: ViT-B/16 and Swin-T on 8 images of 224 × 224, DETR with ResNet-50 on 2 of 480 × 640. Training: a step of
ViT-Ti/16 on 16 images, cross-entropy and AdamW. Random weights, float32, on the CPU; all must give the same numbers.
PyTorch runs eagerly, with its fused attention where the model has it, and through `torch.compile`. A ratio above 1 says
how many times faster ours is: medians of runs that took turns.
"""

import os
import tempfile
from collections.abc import Callable

import jax
import numpy as np
import torch
import transformers
from results import arguments, ratios, spell, turns, write

from flax_transformer import hub
from flax_transformer.objective import LabelLoss
from flax_transformer.train.finetune import adopt_state
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.step import jit_train_step, make_train_step

RATE = 1e-4


def opened(model: torch.nn.Module) -> hub.Pretrained:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return hub.load(folder)


def vit(size: str, attention: str) -> torch.nn.Module:
    widths = {"base": (768, 12, 3072), "tiny": (192, 3, 768)}
    embed, heads, inner = widths[size]
    config = transformers.ViTConfig(
        hidden_size=embed, num_attention_heads=heads, intermediate_size=inner, num_labels=1000,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def swin(attention: str) -> torch.nn.Module:
    config = transformers.SwinConfig(num_labels=1000, drop_path_rate=0.0, attn_implementation=attention)
    return transformers.SwinForImageClassification(config)


def detr(attention: str) -> torch.nn.Module:
    backbone = transformers.ResNetConfig(out_features=["stage4"])
    config = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, num_labels=91, attn_implementation=attention
    )
    return transformers.DetrForObjectDetection(config)


FORWARD: dict[str, tuple[Callable[[str], torch.nn.Module], tuple[int, int, int], bool]] = {
    "ViT-B/16 forward": (lambda attention: vit("base", attention), (8, 224, 224), True),
    "Swin-T forward": (swin, (8, 224, 224), False),
    "DETR-R50 forward": (detr, (2, 480, 640), False),
}
"""The model by its kind of attention, rows, height and width, and whether it has the fused kind."""


def forward(name: str) -> tuple[dict, dict]:
    make, (rows, height, width), fused = FORWARD[name]
    pixels = np.random.default_rng(0).normal(size=(rows, 3, height, width)).astype(np.float32)
    torch.manual_seed(0)
    theirs = make("eager").eval()
    peers = {"eager": theirs}
    if fused:
        peers["eager, fused attention"] = make("sdpa").eval()
        peers["eager, fused attention"].load_state_dict(theirs.state_dict())
    peers["compiled"] = torch.compile(peers["eager, fused attention"] if fused else theirs)
    ours, tensor = opened(theirs), torch.as_tensor(pixels)

    def torch_runner(model):
        @torch.inference_mode()
        def run():
            return model(pixel_values=tensor).logits.numpy()

        return run

    runs = {"ours": lambda: np.asarray(ours(pixel_values=pixels).logits)}
    runs |= {who: torch_runner(model) for who, model in peers.items()}
    return runs, {"case": name, "rows": rows, "height": height, "width": width}


def training() -> tuple[dict, dict]:
    rows, random = 16, np.random.default_rng(0)
    pixels = random.normal(size=(rows, 3, 224, 224)).astype(np.float32)
    labels = random.integers(0, 1000, rows).astype(np.int32)
    torch.manual_seed(0)
    first = vit("tiny", "sdpa")
    config = OptimizerConfig(
        name="adamw", learning_rate=RATE, weight_decay=0.01, clip_norm=None, b2=0.999, eps=1e-8,
        schedule=ScheduleConfig(name="constant"),
    )  # fmt: skip
    optimizer = make_optimizer(config, 1_000)
    state = adopt_state(opened(first).model, optimizer, jax.random.key(0))
    step = jit_train_step(make_train_step(LabelLoss(), optimizer), state)
    batch = {
        "inputs": {"images": np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))}, "labels": labels,
        "weights": np.ones(rows, np.float32),
    }  # fmt: skip

    def ours():
        nonlocal state
        state, metrics = step(state, batch)
        return np.float32(metrics["loss"])

    def torch_runner(prepare):
        model = vit("tiny", "sdpa").train()
        model.load_state_dict(first.state_dict())
        decayed = [p for n, p in model.named_parameters() if p.ndim > 1 and "embeddings" not in n]
        rest = [p for n, p in model.named_parameters() if not (p.ndim > 1 and "embeddings" not in n)]
        groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
        descent = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.01)
        images, classes = torch.as_tensor(pixels), torch.as_tensor(labels).long()
        loss_of = prepare(lambda: torch.nn.functional.cross_entropy(model(pixel_values=images).logits, classes))

        def run():
            descent.zero_grad(set_to_none=True)
            loss = loss_of()
            loss.backward()
            descent.step()
            return np.float32(loss.item())

        return run

    runs = {"ours": ours, "eager": torch_runner(lambda f: f), "compiled": torch_runner(torch.compile)}
    return runs, {"case": "ViT-Ti/16 training step", "rows": rows, "height": 224, "width": 224}


def compare(runs: dict, case: dict, rounds: int) -> dict:
    found = {who: np.stack([run() for _ in range(2)]) for who, run in runs.items()}  # of training the second loss too
    result = {**case, "rounds": rounds}
    for peer, value in ratios(turns(runs, rounds, warm=True)).items():
        error = np.abs(found[peer] - found["ours"]).max() / np.abs(found[peer]).max()
        if not error < 1e-3:
            raise RuntimeError(f"{case['case']}: {peer} differs from ours by {error}")
        result[peer] = {**value, "relative_error": float(error)}
    return result


def main() -> None:
    options = arguments(__doc__, 6)
    torch.set_num_threads(os.cpu_count() or 1)
    transformers.logging.set_verbosity_error()
    results = []
    for make in (*(lambda name=name: forward(name) for name in FORWARD), training):
        result = compare(*make(), options.rounds)
        results.append(result)
        told = (f"PyTorch {peer} {spell(value)}" for peer, value in result.items() if isinstance(value, dict))
        print(f"{result['case']}: {', '.join(told)}", flush=True)
    write(options.json, results, compared=("torch", "transformers"))


if __name__ == "__main__":
    main()
