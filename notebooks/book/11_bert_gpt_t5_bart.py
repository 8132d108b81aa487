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
# # 11. BERT, GPT, T5, BART
#
# Four families differ less in their layers than in what they are trained to say: the next token, masked tokens, lost
# spans, or the whole text behind a damaged one. This chapter trains all four on the same texts with the same budget and
# asks each for one missing word. The number is how often it is right, by whether the words before it or only those
# after it give it away.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import sums
from flax_transformer.data.text import Denoise, Infill, MLMMasking, SpanCorruption
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block
from flax_transformer.objective import TokenLoss
from flax_transformer.ops import Mask
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 400

# %% [markdown]
# ## The idea
#
# Let $x$ be a text, $M$ a set of positions that are hidden, and $\tilde{x}$ the text with these replaced by a mask.
#
# $$\text{GPT:}\; \sum_t \log p(x_t \mid x_1 \dots x_{t-1}) \qquad
# \text{BERT:}\; \sum_{t \in M} \log p(x_t \mid \tilde{x})$$
#
# T5 and BART have an encoder that reads $\tilde{x}$, in which a whole span is replaced by one symbol. T5 writes the
# spans alone, each after its *sentinel*; BART writes the whole text:
#
# $$\text{T5:}\; \log p(\text{spans} \mid \tilde{x}) \qquad \text{BART:}\; \log p(x \mid \tilde{x})$$
#
# GPT has a prediction at every position but sees one side only. BERT sees both, and learns from 15 % of the positions.
# The other two see both sides with the encoder and write with the decoder.

# %% [markdown]
# ## Ten lines
#
# Damage, with the spans given, and its inverse.


# %%
def corrupt(tokens, spans, sentinel, end):
    """Return (source, target) as T5 has them; spans are (begin, end) in order, sentinels descend."""
    source, target, at = [], [], 0
    for number, (begin, stop) in enumerate(spans):
        source += [*tokens[at:begin], sentinel - number]
        target += [sentinel - number, *tokens[begin:stop]]
        at = stop
    return [*source, *tokens[at:], end], [*target, end]


def restored(source, target, sentinel, sentinels):
    """Return the tokens that were corrupted."""
    spans, tokens = {}, []
    for token in target[:-1]:
        if sentinel - sentinels < token <= sentinel:
            spans[last := token] = []
        else:
            spans[last].append(token)
    for token in source[:-1]:
        tokens += spans.get(token, [token])
    return tokens


# %% [markdown]
# ## The library
#
# The texts are chains of sums: each begins with the result of the one before, so that words can be known from what
# comes before or after. A corruption is a function of an example and a generator of random numbers.

# %%
texts = sums(500 if SMALL else 6_000), sums(500, split="test")
words = sorted({word for text in texts[0] for word in text.replace("-", " ").replace(".", " .").split()})
PAD, START, END, MASK = range(4)
SENTINELS = 6
names = ["<pad>", "<s>", "</s>", "<mask>", *words, *(f"<{i}>" for i in reversed(range(SENTINELS)))]
LAST = len(names) - 1


def tokens_of(text):
    return [names.index(word) for word in text.replace("-", " ").replace(".", " .").split()]


train, test = ([tokens_of(text) for text in part] for part in texts)
T = max(map(len, train + test)) + 2
S = T + 8  # spans of no token get a mask, too
spans = SpanCorruption(sentinel=LAST, eos=END, sentinels=SENTINELS, mean=1.5)
infill = Denoise(noises=(Infill(mask=MASK, share=0.2, mean=1.5),), begin=(), end=(END,))
masking = MLMMasking(vocab_size=LAST + 1 - SENTINELS, mask=MASK, special=(PAD, START, END))

random = np.random.default_rng(0)
for tokens in test[:50]:
    example = spans({"tokens": np.array(tokens)}, random)
    assert restored(example["source"].tolist(), example["target"].tolist(), LAST, SENTINELS) == tokens
    assert spans.restore(*map(np.array, corrupt(tokens, [(2, 4), (7, 8)], LAST, END))).tolist() == tokens


def show(tokens):
    return " ".join(names[token] for token in tokens)


masked = masking({"tokens": np.array(test[0])}, random)
print("text  ", show(test[0]))
print("BERT  ", show(masked["tokens"]))
print("T5    ", show(example["source"]), "→", show(example["target"]))
print("BART  ", show(infill({"tokens": np.array(test[0])}, random)["source"]))

# %% [markdown]
# All objectives become batches of one form, and one loss serves all models: `TokenLoss` gives a model its inputs by
# name. T5's own corruption, which `SpanCorruption` is, never takes the first token of a text and always takes the last.
# A model trained by it alone could not be asked for a first word, so that T5 is trained here on spans of one word that
# may be anywhere.


# %%
def padded(rows, length):
    return np.stack([np.pad(row, (0, length - len(row))) for row in rows]).astype(np.int32)


def shifted(labels):
    return np.concatenate([np.full((len(labels), 1), START, np.int32), labels[:, :-1]], axis=1)


