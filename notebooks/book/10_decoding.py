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
# # 10. Decoding
#
# A model gives probabilities; a text has to be chosen. This chapter compares greedy search, beams and exact search on a
# model small enough for all three, where the number is how often each finds the most probable text. Then it writes with
# a trained model and measures what texts found by search are like beside drawn ones: far more probable, and repetitive.

# %%
import os
import pydoc_data.topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.text.plain import encode_documents, train_characters
from flax_transformer.decode import Beam, GNMTPenalty, Greedy, PowerPenalty, Sampling, beam_search, greedy, sample
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.ops.logit_filter import filter_logits

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 350

# %% [markdown]
# ## The idea
#
# The most probable text is that with the greatest sum of log-probabilities,
#
# $$y^* = \operatorname{argmax}_y \sum_t \log p(y_t \mid y_1, \dots, y_{t-1}),$$
#
# of which there are $V^T$. *Greedy* search takes the most probable token each time. *Beam search* keeps the $W$ best
# prefixes. As each token makes the sum smaller, short texts win; so finished texts are compared by the sum over a
# *length penalty*, a power $|y|^\alpha$ or the $((5 + |y|) / 6)^\alpha$ of Wu et al. (2016). *Sampling* draws from the
# distribution, perhaps sharpened by a temperature $\tau$, $p_i \propto \exp(z_i / \tau)$, and cut to the most probable
# tokens: $k$ of them, or as many as have the mass $p$ (the *nucleus*, Holtzman et al. 2020).

# %% [markdown]
# ## Ten lines
#
# Beams on a bigram model: a matrix of log-probabilities of the next token by the one before. All texts have $T$ tokens.


# %%
def beams(table, start, length, width):
    """Return the tokens [T] and the log-probability of the best of the beams."""
    prefixes = [((start,), 0.0)]
    for _ in range(length):
        longer = [((*tokens, token), score + table[tokens[-1], token])
                  for tokens, score in prefixes for token in range(len(table))]  # fmt: skip
        prefixes = sorted(longer, key=lambda prefix: -prefix[1])[:width]
    tokens, score = prefixes[0]
    return list(tokens[1:]), score


def exact(table, length):
    """Return the greatest log-probability after each start [V]: for each token, the best way on from it (Viterbi)."""
    best = np.zeros(len(table))
    for _ in range(length):
        best = (table + best).max(1)
    return best


# %% [markdown]
# ## The library
#
# `decode` knows no model: it runs a function `step(cache, token) -> (logits, cache)`. For a bigram model the step is a
# look-up, and the cache is the table.

# %%
text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
letters = train_characters([text])
codes = encode_documents([text], letters).flat.astype(np.int32)
V, LENGTH = letters.vocab_size, 10
counts = np.full((V, V), 0.01)
np.add.at(counts, (codes[:-1], codes[1:]), 1)
table = np.log(counts / counts.sum(1, keepdims=True)).astype(np.float32)


def look_up(cache, token):
    return jnp.asarray(table)[token], cache


starts = jnp.arange(4, V)


def searched(width):
    config = Beam(max_length=LENGTH, eos=(), beams=width, length_penalty=PowerPenalty(alpha=0.0))
    return beam_search(look_up, jnp.zeros(len(starts) * width), starts, config).best


found = searched(4)
for row in (0, 30, 60):
    tokens, score = beams(table, int(starts[row]), LENGTH, 4)
    np.testing.assert_allclose(found.scores[row], score, rtol=1e-5)
    path = [int(starts[row]), *tokens]
    np.testing.assert_allclose(table[path[:-1], path[1:]].sum(), score, rtol=1e-5)
same = greedy(look_up, jnp.zeros(()), starts, Greedy(max_length=LENGTH, eos=())).best
np.testing.assert_allclose(same.scores, searched(1).scores, rtol=1e-5)

# %% [markdown]
# How often is the best of the beams the best of all $V^{10}$ texts?

