# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention: from four lines to a translator
#
# The Transformer ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)) is one idea, attention, and a few parts
# around it. This notebook builds it up: attention in four lines, masks, heads, a block, a stack, positions. Then it
# trains a translator of number words and looks at what its attention has learnt. It takes a minute or two on two CPU
# cores.
#
# Axes have one letter each, here as everywhere in the library: **T** query positions, **S** key positions, **N**
# heads, **H** width of a head, **D** width of the model, **L** layers, **B** batch.

# %%
import json
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx

from flax_transformer.data.synthetic import Numbers
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import (
    Attention,
    Block,
    apply_stack,
    init_stack,
    layer,
    summary,
    transformer_block,
    with_fields,
)
from flax_transformer.objective import TokenLoss
from flax_transformer.ops import Mask, attention, explain_attention, sinusoidal
from flax_transformer.report import attention_figure
from flax_transformer.task.attention import draw_sentence
from flax_transformer.task.experiment import train
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.run import open_translator
from flax_transformer.task.sentence_pair import BPE, Batching, SentencePairs
from flax_transformer.task.translation import Translations
from flax_transformer.task.translator import Search
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}


# %% [markdown]
# ## Four lines
#
# Every position asks a question, its *query*, and offers a *key* and a *value*. The answer to a query is an average
# of all values, each weighted by how well its key fits:
#
# $$\operatorname{attention}(q, k, v) = \operatorname{softmax}\left(\frac{q k^\top}{\sqrt{H}}\right) v$$


# %%
def four_lines(q, k, v):
    scores = jnp.einsum("tnh,snh->nts", q, k) / math.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("nts,snh->tnh", weights, v)


q, k, v = jax.random.normal(jax.random.key(0), (3, 6, 2, 16))  # each [T, N, H]
np.testing.assert_allclose(four_lines(q, k, v), attention(q, k, v), atol=1e-6)

# %% [markdown]
# Why divide by $\sqrt{H}$? If the numbers in a query and a key are independent with variance 1, their product has
# variance H. Without the division, the softmax of wide heads is nearly one-hot before anything has been learnt, and a
# one-hot softmax has no gradient (§3.2.1 of the paper).

# %%
for width in (4, 64, 1024):
    a, b = jax.random.normal(jax.random.key(1), (2, 500, width))
    scores = a @ b.T
    plain, divided = (jax.nn.softmax(s).max(-1).mean() for s in (scores, scores / math.sqrt(width)))
    print(f"H={width:>4}  deviation {scores.std():5.1f}  largest of 500 weights: {plain:.2f}, divided {divided:.2f}")

# %% [markdown]
# `ops.attention` computes the same function in several ways. Which one serves a call depends on device, shapes and
# mask, and it says so:

# %%
print(explain_attention(q, k, v))

# %% [markdown]
# ## Who may look at whom
#
# A decoder must not see the future, padding must not be seen at all, and texts packed into one row must not see each
# other. Here a mask is a *description* of that. It becomes an array of booleans only where a kernel needs one, so a
# causal mask costs no memory however long the text. Descriptions combine with `&`.

# %%
segments = jnp.array([0] * 5 + [1] * 4 + [2] * 3)
masks = {
    "Mask(causal=True)": Mask(causal=True),
    "Mask(window=2)": Mask(window=2),
    "Mask(lengths=8)": Mask(lengths=jnp.array(8)),
    "Mask(segments=…)": Mask(segments=(segments, segments)),
    "causal & window": Mask(causal=True) & Mask(window=(3, 0)),
    "causal & segments": Mask(causal=True) & Mask(segments=(segments, segments)),
}

figure, grid = plt.subplots(2, 3, figsize=(7.5, 5.2))
for axes, (name, mask) in zip(grid.flat, masks.items(), strict=True):
    axes.imshow(mask.materialize(12, 12)[0], cmap="Blues", vmin=0, vmax=1.4)
    axes.set(title=name, xticks=range(0, 12, 3), yticks=range(0, 12, 3))
grid[1, 0].set(xlabel="key", ylabel="query")
plt.show()

# %% [markdown]
# Blue is visible. The promise of the causal mask can be tested: whatever the last position holds, no earlier answer
# changes.

# %%
before = attention(q, k, v, Mask(causal=True))
after = attention(q, k.at[-1].set(9.0), v.at[-1].set(9.0), Mask(causal=True))
print("changed:", [bool((before[t] != after[t]).any()) for t in range(6)])

# %% [markdown]
# ## Heads
#
# One average can carry one thing. So a model attends several times side by side, in N *heads*, each with its own
# narrow projections of the same input, D → H, and a last matrix mixes their answers. `nn.Attention` holds these four
# matrices. It is a pytree of arrays; calling it is a pure function.

# %%
config = transformer_block(embed=64, heads=4, inner=256)
attend = Attention(config.attention, rngs=nnx.Rngs(0))
summary(attend)

