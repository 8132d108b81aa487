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
# # 14. Objects as a set
#
# An image has some objects, in no order. DETR answers with a fixed number of boxes at once, each from a learned
# query, and the loss first matches answers with objects so that the total cost is least. Is this matching needed? The
# number is how many objects are found (F1 at half overlap) by a small DETR with matching, beside the same model whose
# first answer is always compared with the first object, the second with the second.

# %%
import os
from dataclasses import dataclass
from itertools import permutations

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import nnx

from flax_transformer.models.vision.detr import DetrConfig
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.nn import TrunkConfig
from flax_transformer.objective import DetectionLoss
from flax_transformer.train import make_optimizer, muon_cosine, parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 500

# %% [markdown]
# ## The idea
#
# $Q$ answers are given, each a distribution $p_q$ over the classes and "no object" $\varnothing$, and a box $b_q$. An
# image has $M \le Q$ objects of class $c_m$ and box $\hat b_m$. The assignment $\sigma$ of objects to different
# answers is the one of the least cost, which the Hungarian algorithm finds in $\mathcal{O}(Q^3)$ (Carion et al.
# 2020):
#
# $$\sigma = \mathrm{arg\,min}_\sigma
#     \sum_m \Big( -p_{\sigma(m)}(c_m) + \lambda_1 \big\|b_{\sigma(m)} - \hat b_m\big\|_1
#     - \lambda_2\, \mathrm{GIoU}\big(b_{\sigma(m)}, \hat b_m\big) \Big)$$
#
# Then each object's answer learns its class and box, and all other answers learn $\varnothing$. Two answers cannot
# both be right about one object, so that they learn not to repeat each other. Nothing has to be thrown away
# afterwards.

# %% [markdown]
# ## Ten lines


# %%
def match(cost):
    """Return for each object (column) the answer (row) that it is matched with, at the least total cost."""
    Q, M = cost.shape
    return min(permutations(range(Q), M), key=lambda rows: sum(cost[row, m] for m, row in enumerate(rows)))


def corners(boxes):
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], axis=-1)


def overlaps(one, other):
    """Return intersection over union, and generalised, of boxes by their corners."""

    def area(low, high):
        return np.prod(np.maximum(high - low, 0), axis=-1)

    low, high = np.maximum(one[..., :2], other[..., :2]), np.minimum(one[..., 2:], other[..., 2:])
    common, each = area(low, high), area(one[..., :2], one[..., 2:]) + area(other[..., :2], other[..., 2:])
    union = each - common
    around = area(np.minimum(one[..., :2], other[..., :2]), np.maximum(one[..., 2:], other[..., 2:]))
    return common / union, common / union - (around - union) / around


# %% [markdown]
# ## The library
#
# `DetectionLoss` matches within `jit`, for a batch and every layer of the decoder. All $6 \cdot 5 \cdot 4$
# assignments tried by hand give the same.

# %%
objective = DetectionLoss(box_weight=2.0, overlap_weight=1.0, no_object_weight=0.4)
random = np.random.default_rng(0)
logits, boxes = random.normal(size=(4, 6, 4)).astype(np.float32), random.uniform(0.2, 0.8, (4, 6, 4)).astype(np.float32)
truth = random.uniform(0.2, 0.6, (4, 3, 4)).astype(np.float32)
classes = random.integers(0, 3, (4, 3)).astype(np.int32)
found = objective.match(logits, boxes, {"boxes": truth, "classes": classes, "weights": np.ones((4, 3), np.float32)})
for i in range(4):
    probabilities = np.asarray(jax.nn.softmax(logits[i]))[:, classes[i]]
    distance = np.abs(boxes[i][:, None] - truth[i]).sum(-1)
    generalised = overlaps(corners(boxes[i])[:, None], corners(truth[i]))[1]
    assert match(-probabilities + 5 * distance - 2 * generalised) == tuple(np.asarray(found[i]).tolist())
print("the same answers for all objects:", np.asarray(found).tolist())

# %% [markdown]
# ## Scenes
#
# One to three rectangles, each of one of three colours, on a dark ground of 16×16 pixels. The colour is the class.
# Their order in the labels is that in which they were drawn, which the image does not show.

