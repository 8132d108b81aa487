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
# # 1. Tokens and n-grams
#
# A language model gives a probability to the next token, whatever is counted as a token. Counting how often tokens
# follow each other is one, and it is hard to beat, until contexts are so long that most of them were never seen. This
# chapter measures how many bits a character costs for each length of context, by counts and by a small network, and
# finds the length at which counts stop gaining.

# %%
import os
import pydoc_data.topics
from collections import Counter
from itertools import pairwise

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.text.plain import encode_documents, train_characters
from flax_transformer.data.text.tokenizer import train_word_bpe
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.ops import cross_entropy

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 2_000

# %% [markdown]
# ## The idea
#
# Any distribution over texts $x_1 \dots x_T$ can be written as one prediction after the other:
#
# $$p(x_1, \dots, x_T) = \prod_{t=1}^{T} p(x_t \mid x_1, \dots, x_{t-1})$$
#
# An *n-gram model* looks at the last $n-1$ tokens only and estimates each factor by counting. Long contexts are rare,
# so that their counts are mixed with those of shorter ones. With $c(h)$ the count of a context $h$, $d(h)$ the number
# of different tokens seen after it, and $h'$ the context without its first token (Witten & Bell 1991):
#
# $$p(x \mid h) = \frac{c(h, x) + d(h)\, p(x \mid h')}{c(h) + d(h)}$$
#
# A model is measured by its mean loss on text that it was not made from. In nats a token it is the cross-entropy
# $\ell$, in bits $\ell / \ln 2$, and $e^{\ell}$ is the *perplexity*: a model of perplexity $k$ is as unsure as one
# that chooses among $k$ equally probable tokens.

# %% [markdown]
# ## Ten lines
#
# What is a token? Words are too many, and characters carry little. *Byte-pair encoding* (Sennrich et al. 2016) starts
# from characters and merges the most frequent pair of neighbours, again and again. Words that are frequent become one
# token, rare ones stay in pieces.


# %%
def train_merges(words, count):
    """Return the merges of byte-pair encoding, the first one first; words are counted."""
    parts = {word: (*word[:-1], word[-1] + "</w>") for word in words}
    merges = []
    for _ in range(count):
        pairs = Counter()
        for word, times in words.items():
            pairs.update({pair: times * n for pair, n in Counter(pairwise(parts[word])).items()})
        best = max(pairs, key=lambda pair: pairs[pair])
        merges.append(best)
        parts = {word: merged(tokens, best) for word, tokens in parts.items()}
    return merges


def merged(tokens, pair):
    joined, at = [], 0
    while at < len(tokens):
        here = tuple(tokens[at : at + 2]) == pair
        joined.append("".join(pair) if here else tokens[at])
        at += 2 if here else 1
    return tuple(joined)


text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
words = Counter(word for word in text.split() if word.isalpha())
merges = train_merges(words, 60)
print(len(text), "characters;", " ".join("".join(pair) for pair in merges[:24]))

# %% [markdown]
# ## The library
#
# `train_word_bpe` learns the same merges, in compiled code, and its tokenizer writes the `tokenizer.json` that Hugging
# Face reads. Each word falls into the same pieces.

# %%
corpus = [word for word, times in words.items() for _ in range(times)]
tokenizer = train_word_bpe(corpus, merges=60)


def pieces(word):
    tokens = (*word[:-1], word[-1] + "</w>")
    for pair in merges:
        tokens = merged(tokens, pair)
    return list(tokens)


assert all(tokenizer.tokens(tokenizer.encode(word)) == pieces(word) for word in words)
print(pieces("statement"), pieces("the"), pieces("zip"))

# %% [markdown]
# More merges make tokens longer, so that a text has fewer of them, and each is harder to predict. Losses a token of two
# tokenizers therefore cannot be compared; losses a *character* can.

# %%
sizes = (0, 50, 200, 800, 3200)
for size in sizes:
    rows = train_word_bpe(corpus, merges=size).encode(corpus)
    counts = np.unique(np.concatenate(rows), return_counts=True)[1]
    probabilities = counts / counts.sum()
    entropy = -(probabilities * np.log2(probabilities)).sum()
    length = sum(len(word) + 1 for word in corpus) / counts.sum()
    print(
        f"{size:5} merges  {length:.2f} characters and {entropy:.2f} bits a token, {entropy / length:.2f} a character"
    )

# %% [markdown]
# The loss itself is `ops.cross_entropy`: a sum and a count. Of the logarithms of counts it is the cross-entropy that
# the counts give by hand.

# %%
letters = train_characters([text])
codes = encode_documents([text], letters).flat.astype(np.int64)
cut = len(codes) * 9 // 10
train, test = codes[:cut], codes[cut:]
V = letters.vocab_size
alone = (np.bincount(train, minlength=V) + 1) / (len(train) + V)
total, count = cross_entropy(jnp.broadcast_to(jnp.log(alone), (len(test), V)), jnp.asarray(test))
by_hand = -np.log(alone[test]).mean()
np.testing.assert_allclose(total / count, by_hand, rtol=1e-4)
print(f"one character without context: {by_hand / np.log(2):.2f} bits, a perplexity of {np.exp(by_hand):.1f}")

# %% [markdown]
# ## Counts beside a network
#
# Counts for every length of context, from sorted arrays: an n-gram is one whole number, in base V. Each length mixes
# what it has counted with the shorter one, by the formula above.


# %%
def looked_up(keys, counts, wanted):
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, counts[at], 0)


