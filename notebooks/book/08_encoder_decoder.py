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
# # 8. The encoder-decoder
#
# A translator reads a source with an encoder and writes a target with a decoder, whose *cross-attention* looks at the
# source at every step. This chapter trains one to translate English number words into German, where the order of tens
# and ones turns round. The numbers are how many unseen numbers are translated without a mistake, and how often
# cross-attention looks at the English word that a German one translates.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import numbers
from flax_transformer.decode import Greedy, greedy
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import Attention, CrossAttentionConfig, with_fields
from flax_transformer.ops import capture

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 500

# %% [markdown]
# ## The idea
#
# A decoder block has a third part between self-attention and feed-forward. Its queries come from the target $y$, its
# keys and values from the encoder's output, the *memory* $m$:
#
# $$\operatorname{cross}(y, m) = \operatorname{softmax}\left(\frac{(y W^Q)(m W^K)^\top}{\sqrt{H}}\right) m W^V$$
#
# No mask of the future is needed here, as the whole source is known; only padding is hidden. The memory is computed
# once a sentence, and so are its keys and values. A target begins with a start symbol and is trained as in chapter 7,
# given the source:
#
# $$p(y \mid x) = \prod_t p(y_t \mid y_1, \dots, y_{t-1}, x)$$

# %% [markdown]
# ## Ten lines


# %%
def cross(y, memory, layer):
    """Return what target states y [T, D] read of a memory [S, D]."""
    q = jnp.einsum("td,dnh->tnh", y, layer.query.kernel[...]) + layer.query.bias[...]
    k = jnp.einsum("sd,dnh->snh", memory, layer.key.kernel[...]) + layer.key.bias[...]
    v = jnp.einsum("sd,dnh->snh", memory, layer.value.kernel[...]) + layer.value.bias[...]
    weights = jax.nn.softmax(jnp.einsum("tnh,snh->nts", q, k) / jnp.sqrt(q.shape[-1]), axis=-1)
    return jnp.einsum("nts,snh,nhd->td", weights, v, layer.out.kernel[...]) + layer.out.bias[...]


# %% [markdown]
# ## The library
#
# `nn.Attention` with a memory is that. `Seq2Seq` has an encoder, a decoder and one table of tokens for both and for the
# output. It decodes by `encode`, `init_cache` and `step`, whose logits are those of one pass.

# %%
layer = Attention(CrossAttentionConfig(embed=32, heads=4), rngs=nnx.Rngs(0))
y, memory = jax.random.normal(jax.random.key(0), (5, 32)), jax.random.normal(jax.random.key(1), (7, 32))
np.testing.assert_allclose(cross(y, memory, layer), layer(y, memory), atol=1e-5)

# %% [markdown]
# Tokens are parts of words here, so that a look can be named: a German number is split where its parts meet.

# %%
PAD, START, END = range(3)
GERMAN = ["tausend", "hundert", "und", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig",
          "neunzig", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn", "zehn", "elf",
          "zwölf", "eins", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun",
          "null"]  # fmt: skip


def split_german(word):
    parts = []
    while word:
        parts.append(next(part for part in GERMAN if word.startswith(part)))
        word = word.removeprefix(parts[-1])
    return parts


def split_english(text):
    return text.replace("-", " ").split()


def read(split, count):
    pairs = numbers(count, split=split)
    return [(split_english(row["source"]), split_german(row["target"])) for row in (pairs[i] for i in range(count))]


pairs, test = read("train", 1_000 if SMALL else 12_000), read("test", 400)
ENGLISH = sorted({word for source, _ in pairs for word in source})
names = ["<pad>", "<s>", "</s>", *ENGLISH, *GERMAN]
number_of = {name: at for at, name in enumerate(names)}
S = max(len(source) for source, _ in pairs + test)
T = max(len(target) for _, target in pairs + test) + 1


def encode(pairs):
    source, labels = np.zeros((len(pairs), S), np.int32), np.zeros((len(pairs), T), np.int32)
    for row, (english, german) in enumerate(pairs):
        source[row, : len(english)] = [number_of[word] for word in english]
        labels[row, : len(german) + 1] = [*(number_of[word] for word in german), END]
    target = np.concatenate([np.full((len(pairs), 1), START), labels[:, :-1]], axis=1).astype(np.int32)
    lengths = np.array([len(english) for english, _ in pairs], np.int32)
    return {"source": source, "target": target, "lengths": lengths}, labels


inputs, labels = encode(pairs)
test_inputs, test_labels = encode(test)
print(len(names), "tokens:", " ".join(test[0][0]), "→", " ".join(test[0][1]))

config = with_fields(transformer_tiny(vocab=len(names), dropout=0.0), embed=64, heads=4, inner=128, depth=2)
model = config.build(nnx.Rngs(0))
batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[:4]), test_inputs)
whole = model(**batch)
cache = model.init_cache(model.encode(batch["source"], batch["lengths"]), batch["lengths"], T)
for t in range(T):
    logits, cache = model.step(cache, batch["target"][:, t])
    np.testing.assert_allclose(logits, whole[:, t], atol=1e-4)

# %% [markdown]
# ## A translator

# %%
optimizer = optax.adam(optax.cosine_onecycle_schedule(STEPS, 5e-3, pct_start=0.1))


