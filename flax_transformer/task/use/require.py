"""What a checkpoint must be and have for a use, said at the door."""

from typing import Any

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.open import UnreadableTokenizer
from flax_transformer.hub.processor.tokenizer import HubTokenizer


def require_class(pretrained: Pretrained, use: str, *endings: str) -> None:
    """Demand an architecture by the ending of its name.

    Raises:
      ValueError: a checkpoint of another kind.
    """
    name = pretrained.config["architectures"][0]
    if not name.endswith(endings):
        raise ValueError(f"to {use} takes a checkpoint …{' or …'.join(endings)}, got a {name}")


def tokenizer_of(pretrained: Pretrained) -> HubTokenizer:
    """Give the checkpoint's tokenizer.

    Raises:
      ValueError: when it has none, or one that cannot be read.
    """
    if pretrained.tokenizer is None:
        raise ValueError("text needs a tokenizer, the checkpoint has no tokenizer files")
    if isinstance(pretrained.tokenizer, UnreadableTokenizer):
        pretrained.tokenizer()
    return pretrained.tokenizer


def positions_of(config: Any) -> int | None:
    """Find how many positions a model's config has room for; None where it sets no limit."""
    for name in ("backbone", "encoder"):
        inner = getattr(config, name, None)
        if hasattr(inner, "embedding"):
            return positions_of(inner)
    table = config.embedding
    rotary = getattr(getattr(config, "block", None), "rotary", None) is not None
    return table.max_length if table.position == "learned" or rotary else None
