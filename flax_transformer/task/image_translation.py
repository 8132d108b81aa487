"""What a model makes of images: how near it is to what it should be, and `translate_image`.

Axes: B images, H W height and width in pixels, C channels.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from flax_transformer.data.image import Normalise, decode_image
from flax_transformer.frozen import frozen
from flax_transformer.metric.finite import check_finite
from flax_transformer.metric.image_quality import ImageQuality, image_quality
from flax_transformer.models.vision.image_to_image import as_output, generator_of
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_input import image_bytes
from flax_transformer.task.image_to_image import HeldTranslations, PairedImages
from flax_transformer.task.run import Run, open_run
from flax_transformer.text_table import align

GAP = 4
"""White pixels between the images of a sample."""


@frozen
class ImageTranslations(Evaluator):
    """Measure what is made of the test's images: L1, PSNR and SSIM, beside those of the images as they came in.

    Where no targets are known it measures nothing more than the objective does, and shows what is made.
    """

    takes: ClassVar[type] = HeldTranslations
    metric: ClassVar[str] = "ssim"

    count: int = 24
    """Images that the report shows: what came in, what was made, and what it should be."""

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"count must not be negative, got {self.count}")

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held = finished.opened.held
        metrics = {**tested(finished.objective, finished.model, finished.opened.test())}
        came, made, target = translated(generator_of(finished.model), held)
        found = image_quality(made, target) if held.known else None
        if found is None:
            return Shown(metrics=metrics, samples=self._samples(finished, came, made, target, None))
        copied = image_quality(came, target)
        means, before = ({name: float(np.mean(each)) for name, each in zip(ImageQuality._fields, of, strict=True)}
                         for of in (found, copied))  # fmt: skip
        metrics |= {**means, **{f"copied_{name}": value for name, value in before.items()}}
        rows = [
            (name, f"{v['l1']:.4f}", f"{v['psnr']:.2f}", f"{v['ssim']:.4f}")
            for name, v in (("as they came in", before), ("made", means))
        ]
        table = align([(f"{len(made):,} test images", "L1", "PSNR", "SSIM"), *rows], "lrrr")
        return Shown(
            metrics=metrics, samples=self._samples(finished, came, made, target, found), lines=("", table),
        )  # fmt: skip

    def _samples(
        self,
        finished: Finished,
        came: UInt8[np.ndarray, "B H W C"],
        made: UInt8[np.ndarray, "B H W C"],
        target: UInt8[np.ndarray, "B H W C"],
        quality: ImageQuality | None,
    ) -> list[dict[str, Any]]:
        """Draw some images beside each other, evenly over the test."""
        samples, held = [], finished.opened.held
        for number in (np.arange(min(self.count, len(made))) * len(made) // min(self.count, len(made))).tolist():
            said = "came in, made, " + ("target" if held.known else "one of the other set")
            if quality is not None:
                said += f"; L1 {quality.l1[number]:.3f}, SSIM {quality.ssim[number]:.3f}"
            saved = save_image(finished.folder.root, f"{number}", beside(came[number], made[number], target[number]))
            samples.append({"picture": saved, "source": Path(held.name(number)).name, "caption": said})
        return samples


def translated(model: Any, held: HeldTranslations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the test's images as they came in, in the size of what is made, what is made, and the targets: bytes."""
    mean, std = held.normalise.mean[0], held.normalise.std[0]
    parts: list[tuple[np.ndarray, ...]] = []
    for batch in held.batches():
        came, made = _translate(model, jnp.asarray(batch["inputs"]["images"]))
        check_finite("images that are made", np.asarray(made))
        real = batch["weights"] > 0
        parts.append(tuple(image_bytes(each, mean, std)[real] for each in (came, made, batch["labels"])))
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


@jax.jit
def _translate(model: Any, images: Array) -> tuple[Array, Array]:
    return as_output(images, model.cfg.output_channels, model.cfg.scale), model(images)


def beside(*images: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "H W C"]:
    """Put images of one size in a row."""
    gap = np.full((len(images[0]), GAP, images[0].shape[-1]), 255, np.uint8)
    return np.concatenate([part for image in images for part in (image, gap)][:-1], axis=1)


class ImageTranslator:
    """The generator of a run, with the size and the values of images that it was trained on.

    Args:
      run: of one of the recipes for images of images.
      backward: whether the way back is gone, by a model of both.

    Raises:
      ValueError: a run of something else.
    """

    def __init__(self, run: Run, *, backward: bool = False):
        self.model, examples = generator_of(run.model, backward=backward), run.recipe.examples
        if not isinstance(examples, PairedImages):
            raise ValueError(
                "images are translated by a run of image-to-image examples, the run has "
                f"{type(run.recipe.examples).__name__}"
            )
        self.values = examples.values

    def __call__(self, files: Iterable[Any]) -> list[Any]:
        """Return an image of Pillow's for each file or image of Pillow's; one of another size is resized before."""
        return [self._one(each) for each in files]

    def _one(self, file: Any) -> Any:
        import PIL.Image

        cfg, (mean, std) = self.model.cfg, self.values
        image = file if hasattr(file, "getbands") else decode_image(file, channels=cfg.channels)
        high, wide = cfg.image
        if image.size != (wide, high):
            image = image.resize((wide, high), PIL.Image.Resampling.BICUBIC)
        pixels = np.asarray(image.convert("L" if cfg.channels == 1 else "RGB")).reshape(1, high, wide, cfg.channels)
        normalise = Normalise(mean=(mean,) * cfg.channels, std=(std,) * cfg.channels)
        batch = normalise({"inputs": {"images": pixels}})
        made = image_bytes(_translate(self.model, jnp.asarray(batch["inputs"]["images"]))[1], mean, std)[0]
        return PIL.Image.fromarray(made[..., 0] if made.shape[-1] == 1 else made)


def open_image_translator(workdir: str | Path, *, backward: bool = False) -> ImageTranslator:
    """Open a finished or running run that translates images.

    Args:
      backward: whether the way back is gone, by a model of both.

    Raises:
      FolderError: no run of a recipe, or one without a checkpoint.
      ValueError: a run of something else.
    """
    return ImageTranslator(open_run(workdir), backward=backward)
