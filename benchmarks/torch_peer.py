"""Training steps of the 2017 Transformer beside PyTorch's `nn.Transformer`, alternating in one process.

    python benchmarks/torch_peer.py [--rounds 8] [--json FILE]

All train the same shapes: post-norm, dropout 0.1, tied embeddings, label smoothing 0.1, Adam, V = 8,000;
`transformer_tiny` on 128 × 32 tokens a side and `transformer_base` on 32 × 32. PyTorch runs eagerly and through
`torch.compile`: on the CPU in float32, on a GPU in bfloat16 with its own choice of attention and with cuDNN's. A ratio
above 1 says how many times faster ours is; it compares medians of steps that took turns.
"""

import math
import os
from collections.abc import Callable
from contextlib import nullcontext

import jax
import numpy as np
import torch
from flax import nnx
from results import arguments, ratios, spell, turns, write
from torch.nn.attention import SDPBackend, sdpa_kernel

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.models.text.transformer import transformer_base, transformer_tiny
from flax_transformer.nn import Precision
from flax_transformer.objective import TokenLoss
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, make_train_step

VOCAB = 8_000
CASES = {"transformer_tiny": (transformer_tiny, 128, 32), "transformer_base": (transformer_base, 32, 32)}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Peer(torch.nn.Module):
    """nn.Transformer with scaled, tied embeddings and sinusoidal positions."""

    def __init__(self, cfg: Seq2SeqConfig):
        super().__init__()
        d, block = cfg.embedding.embed, cfg.encoder.block
        dropout = block.residual.dropout
        self.embedding = torch.nn.Embedding(VOCAB, d)
        torch.nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.core = torch.nn.Transformer(
            d,
            block.attention.heads,
            cfg.encoder.depth,
            cfg.decoder.depth,
            block.feedforward.inner,
            dropout,
            batch_first=True,
        )
        # The paper's post-norm model has no normalisation after the stacks; torch adds one to each.
        self.core.encoder.norm = self.core.decoder.norm = None
        self.dropout = torch.nn.Dropout(dropout)
        angle = torch.arange(512)[:, None] * 10_000 ** (-torch.arange(0, d, 2) / d)
        self.register_buffer("positions", torch.stack([angle.sin(), angle.cos()], -1).reshape(512, d))

    def embed(self, tokens):
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: tokens.shape[1]])

    def forward(self, source, target, padding):
        causal = torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        hidden = self.core(
            self.embed(source), self.embed(target), tgt_mask=causal, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return hidden @ self.embedding.weight.T


def make_batch(rows: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    draw = lambda *shape: random.integers(4, VOCAB, shape).astype(np.int32)  # noqa: E731
    lengths = random.integers(length // 2, length + 1, rows).astype(np.int32)
    source, target = draw(rows, length), draw(rows, length + 1)
    inputs = {"source": source, "target": target[:, :-1], "lengths": lengths}
    return {"inputs": inputs, "labels": target[:, 1:], "weights": np.ones((rows, length), np.float32)}


def our_step(cfg: Seq2SeqConfig, batch: dict):
    schedule = ScheduleConfig(name="constant")
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-4, schedule=schedule), 1_000)
    state = init_state(lambda key: Seq2Seq(cfg, rngs=nnx.Rngs(key)), optimizer, jax.random.key(0))
    step = jit_train_step(make_train_step(TokenLoss(label_smoothing=0.1, chunk=512), optimizer), state)

    def run():
        nonlocal state
        state, metrics = step(state, batch)
        return float(metrics["loss"])

    return run


def torch_step(cfg: Seq2SeqConfig, batch: dict, prepare: Callable, backends: list | None):
    """Make PyTorch's step.

    Args:
      prepare: what is done to forward and loss: nothing, or `torch.compile`.
      backends: of scaled dot-product attention; None leaves the choice to PyTorch.
    """
    model = Peer(cfg).train().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    inputs, labels = batch["inputs"], torch.tensor(batch["labels"]).long().to(DEVICE)
    source, target = (torch.tensor(inputs[side]).long().to(DEVICE) for side in ("source", "target"))
    padding = torch.arange(source.shape[1])[None] >= torch.tensor(inputs["lengths"])[:, None]
    padding = torch.zeros(padding.shape).masked_fill(padding, -torch.inf).to(DEVICE)

    @prepare
    def forward():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            logits = model(source, target, padding)
        return loss(logits.float().reshape(-1, VOCAB), labels.reshape(-1))

    def run():
        optimizer.zero_grad(set_to_none=True)
        with sdpa_kernel(backends) if backends else nullcontext():
            value = forward()
            value.backward()
        optimizer.step()
        return value.item()

    return run


def compare(name: str, rounds: int) -> dict:
    preset, rows, length = CASES[name]
    cfg = preset(VOCAB, dropout=0.1, precision=Precision(compute="bfloat16" if DEVICE == "cuda" else "float32"))
    batch = make_batch(rows, length)
    steps = {
        "ours": our_step(cfg, batch),
        "eager": torch_step(cfg, batch, lambda f: f, None),
        "compiled": torch_step(cfg, batch, torch.compile, None),
    }
    if DEVICE == "cuda":
        steps["compiled, cuDNN"] = torch_step(cfg, batch, torch.compile, [SDPBackend.CUDNN_ATTENTION])
    for who, step in steps.items():
        first, second = step(), step()
        if not second < first:
            raise RuntimeError(f"{who} does not learn: loss {first} then {second}")
    seconds = turns(steps, rounds)
    return {"case": name, "rows": rows, "length": length, "rounds": rounds, **ratios(seconds)}


def main() -> None:
    options = arguments(__doc__, 8)
    torch.set_num_threads(os.cpu_count() or 1)
    results = []
    for name in CASES:
        result = compare(name, options.rounds)
        results.append(result)
        told = (f"PyTorch {peer} {spell(value)}" for peer, value in result.items() if isinstance(value, dict))
        print(f"{name}: training step {', '.join(told)}", flush=True)
        write(options.json, results, compared=("torch",))


if __name__ == "__main__":
    main()