# %%
optimum = exact(table, LENGTH)[4:]
rates = {}
for width in (1, 2, 4, 8, 16, 32):
    scores = np.asarray(searched(width).scores)
    assert (scores <= optimum + 1e-3).all()
    rates[width] = float((scores > optimum - 1e-3).mean())
    print(f"{width:3} beams: optimal for {rates[width]:6.1%} of the starts, {np.mean(optimum - scores):.3f} nats below")
assert rates[32] > rates[1]

# %% [markdown]
# ## A model that writes
#
# Now with a Transformer of two layers (chapter 7), trained on the same text. Lines are texts: a line ends at its end.

# %%
cut = len(codes) * 9 // 10
config = with_fields(gpt2_tiny(vocab=V), embed=64, heads=4, inner=256, depth=2, max_length=128)
model = config.build(nnx.Rngs(0))
optimizer = optax.adamw(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.1), b2=0.99, weight_decay=0.1)


@jax.jit
def step(model, state, tokens):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()

    value, gradient = jax.value_and_grad(loss)(model)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value


random, state = np.random.default_rng(0), optimizer.init(model)
for _ in range(STEPS):
    at = random.integers(0, cut - 65, 16)
    model, state, loss = step(model, state, codes[at[:, None] + np.arange(65)])
print(f"loss {float(loss):.2f}")

ROWS, PROMPT, WRITE = (4, 24, 16) if SMALL else (32, 24, 64)
lines = [line for line in text[int(0.9 * len(text)) :].split("\n") if len(line) > PROMPT + 20]
prompts = jnp.asarray(letters.encode([line[:PROMPT] for line in lines[:ROWS]]))
END = letters.encode("\n")[0]


def write(model, search, config, *key, width=1):
    """Continue all prompts; a cache is made ready for as many hypotheses as there are beams."""
    _, cache = model.prefill(prompts[:, :-1])
    cache = cache.fork(width, PROMPT + WRITE) if width > 1 else cache.grow(PROMPT + WRITE)
    options = {"reorder": lambda cache, rows: cache.reorder(rows)} if search is beam_search else {}
    return search(model.step, cache, prompts[:, -1], *key, config, **options).best


def repeated(tokens, n=6):
    """Return the fraction of runs of n tokens that stood in the same text before."""
    runs = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(runs)) / max(len(runs), 1)


def report(name, decoded):
    rows = [np.asarray(row)[:length] for row, length in zip(decoded.tokens, decoded.lengths, strict=True)]
    again = float(np.mean([repeated(row.tolist()) for row in rows]))
    logprob, length = float(decoded.logprobs.sum(-1).mean()), float(decoded.lengths.mean())
    print(f"{name:26} log-probability {logprob:7.1f}  repeated {again:.2f}  length {length:4.1f}  "
          f"{letters.decode([rows[0]])[0][:36]!r}")  # fmt: skip
    return {"logprob": logprob, "repeated": again, "length": length}


results = {}
without_end = {"max_length": WRITE, "eos": ()}
results["greedy"] = report("greedy", jax.jit(lambda m: write(m, greedy, Greedy(**without_end)))(model))
search = Beam(**without_end, beams=4)
results["4 beams"] = report("4 beams", jax.jit(lambda m: write(m, beam_search, search, width=4))(model))
draw = jax.jit(lambda m, sampling: write(m, sample, sampling, jax.random.key(0)))  # one program for all temperatures
for temperature in (0.5, 1.0):
    name = f"sampling, temperature {temperature}"
    results[name] = report(name, draw(model, Sampling(**without_end, temperature=temperature)))
human = [letters.encode(line[PROMPT:][:WRITE]) for line in lines[:ROWS]]
by_people = float(np.mean([repeated(row) for row in human]))
print(f"what people wrote there: repeated {by_people:.2f}")

# %% [markdown]
# And the length penalty, with lines that may end:

# %%
lengths = {}
for alpha in (0.0, 2.0):
    search = Beam(max_length=WRITE, eos=END, beams=4, length_penalty=PowerPenalty(alpha=alpha))
    decoded = jax.jit(lambda m, s=search: write(m, beam_search, s, width=4))(model)
    lengths[alpha] = float(decoded.lengths.mean())
    print(f"length penalty {alpha}: {lengths[alpha]:.1f} characters a line")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.6))
