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
# # Many senses: images with words, videos and audio
#
# A Transformer reads rows of vectors, and does not ask what they are of. This notebook draws its own images and
# videos, matches images with texts by two towers, lets a decoder write what is on an image and shows what every word
# looks at, and ends with what videos and audio are to such a model. It takes
# about a minute on two CPU cores and downloads nothing.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.audio import log_mel
from flax_transformer.data.synthetic import CaptionedShapes, MovingShapes, TouchTones
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.head import with_head
from flax_transformer.models.multimodal.clip import clip_text
from flax_transformer.models.multimodal.towers import TwoTowers, TwoTowersConfig
from flax_transformer.models.multimodal.vision_encoder_decoder import captioner
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.video.timesformer import timesformer_encoder
from flax_transformer.models.vision.cct import cct
from flax_transformer.nn import with_fields
from flax_transformer.objective import ContrastiveLoss, TokenLoss
from flax_transformer.ops import capture
from flax_transformer.report import image_attention_figure
from flax_transformer.task.image_attention import draw_image

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}

# %% [markdown]
# ## Images and what is said of them
#
# A shape of some colour each, on noisy ground. Of the 24 combinations of a colour and a shape six are in test images
# alone: who names them has put together what was never seen together.

# %%
shapes = CaptionedShapes(train=2_000, held_out=200, size=24, noise=8.0, colours=6, shapes=4, tested=6).open()
pixels = {split: np.stack([np.asarray(image) for image in pairs["image"]]) for split, pairs in shapes.splits.items()}
said = {split: [captions[0] for captions in pairs["captions"]] for split, pairs in shapes.splits.items()}
tokenizer = HubTokenizer.of(train_byte_bpe(shapes.classes, vocab_size=300).with_end(), single="<s> $A <|endoftext|>")
texts = tokenizer(list(shapes.classes))
TOKENS, LENGTHS = np.asarray(texts["input_ids"]), np.asarray(texts["attention_mask"]).sum(1)
NUMBER = {caption: number for number, caption in enumerate(shapes.classes)}

figure, axes = plt.subplots(1, 6, figsize=(10, 1.9))
for ax, picture, caption in zip(axes, pixels["train"], said["train"], strict=False):
    ax.imshow(picture)
    ax.set_title(caption)
    ax.axis("off")
print(f"{len(shapes.classes)} captions, of {TOKENS.shape[1]} tokens at most")


# %% [markdown]
# ## One loop for all
#
# What follows differs in model, batch and objective. An objective takes a model and a batch by its names and gives a
# sum, and sums to report; the loop is plain JAX.


# %%
def train(model, objective, batches, steps, rate):
    optimizer = optax.adamw(optax.cosine_onecycle_schedule(steps, rate, pct_start=0.2), weight_decay=0.05)

    @jax.jit
    def step(model, state, batch):
        def loss(model):
            total, sums = objective(model, batch)
            return total / sums["count"]

        told, grads = jax.value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state, model)
        return optax.apply_updates(model, updates), state, told

    state, losses = optimizer.init(model), []
    for _ in range(steps):
        model, state, told = step(model, state, next(batches))
        losses.append(float(told))
    return model, losses


def seen(pictures):
    return (pictures / 127.5 - 1).astype(np.float32)


def drawn(split, rows, random):
    chosen = random.integers(0, len(said[split]), rows)
    return seen(pixels[split][chosen]), np.array([NUMBER[said[split][number]] for number in chosen])


# %% [markdown]
# ## Two towers
#
# CLIP: a text and an image become vectors in one space, each by a tower of its own. The loss asks for every image
# which text of the batch is its own, and for every text which image. Two pairs of a batch that say the same are right
# twice, so its least is not 0.

# %%
SMALL = {"embed": 48, "heads": 4, "depth": 2}
EYE = cct(image=24, stem=(24,), inner=96, **SMALL)
towers = TwoTowers(
    TwoTowersConfig(
        text=clip_text(32, vocab=tokenizer.vocab_size, length=TOKENS.shape[1], **SMALL),
        vision=with_head(EYE, outputs=32, pool="weighted", bias=False),
    ),
    rngs=nnx.Rngs(0),
)


def pairs(rows):
    random = np.random.default_rng(0)
    while True:
        images, kinds = drawn("train", rows, random)
        yield {"inputs": {"tokens": TOKENS[kinds], "lengths": LENGTHS[kinds], "images": images}}


towers, losses = train(towers, ContrastiveLoss(), pairs(48), 300, 3e-3)
found = jax.jit(lambda model, **inputs: model.output(model.hidden_states(**inputs)))


def recognised(split):
    scores = np.asarray(found(towers, tokens=TOKENS, lengths=LENGTHS, images=seen(pixels[split])))
    return np.mean([shapes.classes[best] == own for best, own in zip(scores.argmax(0), said[split], strict=True)])


