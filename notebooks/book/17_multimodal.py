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
# # 17. Multimodal models
#
# Words and patches are vectors, so that one Transformer can read both. Here it answers questions about drawn images:
# which colour a shape has, which shape is of a colour. The number is the accuracy of its answers, beside that of a
# model that sees the question alone and one that sees the image alone, and on combinations of shape and colour that
# no training image has.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import COLOURS, SHAPES, draw_shape
from flax_transformer.models.answer_head import answering
from flax_transformer.models.multimodal.vilt import vilt_encoder
from flax_transformer.objective import LabelLoss
from flax_transformer.ops import capture
from flax_transformer.train import make_optimizer, muon_cosine, parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 450

# %% [markdown]
# ## The idea
#
# A *single-stream* model (Kim et al. 2021) puts the $T$ tokens $w$ of a text and the $P$ patches $x$ of an image one
# after the other. What is what is told by a learned vector of each kind, $k_w$ and $k_x$; each side has its own
# positions $u$ and the image a class token $c$ of its own:
#
# $$z = [\,e(w_1) + u_1 + k_w;\; \dots;\; e(w_T) + u_T + k_w;\;\; c + k_x;\;
#       x_1 E + u'_1 + k_x;\; \dots;\; x_P E + u'_P + k_x\,]$$
#
# Then all positions see each other in every layer. A question can so look for the patch that it is about, and patches
# know what is asked. Other models keep the streams apart and let one attend to the other, or compare two vectors at
# the end only, as CLIP does (chapter 18), which cannot answer a question about a part.

# %% [markdown]
# ## Ten lines


# %%
def join(text, patches, class_token, positions, kinds):
    """Return one sequence [B, T + 1 + P, D] of text [B, T, D] and patches [B, P, D], which have no positions yet."""
    first = jnp.broadcast_to(class_token + positions[:1], (len(text), 1, text.shape[-1]))
    image = jnp.concatenate([first, patches + positions[1:]], axis=1)
    return jnp.concatenate([text + kinds[0], image + kinds[1]], axis=1)


# %% [markdown]
# ## Images and questions
#
# Four shapes, one in each quarter, of four different colours of six. A question has three tokens: what is wanted
# ("colour" or "shape"), of what, and an end. Four combinations of shape and colour are left out of training images.
# There are two test sets: one of images without any of these, and one whose questions are all about one of them.

# %%
SIZE, INKS = 16, np.array(list(COLOURS.values()), np.float32) / 127.5 - 1
NAMES = (*COLOURS, *SHAPES)  # answers, and what is asked about
WORDS = ("end", "colour", "shape", *NAMES)
LEFT_OUT = {(0, 0), (1, 1), (2, 2), (3, 3)}  # ellipse and red, rectangle and green, …


