"""Text in, batches of tokens out: sources, tokenizer, what examples are made of and how, fixed-shape batches.

Sources are sentence pairs (files, TFDS, number words) or running text. Items come from a sequence (``Blocks``,
``Packed``, ``TokenWindows``, any list), pass through transforms (``MLMMasking``, ``NextSentence``, ``SpanCorruption``,
``Denoise``, ``TextToText``) and are collated to one shape (``Rows``, ``Pairs``).
"""

from flax_transformer.data.text.batch import (
    Ragged,
    Tokenized,
    load_ragged,
    ragged,
    tokenize,
    tokenize_sources,
)
from flax_transformer.data.text.causal import Blocks, Packed, TokenWindows
from flax_transformer.data.text.denoise import (
    DeleteTokens,
    Denoise,
    Infill,
    MaskTokens,
    PermuteSentences,
    Rotate,
    SpanCorruption,
)
from flax_transformer.data.text.masked import MLMMasking, NextSentence, WordIds, sentence_bounds
from flax_transformer.data.text.padded_batch import FittedRows, Pairs, Rows, teacher_forcing_batch
from flax_transformer.data.text.pair import PairSource, TextToText
from flax_transformer.data.text.parallel import ParallelText, parallel_files, read_parallel
from flax_transformer.data.text.tfds import TfdsPairs, build_pairs, tfds_pairs
from flax_transformer.data.text.tokenizer import (
    BOS,
    EOS,
    PAD,
    UNK,
    Tokenizer,
    load_tokenizer,
    train_byte_bpe,
    train_word_bpe,
)

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "Blocks",
    "DeleteTokens",
    "Denoise",
    "FittedRows",
    "Infill",
    "MLMMasking",
    "MaskTokens",
    "NextSentence",
    "Packed",
    "PairSource",
    "Pairs",
    "ParallelText",
    "PermuteSentences",
    "Ragged",
    "Rotate",
    "Rows",
    "SpanCorruption",
    "TextToText",
    "TfdsPairs",
    "TokenWindows",
    "Tokenized",
    "Tokenizer",
    "WordIds",
    "build_pairs",
    "load_ragged",
    "load_tokenizer",
    "parallel_files",
    "ragged",
    "read_parallel",
    "sentence_bounds",
    "teacher_forcing_batch",
    "tfds_pairs",
    "tokenize",
    "tokenize_sources",
    "train_byte_bpe",
    "train_word_bpe",
]