def batch_of(inputs, labels, weights=None):
    weights = labels != PAD if weights is None else weights
    return {"inputs": inputs, "labels": labels, "weights": weights.astype(np.float32)}


def gpt_batch(rows, random):
    labels = padded([[*row, END] for row in rows], T)
    return batch_of({"tokens": shifted(labels)}, labels)


def bert_batch(rows, random):
    examples = [masking({"tokens": np.array(row)}, random) for row in rows]
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens, labels, weights = (padded([each[name] for each in examples], T) for name in ("tokens", "labels", "weights"))
    return batch_of({"tokens": tokens, "lengths": lengths}, labels, weights)


def pair_batch(make):
    def batch(rows, random):
        examples = [make({"tokens": np.array(row)}, random) for row in rows]
        source, labels = (padded([each[n] for each in examples], size) for n, size in (("source", S), ("target", T)))
        lengths = np.array([len(each["source"]) for each in examples], np.int32)
        return batch_of({"source": source, "target": shifted(labels), "lengths": lengths}, labels)

    return batch


def t5_example(example, random):
    """Take one to five words anywhere, each a span of its own."""
    tokens = example["tokens"].tolist()
    gone = sorted(random.choice(len(tokens), random.integers(1, SENTINELS), replace=False).tolist())
    source, target = corrupt(tokens, [(at, at + 1) for at in gone], LAST, END)
    return {"source": np.array(source), "target": np.array(target)}


block = transformer_block(embed=64, heads=4, inner=128, norm_position="pre")
both = transformer_block(embed=64, heads=4, inner=128, norm_position="pre", cross=True)
embedding = EmbeddingConfig(vocab=len(names), embed=64, position="learned", max_length=S)
families = {
    "GPT": (CausalConfig(embedding=embedding, block=block, depth=2), gpt_batch),
    "BERT": (MaskedLMConfig(encoder=EncoderConfig(embedding=embedding, block=block, depth=2)), bert_batch),
    "T5": (None, pair_batch(t5_example)),
    "BART": (None, pair_batch(infill)),
}
two_sides = Seq2SeqConfig(
    embedding=embedding, encoder=TrunkConfig(block=block, depth=1), decoder=TrunkConfig(block=both, depth=1)
)

loss = TokenLoss()
models = {name: (config or two_sides).build(nnx.Rngs(0)) for name, (config, _) in families.items()}
for name, (_, make) in families.items():
    batch = make(train[:4], random)
    total, sums_of = loss(models[name], batch)
    logits = models[name].output(models[name].hidden_states(**batch["inputs"])).logits()
    by_hand = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    np.testing.assert_allclose(total, (by_hand * batch["weights"]).sum(), rtol=1e-4)
    print(
        f"{name:5} {parameter_count(models[name]):7,} parameters, {int(sums_of['count']):3} predictions in four texts"
    )

# %% [markdown]
# ## One missing word


# %%
def trained(model, make):
    optimizer = optax.adam(optax.cosine_onecycle_schedule(STEPS, 4e-3, pct_start=0.1))

    @jax.jit
    def step(model, state, batch):
        def mean(model):
            total, sums_of = loss(model, batch)
            return total / sums_of["count"]

        value, gradient = jax.value_and_grad(mean)(model)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state, value

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        rows = [train[i] for i in random.integers(0, len(train), 32)]
        model, state, value = step(model, state, make(rows, random))
    return model, float(value)


for name, (_, make) in families.items():
    models[name], value = trained(models[name], make)
    unseen = make(test, np.random.default_rng(1))
    logits = models[name].output(models[name].hidden_states(**unseen["inputs"])).logits()
    hits = np.asarray(logits.argmax(-1) == unseen["labels"])
    print(f"{name:5} loss {value:.3f} of what it is trained on; {hits[unseen['weights'] > 0].mean():.3f} of it right")

# %% [markdown]
# A word of the first or second result is hidden. Its sum is before it, and the same number follows it. A word of the
# very first number has nothing before it: only what follows says what it was. In each text one of both is asked for.


# %%
def hidden_places(tokens):
    """Return a position of a result, which follows `is`, and one of the first number."""
    return {"both sides": tokens.index(names.index("is")) + 1, "after it": 0}


def answers(name, place):
    """Return what a model says at the place of each test text."""
    at = np.array([hidden_places(tokens)[place] for tokens in test])
    rows = np.arange(len(test))
    whole = padded([[*tokens, END] for tokens in test], T)
    lengths = np.array([len(tokens) for tokens in test], np.int32)
    hidden = whole.copy()
    hidden[rows, at] = LAST if name == "T5" else MASK
    if name == "GPT":  # sees what is before alone
        inputs, look = {"tokens": shifted(whole)}, at
    elif name == "BERT":
        inputs, look = {"tokens": np.where(hidden == END, PAD, hidden), "lengths": lengths}, at
    elif name == "T5":  # after its sentinel
        target = np.full((len(test), T), PAD, np.int32)
        target[:, :2] = START, LAST
        inputs, look = {"source": hidden, "target": target, "lengths": lengths + 1}, np.ones(len(test), int)
    else:  # BART writes the text up to there
        inputs, look = {"source": hidden, "target": shifted(whole), "lengths": lengths + 1}, at
    model = models[name]
    logits = model.output(model.hidden_states(**jax.tree.map(jnp.asarray, inputs))).logits()
    return np.asarray(logits[rows, look, : LAST + 1 - SENTINELS].argmax(-1)), whole[rows, at]