def draw(random, unseen):
    """Draw an image and a question; about a combination that is left out, or an image that has none of them."""
    while True:
        shapes, colours = random.permutation(4), random.permutation(6)[:4]
        new = [place for place in range(4) if (shapes[place], colours[place]) in LEFT_OUT]
        if bool(new) == unseen:
            break
    image = random.normal(-0.7, 0.1, (SIZE, SIZE, 3)).astype(np.float32)
    for place in range(4):
        height, width = random.integers(5, 9, 2)
        top, left = random.integers(9 - height), random.integers(9 - width)
        top, left = top + 8 * (place // 2), left + 8 * (place % 2)
        image[top : top + height, left : left + width][draw_shape(SHAPES[shapes[place]], height, width)] = INKS[
            colours[place]
        ]
    place, wanted = random.choice(new) if unseen else random.integers(4), random.integers(2)
    shape, colour = 6 + shapes[place], colours[place]
    asked, answer = (colour, shape) if wanted else (shape, colour)
    return image, (1 + wanted, 3 + asked, 0), answer, place


def draw_all(seed, rows, unseen=False):
    random = np.random.default_rng(seed)
    images, questions, answers, places = zip(*(draw(random, unseen) for _ in range(rows)), strict=True)
    return (np.stack(images), *(np.array(each, np.int32) for each in (questions, answers, places)))


TRAIN = draw_all(0, 8_000)
TESTS = {"seen": draw_all(1, 600), "not seen": draw_all(2, 600, unseen=True)}
figure, axes = plt.subplots(1, 5, figsize=(8, 1.9))
for axis, image, (wanted, asked, _), answer in zip(axes, *TRAIN[:3], strict=False):
    axis.imshow(np.clip((image + 1) / 2, 0, 1))
    axis.set_title(f"{WORDS[wanted]} of {WORDS[asked]}?\n{NAMES[answer]}", fontsize=8)
    axis.axis("off")

# %% [markdown]
# ## The library
#
# `vilt_encoder` is this encoder, `answering` puts a head on it that scores answers from the state of the first token.
# The ten lines give what its trunk is given.

# %%
config = answering(
    vilt_encoder(vocab=len(WORDS), length=3, image=SIZE, patch=8, embed=64, heads=4, depth=3, inner=128), len(NAMES)
)
model = config.build(nnx.Rngs(0))
encoder, images, questions = model.backbone, TRAIN[0][:2], TRAIN[1][:2]
by_hand = join(encoder.embedding(questions), encoder.patches(images), encoder.class_token[...],
               encoder.positions[...], encoder.kind[...])  # fmt: skip
np.testing.assert_allclose(encoder.trunk(by_hand), encoder(questions, images=images), atol=1e-5)
print(f"{by_hand.shape[1]} positions, {parameter_count(model):,} parameters")

# %% [markdown]
# ## The claim
#
# Three models of the same config: with both, with images that are all grey, and with questions that are all the same.
# The last two show what can be guessed.

# %%
objective = LabelLoss()
BLINDS = {
    "both": lambda images, questions: (images, questions),
    "question alone": lambda images, questions: (0 * images, questions),
    "image alone": lambda images, questions: (images, 0 * questions),
}


def train(see, steps):
    model, optimizer = config.build(nnx.Rngs(0)), make_optimizer(muon_cosine(5e-3, warmup=steps // 10), steps)

    @jax.jit
    def step(model, state, images, questions, answers):
        def loss(model):
            inputs = {"tokens": questions, "images": images}
            batch = {"inputs": inputs, "labels": answers, "weights": jnp.ones(len(answers))}
            total, sums = objective(model, batch)
            return total / sums["count"]

        updates, state = optimizer.update(jax.grad(loss)(model), state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(steps):
        chosen = random.integers(0, len(TRAIN[0]), 64)
        model, state = step(model, state, *see(TRAIN[0][chosen], TRAIN[1][chosen]), TRAIN[2][chosen])
    return model


@jax.jit
def best(model, images, questions):
    return model.output(model.hidden_states(questions, images=images)).argmax(-1)


accuracy = {}
for name, see in BLINDS.items():
    trained = train(see, STEPS if name == "both" else min(STEPS, 120))
    model = trained if name == "both" else model
    for test, (images, questions, answers, _) in TESTS.items():
        accuracy[name, test] = float((best(trained, *see(images, questions)) == answers).mean())
    print(f"{name:14} " + ", ".join(f"{accuracy[name, test]:.1%} of combinations {test}" for test in TESTS))

figure, axis = plt.subplots(figsize=(4.5, 2.2))
for number, test in enumerate(TESTS):
    axis.bar(np.arange(3) + 0.3 * number, [100 * accuracy[name, test] for name in BLINDS], 0.27, label=test)
axis.set(xticks=np.arange(3) + 0.15, xticklabels=list(BLINDS), ylabel="right answers in %")
_ = axis.legend(title="combinations")
if not SMALL:
    assert accuracy["both", "seen"] > 0.6
    assert accuracy["both", "seen"] > accuracy["question alone", "seen"] + 0.3
drop = accuracy["both", "seen"] - accuracy["both", "not seen"]
print(f"combinations that were never seen cost {100 * drop:.1f} points")

# %% [markdown]
# Combinations that were never seen are another matter. In training what was red was never an ellipse, so that the
# question alone rules out the right answer, and the model has learned that, too.
#
# ## Where it looks
#
# From the first token, whose state the answer is read from: how much of the attention that falls on the four patches
# falls on the one that the question is about? Evenly spread it would be a quarter.

# %%
images, questions, _, places = TESTS["seen"]
look = jax.jit(
    capture(lambda model, questions, images: model.hidden_states(questions, images=images), "attention_weights")
)
weights = np.asarray(look(model, questions, images)[1][0])  # layers, images, heads, positions, positions
on_patches = weights[..., :3, 4:].sum(-2)
on_patches /= on_patches.sum(-1, keepdims=True)
right = np.take_along_axis(on_patches, places[None, :, None, None], axis=-1)[..., 0].mean(1)
figure, axis = plt.subplots(figsize=(3, 2.2))
axis.imshow(right, cmap="Blues", vmin=0, vmax=1)
for (i, j), value in np.ndenumerate(right):
    axis.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black")
axis.set(xticks=range(4), yticks=range(3), xlabel="head", ylabel="layer")
print(f"the tokens of a question give its patch up to {right.max():.0%} of what they give to patches")
if not SMALL:
    assert right.max() > 0.35

# %% [markdown]
# ## Exercises
#
# 1. What would be right most often without the image? Guess for each question the most frequent answer that training
#    questions with the same tokens have.
#
#    ```python
#    def most_frequent(questions, answers, asked):
#        """Return an answer for each row of `asked` [C, T]; questions are [B, T], answers [B]."""
#    ```
#
# 2. Text is often padded. Return which pairs of positions of a joined sequence may see each other if the first
#    `lengths` tokens of each text are real, and all patches are.
#
#    ```python
#    def visible(lengths, tokens, patches):
#        """Return [B, S, S], for S = tokens + 1 + patches: True where the position of a column is no padding."""
#    ```
#
# 3. In VQA ten people answer a question. An answer counts fully if three gave it: min(1, count / 3).
#
#    ```python
#    def vqa_score(answer, given):
#        """Return the score of an answer, by the list of answers that people gave."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def most_frequent(questions, answers, asked):
    found = []
    for each in asked:
        same = answers[(questions == each).all(1)]
        found.append(np.bincount(same).argmax())
    return np.array(found)


# %% tags=["check"]
guessed = most_frequent(np.array([[1, 2], [1, 2], [1, 2], [3, 2]]), np.array([7, 5, 7, 5]), np.array([[3, 2], [1, 2]]))
assert guessed.tolist() == [5, 7]
guess = float((most_frequent(TRAIN[1], TRAIN[2], TESTS["seen"][1]) == TESTS["seen"][2]).mean())
assert 0.15 < guess < 0.4
print(f"without the image {guess:.1%} can be guessed")


# %% tags=["solution"] jupyter={"source_hidden": true}
def visible(lengths, tokens, patches):
    text = jnp.arange(tokens) < jnp.asarray(lengths)[:, None]
    row = jnp.concatenate([text, jnp.ones((len(text), 1 + patches), bool)], axis=1)
    return jnp.broadcast_to(row[:, None], (len(row), row.shape[1], row.shape[1]))


# %% tags=["check"]
seen = visible(np.array([2, 3]), 3, 4)
assert seen.shape == (2, 8, 8)
assert seen[0, 0].tolist() == [True, True, False, *[True] * 5]
real = encoder.real(questions[:2], images=images[:2], lengths=np.array([2, 3]))
np.testing.assert_array_equal(seen[:, 0], real)


# %% tags=["solution"] jupyter={"source_hidden": true}
def vqa_score(answer, given):
    return min(1, given.count(answer) / 3)


# %% tags=["check"]
people = ["red"] * 6 + ["orange"] * 2 + ["pink", "brown"]
assert vqa_score("red", people) == 1
assert abs(vqa_score("orange", people) - 2 / 3) < 1e-9
assert vqa_score("blue", people) == 0