left.semilogx(list(rates), list(rates.values()), "o-", base=2)
left.set(xlabel="beams", ylabel="found the best text", title="bigram model", ylim=(0, 1.05))
right.scatter([each["logprob"] for each in results.values()], [each["repeated"] for each in results.values()])
for name, each in results.items():
    right.annotate(name, (each["logprob"], each["repeated"]), fontsize=7)
right.axhline(by_people, color="gray", linestyle=":")
right.set(xlabel="log-probability", ylabel="repeated", title="Transformer")

if not SMALL:
    drawn = results["sampling, temperature 1.0"]
    for search in ("greedy", "4 beams"):
        assert results[search]["logprob"] > drawn["logprob"] + 20
        assert results[search]["repeated"] > drawn["repeated"] + 0.3
    assert abs(drawn["repeated"] - by_people) < 0.15
    assert lengths[0.0] <= lengths[2.0]

# %% [markdown]
# On the bigram model more beams find the best text more often, and even 32 miss it for most starts. With the
# Transformer four beams were no better than greedy search: a prefix that is good so far may drive out the one that
# would have ended better, and nothing promises that more beams help. But both find texts that are far more probable
# than what is drawn, and these are not what people write: they repeat themselves. This small model writes spaces, as
# indentation is what it has seen most. Drawing from the distribution itself repeats about as little as people do,
# although nobody would take its letters for English. Without a length penalty lines end a little sooner. Search suits
# tasks with one answer, such as translation; open text is drawn.

# %% [markdown]
# ## Exercises
#
# 1. Write the filter of the nucleus.
#
#    ```python
#    def nucleus(logits, p):
#        """Return logits [V] with -inf for all but the most probable tokens whose probabilities first reach p."""
#    ```
#
# 2. A hypothesis of 4 tokens has the log-probability −4, one of 9 tokens −6. Which wins depends on the penalty. Write
#    the choice, with the penalty of Wu et al.
#
#    ```python
#    def winner(hypotheses, alpha):
#        """Return the index of the best of (log-probability, length) pairs."""
#    ```
#
# 3. Greedy search is not optimal. Make a bigram table of three tokens where two greedy steps from token 0 are less
#    probable than another text.
#
#    ```python
#    def trap():
#        """Return log-probabilities [3, 3], rows of which sum to 1 as probabilities."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def nucleus(logits, p):
    order = jnp.argsort(-logits)
    probabilities = jax.nn.softmax(logits)[order]
    before = jnp.cumsum(probabilities) - probabilities
    return jnp.full_like(logits, -jnp.inf).at[order].set(jnp.where(before < p, logits[order], -jnp.inf))


# %% tags=["check"]
logits = jax.random.normal(jax.random.key(5), (12,))
for p in (0.1, 0.5, 0.9):
    np.testing.assert_array_equal(nucleus(logits, p), filter_logits(logits, top_p=p))


# %% tags=["solution"] jupyter={"source_hidden": true}
def winner(hypotheses, alpha):
    return int(np.argmax([score / ((5 + length) / 6) ** alpha for score, length in hypotheses]))


# %% tags=["check"]
hypotheses = [(-4.0, 4), (-6.0, 9)]
for alpha in (0.0, 0.6, 1.5):
    scores = [score / GNMTPenalty(alpha=alpha)(length) for score, length in hypotheses]
    assert winner(hypotheses, alpha) == int(np.argmax(scores))
assert winner(hypotheses, 0.0) == 0
assert winner(hypotheses, 1.5) == 1


# %% tags=["solution"] jupyter={"source_hidden": true}
def trap():
    return np.log(np.array([[0.02, 0.58, 0.40], [0.34, 0.33, 0.33], [0.01, 0.01, 0.98]]))


# %% tags=["check"]
small = trap()
np.testing.assert_allclose(np.exp(small).sum(1), 1, atol=1e-6)
assert beams(small, 0, 2, 1)[1] < exact(small, 2)[0] - 1e-3
