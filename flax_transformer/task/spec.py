"""What the data say of themselves, and a model's config sized by it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from flax_transformer.frozen import frozen
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import HeadConfig
from flax_transformer.models.vision.uper_head import ConvHeadConfig, MLPHeadConfig, UPerHeadConfig
from flax_transformer.nn import EmbeddingConfig
from flax_transformer.nn.config import configs_in, map_configs


@frozen
class Spec:
    """Sizes that only the data know, and what a model trained on them can do."""

    uses: tuple[str, ...] = ()
    """What it can do, in the words of `hub.registration.USES`."""
    vocab: int | None = None
    """Tokens, where there are any."""
    length: int | None = None
    """Positions of every row, where all have as many."""
    multiple: int | None = None
    """Tables of tokens are rounded up to a multiple of this many rows; None leaves it to the config."""
    classes: tuple[str, ...] = ()
    """Names of the classes."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of config.json, for a checkpoint that lacks them."""
    next_sentence: bool = False
    """Whether there are sentences that follow each other."""
    image: tuple[int, int, int] | None = None
    """Height, width and channels of images, where there are any."""
    frames: int | None = None
    """Of videos, where there are any."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Other sizes, by the names of a config's fields."""
    audio: bool = False
    """Whether inputs are recordings."""
    letters: int | None = None
    """Tokens of a new vocabulary of letters, which needs a new head of a checkpoint's model."""
    objects: tuple[int, str] | None = None
    """The most objects of an image, where they are to be found, and the image's name."""


def sized(config: Any, spec: Spec) -> Any:
    """Return a config with the sizes of the data: vocabulary, positions, images, classes, a head for next sentences.

    >>> from flax_transformer.models.text.gpt2 import gpt2_tiny
    >>> sized(gpt2_tiny(), Spec(uses=("text-generation",), vocab=99)).embedding.vocab
    99
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    names = [each.name for each in dataclasses.fields(config) if each.init]
    changed = {name: sized(getattr(config, name), spec) for name in names}
    if isinstance(config, EmbeddingConfig) and spec.vocab is not None:
        changed["vocab"] = spec.vocab
        changed["multiple"] = config.multiple if spec.multiple is None else spec.multiple
    if isinstance(config, EmbeddingConfig) and spec.length is not None:
        changed["max_length"] = spec.length
    if isinstance(config, CausalConfig) and config.outputs is not None and spec.vocab is not None:
        changed["outputs"] = spec.vocab - (config.embedding.vocab - config.outputs)
    if isinstance(config, HeadConfig | UPerHeadConfig | MLPHeadConfig | ConvHeadConfig) and spec.classes:
        changed["outputs"] = len(spec.classes)
    if "classes" in changed and spec.classes:
        changed["classes"] = len(spec.classes)
    if spec.image is not None:
        said = {"image": spec.image[:2], "channels": spec.image[2]}
        said |= {} if spec.frames is None else {"frames": spec.frames}
        changed |= {name: value for name, value in said.items() if name in changed}
        changed = config.fitted(changed) if hasattr(config, "fitted") else changed
    changed |= {name: size for name, size in spec.sizes.items() if isinstance(changed.get(name), int)}
    if "next_sentence" in changed:
        changed["next_sentence"] = spec.next_sentence
    return replace(config, **changed)


def reaching(config: Any, length: int) -> Any:
    """Return a config that says of tables without positions, as beside rotary ones, that they are for rows so long.

    Such a length limits nothing, but a checkpoint says it to others.

    >>> from flax_transformer.models.text.llama import llama_tiny
    >>> reaching(llama_tiny(), 4096).embedding.max_length
    4096
    """

    def longer(each: Any) -> dict[str, int]:
        if isinstance(each, EmbeddingConfig) and each.position == "none":
            return {"max_length": max(each.max_length, length)}
        return {}

    return map_configs(longer, config)


def longest_sides(config: Any) -> tuple[int | None, int | None]:
    """Find how many positions a config has room for, of what is read and of what is written; None: no limit.

    They are one number but of an encoder-decoder whose sides have tables of their own.
    """
    source, target = (getattr(config, name, None) for name in ("source_embedding", "embedding"))
    if source is None:
        return longest(config), longest(config)
    return longest(source), longest(target)


def longest(config: Any) -> int | None:
    """Find how many positions a config has room for; None where it sets no limit."""
    tables = (each for each in configs_in(config) if isinstance(each, EmbeddingConfig))
    return min((table.max_length for table in tables if table.position == "learned"), default=None)


def check_length(examples: Any, config: Any) -> None:
    """Refuse rows that are longer than a model has positions, and targets longer than it can tell."""
    sides = [getattr(examples, f"{side}_length", None) for side in ("source", "target")]
    for side, length, room in zip(("source", "target"), sides, longest_sides(config), strict=True):
        if None not in (*sides, room) and length > room:
            raise ValueError(
                f"rows must not be longer than the positions, got {side}_length={length}, {room} positions"
            )
    length, room = getattr(examples, "positions", None) if None in sides else None, longest(config)
    if length is not None and room is not None and length > room:
        raise ValueError(f"rows must not be longer than the positions, got length={length}, {room} positions")
    tokens, known = getattr(examples, "tokens", None), getattr(config, "longest", None)
    if tokens is not None and known is not None and tokens > known:
        raise ValueError(
            "targets must not be longer than the lengths that the model predicts (--model.longest), got up to "
            f"{tokens} tokens, lengths up to {known}"
        )