right = {}
for name in families:
    for place in ("both sides", "after it"):
        said, true = answers(name, place)
        right[name, place] = float((said == true).mean())
    two, one = right[name, "both sides"], right[name, "after it"]
    print(f"{name:5} right with both sides {two:.3f}, with what follows alone {one:.3f}")

# %% [markdown]
# Can GPT not use what follows? It can, by Bayes: put each of the words in the place, and take the text of greatest
# probability. That needs a pass for each of the words.

# %%
candidates = np.arange(4, 4 + len(words))


@jax.jit
def log_probability(model, rows):
    labels = rows[:, 1:]
    logits = jax.nn.log_softmax(model(rows[:, :-1]))
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (chosen * (labels != PAD)).sum(-1)


def scored(tokens, at):
    rows = np.tile(padded([[START, *tokens, END]], T + 1), (len(candidates), 1))
    rows[:, at + 1] = candidates
    return candidates[int(log_probability(models["GPT"], rows).argmax())]


some = test[:20] if SMALL else test[:200]
by_text = float(np.mean([scored(tokens, 0) == tokens[0] for tokens in some]))
print(f"GPT, the first word by the probability of the whole text: {by_text:.3f}, with {len(candidates)} passes a text")

# %%
figure, axis = plt.subplots(figsize=(6, 2.6))
places = ("both sides", "after it")
for shift, name in enumerate(families):
    axis.bar(np.arange(2) + 0.2 * shift, [right[name, place] for place in places], 0.18, label=name)
axis.bar(1.0 + 0.2 * 4, by_text, 0.18, color="C0", alpha=0.4, label="GPT, whole text")
axis.set_xticks([0.3, 1.4], ["known from both sides", "known from what follows"])
axis.set(ylabel="right", ylim=(0, 1.25))
_ = axis.legend(ncols=5, fontsize=7)

if not SMALL:
    for name in ("BERT", "BART"):
        assert right[name, "after it"] > right["GPT", "after it"] + 0.1
    assert by_text > right["GPT", "after it"] + 0.1

# %% [markdown]
# A model says what it was trained to say. Of a word that only follows from what comes after it, GPT's prediction cannot
# know more than which words are frequent there; BERT and BART read both sides, and are right far more often. What GPT
# knows of the whole text is not lost: its probabilities of whole texts find the word, for as many passes as there are
# words. T5 learns from the few words that it writes, BART and GPT from every word of the text, so that equal budgets
# of steps are not equal amounts of what is learned from. With more steps the numbers change; what a model cannot see
# does not.

# %% [markdown]
# ## Exercises
#
# 1. Of the positions that BERT chooses, 80 % become the mask, 10 % a random token, and 10 % stay. Write it, with the
#    draws given.
#
#    ```python
#    def bert_input(tokens, chosen, draws, others, mask):
#        """Return tokens [T], where chosen [T]: the mask if draws [T] < 0.8, others [T] if < 0.9, else as they are."""
#    ```
#
# 2. T5's corruption takes a fraction of $n$ tokens away, in spans of a mean length. How long do source and target get,
#    each with its end mark, and the sentinels?
#
#    ```python
#    def corrupted_lengths(n, gone, count):
#        """Return the lengths of source and target of n tokens of which `gone` go, in `count` spans."""
#    ```
#
# 3. A *prefix language model* (Raffel et al. 2020) is a decoder that sees all of a prefix, and the past after it. Write
#    its mask.
#
#    ```python
#    def prefix_mask(length, prefix):
#        """Return which keys (columns) each query (row) sees [T, T]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def bert_input(tokens, chosen, draws, others, mask):
    changed = np.where(draws < 0.8, mask, np.where(draws < 0.9, others, tokens))
    return np.where(chosen, changed, tokens)


# %% tags=["check"]
tokens = np.arange(10, 15)
said = bert_input(tokens, np.array([1, 1, 1, 0, 0], bool), np.array([0.1, 0.85, 0.95, 0.1, 0.85]), tokens + 50, MASK)
assert said.tolist() == [MASK, 61, 12, 13, 14]


# %% tags=["solution"] jupyter={"source_hidden": true}
def corrupted_lengths(n, gone, count):
    return n - gone + count + 1, gone + count + 1


# %% tags=["check"]
for n in (10, 24, 60):
    assert corrupted_lengths(n, *spans.counts(n)) == spans.lengths(n)


# %% tags=["solution"] jupyter={"source_hidden": true}
def prefix_mask(length, prefix):
    past = np.tril(np.ones((length, length), bool))
    return past | (np.arange(length) < prefix)


# %% tags=["check"]
theirs = (Mask(causal=True) | Mask(lengths=jnp.array(2))).materialize(5, 5)
np.testing.assert_array_equal(prefix_mask(5, 2), np.asarray(theirs).reshape(5, 5))
