"""Objectives: documents in, training examples out, each example a pure function of the data, a seed and its number.

Items come from a sequence (``Blocks``, ``Packed``, ``Windows``, any list), pass through transforms (``MaskedLM``,
``NextSentence``, ``SpanCorruption``, ``Denoise``, ``TextToText``), are collated to one shape (``Rows``, ``Pairs``) and
streamed by ``ExampleStream`` or, for evaluation, by ``each_once``.
"""

from flax_transformer.data.objective.block import Blocks
from flax_transformer.data.objective.causal import Packed, Windows
from flax_transformer.data.objective.collate import Pairs, Rows
from flax_transformer.data.objective.denoise import (
    DeleteTokens,
    Denoise,
    Infill,
    MaskTokens,
    PermuteSentences,
    Rotate,
)
from flax_transformer.data.objective.example import Examples, each_once, shuffled
from flax_transformer.data.objective.masked import MaskedLM, WordIds
from flax_transformer.data.objective.mixture import mixture, proportional
from flax_transformer.data.objective.next_sentence import NextSentence, bounds
from flax_transformer.data.objective.span import SpanCorruption
from flax_transformer.data.objective.stream import ExampleStream
from flax_transformer.data.objective.text_to_text import TextToText

__all__ = [
    "Blocks",
    "DeleteTokens",
    "Denoise",
    "ExampleStream",
    "Examples",
    "Infill",
    "MaskTokens",
    "MaskedLM",
    "NextSentence",
    "Packed",
    "Pairs",
    "PermuteSentences",
    "Rotate",
    "Rows",
    "SpanCorruption",
    "TextToText",
    "Windows",
    "WordIds",
    "bounds",
    "each_once",
    "mixture",
    "proportional",
    "shuffled",
]