# %%
SIZE, M = 16, 3
INKS = np.array([[0.9, 0.2, 0.2], [0.2, 0.8, 0.3], [0.3, 0.4, 1.0]])


def draw(random, rows):
    images = random.normal(0.1, 0.08, (rows, SIZE, SIZE, 3))
    boxes, classes = np.full((rows, M, 4), 0.5, np.float32), np.zeros((rows, M), np.int32)
    weights = np.zeros((rows, M), np.float32)
    for i in range(rows):
        taken, count, placed = np.zeros((SIZE, SIZE), bool), random.integers(1, M + 1), 0
        while placed < count:
            (height, width), label = random.integers(4, 9, 2), random.integers(3)
            top, left = random.integers(0, SIZE - height + 1), random.integers(0, SIZE - width + 1)
            place = np.s_[top : top + height, left : left + width]
            if taken[place].any():
                count -= placed > 0  # no room: fewer objects
                continue
            taken[place] = True
            images[i][place] += INKS[label]
            boxes[i, placed] = np.array([left + width / 2, top + height / 2, width, height]) / SIZE
            classes[i, placed], weights[i, placed] = label, 1
            placed += 1
    return images.astype(np.float32), {"boxes": boxes, "classes": classes, "weights": weights}


IMAGES, LABELS = draw(np.random.default_rng(1), 6_000)
TEST, TRUTH = draw(np.random.default_rng(2), 300)

# %% [markdown]
# ## The model
#
# `DetrConfig` takes any backbone that gives a feature map. Two convolutions are enough here; an encoder layer and two
# decoder layers, where six queries look at the 8×8 places.


# %%
@dataclass(frozen=True, kw_only=True)
class ConvolutionsConfig:
    embed: int

    def build(self, rngs):
        return Convolutions(self.embed, rngs=rngs)


class Convolutions(nnx.Module):
    def __init__(self, embed, *, rngs):
        self.one = nnx.Conv(3, 24, (3, 3), rngs=rngs)
        self.two = nnx.Conv(24, embed, (3, 3), strides=2, rngs=rngs)

    def feature_map(self, images):
        return jax.nn.relu(self.two(jax.nn.relu(self.one(images))))


def trunk(depth, cross):
    return TrunkConfig(block=detr_block(embed=48, heads=4, inner=96, cross=cross), depth=depth)


config = DetrConfig(
    backbone=ConvolutionsConfig(embed=48), encoder=trunk(1, False), decoder=trunk(2, True), queries=6, classes=3
)
print(f"{parameter_count(config.build(nnx.Rngs(0))):,} parameters")

# %% [markdown]
# ## With matching, and in order
#
# A subclass of the loss that matches object $m$ with answer $m$ is all that the second model needs. An object is
# found if an answer has its class and at least half overlap, each answer being used once. F1 is the harmonic mean of
# the share of objects that are found and the share of answers that found one.


# %%
class InOrder(DetectionLoss):
    def match(self, logits, boxes, labels):
        return jnp.broadcast_to(jnp.arange(M), labels["weights"].shape)


