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
# # Vision: from patches to attention over an image
#
# To a Transformer an image is a sentence whose words are patches. This notebook cuts images up, trains a small
# Vision Transformer on images that it draws itself, looks at what every head looks at, gives the model images of
# another size, shows what the windows of a Swin leave to be seen, and passes the model through a Hugging Face
# checkpoint. It takes less than a minute on two CPU cores and downloads nothing.

# %%
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx
from PIL import Image

from flax_transformer import hub
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.preset import abstract
from flax_transformer.models.vision.swin import swin_tiny
from flax_transformer.models.vision.vit import ViTConfig, vit_base_patch16, vit_huge_patch14, vit_large_patch16
from flax_transformer.models.vision.window_attention import over_grid
from flax_transformer.nn import Grid, PatchConfig, transformer_block
from flax_transformer.objective import LabelLoss
from flax_transformer.ops import capture
from flax_transformer.report import image_attention_figure
from flax_transformer.task.image_attention import draw_image
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}

# %% [markdown]
# ## Images to learn from
#
# A disc of one of four colours, somewhere on a background of paler colours that run into each other, under noise. The
# class is the colour of the disc. `inside` says where the disc is; the model is never told.

# %%
CLASSES = ("red", "green", "blue", "yellow")
INKS = np.array([[0.9, 0.15, 0.1], [0.1, 0.7, 0.15], [0.15, 0.25, 0.9], [0.9, 0.8, 0.1]])


def draw(random, rows, size=32):
    y, x = np.mgrid[:size, :size] / size
    labels = random.integers(0, len(CLASSES), rows)
    radius = random.uniform(0.08, 0.14, (rows, 1, 1))
    down, right = random.uniform(0.12, 0.88, (2, rows, 1, 1))
    inside = (y - down) ** 2 + (x - right) ** 2 < radius**2
    across, along, base = random.uniform(-0.3, 0.3, (3, rows, 1, 1, 3))
    ground = 0.5 + 0.7 * base + across * (x - 0.5)[..., None] + along * (y - 0.5)[..., None]
    pictures = np.where(inside[..., None], INKS[labels][:, None, None], ground)
    pictures += random.normal(0, 0.1, pictures.shape)
    return (255 * np.clip(pictures, 0, 1)).astype(np.uint8), labels, inside


pictures, labels, inside = draw(np.random.default_rng(1), 8)
figure, axes = plt.subplots(1, 8, figsize=(10, 1.6))
for ax, picture, label in zip(axes, pictures, labels, strict=True):
    ax.imshow(picture)
    ax.set_title(CLASSES[label])
    ax.axis("off")

# %% [markdown]
# ## Patches
#
# `PatchConfig` builds the first layer: one linear map of every patch of 4×4 pixels. That it is no more than that shows
# when the patches are cut by hand.

# %%
patches = PatchConfig(embed=32, image=(32, 32), patch=(4, 4))
layer = patches.build(nnx.Rngs(0))
x = pictures[:1] / 127.5 - 1
cut = x.reshape(1, 8, 4, 8, 4, 3).swapaxes(2, 3).reshape(64, 48)
by_hand = cut @ layer.patch.kernel.reshape(48, 32) + layer.patch.bias
print(layer(jnp.asarray(x, jnp.float32)).shape, float(jnp.abs(layer(jnp.asarray(x, jnp.float32))[0] - by_hand).max()))

figure, axes = plt.subplots(8, 8, figsize=(2.6, 2.6))
for ax, patch in zip(axes.flat, cut, strict=True):
    ax.imshow((patch.reshape(4, 4, 3) + 1) / 2)
    ax.axis("off")

# %% [markdown]
# ## The model
#
# In front of the patches stands one learned vector more, the class token, and every place has a learned position. Then
# it is the encoder of any text model: the same blocks, without a mask, as all patches see each other. The classifier
# reads the class token. The published sizes differ in numbers only.

# %%
block = transformer_block(embed=32, heads=4, inner=128, norm_position="pre", activation="gelu")
config = with_head(ViTConfig(patches=patches, block=block, depth=3), outputs=len(CLASSES), pool="first")
model = Classifier(config, rngs=nnx.Rngs(0))
for name, preset in {"ours": lambda: config, "ViT-B/16": vit_base_patch16, "ViT-L/16": vit_large_patch16,
                     "ViT-H/14": vit_huge_patch14}.items():  # fmt: skip
    print(f"{name:9}{parameter_count(abstract(preset())):>12,} parameters")

# %% [markdown]
# ## Training
#
# The objective takes a batch by its names; the step is plain JAX. Every batch is drawn anew.

# %%
optimizer = optax.adamw(optax.cosine_onecycle_schedule(200, 3e-3, pct_start=0.2), weight_decay=0.05)
objective = LabelLoss()


def batch(random, rows, size=32):
    pictures, labels, _ = draw(random, rows, size)
    images = (pictures / 127.5 - 1).astype(np.float32)
    return {"inputs": {"images": images}, "labels": labels, "weights": np.ones(rows, np.float32)}


@jax.jit
def step(model, state, batch):
    def loss(model):
        total, sums = objective(model, batch)
        return total / sums["count"], sums["accuracy"] / sums["count"]

    told, grads = jax.value_and_grad(loss, has_aux=True)(model)
    updates, state = optimizer.update(grads, state, model)
    return optax.apply_updates(model, updates), state, told


