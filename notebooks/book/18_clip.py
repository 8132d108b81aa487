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
# # 18. CLIP
#
# Two encoders, one of images and one of texts, learn to give the same vector to an image and its caption, and other
# vectors to all other pairs of a batch. Classes are then a matter of words: an image is of the class whose caption is
# nearest. The number that shows it is the accuracy on images of combinations of colour and shape which neither images
# nor captions of the training data have, beside that of guessing.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import CaptionedShapes
from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.clip import clip_text
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.vision.cct import cct
from flax_transformer.objective import ContrastiveLoss
from flax_transformer.train import make_optimizer, muon_cosine, parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 300

# %% [markdown]
# ## The idea
#
# An image tower gives $u_i$ of image $i$ and a text tower $v_j$ of caption $j$, both of length 1. A batch of $B$
# pairs has $B^2$ cosines. Each image should find its caption among all captions of the batch, and each caption its
# image (Radford et al. 2021). With a learned scale $s$:
#
# $$S_{ij} = s\, v_i \cdot u_j, \qquad
#   \mathcal{L} = \frac{1}{2B} \sum_i \left( -\log \frac{e^{S_{ii}}}{\sum_j e^{S_{ij}}}
#     -\log \frac{e^{S_{ii}}}{\sum_j e^{S_{ji}}} \right)$$
#
# A model that knows nothing has a loss of $\ln B$. Nobody has labelled anything: captions are what images have on the
# web. What the towers know can be used for classes that were never named as such, *zero-shot*: write a caption for
# each class, and take the nearest.

# %% [markdown]
# ## Ten lines


# %%
def contrastive_loss(texts, images, scale):
    """Return the mean loss of pairs of vectors [B, E]."""
    texts = texts / jnp.linalg.norm(texts, axis=1, keepdims=True)
    images = images / jnp.linalg.norm(images, axis=1, keepdims=True)
    scores = scale * texts @ images.T
    ways = (jnp.diagonal(jax.nn.log_softmax(scores, axis=axis)) for axis in (0, 1))
    return -sum(ways).mean() / 2


def classify(image, captions):
    """Return the number of the caption nearest to an image; all are of length 1."""
    return (captions @ image).argmax()


# %% [markdown]
# ## Images with captions
#
# One of four shapes in one of six colours. Of the 24 combinations six are kept for the test. Captions of training
# images have one of four patterns; a token is a word.

# %%
shapes = CaptionedShapes(train=3_000, held_out=400, size=16, noise=8.0, colours=6, shapes=4, tested=6).open()
PIXELS = {split: np.stack([np.asarray(image) for image in pairs["image"]]) / np.float32(127.5) - 1
          for split, pairs in shapes.splits.items()}  # fmt: skip
CAPTIONS = {split: list(pairs["captions"]) for split, pairs in shapes.splits.items()}
WORDS = sorted({word for captions in CAPTIONS["train"] for caption in captions for word in caption.split()})
LENGTH = 1 + max(len(caption.split()) for captions in CAPTIONS["train"] for caption in captions)


def tokens_of(captions):
    """Return the words as numbers from 1 on, an end token 0 and padding of the same, and lengths."""
    rows = [[1 + WORDS.index(word) for word in caption.split()] + [0] for caption in captions]
    lengths = np.array([len(row) for row in rows])
    return np.array([row + [0] * (LENGTH - len(row)) for row in rows], np.int32), lengths


figure, axes = plt.subplots(1, 6, figsize=(8, 1.6))
for axis, image, captions in zip(axes, PIXELS["train"], CAPTIONS["train"], strict=False):
    axis.imshow((image + 1) / 2)
    axis.set_title(captions[0], fontsize=7)
    axis.axis("off")
unseen = sorted({captions[0] for captions in CAPTIONS["test"]})
print(f"{len(WORDS)} words; only in the test: {', '.join(unseen)}")
assert not {captions[0] for captions in CAPTIONS["train"]} & set(unseen)

# %% [markdown]
# ## The library
#
# `TwoTowersConfig` takes any two encoders whose heads give vectors of one width; here a causal model that reads the
# end of the text, as CLIP has it, and a small ViT behind two convolutions. `ContrastiveLoss` is the loss above. (It
# has a limit for the scale, which is far away.)

# %%
SIZES = {"embed": 48, "heads": 4, "depth": 2}
towers = TwoTowersConfig(
    text=clip_text(32, vocab=len(WORDS) + 1, length=LENGTH, **SIZES),
    vision=with_head(cct(image=16, stem=(24,), inner=96, **SIZES), outputs=32, pool="weighted", bias=False),
    scale=10.0,
).build(nnx.Rngs(0))
objective = ContrastiveLoss()


def batch_of(random, rows):
    chosen = random.integers(0, len(PIXELS["train"]), rows)
    captions = [CAPTIONS["train"][i][random.integers(4)] for i in chosen]
    tokens, lengths = tokens_of(captions)
    return {"inputs": {"tokens": tokens, "lengths": lengths, "images": PIXELS["train"][chosen]}}


first = batch_of(np.random.default_rng(0), 48)
vectors = towers.hidden_states(**first["inputs"])
total, sums = objective(towers, first)
by_hand = contrastive_loss(vectors.first, vectors.second, jnp.exp(towers.log_scale[...]))
np.testing.assert_allclose(total / sums["count"], by_hand, rtol=1e-4)
print(f"{parameter_count(towers):,} parameters; loss {float(by_hand):.2f} untrained, ln 48 = {np.log(48):.2f}")