@jax.jit
def step(model, state, inputs, labels):
    def loss(model):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(**inputs), labels)
        return (losses * (labels != PAD)).sum() / (labels != PAD).sum()

    value, gradient = jax.value_and_grad(loss)(model)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value


random, state = np.random.default_rng(0), optimizer.init(model)
for _ in range(STEPS):
    rows = random.integers(0, len(pairs), 48)
    model, state, loss = step(model, state, {name: leaf[rows] for name, leaf in inputs.items()}, labels[rows])


@jax.jit
def translate(model, source, lengths):
    cache = model.init_cache(model.encode(source, lengths), lengths, T)
    starts = jnp.full(len(source), START)
    return greedy(model.step, cache, starts, Greedy(max_length=T, eos=END)).tokens[:, 0]


written = np.asarray(translate(model, test_inputs["source"], test_inputs["lengths"]))
exact = (written == test_labels).all(1).mean()
print(f"loss {float(loss):.4f}; {exact:.1%} of {len(test)} unseen numbers without a mistake")
if not SMALL:
    assert exact > 0.9

# %% [markdown]
# ## Where it looks
#
# Which English word does each German one translate? By rule: *zwanzig* comes from *twenty*, wherever that stands. Of
# the cross-attention of each layer and head, how often is the greatest weight on that word, when the German word is
# written?

# %%
DIGITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
german_tens, german_digits = GERMAN[3:11], ["ein", *GERMAN[23:31]]
english_of = dict(zip(german_tens, TENS, strict=True)) | dict(zip(german_digits, DIGITS, strict=True))
english_of |= {"eins": "one", "tausend": "thousand", "hundert": "hundred"}


def aligned(source, target):
    """Return pairs (t, s) of words that are each other's translation, where there is only one such word."""
    return [
        (t, source.index(english_of[word]))
        for t, word in enumerate(target)
        if word in english_of and source.count(english_of[word]) == 1 and target.count(word) == 1
    ]


_, found = capture(lambda model: model(**test_inputs), "attention_weights")(model)
looks = np.asarray(next(each for each in found if each.shape[-2:] == (T, S)))  # [L, B, N, T, S]
links = [(row, t, s) for row, pair in enumerate(test) for t, s in aligned(*pair)]
row_at, t_at, s_at = np.array(links).T
hits = (looks[:, row_at, :, t_at].argmax(-1) == s_at[:, None, None]).mean(0)  # [L, N]
chance = np.mean([1 / len(test[row][0]) for row, _, _ in links])
print("greatest weight on the translated word, layers by heads:", hits.round(2).tolist(), f"chance {chance:.2f}")

example = next(i for i, (source, _) in enumerate(test) if len(source) >= 9)
layer_number, head = np.unravel_index(hits.argmax(), hits.shape)
figure, axes = plt.subplots(figsize=(6, 3.4))
source, target = test[example]
axes.imshow(looks[layer_number, example, head, : len(target) + 1, : len(source)], cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(len(source)), source, rotation=90)
_ = axes.set_yticks(range(len(target) + 1), [*target, "</s>"])
if not SMALL:
    assert hits.max() > chance + 0.3

# %% [markdown]
# In the run shown the best head of the last layer has its greatest weight on the translated word every time, where
# chance would have it there one time in six: an alignment that nobody has taught. The first layer looks there about
# half of the time. A wrong weight need not make a wrong word, as the encoder has mixed what its positions know.

# %% [markdown]
# ## Exercises
#
# 1. How much of the look is needed? Write a decoder input that is the target moved by one, with the start symbol before
#    it.
#
#    ```python
#    def shifted(labels, start):
#        """Return the decoder's inputs [B, T] of labels [B, T]."""
#    ```
#
# 2. The mean loss must not count padding. Write it, given the losses of all positions.
#
#    ```python
#    def masked_mean(losses, labels, pad):
#        """Return the mean of losses [B, T] over the positions whose label is not pad."""
#    ```
#
# 3. Score alignments as machine translation does: the *alignment error rate* of links $A$ that were found against those
#    that are sure, $S$, is $1 - 2 |A \cap S| / (|A| + |S|)$ (Och & Ney 2003, with sure links alone).
#
#    ```python
#    def alignment_error(found, sure):
#        """Return the error rate of two sets of pairs."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def shifted(labels, start):
    return np.concatenate([np.full((len(labels), 1), start), labels[:, :-1]], axis=1)


# %% tags=["check"]
np.testing.assert_array_equal(shifted(test_labels, START), test_inputs["target"])


# %% tags=["solution"] jupyter={"source_hidden": true}
def masked_mean(losses, labels, pad):
    counted = labels != pad
    return (losses * counted).sum() / counted.sum()


# %% tags=["check"]
assert masked_mean(np.array([[1.0, 3.0], [5.0, 100.0]]), np.array([[4, 5], [6, 0]]), 0) == 3


# %% tags=["solution"] jupyter={"source_hidden": true}
def alignment_error(found, sure):
    return 1 - 2 * len(found & sure) / (len(found) + len(sure))


# %% tags=["check"]
assert alignment_error({(0, 0), (1, 2)}, {(0, 0), (1, 2)}) == 0
assert alignment_error({(0, 0), (1, 1)}, {(0, 0), (1, 2)}) == 0.5
