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
# # Text families: GPT-2, BERT, T5, BART from one set of blocks
#
# Twenty papers, few parts. A language model, an encoder and an encoder-decoder differ in what a position may see, in
# how positions are told, and in what they are trained to say. This notebook shows the three shapes and the four
# objectives, trains a small language model on Python's own documentation, looks inside, adapts it with LoRA, and
# passes it through a Hugging Face checkpoint and back. It takes about two minutes on two CPU cores.

# %%
import pydoc_data.topics
import tempfile
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer import hub
from flax_transformer.data import ExampleStream, shuffled
from flax_transformer.data.text import Denoise, Infill, MLMMasking, PermuteSentences, Rows, SpanCorruption, TokenWindows
from flax_transformer.data.text.plain import encode_documents, train_characters
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.causal import Causal
from flax_transformer.models.encoder import MaskedLM as MaskedLanguageModel
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.bert import bert_base_uncased
from flax_transformer.models.text.gpt2 import gpt2, gpt2_tiny
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import Precision, RelativeBias, RelativeConfig
from flax_transformer.objective import TokenLoss
from flax_transformer.ops import Mask
from flax_transformer.train import LoraConfig, init_lora, merge_lora, parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}

# %% [markdown]
# ## Three shapes
#
# A preset is a function that returns a config, a frozen value; a variant is `dataclasses.replace`. `eval_shape` builds
# any of them without allocating a number.

# %%
presets = {
    "GPT-2": (Causal, gpt2()),
    "BERT-base": (MaskedLanguageModel, bert_base_uncased()),
    "T5-small": (Seq2Seq, t5_small()),
}
for name, (kind, config) in presets.items():
    model = nnx.eval_shape(lambda kind=kind, config=config: kind(config, rngs=nnx.Rngs(0)))
    block = (config if hasattr(config, "block") else config.encoder).block
    kinds = f"{block.residual.norm_position}-norm, {block.residual.norm}, {block.feedforward.activation}"
    print(f"{name:<10}{parameter_count(model):>13,} parameters   {kinds}")

# %% [markdown]
# What a query (a row) may see of the keys (columns): everything in an encoder; the past in a decoder; only its own
# document where several are packed into one row. T5 tells positions by a bias that depends on the distance, learned
# bucket by bucket; here are its two tables' buckets, with a different value drawn for each.

# %%
T = 16
segments = jnp.array([[1] * 7 + [2] * 6 + [3] * 3])
masks = {
    "encoder": Mask(),
    "decoder": Mask(causal=True),
    "decoder, window of 4": Mask(causal=True, window=(3, 0)),
    "decoder, packed documents": Mask(causal=True, segments=(segments, segments)),
}
relative = {
    f"T5 {side}": RelativeBias(
        RelativeConfig(buckets=8, max_distance=16), 1, causal=side == "decoder", precision=Precision(), rngs=nnx.Rngs(0)
    )
    for side in ("encoder", "decoder")
}
figure, axes = plt.subplots(1, 6, figsize=(13, 2.5))
for axis, (name, mask) in zip(axes, masks.items(), strict=False):
    seen = mask.materialize(T, T)
    axis.imshow(np.ones((T, T)) if seen is None else seen.reshape(T, T), cmap="Blues", vmin=0, vmax=1.4)
    axis.set_title(name)
for axis, (name, bias) in zip(axes[4:], relative.items(), strict=True):
    axis.imshow(bias(T, T)[0], cmap="RdBu")
    axis.set_title(name)
for axis in axes:
    axis.set(xticks=[], yticks=[], xlabel="key")
axes[0].set_ylabel("query")
# %% [markdown]
# ## Four objectives
#
# What a model is trained to say is a pure function of an example and a generator of random numbers.

# %%
sentence = "the quick brown fox jumps over the lazy dog . it sleeps again . nothing else happens ."
words = sorted(set(sentence.split()))
names = ["<pad>", "<s>", "</s>", "<mask>", *words, *(f"<{i}>" for i in range(9, -1, -1))]
ids = np.array([names.index(word) for word in sentence.split()])


def show(tokens):
    return " ".join(names[token] for token in tokens)


masked = MLMMasking(vocab_size=4 + len(words), mask=3, special=(0, 1, 2))
spans = SpanCorruption(sentinel=len(names) - 1, eos=2, sentinels=10, density=0.3)
stop = names.index(".")
noise = Denoise(noises=(PermuteSentences(ends=(stop,)), Infill(mask=3)), begin=(1,), end=(2,))

