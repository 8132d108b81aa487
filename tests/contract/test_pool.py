"""What heads make of a row with padding is what they make of it alone, in every family with rows of several lengths."""

import inspect
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.head import Classifier, ClassifierConfig, HeadConfig, with_head
from flax_transformer.models.padded import Padded
from flax_transformer.models.pool import AttentionPoolConfig
from flax_transformer.models.preset import module_of
from flax_transformer.nn import transformer_block
from flax_transformer.objective import LabelLoss
from tests.contract.golden import GOLDEN, load

pytestmark = pytest.mark.proves("padding", "pooled heads of every family read none")

USUAL = {"bert", "gpt2", "mixtral", "vilt", "wav2vec2"}
"""Families that `make test` tries: of text, a decoder, experts, of text and images, of audio."""
SHORT = {"longformer", "lxmert", "mpnet", "roberta"}
"""Families whose golden checkpoints have few positions."""
POOLS = (
    "every", "first", "last", "mean", "first and mean", "weighted", "attention", "max", "sum over root length",
    "mean by position",
)  # fmt: skip


def backbone_of(folder):
    """Return the config of a family's backbone whose rows have lengths and a label each, None if it has none."""
    config = load(folder).pretrained.model.cfg
    for name in ("backbone", "encoder", "text"):
        config = getattr(config, name, config)
    model = module_of(config)
    named = inspect.signature(model.hidden_states).parameters if hasattr(model, "hidden_states") else {}
    return config if "lengths" in named and "target" not in named and hasattr(model, "example_batch") else None


def head(embed, pool):
    if pool == "attention":
        return AttentionPoolConfig(block=transformer_block(embed=embed, heads=2, inner=8))
    return HeadConfig(embed=embed, outputs=3, pool=pool)


def changed(inputs, name, edit):
    return {**inputs, name: edit(inputs[name])}


@pytest.mark.rotates
@pytest.mark.parametrize(
    "folder",
    [pytest.param(f, marks=() if f.name in USUAL else pytest.mark.slow) for f in GOLDEN],
    ids=lambda folder: folder.name,
)
def test_padding_says_nothing_to_any_head(folder):
    config = backbone_of(folder)
    if config is None or folder.name == "nystromformer":
        pytest.skip("of models whose rows have lengths, which do not read padding")
    if (
        folder.name == "wav2vec2"
    ):  # as published its first norm is over time, padding too, where it is not of every layer
        config = replace(config, front=replace(config.front, norm="every"))
    model = Classifier(with_head(config, outputs=3, pool="mean"), rngs=nnx.Rngs(0))
    inputs = module_of(config).example_batch(config, 2, 16 if folder.name in SHORT else None)["inputs"]
    name = "samples" if "samples" in inputs else "sentences" if "sentences" in inputs else "tokens"
    T = inputs[name].shape[1]
    short = T * 5 // 8
    inputs = {**inputs, "lengths": np.array([short, T], np.int32)}
    run = jax.jit(lambda model, inputs: model.hidden_states(**inputs))
    first = jax.tree.map(lambda leaf: leaf[:1], inputs)
    other = changed(inputs, name, lambda x: np.where(np.arange(T) < inputs["lengths"][:, None], x, x[:, :1]))
    alone = {key: leaf[:, :short] if key in (name, "types", "positions") else leaf for key, leaf in first.items()}
    found = [run(model, each) for each in ((inputs, other) if folder.name == "big_bird" else (inputs, other, alone))]
    assert all(isinstance(each, Padded) for each in found)
    for pool in POOLS[2:]:
        head_config = head(model.cfg.head.embed, pool)
        made = jax.jit(head_config.build(nnx.Rngs(1)).__call__)
        want, *others = [np.asarray(made(each)[0]) for each in found]
        for got in others:
            np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max(), err_msg=pool)


@pytest.mark.rotates
@pytest.mark.parametrize("pool", POOLS)
def test_a_loss_of_labels_knows_padding(pool):
    """As the objective feeds it, and with padding on the left, as the head alone takes it."""
    config = backbone_of(next(folder for folder in GOLDEN if folder.name == "bert"))
    like = config.block.feedforward.embed
    model = Classifier(ClassifierConfig(backbone=config, head=head(like, pool)), rngs=nnx.Rngs(0))
    tokens = np.random.default_rng(0).integers(4, 20, (2, 8)).astype(np.int32)
    batch = {"inputs": {"tokens": tokens, "lengths": np.array([3, 8], np.int32)}, "weights": np.ones(2, np.float32)}
    batch |= {"labels": np.zeros(2, np.int32)}
    if pool == "every":
        batch |= {
            "labels": np.zeros((2, 8), np.int32),
            "weights": (np.arange(8) < np.array([[3], [8]])).astype(np.float32),
        }
    loss = jax.jit(lambda batch: LabelLoss()(model, batch)[0])
    other = changed(
        batch, "inputs", lambda inputs: changed(inputs, "tokens", lambda x: np.where(np.arange(8) < 3, x, 7))
    )
    other["inputs"]["tokens"][1] = tokens[1]
    np.testing.assert_allclose(loss(other), loss(batch), rtol=1e-5)
    if pool in ("every", "first"):
        return
    hidden = jax.random.normal(jax.random.key(0), (1, 4, like))
    left = Padded(jnp.concatenate([hidden + 9, hidden], axis=1), jnp.arange(8)[None] >= 4)
    if pool == "first and mean":
        left = Padded(jnp.concatenate([hidden, hidden + 9], axis=1), jnp.arange(8)[None] < 4)
    np.testing.assert_allclose(model.head(left), model.head(hidden), rtol=2e-5, atol=1e-6)
    nothing = Padded(hidden, jnp.zeros((1, 4), bool))
    slopes = jax.grad(lambda head: jnp.sum(head(nothing) ** 2))(model.head)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slopes))