random, state, told = np.random.default_rng(0), optimizer.init(model), []
for _ in range(200):
    model, state, each = step(model, state, batch(random, 32))
    told.append(each)
losses, shares = np.array(told).T
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.2))
left.plot(losses)
left.set(xlabel="step", ylabel="loss")
right.plot(100 * shares)
_ = right.set(xlabel="step", ylabel="accuracy in %")

# %%
test = batch(np.random.default_rng(7), 400)
logits = jax.jit(lambda model, images: model.output(model.hidden_states(images)))
accuracy = float((logits(model, test["inputs"]["images"]).argmax(-1) == test["labels"]).mean())
print(f"test accuracy {100 * accuracy:.1f} %")
assert accuracy > 0.9

# %% [markdown]
# ## What the heads look at
#
# As a checkpoint, with an image processor that says how pixels become numbers, the model is what the commands take too:
# `flax-transformer attention FOLDER --image FILE` writes this for every layer and every patch, on a page that works
# without a network. Rollout (Abnar and Zuidema 2020) follows attention through all layers, half of each being what was
# there before.

# %%
processor = ImageProcessor.of({
    "image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
})  # fmt: skip
named = {"id2label": dict(enumerate(CLASSES))}
pretrained = hub.wrap(model, "ViTForImageClassification", processor=processor, **named)
attention, _ = draw_image(pretrained, Image.fromarray(pictures[0]))
print(f"told: {attention.output}, is {CLASSES[labels[0]]}")
image_attention_figure(attention, layer=2)

# %% [markdown]
# How much of the class token's attention falls on the disc, beside what would by chance, the share of the image that
# the disc takes? `ops.capture` gives the weights of a whole batch.

# %%
held, _, where = draw(np.random.default_rng(3), 64)
look = jax.jit(capture(lambda model, images: model.hidden_states(images), "attention_weights"))
weights = np.asarray(look(model, (held / 127.5 - 1).astype(np.float32))[1][0])  # layers, images, heads, places, places
token = weights[..., 0, 1:]
cover = where.reshape(-1, 8, 4, 8, 4).mean((2, 4)).reshape(-1, 64)  # what share of a patch the disc covers
found = np.einsum("lbnp,bp->lbn", token / token.sum(-1, keepdims=True), cover)
on_disc = found.mean(1) / where.mean()
figure, ax = plt.subplots(figsize=(3.4, 2.2))
drawn = ax.imshow(on_disc, cmap="Blues", vmin=0)
for (i, j), value in np.ndenumerate(on_disc):
    ax.text(j, i, f"{value:.1f}×", ha="center", va="center", color="white" if value > on_disc.max() / 2 else "black")
ax.set(
    xticks=range(4), xticklabels=range(1, 5), yticks=range(3), yticklabels=range(1, 4), xlabel="head", ylabel="layer"
)
print(f"a head looks at the disc up to {on_disc.max():.1f} times as much as by chance")
assert on_disc.max() > 2

# %% [markdown]
# ## Images of another size
#
# Positions are a table with an entry a patch. For images of another size the table is resampled, bicubic, as `torch`
# does it; the rest of the model does not care how many patches there are.

# %%
for size in (24, 32, 40, 48):
    other = batch(np.random.default_rng(8), 200, size)
    right = (logits(model, other["inputs"]["images"]).argmax(-1) == other["labels"]).mean()
    print(f"{size}×{size}: {(size // 4) ** 2:>3} patches, {100 * right:.1f} %")

# %% [markdown]
# ## Windows
#
# All patches looking at all others costs their number squared. Swin lets a patch look at its window alone, and shifts
# windows by half in every other layer, so that what is apart in one layer meets in the next. Merging 2×2 patches after
# each stage makes windows ever larger parts of the image. With even weights in every window, this is what one patch
# sees, after one layer and after two; below, the grids of Swin-T on 224×224 pixels.

# %%
grid, size, patch = Grid(12, 12), 4, 5 * 12 + 6
first, second = (over_grid(np.full((9, 1, 16, 16), 1 / 16), shift, grid, size)[0] for shift in (0, 2))
figure, axes = plt.subplots(1, 3, figsize=(6.6, 2.3))
for ax, title, seen in zip(axes, ("layer 1", "layer 2, shifted", "both"), (first, second, second @ first), strict=True):
    seen = seen[patch]
    ax.imshow(seen.reshape(grid), cmap="Blues", vmin=0)
    ax.plot(*divmod(patch, 12)[::-1], "o", color="tab:orange")
    ax.set(title=title, xticks=[], yticks=[])
swin = swin_tiny().backbone
grids = [swin.patches.grid[0] // 2**stage for stage in range(4)]
for i, (depth, side) in enumerate(zip(swin.depths, grids, strict=True)):
    print(f"stage {i + 1}: {depth} layers of {side}×{side} patches, in windows of 7×7")

# %% [markdown]
# ## To a checkpoint and back
#
# What `transformers` would write: `config.json`, `model.safetensors`, `preprocessor_config.json`. Opened again it tells
# the same, bit for bit.

# %%
with tempfile.TemporaryDirectory() as folder:
    hub.save(pretrained, folder)
    print(sorted(path.name for path in Path(folder).iterdir()))
    again = hub.load(folder)
inputs = again.processor(list(pictures))
same = np.array_equal(again(**inputs).logits, pretrained(**inputs).logits)
print("same logits:", same)
assert same