def grams(tokens, n):
    """Return all runs of n tokens as numbers; those of n = 0 are 0."""
    count = len(tokens) - LONGEST
    return sum(tokens[LONGEST - n + i : LONGEST - n + i + count] * V ** (n - 1 - i) for i in range(n)) + np.zeros(
        count, np.int64
    )


LONGEST = 8
probability, bits = np.full(len(test) - LONGEST, 1 / V), []
for n in range(1, LONGEST + 1):
    keys, counts = np.unique(grams(train, n), return_counts=True)
    contexts, kinds = np.unique(keys // V, return_counts=True)
    sums = np.add.reduceat(counts, np.searchsorted(keys // V, contexts))
    here = grams(test, n)
    c, d, both = (looked_up(*table, wanted) for table, wanted in (
        ((contexts, sums), here // V), ((contexts, kinds), here // V), ((keys, counts), here)
    ))  # fmt: skip
    probability = np.where(c > 0, (both + d * probability) / np.maximum(c + d, 1), probability)
    bits.append(-np.log2(probability).mean())
    print(f"{n - 1} characters of context: {bits[-1]:.3f} bits, {(c == 0).mean():5.1%} of contexts never seen")

# %% [markdown]
# And a network: a causal Transformer of two layers (chapter 7) on windows of 33 characters. At its first position it
# has seen one character, at the next one two, so that its mean loss at each position is that of one length of context.

# %%
config = with_fields(gpt2_tiny(vocab=V), embed=64, heads=4, inner=128, depth=2)
model = config.build(nnx.Rngs(0))
optimizer = optax.adamw(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.1), b2=0.99, weight_decay=0.1)


def windows(random, source, rows, length=33):
    starts = random.integers(0, len(source) - length, rows)
    return jnp.asarray(source[starts[:, None] + np.arange(length)], jnp.int32)


def losses_at(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:])


@jax.jit
def step(model, state, tokens):
    loss, gradient = jax.value_and_grad(lambda model: losses_at(model, tokens).mean())(model)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, loss


random, state = np.random.default_rng(0), optimizer.init(model)
for _ in range(STEPS):
    model, state, loss = step(model, state, windows(random, train, 16))
held = windows(np.random.default_rng(1), test, 2_000)
network = np.asarray(jax.jit(losses_at)(model, held).mean(0)) / np.log(2)

# %%
figure, axis = plt.subplots(figsize=(6, 2.8))
axis.plot(range(LONGEST), bits, "o-", label="counts")
axis.plot(range(1, 33), network, ".-", label="network")
axis.set(xlabel="characters of context", ylabel="bits a character", ylim=(1, None))
axis.legend()

best = int(np.argmin(bits))
print(f"counts are best with {best} characters of context: {bits[best]:.2f} bits; with {LONGEST - 1}: {bits[-1]:.2f}")
far = network[23:].mean()
print(f"the network with 1: {network[0]:.2f}, with {best}: {network[best - 1]:.2f}, with 24 to 32: {far:.2f}")
assert 2 < best < LONGEST - 1
assert bits[-1] > bits[best] + 0.05
if not SMALL:
    assert far < network[best - 1] - 0.05

# %% [markdown]
# Counts stop where contexts run out: of those of seven characters more than a quarter was never seen, and the loss goes
# up again. The loss of the network falls for longer, to about eight characters, and does not rise after that, as it
# need not have seen a context to use it. But it is not better yet: with the few seconds of training that it had, on
# less than half a million characters, counts of four characters win. That is how n-gram models stayed in use for
# decades: they are made by one pass over the text.

# %% [markdown]
# ## Exercises
#
# 1. A model has a loss of so many nats a token. Make it one that can be compared with other tokenizers.
#
#    ```python
#    def bits_per_character(nats, tokens, characters):
#        """Return the bits a character of a text of so many tokens and characters."""
#    ```
#
# 2. Write a bigram model that gives no pair the probability 0, as if each had been seen $k$ times more (add-k).
#
#    ```python
#    def bigram(tokens, vocab, k):
#        """Return the matrix [V, V] of the probability of the next token, by the one before."""
#    ```
#
# 3. How much text is needed? Estimate from a sample how often a context of n tokens will be new.
#
#    ```python
#    def unseen(train, test, n):
#        """Return the fraction of runs of n tokens in the test text that are not in the training text."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def bits_per_character(nats, tokens, characters):
    return nats / np.log(2) * tokens / characters


# %% tags=["check"]
# 2 bits a token, 100 tokens, 400 characters
assert abs(bits_per_character(2 * np.log(2), 100, 400) - 0.5) < 1e-9


# %% tags=["solution"] jupyter={"source_hidden": true}
def bigram(tokens, vocab, k):
    counts = np.full((vocab, vocab), float(k))
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    return counts / counts.sum(1, keepdims=True)


# %% tags=["check"]
table = bigram(np.array([0, 1, 0, 1, 0, 2]), 3, 0.5)
np.testing.assert_allclose(table.sum(1), 1)
np.testing.assert_allclose(table[0], np.array([0.5, 2.5, 1.5]) / 4.5)
np.testing.assert_allclose(table[2], 1 / 3)  # never seen before another


# %% tags=["solution"] jupyter={"source_hidden": true}
def unseen(train, test, n):
    seen = {tuple(train[i : i + n]) for i in range(len(train) - n + 1)}
    runs = [tuple(test[i : i + n]) for i in range(len(test) - n + 1)]
    return sum(run not in seen for run in runs) / len(runs)


# %% tags=["check"]
assert unseen([1, 2, 3, 1], [3, 1, 2, 2], 2) == 1 / 3
assert unseen([1, 2, 3, 1], [3, 1, 2, 2], 1) == 0
