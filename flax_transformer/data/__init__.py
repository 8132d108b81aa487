"""Text in, batches out: parallel files, TFDS corpora and number words; tokenizer; fixed-shape batches; pipeline."""

from flax_transformer.data.batch import (
    Batch,
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
from flax_transformer.data.numbers import english, german, numbers
from flax_transformer.data.pair import PairSource, TextPairs
from flax_transformer.data.parallel import ParallelText, parallel_files, read_parallel
from flax_transformer.data.pipeline import BatchStream, pipeline
from flax_transformer.data.tfds import TfdsPairs, build_number_words, build_pairs, tfds_pairs
from flax_transformer.data.tokenizer import (
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
    "Batch",
    "BatchStream",
    "BucketPlan",
    "PairSource",
    "ParallelText",
    "Ragged",
    "TextPairs",
    "TfdsPairs",
    "Tokenized",
    "Tokenizer",
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
    "tfds_pairs",
    "tokenize",
    "tokenize_sources",
    "train_byte_bpe",
    "train_word_bpe",
]
