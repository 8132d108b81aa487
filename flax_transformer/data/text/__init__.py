"""Text in, batches of tokens out: sources, tokenizer, what examples are made of and how, fixed-shape batches.

Sources are sentence pairs (files, TFDS, number words) or running text. Items come from a sequence (``Blocks``,
``Packed``, ``Windows``, any list), pass through transforms (``MaskedLM``, ``NextSentence``, ``SpanCorruption``,
``Denoise``, ``TextToText``) and are collated to one shape (``Rows``, ``Pairs``); a ``BucketPlan`` has a few shapes.
"""

from flax_transformer.data.text.batch import (
    BucketPlan,
    Ragged,
    Tokenized,
    bucket_boundaries,
    collate,
    eval_batches,
    load_ragged,
    ragged,
    tokenize,
    tokenize_sources,
)
from flax_transformer.data.text.block import Blocks
from flax_transformer.data.text.causal import Packed, Windows
from flax_transformer.data.text.denoise import (
    DeleteTokens,
    Denoise,
    Infill,
    MaskTokens,
    PermuteSentences,
    Rotate,
)
from flax_transformer.data.text.masked import MaskedLM, WordIds
from flax_transformer.data.text.next_sentence import NextSentence, bounds
from flax_transformer.data.text.numbers import english, german, numbers
from flax_transformer.data.text.pair import PairSource, TextPairs
from flax_transformer.data.text.parallel import ParallelText, parallel_files, read_parallel
from flax_transformer.data.text.pipeline import BatchStream, pipeline
from flax_transformer.data.text.rows import FittedRows, Pairs, Rows, teach
from flax_transformer.data.text.span import SpanCorruption
from flax_transformer.data.text.text_to_text import TextToText
from flax_transformer.data.text.tfds import TfdsPairs, build_number_words, build_pairs, tfds_pairs
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
    "BatchStream",
    "Blocks",
    "BucketPlan",
    "DeleteTokens",
    "Denoise",
    "FittedRows",
    "Infill",
    "MaskTokens",
    "MaskedLM",
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
    "TextPairs",
    "TextToText",
    "TfdsPairs",
    "Tokenized",
    "Tokenizer",
    "Windows",
    "WordIds",
    "bounds",
    "bucket_boundaries",
    "build_number_words",
    "build_pairs",
    "collate",
    "english",
    "eval_batches",
    "german",
    "load_ragged",
    "load_tokenizer",
    "numbers",
    "parallel_files",
    "pipeline",
    "ragged",
    "read_parallel",
    "teach",
    "tfds_pairs",
    "tokenize",
    "tokenize_sources",
    "train_byte_bpe",
    "train_word_bpe",
]
