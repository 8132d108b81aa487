"""Small models and batches of the objectives' contract: linear maps that have whatever an objective asks of a model."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from flax_transformer.nn.batch_norm import BatchNorm
from flax_transformer.ops import cross_entropy

B, T, D, E, M, Q = 8, 6, 5, 4, 3, 5
"""Rows, positions, width, classes or tokens, places of a row, queries."""


class Scores:
    """What `model.output(hidden)` is for objectives of tokens."""

    def __init__(self, logits):
        self._logits = logits

    def logits(self):
        return self._logits

    def scores(self, labels, weights, *, chunk=0, **options):
        total, count = cross_entropy(self._logits, labels, weights, **options)
        return total, count, jnp.sum((self._logits.argmax(-1) == labels) * weights)


@jax.tree_util.register_dataclass
@dataclass
class Toy:
    """A linear map of what it sees; whatever an objective asks of a model, by the methods of a subclass."""

    w: Any
    """[D, E + 4]."""

    def hidden_states(self, x, lengths=None, key=None):
        return x

    def output(self, hidden, key=None, limit=None):
        return (hidden @ self.w)[..., :E]


def toy(**methods):
    """Make a model with other methods."""
    kind = dataclass(type("Other", (Toy,), methods))
    return jax.tree_util.register_dataclass(kind)(jax.random.normal(jax.random.key(0), (D, E + 4)))


def rows(x):
    """Make a model's scores of rows out of those of positions."""
    return x.mean(axis=1)


def told(*names):
    """Let blocks tell something of each row in two layers."""

    def observe(self, x, lengths=None, key=None):
        each = jnp.square(rows(x) @ self.w)
        return x, {name: jnp.stack([each[:, i], each[:, i + 1]]) for i, name in enumerate(names)}

    return {"observe": observe}


def halted(self, x, lengths=None, key=None):
    each = jnp.square(x @ self.w)
    return x, {"encoder": {"ponder": each[..., 0], "steps": each[..., 1]}}


def pairs(self, hidden, key=None, limit=None):
    unit = hidden.states @ self.w
    return unit[:, 0] @ unit[:, 1].T


def acted(self, hidden, key=None):
    return SimpleNamespace(actions=(hidden @ self.w)[..., :E])


def found(self, hidden, key=None):
    scores = hidden[:, :Q] @ self.w
    layers = jnp.stack([scores, 2 * scores], axis=1)
    return SimpleNamespace(logits=layers[..., :E], boxes=jax.nn.sigmoid(layers[..., E:]))


def masked(self, hidden, key=None):
    """Answer with masks of 3 × 4 places, as `found` does with boxes."""
    layers = found(self, hidden).logits
    masks = jnp.einsum("blqe,eij->blqij", layers, 4 * jnp.cos(jnp.arange(E * 12.0)).reshape(E, 3, 4))
    return SimpleNamespace(logits=layers, masks=masks)


def layered(self, x, lengths=None, key=None):
    def block(x, _):
        x = checkpoint_name(x, "hidden_states")
        for i, name in enumerate(("query", "key", "value")):
            checkpoint_name((x @ self.w[:, i : i + 4]).reshape(*x.shape[:2], 2, 2), name)
        return x + jnp.tanh(x @ self.w[:, :D]), None

    return checkpoint_name(jax.lax.scan(block, x, length=2)[0], "trunk_output")


TOKENS = {"output": lambda self, hidden, key=None: Scores((hidden @ self.w)[..., :E])}
CLASSES = {"output": lambda self, hidden, key=None: rows(hidden @ self.w)[..., :E]}
SENTENCES = {**TOKENS, "sentence": lambda self, hidden: rows(hidden @ self.w)[..., :2]}
AUDIO_FILES = {"memory_mask": lambda self, mask: mask}
TAUGHT = {
    **CLASSES,
    "both": lambda self, hidden: (rows(hidden @ self.w)[..., :E], rows(hidden @ self.w)[..., 1 : E + 1]),
}
PAIRS = {
    "hidden_states": lambda self, tokens, x, lengths=None, key=None: SimpleNamespace(states=x),
    "output": pairs,
    "match": lambda self, tokens, states, lengths=None, key=None: states[:, 2] @ self.w[:, :2] + tokens[:, :2],
}
GUESSED = {
    **TOKENS,
    "encode": lambda self, source, lengths, key=None: source,
    "length_scores": lambda self, memory: jnp.tile(rows(memory @ self.w), (1, 2)),
    "decode": lambda self, target, memory, lengths, target_lengths=None, key=None: memory + target[..., None] / E,
}


def points(self, source, target, lengths=None, key=None):
    hidden = source + target[..., None] / E
    return SimpleNamespace(states=hidden, attention=jax.nn.softmax((hidden @ self.w)[..., :E], axis=-1))