# %% [markdown]
# With what we have, it is five lines:

# %%
x = jax.random.normal(jax.random.key(2), (6, 64))  # [T, D]


def project(part, x):
    return jnp.einsum("td,dnh->tnh", x, part.kernel[...]) + part.bias[...]


answers = four_lines(project(attend.query, x), project(attend.key, x), project(attend.value, x))
by_hand = jnp.einsum("tnh,nhd->td", answers, attend.out.kernel[...]) + attend.out.bias[...]
np.testing.assert_allclose(by_hand, attend(x), atol=1e-5)

# %% [markdown]
# Several query heads may share one key and value head (*grouped queries*, [Ainslie et al.
# 2023](https://arxiv.org/abs/2305.13245)). What a decoder must remember of every token shrinks accordingly:

# %%
for kv_heads in (4, 2, 1):
    cache = Attention(replace(config.attention, kv_heads=kv_heads), rngs=nnx.Rngs(0)).init_cache(batch=1, length=1000)
    print(f"{kv_heads} key/value heads: {cache.key.size + cache.value.size:>7,} numbers for 1,000 tokens")

# %% [markdown]
# ## A block
#
# Attention moves information between positions; a *feed-forward* layer then works on each position alone. Around both
# there is a residual connection ([He et al. 2015](https://arxiv.org/abs/1512.03385)) and a normalisation ([Ba et al.
# 2016](https://arxiv.org/abs/1607.06450)): `norm(x + f(x))` in the paper, *post-norm*; `x + f(norm(x))`, *pre-norm*,
# in most later models ([Xiong et al. 2020](https://arxiv.org/abs/2002.04745)).

# %%
block = Block(config, rngs=nnx.Rngs(0))

h = block.attention_residual.norm(x + block.attention(x))
h = block.feedforward_residual.norm(h + block.feedforward(h))
np.testing.assert_allclose(h, block(x), atol=1e-5)

# %% [markdown]
# Since a block is a value and a call has no side effects, JAX's transforms apply as to any function. There is no
# training mode either: dropout happens when a key is given, and never without one.

# %%
batch = jax.random.normal(jax.random.key(3), (8, 6, 64))  # [B, T, D]
y = jax.jit(lambda block, x: block(x))(block, batch)
gradients = jax.grad(lambda block: (block(batch) ** 2).mean())(block)
print(type(gradients).__name__, jax.tree.structure(gradients) == jax.tree.structure(block))

dropping = Block(with_fields(config, dropout=0.1), rngs=nnx.Rngs(0))
print(bool((dropping(x) == block(x)).all()), bool((dropping(x, key=jax.random.key(4)) == block(x)).all()))

# %% [markdown]
# ## A stack
#
# Depth is an axis: L blocks are one block whose arrays have a leading L. Running them is a scan over that axis. The
# compiler sees one block, however deep the model.

# %%
blocks = init_stack(lambda rngs: Block(config, rngs=rngs), depth=6, key=jax.random.key(5))
print(block.attention.query.kernel.shape, "→", blocks.attention.query.kernel.shape)

h = x
for i in range(6):
    h = layer(blocks, i)(h)
np.testing.assert_allclose(h, apply_stack(blocks, x), atol=1e-4)

deep = init_stack(lambda rngs: Block(config, rngs=rngs), depth=60, key=jax.random.key(5))
for stack in (blocks, deep):
    print("lines of the program:", str(jax.make_jaxpr(apply_stack)(stack, x)).count("\n"))

# %% [markdown]
# ## Positions
#
# Nothing so far knows the order of its inputs: shuffle them, and the outputs are shuffled alike.

# %%
order = jnp.array([3, 1, 5, 0, 2, 4])
np.testing.assert_allclose(block(x[order]), block(x)[order], atol=1e-5)

# %% [markdown]
# So the order must be told. The paper adds to every embedding a vector of sines and cosines of its position, in
# wavelengths from 2π to 10,000 · 2π (§3.5). The product of two such vectors depends only on their distance, which
# lets a head ask for "three back".

# %%
positions = sinusoidal(jnp.arange(60), 64)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2))
left.imshow(positions, cmap="RdBu", aspect="auto")
left.set(title="sinusoidal positions", xlabel="channel", ylabel="position")
for start in (10, 30, 50):
    right.plot(jnp.arange(60), positions @ positions[start], label=f"position {start}")
right.set(title="product with the vector of …", xlabel="position", ylim=(None, 37))
right.legend(loc="upper center", ncols=3, fontsize=7)
plt.show()

# %% [markdown]
# ## A translator
#
# The parts make an encoder, which reads the source, and a decoder, whose blocks also attend to what the encoder has
# read (*cross-attention*). To see them learn, a problem small enough for a laptop and not trivial: English number
# words to German ones. German says the ones before the tens, and all in one word.

