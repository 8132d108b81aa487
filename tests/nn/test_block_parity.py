"""Blocks against torch's own Transformer layers, weights copied over."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import Block, transformer_block, with_fields
from flax_transformer.ops import Mask

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.parity, pytest.mark.proves("transformer", "parity", "blocks of `torch.nn`")]

CFG = transformer_block(embed=24, heads=4, inner=40)
RELATIVE = 1e-5


def _attention(ours, theirs):
    """Copy ours into torch's packed layout [3D, D]."""
    d = ours.cfg.embed
    parts = [ours.query, ours.key, ours.value]
    kernels = [np.asarray(p.kernel[...]).reshape(d, d).T for p in parts]
    theirs.in_proj_weight.data = torch.tensor(np.concatenate(kernels))
    theirs.in_proj_bias.data = torch.tensor(np.concatenate([np.asarray(p.bias[...]).reshape(-1) for p in parts]))
    theirs.out_proj.weight.data = torch.tensor(np.asarray(ours.out.kernel[...]).reshape(d, d).T.copy())
    theirs.out_proj.bias.data = torch.tensor(np.asarray(ours.out.bias[...]))


def _linear(ours, theirs):
    theirs.weight.data = torch.tensor(np.asarray(ours.kernel[...]).T.copy())
    theirs.bias.data = torch.tensor(np.asarray(ours.bias[...]))


def _norm(ours, theirs):
    theirs.weight.data, theirs.bias.data = (
        torch.tensor(np.asarray(ours.scale[...])),
        torch.tensor(np.asarray(ours.bias[...])),
    )


def _pair(cfg):
    ours = Block(cfg, rngs=nnx.Rngs(0))
    leaves, treedef = jax.tree.flatten(ours)
    keys = jax.random.split(jax.random.key(5), len(leaves))
    ours = treedef.unflatten([a + 0.1 * jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)])
    kind = torch.nn.TransformerDecoderLayer if cfg.cross else torch.nn.TransformerEncoderLayer
    theirs = kind(
        cfg.embed, cfg.attention.heads, cfg.feedforward.inner, dropout=0.0, activation=cfg.feedforward.activation,
        layer_norm_eps=cfg.residual.norm_eps, batch_first=True, norm_first=cfg.residual.norm_position == "pre",
    )  # fmt: skip
    _attention(ours.attention, theirs.self_attn)
    _linear(ours.feedforward.up, theirs.linear1)
    _linear(ours.feedforward.down, theirs.linear2)
    _norm(ours.attention_residual.norm, theirs.norm1)
    if cfg.cross:
        _attention(ours.cross, theirs.multihead_attn)
        _norm(ours.cross_residual.norm, theirs.norm2)
        _norm(ours.feedforward_residual.norm, theirs.norm3)
    else:
        _norm(ours.feedforward_residual.norm, theirs.norm2)
    return ours, theirs


def _close(ours, theirs):
    theirs = theirs.detach().numpy()
    assert np.abs(np.asarray(ours) - theirs).max() <= RELATIVE * np.abs(theirs).max()


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_block_equals_torch(norm_position, activation):
    ours, theirs = _pair(with_fields(CFG, norm_position=norm_position, activation=activation))
    x = np.asarray(jax.random.normal(jax.random.key(1), (3, 7, 24)))
    lengths = np.array([7, 4, 1])
    padding = torch.tensor(np.arange(7)[None] >= lengths[:, None])
    got, expected = (
        ours(jnp.asarray(x), mask=Mask(lengths=jnp.asarray(lengths))),
        theirs(torch.tensor(x), src_key_padding_mask=padding),
    )
    _close(got, expected)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_decoder_block_and_its_gradient_equal_torch(norm_position):
    ours, theirs = _pair(with_fields(replace(CFG, cross=CFG.attention), norm_position=norm_position))
    x, memory = (np.asarray(jax.random.normal(jax.random.key(k), (3, t, 24))) for k, t in ((1, 5), (2, 7)))
    lengths = np.array([7, 4, 2])
    tx, tm = torch.tensor(x, requires_grad=True), torch.tensor(memory, requires_grad=True)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    padding = torch.zeros(3, 7).masked_fill(torch.tensor(np.arange(7)[None] >= lengths[:, None]), -torch.inf)
    expected = theirs(tx, tm, tgt_mask=causal, memory_key_padding_mask=padding)
    (expected**2).sum().backward()

    def run(x, memory):
        return ours(x, memory, mask=Mask(causal=True), memory_mask=Mask(lengths=jnp.asarray(lengths)))

    _close(run(jnp.asarray(x), jnp.asarray(memory)), expected)
    gx, gm = jax.grad(lambda *a: (run(*a) ** 2).sum(), (0, 1))(jnp.asarray(x), jnp.asarray(memory))
    _close(gx, tx.grad)
    _close(gm, tm.grad)