POINTS = {
    "hidden_states": points,
    "output": lambda self, hidden, key=None: Scores((hidden.states @ self.w)[..., :E]),
}


def denoised(self, images, times, classes, *, key=None):
    hint = times[:, None] / 1000 + self.w[classes, 5][:, None]
    return (images[..., 0] @ self.w[:, :D] + hint[..., None])[..., None]


DENOISES = {"__call__": denoised, "cfg": SimpleNamespace(classes=E, null=E)}


class Normalised(nnx.Module):
    """A batch normalisation, and classes."""

    def __init__(self):
        self.norm, self.out = BatchNorm(D), nnx.Linear(D, E, rngs=nnx.Rngs(0))

    def hidden_states(self, x, key=None):
        return self.norm(x)

    def observe(self, x, key=None):
        hidden, new = self.norm.observe(x)
        return hidden, {"norm": new}

    def output(self, hidden, key=None):
        return rows(self.out(hidden))


draw = np.random.default_rng(0)
SEEN = draw.normal(size=(B, T, D)).astype(np.float32)
COUNTS = np.array([6, 1, 4, 2, 5, 1, 3, 2])
"""Positions of each row that count."""
REAL = (np.arange(T) < COUNTS[:, None]).astype(np.float32)
ORDER = draw.permuted(np.tile(np.arange(1, E), (B, 2)), axis=1).astype(np.int32)
LABELS = draw.integers(0, E, (B, T)).astype(np.int32)
INPUTS = {"x": SEEN, "lengths": COUNTS.astype(np.int32)}
POSITIONS = {"inputs": INPUTS, "labels": LABELS, "weights": REAL}
ROWS = {"inputs": {"x": SEEN}, "labels": LABELS[:, 0], "weights": np.array([1, 0, 1, 1, 0.5, 1, 1, 1], np.float32)}
PLACES = {
    "inputs": INPUTS, "positions": np.tile(np.arange(M, dtype=np.int32), (B, 1)), "labels": LABELS[:, :M],
    "weights": REAL[:, :M], "next_sentence": (COUNTS % 2).astype(np.int32),
}  # fmt: skip
OBJECTS = {
    "inputs": {"x": SEEN},
    "labels": {
        "boxes": draw.uniform(0.2, 0.6, (B, M, 4)).astype(np.float32),
        "classes": draw.integers(0, E - 1, (B, M)).astype(np.int32),
        "weights": (np.arange(M) < (COUNTS - 1)[:, None]).astype(np.float32),
    },
    "weights": np.ones(B, np.float32),
}
SEGMENTS = {
    **OBJECTS,
    "labels": {
        "segments": np.random.default_rng(3).integers(-1, M, (B, 5, 7)).astype(np.int32),
        "classes": OBJECTS["labels"]["classes"],
        "weights": OBJECTS["labels"]["weights"],
    },
}
AUDIO = {"inputs": INPUTS, "labels": ORDER[:, :2], "weights": REAL[:, :2]}
TEXTS = {
    "inputs": {"tokens": LABELS % 2, "x": SEEN, "lengths": INPUTS["lengths"]},
    "weights": np.ones(B, np.float32),
}  # fmt: skip
TARGETS = {
    "inputs": {"source": SEEN, "target": LABELS, "lengths": INPUTS["lengths"]},
    "labels": LABELS,
    "weights": REAL,
}
TEACHER = {**ROWS, "teacher": {"logits": draw.normal(size=(B, E)).astype(np.float32)}}
STATES = {str(layer): draw.normal(size=(B, T, D)).astype(np.float32) for layer in (0, -1)}
HEADS = {part: {"1": draw.normal(size=(B, T, 2, 2)).astype(np.float32)} for part in ("query", "key", "value")}
MASKED = {**PLACES, "teacher": {"logits": draw.normal(size=(B, M, E)).astype(np.float32)}}
LAYERS = {**ROWS, "inputs": INPUTS, "teacher": {**TEACHER["teacher"], **HEADS, "hidden_states": STATES}}
ROUTED = ("balance", "router_z", "dropped")


CHOICES = {"output": lambda self, hidden, key=None: (hidden @ self.w)[..., :1]}
ASKED = {**ROWS, "inputs": {"x": SEEN, "lengths": (REAL * 3).astype(np.int32)}, "labels": LABELS[:, 0] % COUNTS}
ENDS = np.stack([LABELS[:, 0] % COUNTS, LABELS[:, 1] % COUNTS], axis=1).astype(np.int32)
SPANS = {"inputs": INPUTS, "labels": ENDS, "allowed": REAL > 0, "weights": ROWS["weights"]}