def train(objective):
    model, optimizer = config.build(nnx.Rngs(0)), make_optimizer(muon_cosine(4e-3, warmup=STEPS // 10), STEPS)

    @jax.jit
    def step(model, state, batch):
        def loss(model):
            total, sums = objective(model, batch)
            return total / sums["count"]

        updates, state = optimizer.update(jax.grad(loss)(model), state, model)
        return jax.tree.map(jnp.add, model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        chosen = random.integers(0, len(IMAGES), 32)
        labels = {name: each[chosen] for name, each in LABELS.items()}
        batch = {"inputs": {"images": IMAGES[chosen]}, "labels": labels, "weights": np.ones(32, np.float32)}
        model, state = step(model, state, batch)
    return model


def score(logits, boxes):
    """Return F1, recall and precision on the test images."""
    found = answers = 0
    for i in range(len(TEST)):
        kinds = logits[i].argmax(-1)
        used = [q for q in range(len(kinds)) if kinds[q] < 3]
        answers += len(used)
        for m in np.flatnonzero(TRUTH["weights"][i]):
            shared = {q: overlaps(corners(boxes[i, q]), corners(TRUTH["boxes"][i, m]))[0] for q in used
                      if kinds[q] == TRUTH["classes"][i, m]}  # fmt: skip
            best = max(shared, key=shared.get, default=None)
            if best is not None and shared[best] >= 0.5:
                found += 1
                used.remove(best)
    recall, precision = found / TRUTH["weights"].sum(), found / max(answers, 1)
    return 2 * recall * precision / max(recall + precision, 1e-9), recall, precision


WEIGHTS = {"box_weight": 2.0, "overlap_weight": 1.0, "no_object_weight": 0.4}
results = {}
for name, kind in {"matching": DetectionLoss, "in order": InOrder}.items():
    answer = jax.jit(lambda model, images: model(images))(train(kind(**WEIGHTS)), TEST)
    results[name] = np.asarray(answer.logits), np.asarray(answer.boxes)
    f1, recall, precision = score(*results[name])
    print(f"{name:9} F1 {f1:.2f}: finds {recall:.0%} of the objects, {precision:.0%} of its answers are right")

# %%
figure, axes = plt.subplots(2, 6, figsize=(8, 2.9))
for row, (name, (logits, boxes)) in zip(axes, results.items(), strict=True):
    row[0].set_ylabel(name)
    for i, axis in enumerate(row):
        axis.imshow(np.clip(TEST[i], 0, 1), extent=(0, 1, 1, 0))
        axis.set(xticks=[], yticks=[])
        for kind, (left, top, right, bottom) in zip(logits[i].argmax(-1), corners(boxes[i]), strict=True):
            if kind < 3:
                frame = plt.Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="white")
                axis.add_patch(frame)
                axis.text(left, top, "rgb"[kind], color="white", fontsize=7)
f1 = {name: score(*each)[0] for name, each in results.items()}
print(f"matching is worth {f1['matching'] - f1['in order']:+.2f} F1")
if not SMALL:
    assert f1["matching"] > f1["in order"] + 0.15

# %% [markdown]
# Of one object both are right. Of several, the first answer in order is trained towards an object that could be any
# of them, and the best it can do is a box in the middle between them. With matching, each query may specialise in a
# region and class, and one that is close to an object becomes closer.

# %% [markdown]
# ## Exercises
#
# 1. Match greedily: again and again take the least cost of all, and leave out its answer and its object.
#
#    ```python
#    def match_greedily(cost):
#        """Return for each object (column) an answer (row), as a tuple."""
#    ```
#
# 2. Detectors without a set loss give many answers for an object. Keep the answer of the greatest score, drop those
#    that overlap it by more than the threshold, and go on with what is left.
#
#    ```python
#    def suppress(boxes, scores, threshold):
#        """Return the numbers of the boxes that are kept, by falling score; boxes [Q, 4] by their corners."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def match_greedily(cost):
    cost, found = np.array(cost, float), {}
    for _ in range(cost.shape[1]):
        row, column = np.unravel_index(cost.argmin(), cost.shape)
        found[int(column)] = int(row)
        cost[row], cost[:, column] = np.inf, np.inf
    return tuple(found[m] for m in range(cost.shape[1]))


# %% tags=["check"]
cost = np.array([[1.0, 2.0], [2.0, 9.0], [8.0, 9.0]])
assert match_greedily(cost) == (0, 1)
assert match(cost) == (1, 0)  # 4 beside 10


# %% tags=["solution"] jupyter={"source_hidden": true}
def suppress(boxes, scores, threshold):
    left, kept = list(np.argsort(-np.asarray(scores))), []
    while left:
        best = left.pop(0)
        kept.append(int(best))
        left = [each for each in left if overlaps(boxes[best], boxes[each])[0] <= threshold]
    return kept


# %% tags=["check"]
three = np.array([[0.0, 0.0, 1.0, 1.0], [0.1, 0.0, 1.1, 1.0], [0.6, 0.0, 1.6, 1.0]])
assert suppress(three, [0.5, 0.9, 0.7], 0.5) == [1, 2]
assert suppress(three, [0.5, 0.9, 0.7], 0.2) == [1]
assert suppress(three, [0.5, 0.9, 0.7], 0.95) == [1, 2, 0]