rng = np.random.default_rng(4)
example = masked({"tokens": ids}, rng)
print("GPT-2  reads ", show(ids[:-1]), "\n       writes", show(ids[1:]))
print(
    "BERT   reads ",
    show(example["tokens"]),
    "\n       writes",
    " ".join(names[t] if w else "·" for t, w in zip(example["labels"], example["weights"], strict=True)),
)
example = spans({"tokens": ids}, rng)
print("T5     reads ", show(example["source"]), "\n       writes", show(example["target"]))
example = noise({"tokens": ids}, rng)
print("BART   reads ", show(example["source"]), "\n       writes", show(example["target"]))

# %% [markdown]
# ## A language model of Python's documentation
#
# The text that `help()` prints comes with every Python: half a million characters. Random windows of it, a model of
# 0.8 million parameters, 800 steps.

# %%
text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
tokenizer = train_characters([text])
tokens = encode_documents([text], tokenizer).flat
config = replace(gpt2_tiny(), embedding=replace(gpt2_tiny().embedding, vocab=tokenizer.vocab_size))
model = Causal(config, rngs=nnx.Rngs(0))
print(f"{len(text):,} characters, {tokenizer.vocab_size} different, {parameter_count(model):,} parameters")

optimizer = optax.adamw(optax.cosine_onecycle_schedule(800, 4e-3, pct_start=0.1), b2=0.99, weight_decay=0.1)


def make_step(objective):
    @jax.jit
    def step(model, state, batch):
        def loss(model):
            total, sums = objective(model, batch)
            return total / sums["count"]

        value, grads = jax.value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, model)
        return optax.apply_updates(model, updates), state, value

    return step


def fit(model, objective, tokens, steps=800):
    batches = ExampleStream(shuffled(TokenWindows(tokens=tokens, length=64), seed=0), Rows(length=64), rows=16)
    step, state, losses = make_step(objective), optimizer.init(model), []
    for _ in range(steps):
        model, state, loss = step(model, state, next(batches))
        losses.append(loss)
    batches.close()
    return model, np.array(losses)


model, losses = fit(model, TokenLoss(), tokens)
figure, axis = plt.subplots(figsize=(6, 2.4))
axis.plot(losses, lw=0.8)
axis.axhline(np.log(tokenizer.vocab_size), ls=":", c="gray", label="guessing")
axis.set(xlabel="step", ylabel="loss a character")
axis.legend()
# %% [markdown]
# ## Through a checkpoint
#
# `hub.wrap` gives a model its place among the architectures of `transformers`; `hub.save` writes a folder that it
# opens; `hub.load` opens any such folder, or a hub id, and returns a pytree that is also a function of Hugging Face's
# inputs.

# %%
folder = tempfile.mkdtemp()
hub.save(
    hub.wrap(model, "GPT2LMHeadModel", tokenizer=HubTokenizer.of(tokenizer), pad_token_id=0, eos_token_id=2), folder
)
pretrained = hub.load(folder)
prompt = np.array(pretrained.tokenizer.encode(["The statement "]))
for seed in range(3):
    drawn = pretrained.generate(prompt, do_sample=True, temperature=0.6, max_new_tokens=50, key=jax.random.key(seed))
    print(repr(pretrained.tokenizer.decode(np.asarray(drawn))[0]))

# %% [markdown]
# What every layer makes of a prompt can be asked for by Hugging Face's names: here every head's attention in the last
# layer.

# %%
line = "If the exception is not handled, the"
output = pretrained(input_ids=np.array(pretrained.tokenizer.encode([line])), output_attentions=True)
figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), sharey=True)
for head, axis in enumerate(axes):
    axis.imshow(output.attentions[-1][0, head], cmap="Blues")
    axis.set_title(f"head {head + 1}")
    axis.set_xticks(range(len(line)), list(line), fontsize=6)
    axis.set_yticks(range(len(line)), list(line), fontsize=6)

# %% [markdown]
# ## Low-rank adaptation
#
# LoRA leaves the model as it is and trains two thin matrices beside each kernel. Here the model learns another style,
# upper case, with 3 % of its parameters. The merged model is a model like any other.

# %%
shouted = encode_documents([text.upper()], tokenizer).flat
base = pretrained.model
lora = init_lora(base, LoraConfig(rank=4, pattern=r"(query|value|up|down)\.kernel$"), jax.random.key(0))
print(f"{parameter_count(lora):,} parameters, {100 * parameter_count(lora) / parameter_count(base):.1f} %")


def adapted(lora, batch):
    return TokenLoss()(merge_lora(base, lora), batch)


lora, by_lora = fit(lora, adapted, shouted, steps=300)
louder = replace(pretrained, model=merge_lora(base, lora))
print(f"loss {by_lora[:10].mean():.2f} at first, {by_lora[-10:].mean():.2f} at last")
prompt = np.array(pretrained.tokenizer.encode(["THE STATEMENT "]))
print(repr(pretrained.tokenizer.decode(np.asarray(louder.generate(prompt, max_new_tokens=50)))[0]))