# %%
pairs = Numbers().read("train")
for i in range(4):
    print(f"{pairs[i]['source']}  →  {pairs[i]['target']}")

# %% [markdown]
# An experiment is one value: model, data, objective, optimizer, training. Text becomes tokens by byte-pair encoding
# ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)), learnt from the training pairs. Nothing from the test
# set is seen in training.

# %%
STEPS = 300
experiment = Recipe(
    model=with_fields(transformer_tiny(dropout=0.1), depth=2),
    data=Numbers(train=20_000, validation=500, test=500),
    examples=SentencePairs(bpe=BPE(unit="byte", merges=200), batch=Batching(tokens=2_048, buckets=3, max_tokens=64)),
    objective=TokenLoss(label_smoothing=0.1, chunk=512),
    evaluators=(Translations(search=Search(beams=1), headline="exact_match", count=4),),
    family="marian",
    optimizer=OptimizerConfig(learning_rate=3e-3, schedule=ScheduleConfig(name="cosine", warmup=50)),
    train=TrainConfig(steps=STEPS, log_every=20, eval_every=100, checkpoint_every=STEPS),
)

os.chdir(tempfile.mkdtemp())  # what is made here may go
model = train(experiment, "numbers")

# %% [markdown]
# The folder `numbers` now holds the whole run: configuration, tokenizer, checkpoints, metrics, and a page to look at,
# `report.html`.

# %%
summary(model)

# %% [markdown]
# The loss is a cross-entropy with label smoothing ε = 0.1 (§5.4 of the paper): a tenth of the probability is asked to
# be spread over the whole vocabulary V. So it cannot reach 0; the best possible is the entropy of the smoothed
# labels, the dotted line.

# %%
records = [json.loads(line) for line in Path("numbers/metrics.jsonl").read_text().splitlines()]
vocabulary, smoothing = model.cfg.embedding.vocab, experiment.objective.label_smoothing
labels = np.full(vocabulary, smoothing / vocabulary)
labels[0] += 1 - smoothing

figure, axes = plt.subplots(figsize=(6, 3.2))
for split, style in (("train", "-"), ("validation", "o")):
    curve = [(record["step"], record["loss"]) for record in records if record["split"] == split]
    axes.plot(*zip(*curve, strict=True), style, label=split)
axes.axhline(-(labels * np.log(labels)).sum(), color="gray", linestyle=":", label="lowest possible")
axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
axes.legend()
plt.show()

# %%
(scores,) = (record for record in records if record["split"] == "test")
assert scores["exact_match"] > 95, scores
print(f"{scores['exact_match']:.1f} % of 500 numbers it has never seen are translated without a mistake")

# %% [markdown]
# Now your own. Label smoothing has taught the model never to be quite sure, so even a perfect translation has a
# probability well below 1.

# %%
translator, _ = open_translator("numbers")
sentences = ["twenty-one", "nine hundred ninety-nine", "six hundred fifty-four thousand three hundred twenty-one"]
for sentence, (best, *_) in zip(sentences, translator(sentences, Search(beams=4)), strict=True):
    print(f"{sentence}\n  {best.text}   probability {math.exp(sum(best.logprobs)):.2f}")

# %% [markdown]
# ## What it looks at
#
# Each row is a token the decoder was about to write, each column a token of the source, the darkness the weight of
# the cross-attention between them, here in the last layer and averaged over heads. Such images were first drawn for
# recurrent translators ([Bahdanau et al. 2015](https://arxiv.org/abs/1409.0473)). A `·` stands for a space.

# %%
picture, _ = draw_sentence(translator, sentences[-1], Search(beams=1))
encoder, decoder, cross = picture.maps

figure, axes = plt.subplots(figsize=(6, 3.4))
axes.imshow(cross.weights[-1].mean(0), cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(len(cross.columns)), cross.columns, rotation=90)
axes.set_yticks(range(len(cross.rows)), cross.rows)
plt.show()

# %% [markdown]
# Follow the end, where German turns the order round. In the run shown, "ein" is written with the weight on "one", the
# last word of the source; then, for "undzwanzig", it goes back to "twenty".
#
# `attention_figure` draws every head of a layer. In the decoder's self-attention the causal mask is plain to see:
# nothing above the diagonal.

# %%
attention_figure(decoder, layer=0)

# %% [markdown]
# Not every head can be read like this, and a weight is not yet an explanation
# ([Jain & Wallace 2019](https://arxiv.org/abs/1902.10186)): values and later layers have their say too.

# %% [markdown]
# ## Going on
#
# - [Composing](../docs/composing.md): what one can do with blocks because they are pure, each in a few lines.
# - [Translation](../docs/translation.md): the same experiment on real text, with its score.
# - [experiments/forkme.py](../experiments/forkme.py): an experiment to copy and change.
