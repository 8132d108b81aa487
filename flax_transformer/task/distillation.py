"""Data with a teacher: what another checkpoint says of every training batch, as it is given to the student.

Axes: B rows, H W height and width in pixels, C channels, E classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from flax_transformer import hub
from flax_transformer.data.examples import Arrays
from flax_transformer.data.identity import digest
from flax_transformer.data.image import Normalise
from flax_transformer.data.stream import Stream
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.nn.config import configs_in
from flax_transformer.task.checkpoint import require_use
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import seen_by
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import Spec


@frozen
class TaughtImages(LabelledImages):
    """Lay out images as `LabelledImages` does; a training batch has the scores of a teacher too, [B, E], as
    `teacher["logits"]`.

    The teacher sees each image after all that is done to it at random, by its own mean and standard deviation.
    """

    teacher: str = ""
    """Checkpoint of a classifier of the same classes, a folder or hub id, such as a run's `export`; empty: none."""

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images and the teacher.

        Raises:
          ValueError: a teacher that does not classify, or that has other classes, channels or sizes of images.
        """
        found = super().open(data, context)
        if not self.teacher:
            print("no teacher: the labels alone are learned", flush=True)
            return found
        teacher = hub.load(self.teacher)
        check_teacher(self.teacher, teacher, found.spec)
        scale, shift = _line(teacher, found.held.normalise)

        def answer(model: Any, batch: Mapping[str, Any]) -> dict[str, Float[Array, "B E"]]:
            inputs = {**batch["inputs"], "images": batch["inputs"]["images"] * scale + shift}
            return {"logits": model.output(model.hidden_states(**inputs))}

        return replace(found, batches=TaughtStream(found.batches, self.teacher, teacher, answer))


class TaughtStream(Stream):
    """Another stream's batches, with what a teacher says: as many processes lay them out, each its own rows."""

    def __init__(
        self, batches: Stream, name: str, teacher: hub.Pretrained, answer: Callable[[Any, Mapping[str, Any]], Any]
    ):
        """Return what is taught.

        Args:
          batches: what the teacher sees too.
          name: of the teacher, for a message.
          answer: `answer(model, batch)` is what the teacher says, a pytree of arrays of the batch's rows.
        """
        super().__init__()
        self._taught, self._reading = batches, batches._reading
        self._model, self._answer = teacher.model, jax.jit(answer)
        leaves = (np.asarray(leaf) for leaf in jax.tree.leaves(teacher.model))
        self._teacher = digest(str(teacher.config), *leaves)
        print(f"teacher: {name}, {teacher.config['architectures'][0]}", flush=True)

    def identity(self) -> dict[str, Any]:
        """Name the batches and the teacher."""
        return {**self._taught.identity(), "teacher": self._teacher}

    def share(self, parts: tuple[int, ...], count: int) -> None:
        """Lay out only these parts of every batch's rows."""
        self._taught.share(parts, count)
        super().share(parts, count)

    def work_in(self, workers: int) -> None:
        """Refuse workers: the teacher answers where training is.

        Raises:
            ValueError: any.
        """
        if workers:
            raise ValueError(f"a teacher answers in the process that trains, which takes no workers, got {workers}")

    def check_rows(self, count: int) -> None:
        """Check that the rows of a batch are a multiple of ``count``; raise ValueError if not."""
        self._taught.check_rows(count)

    def make(self, step: int) -> Arrays:
        """Lay out this process's rows of the batch of a step, and ask the teacher, whose answers stay on its device."""
        batch = self._taught.make(step)
        return {**batch, "teacher": self._answer(self._model, batch)}


def check_teacher(name: str, teacher: hub.Pretrained, spec: Spec) -> None:
    """Refuse a teacher that does not tell the classes of the images at hand, or sees other ones.

    Raises:
      ValueError: says how it differs.
    """
    config, (height, width, channels) = teacher.config, spec.image
    require_use(teacher, "classification", "images")
    check_classes(name, teacher, spec)
    if (own := config.get("num_channels", channels)) != channels:
        raise ValueError(f"a teacher must see images of {channels} channels, as the student does, {name} sees {own}")
    sizes = [each.image for each in configs_in(teacher.model.cfg) if hasattr(each, "image")]
    if isinstance(teacher.processor, ImageProcessor) and (side := seen_by(teacher.processor).get("size")):
        sizes.append((side, side))
    for size in sizes:
        if tuple(size) != (height, width):
            raise ValueError(
                f"a teacher must see images of {height} × {width} pixels, as the student does, {name} sees "
                f"{size[0]} × {size[1]}"
            )


def check_classes(name: str, teacher: hub.Pretrained, spec: Spec) -> None:
    """Refuse a teacher of other classes than the data's.

    Raises:
      ValueError: says which.
    """
    classes = tuple(teacher.config.get("id2label", {}).values())
    if classes != spec.classes:
        raise ValueError(
            f"a teacher must tell {_spell(spec.classes)}, as the labels do, {name} tells {_spell(classes)}"
        )


def _spell(classes: tuple[str, ...]) -> str:
    few = ", ".join(classes[:5])
    return f"{len(classes)} classes ({few}{', …' if len(classes) > 5 else ''})"


def _line(teacher: hub.Pretrained, student: Normalise) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
    """Return the factor and the summand that make a student's values of channels those of the teacher."""
    ours = np.array(student.mean), np.array(student.std)
    known = seen_by(teacher.processor) if isinstance(teacher.processor, ImageProcessor) else {}
    mean, std = (np.array(known.get(name, own)) for name, own in zip(("mean", "std"), ours, strict=True))
    scale, shift = np.broadcast_arrays(ours[1] / std, (ours[0] - mean) / std)
    return scale.astype(np.float32), shift.astype(np.float32)