def columns(count):
    """Make rows of some texts, of vectors already, with a label."""
    labels = np.array([0.1, 0.9, 0.5, 0.5, 0.2, 0.8, 0.3, 0.7], np.float32)
    return {"inputs": {"x": SEEN[:, :count]}, "labels": labels, "weights": ROWS["weights"]}


QUERIES = {
    "inputs": {"x": SEEN.reshape(B, 2, T // 2, D)},
    "labels": (REAL > 0).reshape(B, 2, -1),
    "weights": ROWS["weights"],
}
NOISED = {"inputs": {"images": SEEN[..., None]}, "labels": LABELS[:, 0], "weights": ROWS["weights"]}


def quarters(self, images, masked=None, key=None):
    parts = images.reshape(len(images), 2, images.shape[1] // 2, 2, -1, 3).mean((2, 4)).reshape(-1, 4, 3)
    hidden = jnp.concatenate([parts, jnp.square(parts[..., :2])], axis=-1)
    return hidden if masked is None else jnp.where(masked[..., None], 0.5, hidden)


def answered(self, hidden, key=None):
    scores = rows(hidden * jnp.arange(1.0, 5.0)[:, None] @ self.w)
    return jnp.concatenate([scores, jnp.square(scores), -scores], axis=-1)[:, : self.answers]


def restored(self, hidden):
    """Give the pixels of patches, or of the image."""
    pixels = jnp.tile(hidden @ self.w[:, :6], 8)
    return pixels if self.flat else pixels.reshape(-1, 8, 8, 3)


PATCHES = SimpleNamespace(patches=SimpleNamespace(patch=(4, 4)))
VIEWED = {
    "hidden_states": quarters,
    "features": lambda self, hidden: hidden.mean(axis=-2),
    "patches": lambda self, hidden: hidden,
    "project": lambda self, x, real=None: jnp.tanh(x @ self.w),
    "project_patches": lambda self, x: jnp.tanh(x @ self.w),
    "predict": lambda self, z, real=None: z + jnp.tanh(2 * z[..., ::-1]),
    "output": answered,
    "width": E + 4,
}
AUTOENCODED = {
    "hidden_states": quarters,
    "encode": lambda self, images, noise, key=None: SimpleNamespace(hidden=quarters(self, images), masked=noise > 0.5),
    "decode": lambda self, encoded: encoded.hidden,
    "output": restored,
    "cfg": SimpleNamespace(encoder=PATCHES, backbone=PATCHES),
}
IMAGES = {"inputs": {"images": draw.normal(size=(B, 8, 8, 3)).astype(np.float32)}, "weights": ROWS["weights"]}
PHOTOS = {**IMAGES, "inputs": {"images": draw.normal(size=(B, 12, 12, 3)).astype(np.float32)}}


NAMED = {"hidden_states": quarters, "output": lambda self, hidden, key=None: (hidden @ self.w)[..., :E]}
WORDS = tuple(map(tuple, draw.uniform(-1, 1, size=(E, 48)).tolist()))


REGRESSED = {"inputs": {"images": SEEN[..., None]}, "labels": SEEN[..., None] / 2, "weights": ROWS["weights"]}
DRAWN = np.random.default_rng(7)
MAPPED = {
    **REGRESSED,
    "labels": DRAWN.integers(0, E, (B, T, D)).astype(np.int32),
    "weights": DRAWN.integers(0, 3, (B, T, D)).astype(np.float32),
}
GRID = {
    "hidden_states": lambda self, images, key=None: images,
    "output": lambda self, hidden, key=None: hidden[:, ::2, ::2] * self.w[0, :E],
}
ITSELF = property(lambda self: self)
PIXELS = {
    "hidden_states": lambda self, images, key=None: images,
    "output": lambda self, hidden, key=None: jnp.tanh(hidden[..., 0] @ self.w[:, :D])[..., None],
}


def judged(self, images, seen=None, key=None):
    return (images[..., 0] + (0 if seen is None else seen[..., 0])) @ self.w[:, 0]


def apart(key, rows):
    return [jax.random.fold_in(key, i) for i in range(rows)]


AGAINST = {**PIXELS, "generator": ITSELF, "discriminator": judged}
WAYS = ("forward", "backward")
CYCLE = {
    **PIXELS, "generator": ITSELF, "forward": ITSELF, "backward": ITSELF,
    "discriminator": property(lambda self: SimpleNamespace(**dict.fromkeys(WAYS, partial(judged, self)))),
}  # fmt: skip
NOISE = {
    "generator": ITSELF,
    "noise": lambda self, key, rows: jnp.stack([jax.random.normal(k, (D,)) for k in apart(key, rows)]),
    "__call__": lambda self, noise, labels: jnp.tanh(noise @ self.w)[:, None, :, None],
    "discriminator": lambda self, images, labels: images.mean(axis=(1, 2, 3)) * self.w[labels, 0],
}