# %% [markdown]
# ## Zero-shot
#
# After training, the 24 captions "a red cross" and so on are 24 classes. The validation images have combinations that
# were seen, the test images the six others. All 24 captions may be chosen for both.

# %%
optimizer = make_optimizer(muon_cosine(1e-2, warmup=STEPS // 10), STEPS)


@jax.jit
def step(model, state, batch):
    def loss(model):
        total, sums = objective(model, batch)
        return total / sums["count"]

    value, gradient = jax.value_and_grad(loss)(model)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value


random, state, losses = np.random.default_rng(1), optimizer.init(towers), []
for _ in range(STEPS):
    towers, state, value = step(towers, state, batch_of(random, 48))
    losses.append(float(value))

embed = jax.jit(lambda model, **inputs: model.hidden_states(**inputs))
tokens, lengths = tokens_of(shapes.classes)
vectors = {
    split: embed(towers, tokens=tokens, lengths=lengths, images=PIXELS[split]) for split in ("validation", "test")
}
KIND = {caption: number for number, caption in enumerate(shapes.classes)}
labels = {split: np.array([KIND[captions[0]] for captions in CAPTIONS[split]]) for split in vectors}
found = {split: np.asarray(jax.vmap(classify, (0, None))(each.second, each.first)) for split, each in vectors.items()}
accuracy = {split: float((found[split] == labels[split]).mean()) for split in found}
print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")
print(f"of 24 captions the right one: {accuracy['validation']:.1%} for combinations that were seen, "
      f"{accuracy['test']:.1%} for those that were not; chance is {1 / 24:.1%}")  # fmt: skip
if not SMALL:
    assert accuracy["validation"] > 0.7
    assert accuracy["test"] > 2 / 24

# %%
counts = np.zeros((24, 24))
for split in found:
    np.add.at(counts, (labels[split], found[split]), 1)
figure, axis = plt.subplots(figsize=(5, 4.4))
axis.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
names = [caption.split(" ", 1)[1] for caption in shapes.classes]
axis.set(xticks=range(24), yticks=range(24), xlabel="caption that is nearest", ylabel="image")
axis.set_xticklabels(names, rotation=90, fontsize=6)
axis.set_yticklabels(names, fontsize=6)
for label, name in zip(axis.get_yticklabels(), shapes.classes, strict=True):
    label.set_color("tab:red" if name in unseen else "black")

colour = found["test"] // 4 == labels["test"] // 4
shape = found["test"] % 4 == labels["test"] % 4
print(f"of the combinations that were not seen (red), the colour is right for {colour.mean():.1%} of the images, the "
      f"shape for {shape.mean():.1%}")  # fmt: skip

# %% [markdown]
# Errors say how the towers see: a colour is easily told and named in a new place; where a combination was never seen,
# the model prefers captions that it knows.

# %% [markdown]
# ## Exercises
#
# 1. Several captions a class make a better vector of it: the mean of their vectors, again of length 1.
#
#    ```python
#    def ensemble(vectors):
#        """Return a vector of length 1 for each class, of the vectors [patterns, classes, E] of its captions."""
#    ```
#
# 2. Retrieval is the other way round. For each caption, is its own image among the `count` nearest? Return the share.
#
#    ```python
#    def recall_at(scores, count):
#        """Return the share of captions (rows) whose image, of the same number, is among their best columns."""
#    ```
#
# 3. SigLIP asks of each pair by itself whether it belongs together: the sigmoid cross-entropy of all $B^2$ scores, of
#    which the diagonal is 1, summed and divided by B.
#
#    ```python
#    def sigmoid_loss(scores):
#        """Return the loss of scores [B, B]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def ensemble(vectors):
    mean = vectors.mean(0)
    return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)


# %% tags=["check"]
patterns = [[caption, f"an image of {caption}", f"here is {caption}"] for caption in shapes.classes]
by_pattern = [tokens_of([each[number] for each in patterns]) for number in range(3)]
one = PIXELS["test"][:1]
several = jnp.stack([embed(towers, tokens=each, lengths=long, images=one).first for each, long in by_pattern])
classes = ensemble(several)
np.testing.assert_allclose(jnp.linalg.norm(classes, axis=1), 1, rtol=1e-5)
np.testing.assert_allclose(classes[0] @ several[:, 0].sum(0), jnp.linalg.norm(several[:, 0].sum(0)), rtol=1e-5)


# %% tags=["solution"] jupyter={"source_hidden": true}
def recall_at(scores, count):
    own = jnp.diagonal(scores)[:, None]
    return ((scores > own).sum(1) < count).mean()


# %% tags=["check"]
scores = jnp.array([[3.0, 2.0, 1.0], [5.0, 4.0, 1.0], [3.0, 2.0, 1.0]])
assert [round(3 * float(recall_at(scores, count))) for count in (1, 2, 3)] == [1, 2, 3]


# %% tags=["solution"] jupyter={"source_hidden": true}
def sigmoid_loss(scores):
    signs = 2 * jnp.eye(len(scores)) - 1
    return -jax.nn.log_sigmoid(signs * scores).sum() / len(scores)


# %% tags=["check"]
assert abs(float(sigmoid_loss(jnp.zeros((4, 4)))) - 4 * np.log(2)) < 1e-5
assert float(sigmoid_loss(20 * jnp.eye(4) - 10)) < 1e-3
np.testing.assert_allclose(
    sigmoid_loss(jnp.array([[1.0, -2.0], [0.5, 3.0]])),
    np.mean([np.log1p(np.exp(-1)) + np.log1p(np.exp(-2)), np.log1p(np.exp(0.5)) + np.log1p(np.exp(-3))]), rtol=1e-5,
)  # fmt: skip
