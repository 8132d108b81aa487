"""Answer questions about images."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.task.use.classify import ROWS, Label, ranked
from flax_transformer.task.use.image import read_image
from flax_transformer.task.use.require import image_processor_of, positions_of, require_use, tokenizer_of
from flax_transformer.task.use.several import File


def ask(pretrained: Pretrained, image: File | Any, questions: Sequence[str]) -> list[list[Label]]:
    """Answer questions about an image.

    Args:
      image: a file, or one of Pillow's.

    Returns:
      For each question all answers that the model knows, the most probable first.

    Raises:
      ValueError: a checkpoint of another kind, or of regions that a detector must have found; a file that is no
        image; a question that is empty or longer than the positions.
    """
    known, name = pretrained.architecture.inputs, pretrained.config["architectures"][0]
    if "regions" in known.reads:
        raise ValueError(
            f"a {name} answers by regions that a detector found in an image, which it is called with as "
            f"{' and '.join(each for each in known.needs if each.startswith('visual'))}; it was given the image"
        )
    require_use(pretrained, "ask", "images")
    tokenizer = tokenizer_of(pretrained, *questions)
    for question in questions:
        count, room = len(tokenizer([question])["input_ids"][0]), positions_of(pretrained.model.cfg)
        if not question.strip() or (room is not None and count > room):
            size = f"{count} of {question!r:.40}" if question.strip() else "none"
            raise ValueError(f"a question must have words, of at most {room} tokens, got {size}")
    image = image if hasattr(image, "getbands") else read_image(pretrained, image)
    seen = image_processor_of(pretrained)(image)
    found: list[list[Label]] = []
    for i in range(0, len(questions), ROWS):
        words = tokenizer(questions[i : i + ROWS])
        rows = len(words["input_ids"])
        repeated = {key: np.repeat(value, rows, axis=0) for key, value in seen.items()}
        found += ranked(pretrained, np.asarray(pretrained(**words, **repeated).logits.astype(np.float32)))
    return found