print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}; the right one of 24 texts is first for {recognised('validation'):.0%}")
print(f"of images whose combination was never seen: {recognised('test'):.0%} (by chance 4 %)")
assert recognised("validation") > 0.4

# %% [markdown]
# ## Captions
#
# The encoder of a `Seq2Seq` may be any; here it is the tower's, and the decoder is GPT-2's with cross-attention. The
# objective is that of a translator: the cross-entropy of the next token. Wrapped as what Hugging Face calls a
# VisionEncoderDecoderModel, it writes by the loops that all models write by. (With a ViT for its encoder
# `transformers` opens it too; convolutions before the patches learn from fewer images.)

# %%
WORDS = with_fields(gpt2_tiny(tokenizer.vocab_size), max_length=TOKENS.shape[1], **SMALL, inner=96)
writer = Seq2Seq(captioner(EYE, WORDS), rngs=nnx.Rngs(1))


def dictations(rows):
    random = np.random.default_rng(1)
    while True:
        images, kinds = drawn("train", rows, random)
        tokens, there = TOKENS[kinds], np.arange(1, TOKENS.shape[1]) < LENGTHS[kinds][:, None]
        inputs = {"source": images, "target": tokens[:, :-1]}
        yield {"inputs": inputs, "labels": tokens[:, 1:], "weights": there.astype(np.float32)}


writer, losses = train(writer, TokenLoss(), dictations(48), 250, 3e-3)
processor = ImageProcessor.of({
    "image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
})  # fmt: skip
marks = {"decoder_start_token_id": tokenizer.bos, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.pad}
pretrained = hub.wrap(writer, "VisionEncoderDecoderModel", tokenizer=tokenizer, processor=processor, **marks)


def written(split, count=100):
    inputs = processor(list(shapes.splits[split]["image"][number] for number in range(count)))
    ids = pretrained.generate(**inputs, max_new_tokens=TOKENS.shape[1] - 1)
    return [text.strip() for text in tokenizer.decode(np.asarray(ids))]


for split in ("validation", "test"):
    exact = np.mean([one == other for one, other in zip(written(split), said[split], strict=False)])
    print(f"{split}: {exact:.0%} of the captions are right, word for word")

# %%
attention, _ = draw_image(pretrained, shapes.splits["validation"]["image"][0])
print("written:", attention.output)
image_attention_figure(attention, layer=-1, query=1)

# %% [markdown]
# ## Videos
#
# What moves how cannot be told from one frame: of these videos every frame by itself is alike, whatever is done. One
# of I frames of P patches has I · P places. If all see each other, as in ViViT, that is (I · P)² pairs. TimeSformer's
# blocks attend twice, a place to itself in all frames and then a frame's places to each other: I · P · (I + P).
# `experiments/classify_video.py` trains both, and the same model of one frame beside them.

# %%
videos = MovingShapes(train=8, held_out=1, size=32, length=6).open()
figure, axes = plt.subplots(2, 6, figsize=(6.6, 2.6))
for row, number in zip(axes, (0, 1), strict=True):
    row[0].set_ylabel(videos.classes[videos.splits["train"]["label"][number]])
    for ax, frame in zip(row, videos.splits["train"]["frames"].pixels[number], strict=True):
        ax.imshow(frame)
        ax.set(xticks=[], yticks=[])

film = seen(videos.splits["train"]["frames"].pixels[:1])
for name, divided in {"all with all": False, "time, then space": True}.items():
    encoder = with_fields(timesformer_encoder("tiny", frames=6, image=32, patch=8, divided=divided), **SMALL, inner=96)
    look = jax.jit(capture(lambda model, film: model.hidden_states(film), "attention_weights"))
    weights = look(encoder.build(nnx.Rngs(0)), film)[1]
    print(f"{name}: {sum(each[0].size for each in weights) // SMALL['heads']:,} weights a head and layer")

# %% [markdown]
# ## Audio
#
# To Whisper a sound is an image of a kind, the log-mel spectrum, read frame after frame; two convolutions make
# positions of frames, and the rest is the encoder and the decoder of any `Seq2Seq`. wav2vec 2.0 reads the samples
# themselves. `experiments/recognise_speech.py` trains both kinds.

# %%
tones = TouchTones()
figure, axes = plt.subplots(1, 3, figsize=(8, 1.9), sharey=True)
for ax, digit in zip(axes, (1, 5, 9), strict=True):
    frames = log_mel(tones.waveform(0, digit, 0), bins=40, window=256, hop=80, rate=tones.rate)
    ax.imshow(frames, origin="lower", aspect="auto", cmap="magma")
    ax.set(title=f"key {digit}", xlabel="frame")
_ = axes[0].set_ylabel("mel bin")
