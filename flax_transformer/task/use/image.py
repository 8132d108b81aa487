"""Tell what is on images, or give a vector for each.

Axes: B images, C channels, H W height and width, D width.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from flax_transformer.data.image import decode_image
from flax_transformer.hub import Pretrained
from flax_transformer.models.head import Head
from flax_transformer.task.use.classify import Label, ranked
from flax_transformer.task.use.require import file_of, image_processor_of, require_use
from flax_transformer.task.use.several import File

ROWS = 32
"""Images that are looked at together."""


def classify_images(pretrained: Pretrained, files: Sequence[File | Any]) -> list[list[Label]]:
    """Tell what is on images, given as files or as images of Pillow's.

    Returns:
      For each all classes, the most probable first, as `classify` gives them.

    Raises:
      ValueError: a checkpoint of another kind or without an image processor, or a file that is no image.
    """
    require_use(pretrained, "classify", "images")
    rows = (pretrained(**inputs).logits for inputs in batches(pretrained, files))
    return [labels for logits in rows for labels in ranked(pretrained, np.asarray(logits.astype(np.float32)))]


def embed_images(pretrained: Pretrained, files: Sequence[File | Any]) -> Float[np.ndarray, "B D"]:
    """Return a vector for each image: what the checkpoint's pooler or classifier makes of it, before any class.

    Raises:
      ValueError: a checkpoint that reads no images or has no image processor, or a file that is no image.
    """
    if "images" not in pretrained.architecture.inputs.reads:
        name = pretrained.config["architectures"][0]
        raise ValueError(f"a {name} reads {' and '.join(pretrained.architecture.inputs.reads)}, it was given images")
    image_processor_of(pretrained)
    if not files:
        return np.zeros((0, 0), np.float32)
    found = [np.asarray(_vectors(pretrained, inputs)) for inputs in batches(pretrained, files)]
    return np.concatenate(found).astype(np.float32)


@jax.jit
def _vectors(pretrained: Pretrained, inputs: dict[str, jax.Array]) -> Float[jax.Array, "B D"]:
    head, pixels = getattr(pretrained.model, "head", None), inputs.get("pixel_values")
    if isinstance(head, Head) and pixels is not None:
        vectors = head.pool(pretrained.model.hidden_states(jnp.moveaxis(pixels, 1, -1)))
        return vectors if vectors.ndim == 2 else vectors.mean(axis=1)
    output = pretrained(**inputs)
    if output.image_embeds is not None:
        return output.image_embeds
    if output.pooler_output is not None:
        return output.pooler_output.reshape(len(output.pooler_output), -1)
    return output.last_hidden_state.mean(axis=1)


def read_image(pretrained: Pretrained, file: File) -> Any:
    """Decode an image file, with as many channels as the model's images have.

    Raises:
      ValueError: no such file, or one that is no image.
    """
    return decode_image(file_of(pretrained, file, "images"), channels=1 if pretrained.config.channels == 1 else 3)


def batches(pretrained: Pretrained, files: Sequence[File | Any]) -> Iterator[dict[str, np.ndarray]]:
    """Return what the model is given of images, `ROWS` at a time; errors as `read_image`'s."""
    processor = image_processor_of(pretrained)
    for i in range(0, len(files), ROWS):
        part = files[i : i + ROWS]
        yield processor([each if hasattr(each, "getbands") else read_image(pretrained, each) for each in part])
