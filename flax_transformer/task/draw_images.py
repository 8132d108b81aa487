"""Images out of a checkpoint: by a diffusion Transformer of a class, or pixel by pixel by ImageGPT.

Axes: B images, H W height and width in pixels, C channels.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Shaped, UInt8

from flax_transformer import hub
from flax_transformer.data.image import Normalise
from flax_transformer.data.image.palette import Palette
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.diffusers_folder import autoencoder_folder, read_sampler
from flax_transformer.hub.file import find_folder
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.nn.config import check_at_least
from flax_transformer.task.checkpoint import require_use
from flax_transformer.task.diffusion import Denoised
from flax_transformer.task.gan import sample_run
from flax_transformer.task.generation import sample_images
from flax_transformer.task.image_generation import in_rows, save_pixels, strip
from flax_transformer.task.image_input import image_bytes, normalised, seen_by
from flax_transformer.task.run import open_run
from flax_transformer.train.folder import RunFolder, read_experiment


@frozen
class Drawing:
    """How images are generated."""

    count: int = 16
    """B, images."""
    classes: tuple[str, ...] = ()
    """Numbers or names of classes, which images take turns in; none: images of no class."""
    guidance: float | None = None
    """Scale of guidance towards the class: 1 for none, more for images that are more typical of it; None: 1."""
    steps: int | None = None
    """Calls of the model; None: 50."""
    temperature: float = 1.0
    """Of the colours that ImageGPT draws."""
    seed: int = 0
    """Of what is drawn; image i of a seed is the same however many there are."""

    def __post_init__(self):
        check_at_least(self, 1, "count", "steps")
        check_at_least(self, 0, "guidance")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if self.guidance not in (None, 1) and not self.classes:
            raise ValueError(f"guidance is towards a class, got guidance={self.guidance:g} and no class")


def draw_by_run(workdir: str | Path, drawing: Drawing) -> UInt8[np.ndarray, "B H W C"] | None:
    """Generate images by a run whose generator makes them of noise at once; None where the folder is no such run.

    Raises:
      ValueError: a class by name or one that it does not know, guidance or steps.
    """
    folder = RunFolder(Path(workdir))
    if not folder.config.is_file() or not hasattr(getattr(read_experiment(folder), "examples", None), "generation"):
        return None
    if drawing.guidance is not None or drawing.steps is not None or drawing.temperature != 1:
        raise ValueError("a generator makes images of noise at once, without guidance, steps or temperature, got some")
    if wrong := [name for name in drawing.classes if not name.isdecimal()]:
        raise ValueError(f"a class of a run is said by its number, got {wrong[0]!r}")
    return sample_run(open_run(folder.root), drawing.count, classes=tuple(map(int, drawing.classes)), seed=drawing.seed)


def draw_images(pretrained: Pretrained, drawing: Drawing) -> Shaped[np.ndarray, "B H W C"]:
    """Generate images, as bytes; of a model of latents the latents, as floats: see `decode_latents`.

    Raises:
      ValueError: a checkpoint that generates none, one without a scheduler, or a class that it does not know.
    """
    if pretrained.architecture.inputs.colours:
        return _pixel_by_pixel(pretrained, drawing)
    require_use(pretrained, "image-generation", "images")
    sampler = read_sampler(pretrained.generation, 50 if drawing.steps is None else drawing.steps)
    labels, guidance = _labels(pretrained, drawing), 1.0 if drawing.guidance is None else drawing.guidance
    images = sample_images(pretrained.model, Denoised(sampler=sampler, guidance=guidance), labels, seed=drawing.seed)
    normalise = _normalise(pretrained)
    return images if normalise is None else image_bytes(images, normalise.mean, normalise.std)


def open_autoencoder(name: str | Path, *, revision: str | None = None) -> Pretrained | None:
    """Open the autoencoder of a pipeline of diffusers, a folder or hub id; None where there is none.

    Raises:
      ValueError: one that is broken or not supported.
    """
    folder = autoencoder_folder(find_folder(name, revision))
    return None if folder is None else hub.load(folder)


def are_latents(images: Shaped[np.ndarray, "B H W C"]) -> bool:
    """Return whether what was generated are latents, and no bytes."""
    return images.dtype != np.uint8


AT_ONCE = 4
"""Images whose latents are decoded together."""


def decode_latents(autoencoder: Pretrained, latents: Float[np.ndarray, "B I J Z"]) -> UInt8[np.ndarray, "B H W C"]:
    """Make images, as bytes, of the latents of a diffusion model, a few at a time.

    Args:
      autoencoder: as `open_autoencoder` finds it.

    Raises:
      ValueError: latents of other channels than the autoencoder's.
    """
    if latents.shape[-1] != autoencoder.model.cfg.latents:
        raise ValueError(
            f"the autoencoder has latents of {autoencoder.model.cfg.latents} channels, the model makes "
            f"{latents.shape[-1]}"
        )
    parts = [_decoded(autoencoder.model, latents[i : i + AT_ONCE]) for i in range(0, len(latents), AT_ONCE)]
    return image_bytes(np.concatenate(parts), 0.5, 0.5)


@jax.jit
def _decoded(autoencoder: Any, latents: Array) -> Array:
    return autoencoder.decode(autoencoder.unscaled(latents))


def write_images(images: Shaped[np.ndarray, "B H W C"], path: Path) -> None:
    """Write images as a grid into a .png, or as an array into a .npy.

    Raises:
      ValueError: another suffix, or latents into a .png.
    """
    check_output(path)
    if path.suffix == ".npy":
        np.save(path, images)
        return
    if are_latents(images):
        raise ValueError(
            "the checkpoint makes latents, of which an autoencoder makes images, and there is no folder `vae` beside "
            f"it: --output FILE.npy keeps them, got {path}"
        )
    save_pixels(strip(in_rows(images, int(np.ceil(np.sqrt(len(images)))))), path)


def check_output(path: Path) -> None:
    """Check where images are to be written, before there are any.

    Raises:
      ValueError: another suffix, or a folder that is not there.
    """
    if path.suffix not in (".png", ".npy"):
        raise ValueError(f"images are written to a .png, or as an array to a .npy, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} to")


def _labels(pretrained: Pretrained, drawing: Drawing) -> Int[np.ndarray, "B"]:
    """Return the class of each image."""
    config = pretrained.model.cfg
    if not drawing.classes:
        return np.full(drawing.count, config.null)
    if not config.classes:
        raise ValueError(f"the checkpoint knows no classes, got {drawing.classes[0]!r}")
    names = pretrained.config.get("id2label") or {}
    numbers = {str(name): int(number) for number, name in names.items()}
    found = [numbers.get(each, int(each) if each.isdecimal() else -1) for each in drawing.classes]
    for each, number in zip(drawing.classes, found, strict=True):
        if not 0 <= number < config.classes:
            said = f" or one of {', '.join(list(numbers)[:20])}" if numbers else ""
            raise ValueError(f"a class must be a number from 0 to {config.classes - 1}{said}, got {each!r}")
    return np.resize(found, drawing.count)


def _normalise(pretrained: Pretrained) -> Normalise | None:
    """Return how the model sees images; None where it sees latents."""
    if not isinstance(pretrained.processor, ImageProcessor):
        return None
    seen = seen_by(pretrained.processor)
    return normalised(seen["mean"], seen["std"], pretrained.model.cfg.patches.channels)


def _pixel_by_pixel(pretrained: Pretrained, drawing: Drawing) -> UInt8[np.ndarray, "B H W C"]:
    """Draw images with ImageGPT, whose first token stands for the beginning.

    Raises:
      ValueError: a class, guidance or steps, of which it knows nothing, or no colours in its image processor.
    """
    if drawing.classes or drawing.guidance is not None or drawing.steps is not None:
        raise ValueError("a model of pixels one by one takes no class, guidance or steps, got some")
    clusters = np.array(getattr(pretrained.processor, "config", {}).get("clusters") or (), np.float64)
    if not clusters.size:
        raise ValueError("images are made of the colours of the checkpoint's image processor, which has no clusters")
    palette: Any = Palette(colours=tuple(map(tuple, clusters.tolist())))
    length, size = pretrained.model.cfg.embedding.max_length, pretrained.processor.config.get("size") or {}
    height = size.get("height", round(length**0.5)) if isinstance(size, dict) else round(length**0.5)
    if length % height:
        raise ValueError(f"positions must be those of the pixels of {height} lines, the model has {length}")
    prompt = np.full((drawing.count, 1), len(palette), np.int32)
    tokens = pretrained.generate(
        prompt, do_sample=True, key=jax.random.key(drawing.seed), temperature=drawing.temperature, top_k=0,
        max_new_tokens=length,
    )  # fmt: skip
    return palette.pixels(np.asarray(tokens)[:, 1:], height=height)
