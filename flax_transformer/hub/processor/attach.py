"""Punctuation of decoded text, where tokens have lost the spaces there were."""

DETACHED = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)


def attach(text: str) -> str:
    """Draw punctuation and English contractions to the word before, as the original WordPiece models' output does."""
    for detached, attached in DETACHED:
        text = text.replace(detached, attached)
    return text
