"""The Evolved Transformer's cells against the paper's, composed of torch's functions: outputs and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.evolved_cell import evolved_decoder, evolved_encoder
from flax_transformer.ops import Mask
from flax_transformer.parallel import path_name

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("evolved", "parity", "cells: outputs and gradients of torch's functions composed as published"),
]
F = torch.nn.functional

D, N, B, T, S = 16, 2, 3, 13, 6
LENGTHS = np.array([13, 8, 1])
MEMORY_LENGTHS = np.array([6, 2, 5])


def filled(cell, seed):
    """Draw all parameters, norms around one; give them to torch too, by their paths."""
    random = np.random.default_rng(seed)
    leaves, tree = jax.tree_util.tree_flatten_with_path(cell)
    drawn = {
        path_name(path): random.normal(size=leaf.shape).astype(np.float32) * 0.3 + path_name(path).endswith("scale")
        for path, leaf in leaves
    }
    theirs = {name: torch.tensor(x, dtype=torch.float32, requires_grad=True) for name, x in drawn.items()}
    return jax.tree.unflatten(tree, [jnp.asarray(x, jnp.float32) for x in drawn.values()]), theirs


def inputs(length, seed):
    return np.random.default_rng(seed).normal(size=(B, length, D)).astype(np.float32)


class Paper:
    """Figure 3 of the paper; what its boxes are told of padding is what is not in it."""

    def __init__(self, parameters):
        self.p = parameters

    def norm(self, name, x):
        scale = self.p[f"{name}.scale"]
        return F.layer_norm(x, scale.shape, scale, self.p[f"{name}.bias"], eps=1e-6)

    def dense(self, name, x):
        return F.linear(x, self.p[f"{name}.kernel"].T, self.p[f"{name}.bias"])

    def conv(self, name, x, left, right, groups=1):
        kernel = self.p[f"{name}.kernel"].permute(2, 1, 0)
        return F.conv1d(F.pad(x.mT, (left, right)), kernel, self.p.get(f"{name}.bias"), groups=groups).mT

    def separable(self, name, x, left, right):
        return self.dense(f"{name}.project", self.conv(f"{name}.each", x, left, right, groups=x.shape[-1]))

    def attend(self, name, x, memory, heads, hidden=None, causal=False):
        weights = {part: self.p[f"{name}.{part}.kernel"].reshape(D, -1).T for part in ("query", "key", "value")}
        future = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1) if causal else None
        y, _ = F.multi_head_attention_forward(
            x.transpose(0, 1), memory.transpose(0, 1), memory.transpose(0, 1), D, heads, None, None, None, None, False,
            0.0, self.p[f"{name}.out.kernel"].reshape(-1, D).T, None, key_padding_mask=hidden, attn_mask=future,
            need_weights=False, use_separate_proj_weight=True, q_proj_weight=weights["query"],
            k_proj_weight=weights["key"], v_proj_weight=weights["value"],
        )  # fmt: skip
        return y.transpose(0, 1)

    def encoder(self, x, lengths):
        padding = torch.arange(x.shape[1]) >= torch.tensor(lengths)[:, None]
        shown = (~padding)[..., None].float()
        h = self.norm("gate_residual.norm", x)
        x = x + F.glu(torch.cat([self.dense("gate.up", h), self.dense("gate.gate", h)], -1), -1)
        h = self.norm("branches_residual.norm", x) * shown
        left, right = F.relu(self.dense("branches.up", h)), F.relu(self.conv("branches.narrow", h, 1, 1))
        h = left + F.pad(right, (0, left.shape[-1] - right.shape[-1]))
        h = self.separable("branches.last", self.norm("branches.norm", h) * shown, 4, 4)
        x = x + F.pad(h, (0, D // 2))
        h = self.norm("attention_residual.norm", x)
        x = x + self.attend("attention", h, h, N, padding)
        h = self.norm("feedforward_residual.norm", x)
        return x + self.dense("feedforward.down", F.relu(self.dense("feedforward.up", h)))

    def decoder(self, x, memory, lengths):
        padding = torch.arange(memory.shape[1]) >= torch.tensor(lengths)[:, None]
        h = self.norm("wide_residual.norm", x)
        x = x + self.attend("wide", h, h, 2 * N, causal=True) + self.attend("first", h, memory, N, padding)
        h = self.norm("branches_residual.norm", x)
        left = F.relu(self.separable("branches.wide", h, 10, 0))
        right = self.separable("branches.narrow", h, 6, 0)
        h = self.norm("branches.norm", left + F.pad(right, (0, left.shape[-1] - right.shape[-1])))
        x = x + self.separable("branches.last", h, 6, 0)
        h = self.norm("attention_residual.norm", x)
        x = x + self.attend("attention", h, h, N, causal=True)
        x = x + self.attend("cross", self.norm("cross_residual.norm", x), memory, N, padding)
        h = self.norm("feedforward_residual.norm", x)
        h = self.norm("feedforward.norm", F.silu(self.dense("feedforward.up", h)))
        return x + self.dense("feedforward.down", h)


def same(ours, theirs):
    """Demand equal numbers, in units of the largest of them."""
    theirs = theirs.detach().numpy()
    np.testing.assert_allclose(ours, theirs.reshape(ours.shape), rtol=1e-5, atol=1e-5 * max(1, np.abs(theirs).max()))


def compare(cell, theirs, run, expected, given):
    """Compare outputs, and gradients by parameters and by what is given."""
    weights = np.random.default_rng(9).normal(size=(B, T, D)).astype(np.float32)
    (torch.sin(expected) * torch.tensor(weights)).sum().backward()

    def loss(cell, *inputs):
        y = run(cell, *inputs)
        return (jnp.sin(y) * weights).sum(), y

    numbers = range(1 + len(given))
    read = [jnp.asarray(x.detach().numpy()) for x in given]
    (_, y), slopes = jax.jit(jax.value_and_grad(loss, numbers, has_aux=True))(cell, *read)
    same(y, expected)
    for mine, its in zip(slopes[1:], given, strict=True):
        same(mine, its.grad)
    for path, mine in jax.tree_util.tree_leaves_with_path(slopes[0]):
        same(mine, theirs[path_name(path)].grad)


def test_an_encoders_cell():
    cell, theirs = filled(evolved_encoder(embed=D, heads=N).build(nnx.Rngs(0)), 0)
    x = torch.tensor(inputs(T, 1), requires_grad=True)
    expected = Paper(theirs).encoder(x, LENGTHS)
    mask = Mask(lengths=jnp.asarray(LENGTHS))
    compare(cell, theirs, lambda cell, x: cell(x, mask=mask), expected, [x])


def test_a_decoders_cell():
    cell, theirs = filled(evolved_decoder(embed=D, heads=N).build(nnx.Rngs(0)), 2)
    x, memory = (torch.tensor(inputs(length, 3), requires_grad=True) for length in (T, S))
    expected = Paper(theirs).decoder(x, memory, MEMORY_LENGTHS)
    masks = {"mask": Mask(causal=True), "memory_mask": Mask(lengths=jnp.asarray(MEMORY_LENGTHS))}
    compare(cell, theirs, lambda cell, x, memory: cell(x, memory, **masks), expected, [x, memory])
