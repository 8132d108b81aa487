"""Data as endless examples with random access, streamed as batches; a folder for each kind of data.

Example number i is a pure function of the data, the transforms, a seed and i. `shuffled` makes examples of items and
transforms, `mixture` of several kinds, ``ExampleStream`` streams them for training and `each_once` for evaluation.
"""

from flax_transformer.data.examples import Collate, Example, Examples, each_once, mixture, proportional, shuffled
from flax_transformer.data.stream import ExampleStream, Stream

__all__ = [
    "Collate",
    "Example",
    "ExampleStream",
    "Examples",
    "Stream",
    "each_once",
    "mixture",
    "proportional",
    "shuffled",
]
